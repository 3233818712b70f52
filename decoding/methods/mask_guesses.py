"""Guesses at mask tokens: the likeliest tokens of each, and the trees made of them.

A target's logits at mask tokens become guesses for the positions after the accepted path (see `MaskTokens`). In a text's first
round, in which no mask was asked yet, guesses come from how the prompt ends (`Beginnings`). The initial guess of the Jacobi
family is here, too: the same for decoding and for training data.

Guesses of several proposers for the same place become one distribution: a product of experts with fitted weights. The proposers
are neither independent nor on the same scale: a copied token to which the head gives no probability is right in a quarter of
the cases, one of which it is sure nearly always. So each proposer's log-probability has a weight, a copied token has a bonus,
and a constant stands for all tokens that nobody guessed.
"""

import random
from collections.abc import Mapping, Sequence
from itertools import product, takewhile
from math import exp, log
from typing import Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from decoding.checkpoints.mask_adapter import DEFAULT_PRIORS, DraftPriors
from decoding.engine.draft import ROOT, Draft
from decoding.engine.method import Context
from decoding.engine.sampler import Floats, Sampler
from decoding.engine.target import ForwardOutput, TextScores, TokenSet
from decoding.engine.verify import Verdict
from decoding.heads.kinds import draft_ids
from decoding.methods.trees import Level, Tail, offered, tail_of

Ids = npt.NDArray[np.int64]

LIKELY = 256  # tokens per position whose noise is worth computing, and that are ranked of many
_NEVER = float(np.finfo(np.float32).min)
FEW = 1024  # without noise, of so many tokens all are ranked: finding the likely ones takes longer


class LikelyLevels:
    """The best `count` guesses of each row of logits [rows, vocab], the first of which predicts position `first`.

    tokens: those that the logits belong to, [rows, tokens], if not all. pairs: what is added to the logits by the tokens before
    each position, where these are known to matter. Of many tokens, and where noise is computed, a position's most likely ones
    alone are ranked, and probabilities are shares among these.
    """

    def __init__(
        self,
        sampler: Sampler,
        logits: Floats,
        first: int,
        count: int,
        pairs: TextScores | None = None,
        tokens: TokenSet | None = None,
    ) -> None:
        self._sampler, self._first, self._count, self._pairs = sampler, first, count, pairs
        self._tokens = tokens
        self._logits = logits if np.isfinite(logits).all() else np.nan_to_num(logits, nan=_NEVER)
        self._ids: Ids = np.arange(logits.shape[-1]) if tokens is None else tokens.ids
        self._ranks_all = not sampler.temperature and len(self._ids) <= FEW
        self._likely: dict[int, tuple[Ids, Floats]] = {}
        self._known: dict[tuple[int, Tail], Level] = {}

    def __len__(self) -> int:
        return len(self._logits)

    def level(self, depth: int, tail: Tail) -> Level:
        """The guesses for position `first + depth` after two tokens. Raises IndexError beyond the last row."""
        key = (depth, tail if self._pairs else (0, 0))
        if key not in self._known:
            self._known[key] = self._ranked(depth, tail)
        return self._known[key]

    def _ranked(self, depth: int, tail: Tail) -> Level:
        """The best of a row; shares are among those that are worth ranking."""
        if self._pairs and self._pairs.best and self._tokens and self._ranks_all:
            return Level(*self._pairs.best(self._logits, depth, tail, self._tokens, self._count))
        ids, logits = self._likeliest(depth)
        if self._pairs:
            logits = self._pairs.corrected(logits, tail, ids)
        if self._sampler.temperature:
            logits = self._sampler.rank(logits[None], np.array([[self._first + depth]]), ids[None])[0]
        places, scores = ranked(logits, self._count)
        return Level(ids[places].tolist(), scores.tolist())

    def _likeliest(self, depth: int) -> "tuple[Ids, Floats]":
        """The tokens of a row that are worth ranking, ascending, and their logits."""
        row = self._logits[depth]
        if self._ranks_all:
            return self._ids, row
        if depth not in self._likely:
            places = np.arange(len(row))
            if (most := max(self._count, LIKELY)) < len(row):
                places = np.sort(np.argpartition(row, -most)[-most:])
            self._likely[depth] = self._ids[places], row[places]
        return self._likely[depth]


def ranked(logits: Floats, count: int) -> "tuple[Ids, Floats]":
    """Places of the largest of logits [tokens], in descending order, and their log-probabilities; fewer than `count` where
    there are fewer.
    """
    count = min(count, len(logits))
    most = np.argpartition(logits, -count)[-count:]
    best: Ids = most[np.argsort(-logits[most], kind="stable")]
    tops: Floats = logits[best]
    return best, tops - (tops[0] + np.log(np.exp(logits - tops[0]).sum()))


