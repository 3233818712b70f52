"""The frozen target's hidden states of its responses, on which every head is trained: computed once, memory-mapped from disk.

A target's hidden states of training data as it has them when it decodes, in int8 for instance.

A folder holds `states.bf16` (raw, [rows, taps, hidden], in the order of the packs), `packs.npz` (the forests) and
`features.json` (the target, the taps). A number takes 2 bytes, so a row takes 6,912 bytes for six taps of a target of width
576. Tokens that texts share are one row.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import accumulate, pairwise
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decoding.checkpoints.identity import TargetIdentity
from decoding.checkpoints.model_config import read_json
from decoding.engine.draft import Draft
from decoding.engine.sampler import Sampler
from decoding.engine.target import AnyTarget, ForwardInput
from decoding.errors import ModelUnavailable
from decoding.serving.text_decoder import TextDecoder
from training.config import TrainingError
from training.heads.responses import Response
from training.packs.groups import TokenPair
from training.packs.packing import ROOT, Pack, pack
from training.run.progress import duration


class EngineStates:
    """Feeds packs to a decoder's target, text by text; what texts share comes out of its prefix cache."""

    def __init__(self, decoder: TextDecoder) -> None:
        self._decoder = decoder

    def __call__(self, pack: Pack, taps: Sequence[int]) -> Tensor:
        """Hidden states [rows, taps, hidden] of every row, fp32; `decoding.engine.target.Target` defines taps."""
        return self._decoder.alone(lambda target: _states(target, pack, tuple(taps)))


def _states(target: AnyTarget, pack: Pack, taps: tuple[int, ...]) -> Tensor:
    depths = pack.positions()
    found = torch.empty(pack.rows, len(taps), target.embedding.shape[1])
    for start, stop in pack.chains():
        text = pack.tokens[_path(pack, stop - 1)].tolist()
        found[start:stop] = _fed(target, text, taps)[depths[start] :]
    return found


def _path(pack: Pack, row: int) -> list[int]:
    """The rows of the text that ends with this row."""
    path = [row]
    while (parent := int(pack.parents[path[-1]])) != ROOT:
        path.append(parent)
    return path[::-1]


def _fed(target: AnyTarget, text: Sequence[int], taps: tuple[int, ...]) -> Tensor:
    """The states [tokens, taps, hidden] of a text, which the target's prefix cache then holds."""
    sequence = target.open(text, Sampler(), taps)
    try:
        target.score([ForwardInput(sequence, text[sequence.cached :], Draft())])
        target.commit(sequence, ())
        return torch.as_tensor(
            np.array(sequence.hidden) if isinstance(sequence.hidden, np.ndarray) else sequence.hidden
        )
    finally:
        target.close(sequence)


STATES, PACKS, ABOUT = "states.bf16", "packs.npz", "features.json"
_REPORT_S = 10.0
_ROW_ARRAYS, _TARGET_ARRAYS = ("tokens", "parents"), ("sources", "targets", "weights", "owners")


@dataclass(frozen=True, slots=True)
class FeaturePack(Pack):
    """A forest whose states are on disk."""

    first: int  # index of its first row in the file of states


@dataclass(frozen=True, slots=True)
class Origin:
    """What a folder of features belongs to."""

    target: TargetIdentity
    taps: tuple[int, ...]
    hidden: int
    vocab: int
    pack_tokens: int
    seed: int
    responses: str  # digest of the forests
    dtype: str = "auto"  # in which the states were computed

    @property
    def row_bytes(self) -> int:
        return 2 * len(self.taps) * self.hidden


def packs_of(responses: Iterable[Response], max_rows: int, seed: int) -> tuple[list[Pack], int]:
    """Forests of the responses, and how many answers are too long. Tokens that a group's prompts share are one row."""
    return pack(groups_of(responses), max_rows, seed)


def groups_of(responses: Iterable[Response]) -> list[list[TokenPair]]:
    """The responses as pairs, those whose prompts begin alike together."""
    groups: dict[tuple[int, ...], list[TokenPair]] = defaultdict(list)
    for response in responses:
        groups[response.group] += response.pairs()
    return list(groups.values())


def digest_of(packs: Iterable[Pack]) -> str:
    """SHA-256 of what the forests hold."""
    digest = hashlib.sha256()
    for each in packs:
        for part in each.arrays():
            digest.update(part.tobytes())
    return digest.hexdigest()


States = Callable[[Pack, Sequence[int]], Tensor]
"""A pack and taps -> the target's hidden states [rows, taps, hidden] of the pack's rows."""


