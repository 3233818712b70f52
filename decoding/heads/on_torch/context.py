"""What heads on torch's operators share: the context as tensors, captured passes, a round's tree, and the draft vocabulary.

`decoding.heads.kinds` says which tokens may be drafted.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from decoding.checkpoints.model_config import Rope
from decoding.engine.method import Context
from decoding.engine.target import Array
from decoding.engine.tensor_choice import rank
from decoding.heads.head import Head, check_target
from decoding.heads.kinds import draft_ids
from decoding.heads.modules.layer import KeysValues
from decoding.targets.llama_model import RopeTable
from kernels.gpu.ragged import Graph, Ragged, RecentGraphs, SequenceRows, fetched_pair, fetched_pairs, sent

_TENSORS: WeakValueDictionary[int, Tensor] = WeakValueDictionary()  # by the array's id: a tensor keeps its array


@dataclass(frozen=True, slots=True)
class TensorContext(Context):
    """A context for heads on torch's operators."""

    embedding: Tensor  # the target's [vocab, hidden]
    lm_head: Tensor  # the target's [vocab, hidden]

    @classmethod
    def of(cls, context: Context) -> "TensorContext":
        """The context, its arrays as tensors over the same memory. An array has one tensor as long as that is used."""
        given = {each.name: getattr(context, each.name) for each in fields(context)}
        return cls(**given | {name: _tensor(given[name]) for name in ("embedding", "lm_head")})


def to_target(head: Head, context: TensorContext) -> Head:
    """The head, checked, on the target's device and in its type; a no-op if it is already there. Raises HeadMismatch."""
    check_target(head, context)
    embedding, first = context.embedding, next(head.parameters(), None)
    if first is not None and (first.device, first.dtype) != (embedding.device, embedding.dtype):
        with torch.no_grad():
            head.to(embedding.device, embedding.dtype)
    return head


def _tensor(array: Array) -> Tensor:
    found = array if isinstance(array, Tensor) else _TENSORS.get(id(array))
    if found is None:
        found = _TENSORS[id(array)] = torch.as_tensor(array)
    return found


_POSITIONS = 4096  # angles are computed for a multiple of so many
_MOST_GRAPHS = 16  # of a head


