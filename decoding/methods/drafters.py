"""Methods with a drafter: draft model, EAGLE-3, Falcon, Medusa.

- `Medusa` (arXiv 2401.10774) guesses several positions at once from the last hidden state, without a pass of a drafter. The
  released code verifies one fixed tree of 63 nodes; here each round's tree holds the `budget` most probable paths of that
  round, so no fixed tree of that size is more probable. Typical acceptance is left out: it is not lossless.
- `DraftModel` (arXiv 2211.17192, 2302.01318): a smaller language model with the same tokenizer drafts a chain. It ranks its
  guesses with the target's own keyed noise, so that at T > 0 two equal models write the same chain. A guess is accepted if it
  equals the target's choice, as for every method here; there is no rejection sampling.
- `Eagle3` (arXiv 2503.01840) with EAGLE-2's dynamic tree: the drafter runs once per level, on its own states. Its keys and
  values are kept for committed tokens alone, computed from the target's own states; those of drafted tokens are dropped after
  the round.
- `Falcon` (arXiv 2412.12639): a drafter that computes k levels of the tree per pass. The released code uses fixed trees of 106
  to 168 nodes; here the tree holds the `budget` most probable paths that a beam search over whole passes finds. The released
  code also runs k - 1 committed tokens through the target again to get their features; here the features of all committed
  tokens are kept.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import exp
from pathlib import Path
from typing import ClassVar

from decoding.engine.constraint import ConstraintCursor
from decoding.engine.draft import ROOT, Draft
from decoding.engine.method import Context, DeviceFloat, DeviceInt, Drafting, HeadMethod, on_device
from decoding.engine.target import Array, ForwardOutput
from decoding.engine.verify import Verdict
from decoding.heads.head import Head, HeadMismatch, drafting_head
from decoding.heads.modules.drafters import Eagle3Head, FalconHead, MedusaHead, SmallLm
from decoding.methods.head_runtimes import (
    Reader,
    committed_hidden,
    computed,
    eagle3_runtime,
    falcon_runtime,
    medusa_runtime,
    reader,
)
from decoding.methods.trees import (
    LEAST,
    BeamSearch,
    Bounds,
    Level,
    admitted,
    best_first,
    budgeted,
    levels,
    offered,
)


class Medusa(HeadMethod):
    """head: a folder, or "auto" for the shipped one. budget, least: see `Bounds`. top_k: guesses per position. On a GPU the
    default is the released code's 63 nodes.
    """

    kind: ClassVar[str] = "medusa"

    def __init__(
        self, head: Head | str = "auto", budget: int = DeviceInt(16, gpu=63), top_k: int = 10, least: float = LEAST
    ) -> None:
        found = drafting_head(self.kind, head, MedusaHead)
        if top_k < 1:
            raise ValueError(f"top_k must be 1 or more, not {top_k}")
        self._head, self._given, self._top_k = found, Bounds(budget, least), top_k
        self.taps = found.config.taps

    def begin(self, prompt: Sequence[int], hidden: Array | None, context: Context) -> None:
        self._bounds = self._given.on(context.runtime)
        self._drafter, self._cursor = medusa_runtime(self._head, context, prompt), context.cursor
        self._seen = 0  # tokens whose states were read
        self._last: Array | None = None  # state [hidden] of the last of them
        if hidden is not None:
            self._read(hidden)

    def drafting(self, tokens: Sequence[int], room: int) -> Drafting:
        late = len(tokens) - 1 - self._seen  # forced tokens, which the target has not read yet
        heads = range(late, min(late + room, self._head.size("heads")))
        if self._last is None or not heads:
            return Draft()
        cursor, drafter = self._cursor(), self._drafter
        asked = self._last, heads, len(tokens), offered(self._top_k, cursor)
        guesses = yield from computed(drafter.best_of, drafter, *asked)
        return best_first(levels(guesses), self._bounds, cursor)

    def observe(self, draft: Draft, scores: ForwardOutput, verdict: Verdict) -> None:
        self._read(committed_hidden(draft, scores, verdict))

    def _read(self, hidden: Array) -> None:
        """Take in the states [new, taps, hidden] of the next tokens."""
        if len(hidden):
            self._seen, self._last = self._seen + len(hidden), hidden[-1, -1]


class DraftModel(HeadMethod):
    """head: "auto" for the shipped drafter, or a folder: one that `sqlagent train head` wrote, or any small model's checkpoint.

    draft_tokens: maximum length of a chain. threshold: drafting stops after a guess that is less probable than this. On a GPU
    the defaults are those of transformers, 20 and 0.4.
    """

    kind: ClassVar[str] = "draft_model"

    def __init__(
        self,
        head: Head | str = "auto",
        draft_tokens: int = DeviceInt(6, gpu=20),
        threshold: float = DeviceFloat(0.3, gpu=0.4),
    ) -> None:
        if draft_tokens < 1 or not 0.0 <= threshold <= 1.0:
            raise ValueError("draft_tokens must be 1 or more, and threshold lie between 0 and 1")
        self._given = draft_tokens, threshold
        checkpoint = isinstance(head, str) and head != "auto" and _is_checkpoint(Path(head).expanduser())
        self._source = Path(str(head)).expanduser() if checkpoint else drafting_head(self.kind, head, SmallLm)

    def begin(self, prompt: Sequence[int], hidden: Array | None, context: Context) -> None:
        draft_tokens, threshold = self._given
        self._draft_tokens = on_device(draft_tokens, context.runtime)
        self._threshold = on_device(threshold, context.runtime)
        self._reader, self._cursor = reader(self._source, context, prompt), context.cursor
        _check_vocabulary(self._reader, context)

    def drafting(self, tokens: Sequence[int], room: int) -> Drafting:
        guesses: list[int] = []
        cursor, most, reader = self._cursor(), min(room, self._draft_tokens), self._reader
        unread, keep = list(tokens[reader.kept :]), True  # what is read next, and whether it is text
        while len(guesses) < most:
            forced = cursor is not None and bool(cursor.run)  # a forced token needs no guess
            level = Level((), ())
            if keep or not forced:
                asked = unread, keep, len(tokens) + len(guesses), 0 if forced else offered(1, cursor)
                _, found = yield from computed(reader.after, reader, *asked)
                unread, keep = [], False
                level = level if found is None else levels(found)[0]
            token, score = next(admitted(level, cursor), (None, 0.0))
            if token is None:
                break
            guesses.append(token)
            unread.append(token)
            cursor = cursor and cursor.after(token)
            if exp(score) < self._threshold:
                break
        return Draft.chain(guesses)

    def observe(self, draft: Draft, scores: ForwardOutput, verdict: Verdict) -> None:
        """Nothing to learn: it reads only the text."""


def _is_checkpoint(folder: Path) -> bool:
    """Whether a folder holds a language model rather than a head."""
    return (folder / "config.json").exists() and not (folder / "head.safetensors").exists()


def _check_vocabulary(drafter: Reader, context: Context) -> None:
    """Raise HeadMismatch if the drafter lacks tokens. Models of one family pad their matrices differently, but agree on what
    every token means.
    """
    mine, theirs = drafter.vocab_size, len(context.lm_head)
    if mine < theirs:
        raise HeadMismatch(
            f"the draft model has {mine} tokens and the model {theirs}: choose one with the same tokenizer"
        )


class Eagle3(HeadMethod):
    """head: a folder, or "auto" for the shipped one. budget, least: see `Bounds`. width: nodes expanded per level.

    depth: levels at most. On a GPU the defaults are those of the released code: 59 nodes, width 10 and depth 8.
    """

    kind: ClassVar[str] = "eagle3"

    def __init__(
        self,
        head: Head | str = "auto",
        budget: int = DeviceInt(16, gpu=59),
        width: int = DeviceInt(4, gpu=10),
        depth: int = DeviceInt(6, gpu=8),
        least: float = LEAST,
    ) -> None:
        found = drafting_head(self.kind, head, Eagle3Head)
        if min(width, depth) < 1:
            raise ValueError(f"width and depth must be 1 or more, not {width} and {depth}")
        self._head, self._given = found, (Bounds(budget, least), width, depth)
        self.taps = found.config.taps

    def begin(self, prompt: Sequence[int], hidden: Array | None, context: Context) -> None:
        bounds, width, depth = self._given
        self._bounds = bounds.on(context.runtime)
        self._width, self._depth = on_device(width, context.runtime), on_device(depth, context.runtime)
        self._drafter, self._cursor = eagle3_runtime(self._head, context, prompt), context.cursor
        if hidden is not None:
            self._drafter.read(hidden)

    def drafting(self, tokens: Sequence[int], room: int) -> Drafting:
        drafter, cursor, last = self._drafter, self._cursor(), len(tokens) - 1
        count = offered(self._width, cursor)
        states, found = yield from computed(drafter.paired, drafter, tokens, count)
        if not drafter.pairs or room < 1:
            return Draft()
        for position in range(drafter.pairs + 1, last + 1):  # forced tokens, which the target has not read yet
            asked = [tokens[position]], states, [0], position, count if position == last else 0
            states, found = yield from computed(drafter.grown, drafter, *asked)
        search = BeamSearch(self._width, min(self._depth, room), self._bounds, self._width, cursor)
        while (frontier := search.grow(found)) is not None:
            level = frontier.tokens, states, frontier.rows, last + frontier.depth, count
            states, found = yield from computed(drafter.grown, drafter, *level)
        return search.draft()

    def observe(self, draft: Draft, scores: ForwardOutput, verdict: Verdict) -> None:
        self._drafter.read(committed_hidden(draft, scores, verdict))


class Falcon(HeadMethod):
    """head: a folder, or "auto" for the shipped one; its k is the number of tokens of a glance. budget, least: see `Bounds`.
    width: paths that the next pass continues. passes: passes of the drafter, so paths have at most k * passes tokens. top_k:
    guesses per position. On a GPU the default is 106 nodes, the smallest of the released trees.
    """

    kind: ClassVar[str] = "falcon"

    def __init__(
        self,
        head: Head | str = "auto",
        budget: int = DeviceInt(16, gpu=106),
        width: int = 3,
        passes: int = 3,
        top_k: int = 4,
        least: float = LEAST,
    ) -> None:
        found = drafting_head(self.kind, head, FalconHead)
        if min(width, passes, top_k) < 1:
            raise ValueError("width, passes and top_k must be 1 or more")
        self._head, self._given = found, Bounds(budget, least)
        self._width, self._passes, self._top_k = width, passes, top_k
        self.taps = found.config.taps

    def begin(self, prompt: Sequence[int], hidden: Array | None, context: Context) -> None:
        self._bounds = self._given.on(context.runtime)
        self._drafter, self._cursor = falcon_runtime(self._head, context, prompt), context.cursor
        if hidden is not None:
            self._drafter.read(hidden[:, -1])

    def drafting(self, tokens: Sequence[int], room: int) -> Drafting:
        k, drafter = self._head.k, self._drafter
        line = yield from computed(drafter.paired, drafter, tokens)
        if drafter.pairs < k or room < 1:
            return Draft()
        cursor = self._cursor()
        paths, count = _Paths(tokens, room, self._bounds, self._top_k), offered(self._top_k, cursor)
        glances = [_Glance(0.0, cursor)]
        first = drafter.pairs - k + 1  # position of the first token of the glance
        late = len(tokens) - 1 - drafter.pairs  # forced tokens, which the target has not read yet
        for _ in range(self._passes + -(-late // k)):
            asked = line, [glance.row for glance in glances], first, count
            features, found = yield from computed(drafter.glanced, drafter, *asked)
            below, first = levels(found), first + k
            ends = [
                replace(end, row=row)
                for row, glance in enumerate(glances)
                for end in paths.grow(glance, first, below[row * k : (row + 1) * k])
            ]
            glances = heapq.nlargest(self._width, ends, key=lambda glance: glance.score)
            if not glances:
                break
            line = drafter.following(line, features, *zip(*((each.row, each.tokens) for each in glances), strict=True))
        return paths.draft()

    def observe(self, draft: Draft, scores: ForwardOutput, verdict: Verdict) -> None:
        self._drafter.read(committed_hidden(draft, scores, verdict)[:, -1])


@dataclass(frozen=True, slots=True)
class _Glance:
    """A path to be continued. cursor: in its constraint; row: its parent's; node: its last one; tokens: its last k."""

    score: float
    cursor: ConstraintCursor | None
    row: int = 0
    node: int = ROOT
    tokens: tuple[int, ...] = ()