def write_features(
    states_of: States,
    packs: Sequence[Pack],
    origin: Origin,
    folder: Path,
    report: Callable[[str], None] = lambda line: None,
    stopped: Callable[[], bool] = lambda: False,
) -> bool:
    """Compute the missing states of all packs; returns whether all are there. Raises TrainingError for another origin."""
    folder.mkdir(parents=True, exist_ok=True)
    _claim(folder, origin, packs)
    firsts = _firsts(packs)
    path = folder / STATES
    there = path.stat().st_size // origin.row_bytes if path.exists() else 0
    done = sum(first <= there for first in firsts[1:])
    began_at = told_at = monotonic()
    report(
        f"states of {firsts[-1]:,} rows, {firsts[-1] * origin.row_bytes / 1e6:,.0f} MB; {firsts[done]:,} rows are there"
    )
    with path.open("ab") as file:
        file.truncate(firsts[done] * origin.row_bytes)
        for index in range(done, len(packs)):
            if stopped():
                return False
            states = states_of(packs[index], origin.taps)
            file.write(states.to("cpu", torch.bfloat16).contiguous().view(torch.uint8).numpy().tobytes())
            if monotonic() - told_at > _REPORT_S:
                told_at, rate = monotonic(), (firsts[index + 1] - firsts[done]) / (monotonic() - began_at)
                left = duration((firsts[-1] - firsts[index + 1]) / rate)
                report(f"{firsts[index + 1]:,} of {firsts[-1]:,} rows  {rate:.0f} rows/s  {left} left")
    return True


def _claim(folder: Path, origin: Origin, packs: Sequence[Pack]) -> None:
    """Write what the folder belongs to, or check that it is what is written there."""
    values = json.loads(json.dumps(asdict(origin)))
    if (folder / ABOUT).exists():
        found = read_json(folder / ABOUT)
        if changed := sorted(name for name in values if found.get(name) != values[name]):
            raise TrainingError(f"{folder} holds features with another {', '.join(changed)}: choose another folder")
        return
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(each, name) for each in packs]) for name in _ROW_ARRAYS + _TARGET_ARRAYS
    }
    for name, part in (("rows", "tokens"), ("counts", "targets"), ("pairs", "pairs")):
        arrays[f"n_{name}"] = np.array([len(getattr(each, part)) for each in packs])
    arrays["names"] = np.array([names for each in packs for names in each.pairs])
    np.savez(folder / PACKS, **arrays)
    (folder / ABOUT).write_text(json.dumps(values) + "\n", encoding="utf-8")


def _firsts(packs: Sequence[Pack]) -> list[int]:
    """The index of every pack's first row, and the number of rows."""
    return list(accumulate((each.rows for each in packs), initial=0))


class Features:
    """A finished folder. Raises TrainingError or ModelUnavailable if it is not one."""

    def __init__(self, folder: Path) -> None:
        raw = read_json(folder / ABOUT)
        try:
            values: Mapping[str, Any] = {field.name: raw[field.name] for field in fields(Origin)}
            self.origin = Origin(**{**values, "taps": tuple(raw["taps"]), "target": TargetIdentity(**raw["target"])})
        except (KeyError, TypeError) as error:
            raise ModelUnavailable(
                f"{folder} holds no features: make them with `sqlagent train head features`"
            ) from error
        self.packs = list(_packs(folder / PACKS))
        rows = sum(each.rows for each in self.packs)
        size = (folder / STATES).stat().st_size if (folder / STATES).exists() else 0
        if size != rows * self.origin.row_bytes:
            raise TrainingError(f"{folder} is not finished: give the same `sqlagent train head features` command again")
        numbers = rows * len(self.origin.taps) * self.origin.hidden
        flat = torch.from_file(str(folder / STATES), shared=False, size=numbers, dtype=torch.bfloat16)
        self._states = flat.view(rows, len(self.origin.taps), self.origin.hidden)

    def states(self, pack: FeaturePack, taps: Sequence[int]) -> Tensor:
        """[rows, taps, hidden] of a pack, fp32, read from disk. Raises TrainingError if a tap was not stored."""
        if missing := [tap for tap in taps if tap not in self.origin.taps]:
            raise TrainingError(
                f"the features lack tap {missing[0]} (they have {', '.join(map(str, self.origin.taps))}): make them anew"
            )
        columns = [self.origin.taps.index(tap) for tap in taps]
        return self._states[pack.first : pack.first + pack.rows][:, columns].float()

    def counts(self) -> Tensor:
        """How often each token occurs in the answers [vocab]."""
        targets = [torch.from_numpy(each.targets).long() for each in self.packs]
        return torch.bincount(torch.cat(targets), minlength=self.origin.vocab)


def _packs(path: Path) -> Iterable[FeaturePack]:
    stored = np.load(path)
    ends = {name: np.cumsum([0, *stored[f"n_{name}"]]).tolist() for name in ("rows", "counts", "pairs")}
    arrays: dict[str, Any] = {name: stored[name] for name in (*_ROW_ARRAYS, *_TARGET_ARRAYS, "names")}
    spans = zip(*(pairwise(ends[name]) for name in ("rows", "counts", "pairs")), strict=True)
    for rows, targets, pairs in spans:
        yield FeaturePack(
            **{name: arrays[name][slice(*rows)] for name in _ROW_ARRAYS},
            **{name: arrays[name][slice(*targets)] for name in _TARGET_ARRAYS},
            pairs=tuple((step, name) for step, name in arrays["names"][slice(*pairs)].tolist()),
            first=rows[0],
        )