class TableHead(Protocol):
    """A head whose pass can read and write the texts' tables of keys and values."""

    kept: dict[str, Any]

    @property
    def all_sizes(self) -> dict[str, Any]: ...

    @property
    def read_shape(self) -> tuple[int, ...]:
        """Of what a row reads besides its token."""

    def in_tables(self, read: Tensor, rows: Ragged, embedding: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        """States [rows, width] from what rows read [rows, *read_shape]. turn: see `Attention.in_tables`."""


@dataclass(frozen=True, slots=True)
class _Pass:
    """A captured pass, and what it reads."""

    rows: Ragged
    read: Tensor
    graph: Graph[Tensor]


class TableGraphs:
    """A head's passes on a GPU, one graph for all texts. The kernels find the texts' tables by their addresses: no keys and
    values are copied, and the host launches one graph.
    """

    def __init__(self, head: TableHead, embedding: Tensor) -> None:
        self._head, self.embedding, self._passes = head, embedding, RecentGraphs[_Pass](_MOST_GRAPHS)
        self._turns: dict[int, tuple[Tensor, Tensor]] = {}  # by the number of positions; graphs need them to stay

    @torch.inference_mode()
    def states(self, rows: Sequence[SequenceRows], read: Sequence[Tensor]) -> list[Tensor]:
        """The states of each text's rows. read: what its first rows read besides their tokens; the others read nothing.

        Texts with too many rows for one graph take several.
        """
        from decoding.targets.cuda import SIZES, bucket_of

        half = len(rows) // 2
        if half and sum(map(len, rows)) > SIZES[-1]:
            return self.states(rows[:half], read[:half]) + self.states(rows[half:], read[half:])
        counts = [len(each) for each in rows]
        longest = -(-(1 + max(max(each.positions) for each in rows)) // _POSITIONS) * _POSITIONS
        trees = any(each.seen is not None for each in rows)
        sizes = bucket_of(counts, 0) or (len(rows), sum(counts), max(counts), 0)
        own = self._passes.get((sizes, trees, longest), partial(self._capture, sizes[:3], trees, longest))
        own.rows.fill(rows)
        for first, given in zip(accumulate(counts, initial=0), read, strict=False):
            own.read[first : first + len(given)].copy_(given)
        states = own.graph()[: sum(counts)].clone()  # the next pass overwrites them
        own.rows.parts.clear()  # a table goes with its text
        return list(torch.split(states, counts))

    def _capture(self, sizes: tuple[int, int, int], trees: bool, longest: int) -> _Pass:
        like = self.embedding
        rows = Ragged(*sizes, like.device, trees=trees)
        read = like.new_zeros(sizes[1], *self._head.read_shape)
        run = partial(self._head.in_tables, read, rows, like, self._turn(longest))
        return _Pass(rows, read, Graph(run, like.device))

    def _turn(self, count: int) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines [count, head_dim]."""
        if count not in self._turns:
            sizes, like = self._head.all_sizes, self.embedding
            table = RopeTable(Rope.of(sizes), sizes["head_dim"], like.dtype, like.device)
            pair = table.at(torch.arange(count, device=like.device), count)
            cos, sin = (part.reshape(count, -1).contiguous() for part in pair)
            self._turns[count] = cos, sin
        return self._turns[count]


def table_graphs(head: TableHead, embedding: Tensor) -> TableGraphs:
    """The head's passes for this target, for all its texts."""
    graphs: TableGraphs | None = head.kept.get("graphs")
    if graphs is None or graphs.embedding is not embedding:
        graphs = head.kept["graphs"] = TableGraphs(head, embedding)
    return graphs


class Branches:
    """The tree of one round.

    committed: each layer's keys and values of the committed rows, which every node sees. size: rows per node; the rows of a
    node see each other.
    """

    def __init__(self, committed: Sequence[KeysValues], size: int = 1) -> None:
        self._levels, self._size = [list(committed)], size
        self._committed, self._device = committed[0][0].shape[1], committed[0][0].device
        # [nodes of the last level, drafted rows]: which rows each node sees; the root sees none.
        self._seen = torch.zeros(1, 0, dtype=torch.bool, device=self._device)

    def known(self, layer: int = 0) -> list[KeysValues]:
        """All keys and values of a layer, in the order of `visible`."""
        return [level[layer] for level in self._levels]

    def visible(self, parents: Sequence[int]) -> Tensor:
        """[nodes * size, committed + drafted + nodes * size]: what the next level's rows see. parents: in the last level."""
        nodes = len(parents)
        own = torch.eye(nodes, dtype=torch.bool, device=self._device).repeat_interleave(self._size, 1)
        self._next = torch.cat([self._seen[sent(parents, self._device)], own], 1)
        committed = torch.ones(nodes, self._committed, dtype=torch.bool, device=self._device)
        return torch.cat([committed, self._next], 1).repeat_interleave(self._size, 0)

    def grow(self, own: Sequence[KeysValues]) -> None:
        """Add the next level's keys and values by layer; its nodes are those of the last call of `visible`."""
        self._levels.append(list(own))
        self._seen = self._next


def no_rows(kv_heads: int, head_dim: int, like: Tensor) -> KeysValues:
    """Keys and values of no rows."""
    empty = like.new_empty(kv_heads, 0, head_dim)
    return empty, empty


def joined(*parts: KeysValues) -> KeysValues:
    """The keys and the values of all parts, concatenated along the rows."""
    keys, values = zip(*parts, strict=True)
    return torch.cat(keys, 1), torch.cat(values, 1)


def log_probabilities(scores: Tensor) -> Tensor:
    """Log-softmax over the last dimension. NaN becomes -inf, so that a head that overflows costs speed only."""
    return scores.log_softmax(-1).nan_to_num(nan=float("-inf"), neginf=float("-inf"))


class DraftVocabulary:
    """Token ids, and the LM head's rows for them.

    ids: [size] ascending; None drafts the target's whole vocabulary. Tensors [..., size] have one entry per id, in that order.
    """

    def __init__(self, context: TensorContext, ids: Iterable[int] | None = None, of_head: bool = False) -> None:
        """of_head: the ids are the head's own, the same for all texts."""
        self._sampler, self._lm_head = context.sampler, context.lm_head
        self.is_whole = ids is None
        self.is_common = (of_head or self.is_whole) and context.sampler.temperature == 0  # no text ranks otherwise
        self.ids = torch.arange(len(context.lm_head)) if ids is None else torch.tensor(sorted(set(ids)))
        self.ids = self.ids.to(context.lm_head.device)

    @cached_property
    def rows(self) -> Tensor:
        """[size, hidden]; a head with rows of its own asks for none."""
        return self._lm_head if self.is_whole else self._lm_head[self.ids]

    @classmethod
    def for_prompt(cls, context: TensorContext, frequent: Iterable[int], prompt: Iterable[int]) -> "DraftVocabulary":
        """The frequent tokens, the prompt's and the recall's; the whole vocabulary if `frequent` is empty."""
        always = tuple(frequent)
        return cls(context, draft_ids(context, always, prompt) if always else None)

    def logits(self, states: Tensor) -> Tensor:
        """[..., hidden] -> [..., size]."""
        return states @ self.rows.T

    def ranked(self, logits: Tensor, positions: Tensor) -> Tensor:
        """Log-probabilities [rows, size], fp32, that a token will be the target's choice at `positions` [rows].

        At T > 0 the target's choice is an argmax over logits / T + keyed noise, and the noise is known: only the target's
        logits are uncertain. If their error follows a Gumbel distribution, the softmax of the noisy guesses is exact.
        """
        return log_probabilities(self.noisy(logits, positions))

    def noisy(self, logits: Tensor, positions: Tensor) -> Tensor:
        """`ranked` before normalisation; linear in the logits, with the factor `sharpness`."""
        return rank(self._sampler, logits, positions[:, None], self.ids)

    @property
    def sharpness(self) -> float:
        """1 / T; 1 at T = 0."""
        return 1.0 / (self._sampler.temperature or 1.0)

    def best(self, scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The best `count` per row, best first: token ids and scores, each [rows, count], on the processor."""
        return fetched_pair(*self.top(scores, count))

    def top(self, scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """`best`, on the device."""
        top = scores.topk(min(count, scores.shape[-1]), dim=-1)
        return self.ids[top.indices], top.values


@dataclass(frozen=True, slots=True)
class Ranking:
    """What one text wants to know: the best `count` tokens after each of its states [units, ...], for these positions."""

    vocabulary: DraftVocabulary
    states: Tensor
    positions: Sequence[int]
    count: int


def best_of(
    asked: Sequence[Ranking], logits: Callable[[Tensor, DraftVocabulary], Tensor] | None = None
) -> list[tuple[Tensor, Tensor]]:
    """The best tokens and their log-probabilities, on the processor, with one wait. Texts that rank alike are ranked together.

    logits: [positions, size] of states; None: the vocabulary's.
    """
    alike: dict[tuple[int, int], list[int]] = {}
    for place, each in enumerate(asked):
        alike.setdefault((each.count, -1 if each.vocabulary.is_common else place), []).append(place)
    found: dict[int, tuple[Tensor, Tensor]] = {}
    for (count, _), places in alike.items():
        texts, vocabulary = [asked[place] for place in places], asked[places[0]].vocabulary
        states = torch.cat([each.states for each in texts]) if len(texts) > 1 else texts[0].states
        scores = vocabulary.logits(states) if logits is None else logits(states, vocabulary)
        positions = sent([position for each in texts for position in each.positions], states.device)
        best, sizes = (
            vocabulary.top(vocabulary.ranked(scores, positions), count),
            [len(each.positions) for each in texts],
        )
        parts = (torch.split(part, sizes) for part in best)
        found |= dict(zip(places, zip(*parts, strict=True), strict=True))
    return fetched_pairs([found[place] for place in range(len(asked))]) if asked else []
