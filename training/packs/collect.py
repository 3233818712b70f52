"""Collects a model's answers to the prompts of training data, in a file that a stopped run resumes.

Every other line is a record, or a prompt that was left out and why: `{"prompt": "...", "left_out": "repeats"}`. Each line is
flushed to disk, so that a killed collection can resume where it stopped.

The caller decides what to decode for each prompt and what to keep of it: Jacobi trajectories, or texts for draft heads.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from decoding.engine.loop import Request, decode
from decoding.engine.rounds import Round
from decoding.json_log import JsonLog, changed_keys, whole_lines
from decoding.methods.registry import load_method
from decoding.serving.text_decoder import TextDecoder
from decoding.targets.prefix_cache import common_length
from decoding.tokenizer import Tokenizer
from training.config import TrainingError
from training.packs.groups import Group, Pair, TrainingDataError
from training.run.progress import duration


class RecordLog:
    """Such a file, open for appending. Records are dataclasses with a `prompt`."""

    def __init__(self, path: Path, origin: Mapping[str, Any]) -> None:
        """Open or create the file. `done`: the prompts in it. Raises TrainingError if it has another `origin`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._log = JsonLog(path, separators=(",", ":"))
        self.done = {record["prompt"] for record in self._continue(json.loads(json.dumps(origin)))}

    def append(self, record: Any) -> None:
        """Write one record and flush it to disk."""
        self._log.write(asdict(record))

    def leave_out(self, prompt: str, reason: str) -> None:
        """Note that a prompt was tried and left out."""
        self._log.write({"prompt": prompt, "left_out": reason})

    def close(self) -> None:
        self._log.close()

    def _continue(self, origin: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The records of an existing file. A new file gets its origin."""
        if self.path.stat().st_size == 0:
            self._log.write(origin)
            return []
        [found, *records] = [record for _, record in read_records(self.path)]
        if changed := changed_keys(found, origin):
            raise TrainingError(
                f"{self.path} was collected with another {', '.join(changed)}: collect as before, or choose another folder"
            )
        return records


def read_records(path: Path, what: str = "record") -> Iterator[tuple[str, dict[str, Any]]]:
    """(location, record) of every line, the origin first. An incomplete last line, which a killed run leaves, is no record.

    Raises TrainingDataError, which names the line.
    """
    try:
        for number, line in whole_lines(path):
            yield f"{path}, line {number}", _object(line, f"{path}, line {number}", what)
    except OSError as error:
        raise TrainingDataError(f"{path} cannot be read: {error}") from error


def _object(line: str, where: str, what: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise TrainingDataError(f"{where}: no {what} ({error})") from error
    if not isinstance(record, dict):
        raise TrainingDataError(f"{where}: no {what}")
    return record


# An answer repeats itself if a sequence of up to 16 tokens is repeated at least three times right after itself, over at least
# 10 tokens. Of 18,198 gold answers built from Spider, Spider-Syn and BIRD, two do: plans with five equal conditions in a row.
_LONGEST_PERIOD, _MORE_TIMES, _LEAST_REPEATED = 16, 3, 10
_REPORT_S = 10.0


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt, its tokens, and how many of them its group shares."""

    pair: Pair
    prompt: str
    ids: tuple[int, ...]
    prefix: int


@dataclass(frozen=True, slots=True)
class Prompted:
    """A prompt that was decoded. prefix: how many of its first tokens the prompts of its group share."""

    id: str
    step: str
    prompt: str
    prompt_ids: tuple[int, ...]
    prefix: int

    @property
    def group(self) -> tuple[int, ...]:
        """The prefix that the prompts of its group share."""
        return self.prompt_ids[: self.prefix]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Which prompts are decoded, and how. max_new_tokens: by step. free_text: answers may have several lines and may be cut
    off; the agent's steps are one line each.
    """

    max_new_tokens: Callable[[str], int]
    batch: int = 8  # prompts decoded together
    limit: int | None = None  # the most prompts to try, those of earlier runs included
    seed: int = 0  # order of the groups
    free_text: bool = False


Record = TypeVar("Record")
Record_out = TypeVar("Record_out", covariant=True)


class Kind(Protocol[Record_out]):
    """What is collected."""

    @property
    def how(self) -> Share: ...

    def requests(self, asked: Asked) -> list[Request]:
        """The decodes of a prompt, at least one."""
        ...

    def record(self, asked: Asked, requests: Sequence[Request], rounds: Sequence[Sequence[Round]]) -> Record_out | str:
        """What to keep, or why the prompt is left out."""
        ...


def collect_answers(
    decoder: TextDecoder,
    groups: Iterable[Group],
    log: RecordLog,
    share: Share,
    kind: Kind[Record],
    what: str,
    report: Callable[[str], None] = lambda line: None,
    stopped: Callable[[], bool] = lambda: False,
) -> dict[str, int]:
    """Decode the groups' prompts that are not in `log` yet, append the results to it, and return counts.

    `prompts`: tried now; `remaining`: not tried yet; `kept`; and those left out, by reason (`too_long` for the model, and the
    kind's own). `stopped` is asked before every batch. A prompt that occurs twice in the data is decoded once.
    """
    return gather(decoder.tokenizer, groups, log, share, partial(map, Batches(decoder, kind)), what, report, stopped)


def gather(
    tokenizer: Tokenizer,
    groups: Iterable[Group],
    log: RecordLog,
    share: Share,
    decoded: Callable[[Sequence[Sequence[Asked]]], Iterator[list[Record | str]]],
    what: str,
    report: Callable[[str], None] = lambda line: None,
    stopped: Callable[[], bool] = lambda: False,
) -> dict[str, int]:
    """Like `collect_answers`, with decoding elsewhere. `decoded` maps batches to what `Batches` returns for each, in order."""
    listed = [asked for asked in _prompts(tokenizer, groups, share) if asked.prompt not in log.done]
    counts, progress = Counter({"prompts": 0, "kept": 0}), _Progress(len(listed), what, report)
    batches = [listed[start : start + share.batch] for start in range(0, len(listed), share.batch)]
    results = decoded(batches)
    for batch in batches:
        if stopped():
            break
        for asked, found in zip(batch, next(results), strict=True):
            counts["prompts"] += 1
            if isinstance(found, str):
                counts[found] += 1
                log.leave_out(asked.prompt, found)
            else:
                counts["kept"] += 1
                log.append(found)
        progress.tell(counts)
    return {**counts, "remaining": len(listed) - counts["prompts"]}


class Batches(Generic[Record]):
    """Decodes batches of prompts in this process: returns for each prompt the record to keep, or why it is left out."""

    def __init__(self, decoder: TextDecoder, kind: Kind[Record]) -> None:
        self._decoder, self._kind = decoder, kind
        self._warm: set[tuple[int, ...]] = set()

    def __call__(self, batch: Sequence[Asked]) -> list[Record | str]:
        self._warm = _warmed(self._decoder, batch, self._warm)
        return _decoded(self._decoder, batch, self._kind)


def _prompts(tokenizer: Tokenizer, groups: Iterable[Group], share: Share) -> list[Asked]:
    """All prompts, up to the limit, each once; the order of the groups is shuffled by the seed."""
    listed = list(groups)
    asked: dict[str, Asked] = {}
    for index in np.random.default_rng(share.seed).permutation(len(listed)):
        group = listed[index]
        prefix = tokenizer.encode(group.prefix)
        for pair in group.pairs:
            if share.limit is not None and len(asked) >= share.limit:
                return list(asked.values())
            prompt = group.prefix + pair.prompt
            ids = tuple(tokenizer.encode(prompt))
            asked.setdefault(prompt, Asked(pair, prompt, ids, common_length(prefix, ids)))
    return list(asked.values())


def _warmed(decoder: TextDecoder, batch: Sequence[Asked], warm: set[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """Put the batch's shared prefixes into the prefix cache, once each; returns them."""
    shared = {asked.ids[: asked.prefix] for asked in batch if asked.prefix}
    for prefix in sorted(shared - warm):
        if len(prefix) < decoder.target.max_length:
            list(decode(decoder.target, [Request(prefix, load_method("plain"), max_new_tokens=1)]))
    return shared


def _decoded(decoder: TextDecoder, batch: Sequence[Asked], kind: Kind[Record]) -> list[Record | str]:
    """For each prompt the record to keep, or why it is left out."""
    fitting = [asked for asked in batch if 0 < len(asked.ids) < decoder.target.max_length]
    wanted = [kind.requests(asked) for asked in fitting]
    requests = [request for each in wanted for request in each]
    rounds: list[list[Round]] = [[] for _ in requests]

    def cut(sequence: int) -> bool:
        return not kind.how.free_text and "\n" in decoder.tokenizer.decode(answer_of(rounds[sequence]))

    for r in decode(decoder.target, requests, cancelled=cut):
        rounds[r.sequence].append(r)
    found: dict[str, Record | str] = {}
    for asked, own in zip(fitting, wanted, strict=True):
        mine, rounds = rounds[: len(own)], rounds[len(own) :]
        found[asked.prompt] = kind.record(asked, own, mine)
    return [found.get(asked.prompt, "too_long") for asked in batch]


def answer_of(rounds: Iterable[Round]) -> tuple[int, ...]:
    """The tokens of a decode, its stop token included."""
    return tuple(token for r in rounds for token in r.committed)


def fault(tokenizer: Tokenizer, rounds: Sequence[Round], free_text: bool = False) -> str | None:
    """Why nothing can be learnt from an answer: it has a `newline` (where the agent would cut it), is `unfinished` within the
    limit, is `empty`, or `repeats` itself; None if it can be learnt from. The first two are no faults of free text."""
    answer = answer_of(rounds)
    faults = {
        "newline": not free_text and "\n" in tokenizer.decode(answer),
        "unfinished": not free_text and rounds[-1].finish != "stop",
        "empty": len(answer) == 1,
        "repeats": repeats(answer),
    }
    return next((name for name, found in faults.items() if found), None)


def repeats(tokens: Sequence[int]) -> bool:
    """Whether a token or a longer sequence is repeated many times with nothing in between."""
    return any(
        _longest_run(tokens, period) >= max(_MORE_TIMES * period, _LEAST_REPEATED)
        for period in range(1, _LONGEST_PERIOD + 1)
    )


def _longest_run(tokens: Sequence[int], period: int) -> int:
    """The longest run of tokens that equal the token `period` before them."""
    longest = run = 0
    for token, before in zip(tokens[period:], tokens, strict=False):
        run = run + 1 if token == before else 0
        longest = max(longest, run)
    return longest


class _Progress:
    """Reports from time to time how many prompts are done, how fast, and how long the rest will take."""

    def __init__(self, total: int, what: str, report: Callable[[str], None]) -> None:
        self._total, self._report = total, report
        self._began_at = self._told_at = monotonic()
        report(f"collecting {what} of {total:,} prompts")

    def tell(self, counts: Mapping[str, int]) -> None:
        now, done = monotonic(), counts["prompts"]
        if now - self._told_at < _REPORT_S and done < self._total:
            return
        self._told_at = now
        rate = done / max(now - self._began_at, 1e-3)
        left = duration((self._total - done) / rate)
        self._report(f"{done:,} of {self._total:,} prompts  {counts['kept']:,} kept  {rate:.2f} prompts/s  {left} left")