def pooled(
    copies: Mapping[int, float],
    head: Mapping[int, float],
    masks: Mapping[int, float],
    priors: DraftPriors = DEFAULT_PRIORS,
) -> dict[int, float]:
    """The probability of each guessed token. copies: as from `CopiedGuesses.shares`, if there is nothing else."""
    if not (head or masks):
        return dict(copies)
    factor = priors.weight_with_copy if copies else 1.0
    weights = (
        (head, factor * (priors.head_weight_with_masks if masks else priors.head_weight)),
        (masks, factor * (priors.mask_weight_with_head if head else priors.mask_weight)),
    )
    heard = [(said, weight) for said, weight in weights if said]
    scores = {
        token: sum(weight * log(max(said.get(token, 0.0), priors.unlisted)) for said, weight in heard)
        for token in {**copies, **head, **masks}
    }
    for token, chance in copies.items():
        chance = min(max(chance, 0.01), 0.99)
        scores[token] += priors.copy_score + priors.copy_slope * log(chance / (1.0 - chance))
    other = priors.other_score_with_copy if copies else priors.other_score
    other += priors.rest_share * sum(
        weight * log(max(1.0 - sum(said.values()), priors.least_rest)) for said, weight in heard
    )
    shares = {token: exp(score) for token, score in scores.items()}
    total = sum(shares.values()) + exp(other)
    return {token: share / total for token, share in shares.items()}


FirstGuess = Literal["prompt", "mask"]
ChosenGuess = Literal["auto", "prompt", "mask"]
"""auto: masks where the target has or was trained on any, else draws from the prompt."""


class Guesses(Protocol):
    def take(self, count: int) -> list[int]:
        """The next `count` ids; none if it is negative."""
        ...

    def answered(self, guesses: Sequence[int]) -> list[int]:
        """The guesses before the first one that would be taken again wherever it stands."""
        ...


