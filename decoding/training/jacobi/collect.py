"""Collects greedy Jacobi trajectories of a model: the real decode loop runs, and every state is kept.

The drafting method is `jacobi` with a block that shrinks (Consistency LLMs), so that the initial guess, the window and the
sweep of the data are those of decoding. The answers are the model's own; those of the data serve only for `only_right`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from decoding.engine.draft import Draft
from decoding.engine.loop import Request
from decoding.engine.method import Context, Method
from decoding.engine.records.rounds import Round
from decoding.engine.target import Array, Scores
from decoding.engine.verify import Verdict
from decoding.methods.jacobi.first_guess import FirstGuess
from decoding.methods.jacobi.window import block_range
from decoding.methods.registry import load_method
from decoding.serving.text_decoder import TextDecoder
from decoding.tokenizer.tokenizer import Tokenizer
from decoding.training.collect.collect import Asked, answer_of, collect_answers, fault
from decoding.training.data.groups import Group
from decoding.training.jacobi.trajectory import State, Trajectory, TrajectoryLog, blocks_of


@dataclass(frozen=True, slots=True)
class Collecting:
    """How to collect. `max_new_tokens`: by step."""

    block_size: int
    max_new_tokens: Callable[[str], int]
    batch: int = 8  # prompts decoded together
    limit: int | None = None  # the most prompts to try, those of earlier runs included
    seed: int = 0  # order of the groups
    free_text: bool = False  # see `decoding.training.collect.collect.Kind`
    only_right: bool = False  # leave out answers that differ from the gold answer
    first_guess: FirstGuess = "prompt"


class Recorder(Method):
    """A Jacobi method that keeps the whole block before every sweep: `states` by block, each with its accepted tokens first."""

    def __init__(self, inner: Method, block_size: int) -> None:
        self._inner, self._n, self.taps = inner, block_size, inner.taps
        self.states: dict[int, list[State]] = {}

    def begin(self, prompt: Sequence[int], hidden: Array | None, context: Context) -> None:
        self._prompt_length, self.states = len(prompt), {}
        self._inner.begin(prompt, hidden, context)

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        """The whole block, even beyond `room`: the loop cuts off what is too deep."""
        draft = self._inner.propose(tokens, room + self._n)
        generated = len(tokens) - self._prompt_length
        block = block_range(generated, self._n)
        accepted = tokens[self._prompt_length + block.start :]
        self.states.setdefault(block.start // self._n, []).append((*accepted, *draft.tokens))
        return draft

    def observe(self, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        self._inner.observe(draft, scores, verdict)


def collect(
    decoder: TextDecoder,
    groups: Iterable[Group],
    log: TrajectoryLog,
    how: Collecting,
    report: Callable[[str], None] = lambda line: None,
    stopped: Callable[[], bool] = lambda: False,
) -> dict[str, int]:
    """Decode the groups' prompts that are not in `log` yet, append the trajectories, and return counts: see `collect_answers`.

    Prompts are left out as `too_long`, for one of the reasons of `collect.collect.fault`, or as `wrong`.
    """
    kind = Trajectories(decoder.tokenizer, how)
    return collect_answers(decoder, groups, log, how, kind, "trajectories", report, stopped)


@dataclass(frozen=True, slots=True)
class Trajectories:
    """What is collected: one greedy decode per prompt, with every state."""

    tokenizer: Tokenizer
    how: Collecting

    @property
    def free_text(self) -> bool:
        return self.how.free_text

    def requests(self, asked: Asked) -> list[Request]:
        n = self.how.block_size
        recorder = Recorder(load_method("jacobi", block_size=n, refill=False, first_guess=self.how.first_guess), n)
        limit = self.how.max_new_tokens(asked.pair.step)
        return [Request(asked.ids, recorder, limit, stop=self.tokenizer.stop_ids)]

    def record(self, asked: Asked, requests: Sequence[Request], rounds: Sequence[Sequence[Round]]) -> Trajectory | str:
        answer = answer_of(rounds[0])
        right = list(answer[:-1]) == self.tokenizer.encode(asked.pair.answer)
        if (why := fault(self.tokenizer, rounds[0], self.free_text)) or (self.how.only_right and not right):
            return why or "wrong"
        recorder = requests[0].method
        assert isinstance(recorder, Recorder)
        return Trajectory(
            id=asked.pair.id,
            step=asked.pair.step,
            prompt=asked.prompt,
            prompt_ids=asked.ids,
            prefix=asked.prefix,
            answer_ids=answer,
            right=right,
            forwards=len(rounds[0]),
            blocks=blocks_of(answer, recorder.states, self.how.block_size),
        )
