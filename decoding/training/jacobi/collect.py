"""Greedy Jacobi trajectories of a model on its own prompts: the real decode loop runs, and every state is kept.

The method that drafts is `jacobi` with a block that shrinks (Consistency LLMs), so that the initial guess, the window and the
sweep of the data are those of decoding. Answers are the model's own: what the data's pairs answer serves for `only_right`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic

import numpy as np
from torch import Tensor

from decoding.draft import Draft
from decoding.engine import Request, decode
from decoding.jacobi_window import block_range
from decoding.method import Context, Method, load_method
from decoding.prefix_cache import common_length
from decoding.rounds import Round
from decoding.target import Scores
from decoding.text import TextDecoder
from decoding.tokenizer import Tokenizer
from decoding.training.data import Group, Pair
from decoding.training.jacobi.trajectory import State, Trajectory, TrajectoryLog, blocks_of
from decoding.training.report import duration
from decoding.verify import Verdict

# An answer repeats itself where a period of up to 16 tokens goes on for three more times, and for 10 tokens at least. Of
# 18,198 gold answers built from Spider, Spider-Syn and BIRD two do: plans with five equal conditions in a row.
_LONGEST_PERIOD, _MORE_TIMES, _LEAST_REPEATED = 16, 3, 10
_REPORT_S = 10.0


@dataclass(frozen=True, slots=True)
class Collecting:
    """How to collect. `max_new_tokens`: by step."""

    block_size: int
    max_new_tokens: Callable[[str], int]
    batch: int = 8  # prompts decoded together
    limit: int | None = None  # prompts tried, those of earlier runs included
    seed: int = 0  # order of the groups
    shard: tuple[int, int] = (0, 1)  # (i, n): every n-th group from the i-th on, so that n processes share the work
    only_right: bool = False  # leave out answers that are not the gold answer


@dataclass(frozen=True, slots=True)
class _Asked:
    """A prompt, its tokens, and how many of them its group shares."""

    pair: Pair
    prompt: str
    ids: tuple[int, ...]
    prefix: int


class Recorder:
    """A Jacobi method that keeps the whole block before every sweep: `states` by block, accepted tokens in front."""

    def __init__(self, inner: Method, block_size: int) -> None:
        self._inner, self._n = inner, block_size
        self.states: dict[int, list[State]] = {}

    @property
    def taps(self) -> tuple[int, ...]:
        return self._inner.taps

    def begin(self, prompt: Sequence[int], hidden: Tensor | None, context: Context) -> None:
        self._prompt_length, self.states = len(prompt), {}
        self._inner.begin(prompt, hidden, context)

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        """The whole block, even at the end of the room: the loop cuts off what is too deep."""
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
    """Decode the groups' prompts that are not in `log` yet, append what comes out, and return counts.

    `prompts`: tried now; `remaining`: not tried yet; `kept`; and by reason those left out: `too_long` for the model, `newline`
    (where the agent would cut it), `unfinished` within the limit, `empty`, `repeats`, `wrong`. `stopped` is asked after every
    batch. A prompt that stands in the data twice is decoded once.
    """
    listed = [asked for asked in _prompts(decoder, groups, how) if asked.prompt not in log.done]
    counts, progress = Counter({"prompts": 0, "kept": 0}), _Progress(len(listed), report)
    warm: set[tuple[int, ...]] = set()
    for start in range(0, len(listed), how.batch):
        if stopped():
            break
        batch = listed[start : start + how.batch]
        warm = _warmed(decoder, batch, warm)
        for asked, found in zip(batch, _decoded(decoder, batch, how), strict=True):
            counts["prompts"] += 1
            if isinstance(found, Trajectory):
                counts["kept"] += 1
                log.append(found)
            else:
                counts[found] += 1
                log.leave_out(asked.prompt, found)
        progress.tell(counts)
    return {**counts, "remaining": len(listed) - counts["prompts"]}


def _prompts(decoder: TextDecoder, groups: Iterable[Group], how: Collecting) -> list[_Asked]:
    """All prompts of the shard in order, groups shuffled by the seed, each once, up to the limit."""
    listed, (first, shards) = list(groups), how.shard
    asked: dict[str, _Asked] = {}
    for index in np.random.default_rng(how.seed).permutation(len(listed))[first::shards]:
        group = listed[index]
        prefix = decoder.tokenizer.encode(group.prefix)
        for pair in group.pairs:
            if how.limit is not None and len(asked) >= how.limit:
                return list(asked.values())
            prompt = group.prefix + pair.prompt
            ids = tuple(decoder.tokenizer.encode(prompt))
            asked.setdefault(prompt, _Asked(pair, prompt, ids, common_length(prefix, ids)))
    return list(asked.values())


def _warmed(decoder: TextDecoder, batch: Sequence[_Asked], warm: set[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """Put the batch's shared prefixes into the prefix cache, once each; returns them."""
    shared = {asked.ids[: asked.prefix] for asked in batch if asked.prefix}
    for prefix in sorted(shared - warm):
        if len(prefix) < decoder.target.max_length:
            list(decode(decoder.target, [Request(prefix, load_method("plain"), max_new_tokens=1)]))
    return shared


