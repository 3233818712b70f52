"""Jacobi trajectories: their file format, and how they are collected.

Jacobi trajectories, and the file format that holds them.

A file of trajectories is JSON Lines, UTF-8, written by `decoding.json_log`. The first line says how they were collected; every
other line is a trajectory, or a prompt that was left out and why:

    {"block_size": 16, "base": "<SHA-256 of the base>", ...}
    {"id": "...", "step": "plan", "prompt": "...", "prompt_ids": [...], "prefix": 120, "answer_ids": [...],
     "forwards": 9, "blocks": [[[...], ...], ...]}
    {"prompt": "...", "left_out": "repeats"}

- `prefix`: how many of the first prompt tokens the prompts of a group share (the schema).
- `answer_ids`: the model's own greedy answer, its stop token included.
- `blocks[j]`: all states of block j in order, each beginning with the tokens that were already accepted; the first state is
  what the block began with, and the last is `answer_ids[j * n : (j + 1) * n]`, the fixed point. All states have n tokens
  except those of the last block, which end where the answer ends, because guesses past the end never become text. So there
  is no padding anywhere.
- `forwards`: how many of the target the whole answer took.

Collects greedy Jacobi trajectories of a model: the real decode loop runs, and every state is kept.

The drafting method is `jacobi` with a block that shrinks (Consistency LLMs), so that the initial guess, the window and the
sweep of the data are those of decoding. The answers are the model's own.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from decoding.engine.draft import Draft
from decoding.engine.loop import Request
from decoding.engine.method import Context, Method
from decoding.engine.rounds import Round
from decoding.engine.target import Array, ForwardOutput
from decoding.engine.verify import Verdict
from decoding.methods.jacobi_window import block_range
from decoding.methods.mask_guesses import FirstGuess
from decoding.methods.registry import load_method
from decoding.serving.text_decoder import TextDecoder
from decoding.tokenizer import Tokenizer
from training.packs.collect import Asked, Prompted, RecordLog, Share, answer_of, collect_answers, fault, read_records
from training.packs.groups import Group, TrainingDataError, validated

FILE = "trajectories.jsonl"
State = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Trajectory(Prompted):
    """The states through which one answer was decoded. The module's docstring describes the fields."""

    answer_ids: tuple[int, ...]
    forwards: int
    blocks: tuple[tuple[State, ...], ...]


def blocks_of(answer: Sequence[int], seen: Mapping[int, Sequence[State]], n: int) -> tuple[tuple[State, ...], ...]:
    """The states of every block of `n` tokens of `answer`, from those `seen` during decoding, by block.

    States are cut where the answer ends; duplicates are removed; the last state is the block's part of the answer.
    """
    blocks = []
    for number, start in enumerate(range(0, len(answer), n)):
        fixed = tuple(answer[start : start + n])
        states = [state[: len(fixed)] for state in seen.get(number, ())]
        blocks.append(tuple(dict.fromkeys([*states, fixed])))
    return tuple(blocks)


def read_trajectories(path: Path, base_sha256: str) -> Iterator[Trajectory]:
    """The trajectories of a file, in order. Raises TrainingDataError, which names a damaged line, or for another base."""
    records = read_records(path, "trajectory")
    _, origin = next(records, ("", {}))
    if "block_size" not in origin:
        raise TrainingDataError(f"{path} holds no trajectories: make them with `sqlagent train jacobi collect`")
    if origin.get("base") != base_sha256:
        raise TrainingDataError(f"{path} was collected with another base model: collect again with this one")
    for where, record in records:
        if "left_out" not in record:
            yield validated(Trajectory, record, f"{where}: no trajectory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Collecting(Share):
    """How to collect."""

    block_size: int
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

    def observe(self, draft: Draft, scores: ForwardOutput, verdict: Verdict) -> None:
        self._inner.observe(draft, scores, verdict)


def collect(
    decoder: TextDecoder,
    groups: Iterable[Group],
    log: RecordLog,
    how: Collecting,
    report: Callable[[str], None] = lambda line: None,
    stopped: Callable[[], bool] = lambda: False,
) -> dict[str, int]:
    """Decode the groups' prompts that are not in `log` yet, append the trajectories, and return counts: see `collect_answers`.

    Prompts are left out as `too_long`, for one of the reasons of `collect.collect.fault`.
    """
    kind = Trajectories(decoder.tokenizer, how)
    return collect_answers(decoder, groups, log, how, kind, "trajectories", report, stopped)


@dataclass(frozen=True, slots=True)
class Trajectories:
    """What is collected: one greedy decode per prompt, with every state."""

    tokenizer: Tokenizer
    how: Collecting

    def requests(self, asked: Asked) -> list[Request]:
        n = self.how.block_size
        recorder = Recorder(load_method("jacobi", block_size=n, refill=False, first_guess=self.how.first_guess), n)
        limit = self.how.max_new_tokens(asked.pair.step)
        return [Request(asked.ids, recorder, limit, stop=self.tokenizer.stop_ids)]

    def record(self, asked: Asked, requests: Sequence[Request], rounds: Sequence[Sequence[Round]]) -> Trajectory | str:
        answer = answer_of(rounds[0])
        if why := fault(self.tokenizer, rounds[0], self.how.free_text):
            return why
        recorder = requests[0].method
        assert isinstance(recorder, Recorder)
        return Trajectory(
            id=asked.pair.id,
            step=asked.pair.step,
            prompt=asked.prompt,
            prompt_ids=asked.ids,
            prefix=asked.prefix,
            answer_ids=answer,
            forwards=len(rounds[0]),
            blocks=blocks_of(answer, recorder.states, self.how.block_size),
        )
