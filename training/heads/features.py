"""The frozen target's hidden states of its responses, on which every head is trained: computed once, memory-mapped from disk.

A target's hidden states of training data as it has them when it decodes, in int8 for instance.

A folder holds `states.bf16` (raw, [rows, taps, hidden], in the order of the packs), `packs.npz` (the forests) and
`features.json` (the target, the taps). A number takes 2 bytes, so a row takes 6,912 bytes for six taps of a target of width
576. Tokens that texts share are one row.

How a kind of head is trained: its input, and how its objective is made by name (`decoding.heads.kinds`).

The target is frozen. Its hidden states of whole texts (prompt and the target's own answer) are computed once and stored on disk
(`features`); heads of all kinds are trained on them. Texts come in forests (`training.packs.packing`): tokens that
several texts share are one row, and a row sees its ancestors and itself.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import accumulate, pairwise
from pathlib import Path
from time import monotonic
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from decoding.checkpoints.identity import TargetIdentity
from decoding.checkpoints.model_config import ModelConfig, read_json
from decoding.engine.draft import Draft
from decoding.engine.sampler import Sampler
from decoding.engine.target import AnyTarget, ForwardInput
from decoding.errors import ModelUnavailable
from decoding.heads.head import Head, HeadConfig
from decoding.heads.kinds import KINDS, imported
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
                f"the features lack tap {missing[0]} (they have {', '.join(map(str, self.origin.taps))}): make them again"
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


@dataclass(frozen=True, slots=True)
class HeadBatch:
    """One forest on the head's device; floats are fp32, ids int64.

    `sources`, `targets` and `owners` are the answers, one after another, each in order: the target's own token after row
    `sources[j]` is `targets[j]`, and `tokens[sources[j + 1]] == targets[j]` if `owners[j + 1] == owners[j]`. So every j is an
    anchor: its token is `tokens[sources[j]]`, its context is the rows that this row sees, and the true continuation is
    `targets[j:]` of the same owner. An answer's last target is the stop token, which has no row. Two answers may share their
    first rows.
    """

    tokens: Tensor  # [rows]
    positions: Tensor  # [rows] position in the text, from 0
    parents: Tensor  # [rows] the previous row of the same text, or -1
    sees: Tensor  # [rows, rows] bool: row i attends to row j (its ancestors and itself)
    hidden: Tensor  # [rows, taps, hidden] the target's states at the head's own taps, in their order
    final: Tensor  # [rows, hidden] after the target's final norm: the target's logits are final @ lm_head.T
    sources: Tensor  # [targets] rows
    targets: Tensor  # [targets] token ids
    owners: Tensor  # [targets] which answer
    embedding: Tensor  # the target's [vocab, hidden], frozen
    lm_head: Tensor  # the target's [vocab, hidden], frozen
    progress: float = 1.0  # of the run, 0 to 1, for curricula; 1 outside training

    def ahead(self, count: int) -> tuple[Tensor, Tensor]:
        """What follows every anchor: (index [targets, count] into `targets`, whether it is of the same answer [.., count]).

        index[j, i] is j + i if that is valid, so that column 0 is the anchor's own target; otherwise j.
        """
        own = torch.arange(len(self.targets), device=self.targets.device)
        index = own[:, None] + torch.arange(count, device=own.device)
        inside = index < len(own)
        index = torch.where(inside, index, own[:, None])
        valid = inside & (self.owners[index] == self.owners[:, None])
        return torch.where(valid, index, own[:, None]), valid

    def logits(self, rows: Tensor, ids: Tensor | None = None) -> Tensor:
        """The target's own logits after some rows, [*rows, vocab], or only those of the tokens `ids`."""
        return self.final[rows] @ (self.lm_head if ids is None else self.lm_head[ids]).T


class HeadObjective(Protocol):
    """How one kind of head is made and trained: a frozen dataclass whose fields are its options, with the paper's defaults.

    Random draws (anchors, noise) come from torch's global generator, which the loop seeds for every pack.
    """

    def new(self, target: ModelConfig, counts: Tensor) -> Head:
        """An untrained head, sized for the target. counts [vocab]: how often each token occurs in the answers."""
        ...

    def loss(self, head: Any, batch: HeadBatch) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The mean loss over the batch's anchors, with gradient, and figures for the log (means, without gradient)."""
        ...


@runtime_checkable
class FromTarget(Protocol):
    """An objective whose heads are initialised from the target; most are initialised at random."""

    def start(self, head: Any, weights: Mapping[str, Tensor]) -> None:
        """Initialise `head`. weights: the target's, adapter included, with transformers' names."""
        ...


def load_objective(kind: str, **options: Any) -> HeadObjective:
    """The objective of a kind of head, with some of its options set. Raises TrainingError, which lists what there is."""
    if kind not in KINDS:
        raise TrainingError(f"no head of kind {kind!r} can be trained; choose one of: {', '.join(KINDS)}")
    objective = imported(KINDS[kind].objective, TrainingError)
    known = [field.name for field in fields(objective)]
    if unknown := sorted(set(options) - set(known)):
        raise TrainingError(f"{kind} has no option {unknown[0]}; it has: {', '.join(known) or 'none'}")
    return objective(**options)  # type: ignore[no-any-return]


def frequent_tokens(counts: Tensor, size: int) -> tuple[int, ...]:
    """The `size` most frequent tokens that occur in the answers, ascending; none if `size` is 0, for the whole vocabulary."""
    if not size:
        return ()
    best = counts.topk(min(size, len(counts)))
    return tuple(
        sorted(token for token, count in zip(best.indices.tolist(), best.values.tolist(), strict=True) if count)
    )


def batch_vocabulary(config: HeadConfig, batch: HeadBatch) -> Tensor:
    """Ids [size], ascending; all of them if the head names no frequent ones."""
    device = batch.tokens.device
    if not config.frequent:
        return torch.arange(config.vocab, device=device)
    ids: Tensor = torch.unique(torch.cat([torch.tensor(config.frequent, device=device), batch.tokens]))
    return ids


def places(ids: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """(the index in `ids` of each token, whether it is there); the index is 0 if it is not."""
    found = torch.searchsorted(ids, tokens).clamp_max(len(ids) - 1)
    inside = ids[found] == tokens
    return found.where(inside, 0), inside


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Losses [...] from logits [..., size] and `labels` [...], which are indices into the vocabulary."""
    return functional.cross_entropy(logits.flatten(0, -2).float(), labels.flatten(), reduction="none").view_as(labels)


def soft_cross_entropy(logits: Tensor, teacher: Tensor) -> Tensor:
    """Losses [...] from logits [..., size] to the distribution of `teacher` [..., size], which gets no gradient."""
    return -(teacher.detach().float().softmax(-1) * logits.float().log_softmax(-1)).sum(-1)