def _decoded(decoder: TextDecoder, batch: Sequence[_Asked], how: Collecting) -> list[Trajectory | str]:
    """Per prompt its trajectory, or why there is none."""
    fitting = [asked for asked in batch if 0 < len(asked.ids) < decoder.target.max_length]
    recorders = [
        Recorder(load_method("jacobi", block_size=how.block_size, refill=False), how.block_size) for _ in fitting
    ]
    requests = [
        Request(asked.ids, recorder, how.max_new_tokens(asked.pair.step), stop=decoder.tokenizer.stop_ids)
        for asked, recorder in zip(fitting, recorders, strict=True)
    ]
    rounds: list[list[Round]] = [[] for _ in fitting]

    def cut(sequence: int) -> bool:
        return "\n" in decoder.tokenizer.decode(_tokens(rounds[sequence]))

    for r in decode(decoder.target, requests, cancelled=cut):
        rounds[r.sequence].append(r)
    done = zip(fitting, recorders, rounds, strict=True)
    found = {asked.prompt: _outcome(decoder.tokenizer, asked, recorder, own, how) for asked, recorder, own in done}
    return [found.get(asked.prompt, "too_long") for asked in batch]


def _tokens(rounds: Iterable[Round]) -> list[int]:
    return [token for r in rounds for token in r.committed]


def _outcome(
    tokenizer: Tokenizer, asked: _Asked, recorder: Recorder, rounds: Sequence[Round], how: Collecting
) -> Trajectory | str:
    """The trajectory, or why it is left out."""
    answer = tuple(_tokens(rounds))
    right = list(answer[:-1]) == tokenizer.encode(asked.pair.answer)
    faults = {
        "newline": "\n" in tokenizer.decode(answer),
        "unfinished": rounds[-1].finish != "stop",
        "empty": len(answer) == 1,
        "repeats": repeats(answer),
        "wrong": how.only_right and not right,
    }
    if fault := next((name for name, found in faults.items() if found), None):
        return fault
    return Trajectory(
        id=asked.pair.id,
        step=asked.pair.step,
        prompt=asked.prompt,
        prompt_ids=asked.ids,
        prefix=asked.prefix,
        answer_ids=answer,
        right=right,
        forwards=len(rounds),
        blocks=blocks_of(answer, recorder.states, how.block_size),
    )


def repeats(tokens: Sequence[int]) -> bool:
    """Whether a token or a longer sequence stands there again and again, with nothing between."""
    return any(
        _longest_run(tokens, period) >= max(_MORE_TIMES * period, _LEAST_REPEATED)
        for period in range(1, _LONGEST_PERIOD + 1)
    )


def _longest_run(tokens: Sequence[int], period: int) -> int:
    """Tokens in a row that equal the one `period` before."""
    longest = run = 0
    for token, before in zip(tokens[period:], tokens, strict=False):
        run = run + 1 if token == before else 0
        longest = max(longest, run)
    return longest


class _Progress:
    """A line now and then: how many are done, how fast, and how long the others will take."""

    def __init__(self, total: int, report: Callable[[str], None]) -> None:
        self._total, self._report = total, report
        self._began_at = self._told_at = monotonic()
        report(f"collecting trajectories of {total:,} prompts")

    def tell(self, counts: Mapping[str, int]) -> None:
        now, done = monotonic(), counts["prompts"]
        if now - self._told_at < _REPORT_S and done < self._total:
            return
        self._told_at = now
        rate = done / max(now - self._began_at, 1e-3)
        left = duration((self._total - done) / rate)
        self._report(f"{done:,} of {self._total:,} prompts  {counts['kept']:,} kept  {rate:.2f} prompts/s  {left} left")