class _Paths:
    """The tree of one round under construction. At positions that are text already, every path has the text's token."""

    def __init__(self, text: Sequence[int], room: int, bounds: Bounds, most: int) -> None:
        self._text, self._end, self._bounds, self._most = text, len(text) + room, bounds, most
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._scores: list[float] = []

    def grow(self, glance: _Glance, first: int, levels: Sequence[Level]) -> list[_Glance]:
        """Add the best paths over the levels after a glance, from position `first` on; returns those that reach the last."""
        paths = [replace(glance, tokens=())]
        for position, level in enumerate(levels, first):
            if position >= self._end:
                return []
            if position < len(self._text):
                paths = [replace(path, tokens=(*path.tokens, self._text[position])) for path in paths]
                continue
            paths = [each for path in paths for each in self._children(path, level)]
            best = heapq.nlargest(self._bounds.budget, paths, key=lambda path: path.score)
            paths = [replace(path, cursor=path.cursor and path.cursor.after(path.tokens[-1])) for path in best]
        return paths

    def draft(self) -> Draft:
        return budgeted(self._tokens, self._parents, self._scores, self._bounds.budget)

    def _children(self, path: _Glance, level: Level) -> Iterator[_Glance]:
        """Add a path's children. They keep the path's cursor, because few of them are continued."""
        for token, score in islice(admitted(level, path.cursor, self._bounds.floor - path.score), self._most):
            self._tokens.append(token)
            self._parents.append(path.node)
            self._scores.append(path.score + score)
            yield replace(path, score=self._scores[-1], node=len(self._tokens) - 1, tokens=(*path.tokens, token))