class PromptDraws:
    """An endless, reproducible draw of token ids from a prompt (the initialisation of CLLM and of lookahead decoding)."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._prompt = prompt
        self._random = random.Random(len(prompt))

    def take(self, count: int) -> list[int]:
        return self._random.choices(self._prompt, k=max(count, 0))

    def answered(self, guesses: Sequence[int]) -> list[int]:
        return list(guesses)


class Masks:
    """Mask tokens. They carry no information, whereas draws from the prompt look like text.

    A model has to be trained on them, as in PARD (arXiv 2504.18583).
    """

    def __init__(self, masks: Sequence[int]) -> None:
        self._masks = masks

    def take(self, count: int) -> list[int]:
        return list(mask_chain(self._masks, count))

    def answered(self, guesses: Sequence[int]) -> list[int]:
        """Where each depth has a mask of its own, masks go by their distance from the last guess before them."""
        if len(self._masks) == 1:
            return list(guesses)
        return list(takewhile(lambda guess: guess not in self._masks, guesses))


def mask_chain(masks: Sequence[int], count: int) -> tuple[int, ...]:
    """`count` masks one after another; beyond the last depth its mask is repeated. None where there are no masks."""
    return tuple(masks[min(depth, len(masks) - 1)] for depth in range(count if masks else 0))


def strided_chain(masks: Sequence[int], positions: int, stride: int) -> tuple[int, ...]:
    """The chain of masks (see `Context.masks`) that covers so many positions, where each covers `stride`."""
    return mask_chain(masks[::stride], -(-positions // stride))


def guessable(context: Context, prompt: Sequence[int]) -> TokenSet | None:
    """The tokens that masks are asked about: the frequent ones, the prompt's and the recall's; None: all."""
    if context.mask_pairs is None:
        return None
    return TokenSet(np.array(draft_ids(context, context.mask_pairs.ids.tolist(), prompt), np.int64))


def text_scores(context: Context, prompt: Sequence[int], followers: bool) -> TextScores | None:
    """What corrects what masks say, by the tokens before each; None where the target knows nothing of that. followers: whether
    what follows what in the text counts.
    """
    return context.mask_pairs.in_text(prompt if followers else ()) if context.mask_pairs else None


def first_guesses(kind: FirstGuess, prompt: Sequence[int], known: Sequence[int] = ()) -> Guesses:
    """known: the target's mask tokens. Without any the prompt's last token is the mask: it comes just before an answer, hardly
    occurs in one, and is in every vocabulary.
    """
    return Masks(known or (prompt[-1],)) if kind == "mask" else PromptDraws(prompt)


def trained_on(kind: ChosenGuess, prompt: Sequence[int], context: Context) -> FirstGuess:
    """The kind itself, or for "auto" the one that the target knows."""
    if kind != "auto":
        return kind
    return "mask" if context.masks(prompt) else "prompt"


def known(kind: ChosenGuess) -> ChosenGuess:
    """The kind itself, checked because it may come from a command line. Raises ValueError."""
    if kind not in get_args(ChosenGuess):
        raise ValueError(f"first_guess must be one of: {', '.join(get_args(ChosenGuess))}; not {kind!r}")
    return kind


def said_ahead(
    scores: ForwardOutput, masks: Sequence[int], tokens: TokenSet | None, stride: int = 1, passed: int = 0
) -> Floats:
    """[positions, tokens] what a chain of masks says. stride: positions for which each speaks. passed: how many are left out,
    from the first one.
    """
    if stride == 1 or not scores.ahead:
        return scores.among(masks[passed:], tokens)
    return scores.ahead(list(product(masks, range(stride)))[passed:], tokens)


class LookaheadPredictions:
    """The guesses of one text. chain: the masks that a draft may attach after a node, for at most `most` positions; each covers
    `stride` of them. count: guesses of each. followers: whether what follows what in the text corrects them.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        context: Context,
        most: int,
        count: int,
        followers: bool = True,
        stride: int = 0,
    ) -> None:
        """stride: 0: as many positions as the target's masks can cover."""
        self.stride = min(stride or 1 + context.ahead, 1 + context.ahead)
        self.chain = strided_chain(context.masks(prompt), most, self.stride)
        self._context, self._tokens, self._count = context, guessable(context, prompt), count
        self._levels: LikelyLevels | None = None
        self.by_text = False  # whether a row of the text said them
        self._first = 0  # position of the first level
        self._taken = 0  # how many of its positions the text has passed
        self._tail = tail_of(prompt)  # of the text
        self._pairs = text_scores(context, prompt, followers)
        self.begins = False  # whether the prompt's end said them
        if self.chain and context.mask_pairs and self._tokens:
            said = context.mask_pairs.beginning(self._tail, self._tokens.ids)
            if said is not None:
                self._read(said, len(prompt))
                self.begins = True

    def stand(self, tokens: Sequence[int]) -> None:
        """The next draft follows `tokens`."""
        self._taken, self._tail = max(len(tokens) - self._first, 0), tail_of(tokens)
        if self._pairs:
            self._pairs.grow(tokens)

    @property
    def ahead(self) -> int:
        """For how many positions there are guesses."""
        return max(len(self._levels) - self._taken, 0) if self._levels else 0

    def level(self, path: tuple[int, ...]) -> Level | None:
        """The guesses after a path."""
        if self._levels is None or len(path) >= self.ahead:
            return None
        return self._levels.level(self._taken + len(path), tail_of((*self._tail, *path[-2:])))

    def observe(
        self, draft: Draft, scores: ForwardOutput, verdict: Verdict, first: int, asks_text: bool = True
    ) -> bool:
        """Read the masks after the accepted path: those of its last node that has any, of which the text has passed some.
        first: position of the token after the bonus. Where no mask is new, older ones still say what is ahead, or else the row
        of the text itself, if it is to be asked. Returns whether anything was asked.
        """
        found, passed = self._fresh(draft, verdict.path)
        last = verdict.path[-1] if verdict.path else ROOT
        if found:
            self._read(said_ahead(scores, found, self._tokens, self.stride, passed), first)
            self.by_text = False
            return True
        if self.chain and scores.ahead and (self.begins or first - self._first >= len(self._levels or ())):
            if asks_text:
                said = scores.ahead([(last, 1 + ahead) for ahead in range(self._context.ahead)], self._tokens)
                self._read(said, first)
            else:
                self._levels, self.begins = None, False
            self.by_text = asks_text
            return asks_text
        return False

    def _read(self, logits: Floats, first: int) -> None:
        context, count = self._context, offered(self._count, self._context.cursor())
        self._levels = LikelyLevels(context.sampler, logits, first, count, self._pairs, self._tokens)
        self._first, self.begins = first, False

    def _fresh(self, draft: Draft, path: Sequence[int]) -> tuple[list[int], int]:
        """The masks of a draft that say something about what follows the token after an accepted path, and how many of their
        positions the text has passed.
        """
        if draft.masks and any(token in draft.masks for token in draft.tokens):
            for passed, node in enumerate((*path[::-1], ROOT)):
                if self.stride * len(found := draft.below(node, self.chain)) > passed:
                    return found, passed
        return [], 0
