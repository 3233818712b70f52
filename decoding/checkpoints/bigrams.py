"""Statistics of token sequences that correct predictions at mask tokens, and that guess a text's first tokens.

**Followers and pairs.** A mask does not know the token before the one that it predicts. If that token is known, a low-rank
score for each pair of frequent tokens is added, as in Domino (arXiv 2605.29707), without its recurrence. If it also occurs in
the prompt or the text so far, the tokens that follow it there get a score by nine learnt weights: names of columns and values
take several tokens, which the prompt has next to each other. It is what an induction head does (Olsson et al., arXiv
2209.11895), for a row that cannot have one.

**Beginnings.** In a text's first round no mask was asked yet. Answers to prompts with the same end begin alike, and their
continuation is often in the prompt. So each of the first positions has logits of the frequent tokens, by the end of the prompt,
fitted on the target's own answers; the scores of pairs and followers are added to them as well.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from math import log

import numpy as np
import numpy.typing as npt

from kernels.cpu.job import MOST_FOLLOWERS

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Beginnings:
    """ends [kinds, 2]: the last two tokens of prompts. logits [kinds, positions, tokens + 1]: of the frequent tokens, and of
    each other one. Raises ValueError for other shapes.
    """

    ends: Ids
    logits: Floats

    def __post_init__(self) -> None:
        if self.ends.shape != (len(self.logits), 2) or self.logits.ndim != 3:
            raise ValueError(f"beginnings have shapes {list(self.ends.shape)} and {list(self.logits.shape)}")

    def behind(self, end: tuple[int, int]) -> Floats | None:
        """[positions, tokens + 1] of the answers to prompts with these last tokens; None where nothing is known."""
        kinds = np.flatnonzero((self.ends == end).all(1))
        return self.logits[kinds[0]] if len(kinds) else None


Flags = npt.NDArray[np.bool_]

FITTED: Floats = np.array([3.6, -0.13, 6.23, 0.76, 1.56, 0.81, -1.77, -1.88, -0.24], np.float32)
"""The weights of `features`, fitted on 900 answers to training prompts. Where an adapter begins."""


def features(after_frequent: Flags, share: Floats, narrow: Floats, any_narrow: Flags, frequent: Flags) -> Floats:
    """[..., 9] what the score of a token after another depends on; all arguments have the same shape.

    after_frequent, frequent: whether the token before, and the token itself, have scores of pairs. share: of the places of the
    token before in the text, those that this token follows. narrow: the same among the places where the token before that is
    the same, too; 0 if there is none. any_narrow: whether there are such places at all.
    """
    common, same = after_frequent.astype(np.float32), narrow > 0.0
    rare, far = 1.0 - common, np.log(share)
    near = np.log(np.where(same, narrow, np.float32(1.0)))
    columns = (common, common * far, rare, rare * far, same, near, any_narrow & ~same, frequent, frequent * common)
    return np.stack([np.asarray(column, np.float32) for column in columns], -1)


class Followers:
    """What follows each token of one text, and with which score: `features` times weights. frequent: the tokens that have
    scores of pairs.
    """

    def __init__(self, text: Sequence[int], weights: Floats, frequent: Container[int]) -> None:
        self._text, self._weights, self._frequent = list(text[:1]), list[float](weights.tolist()), frequent
        self._places: dict[int, list[int]] = defaultdict(list)  # of each token but the last
        self._known: dict[int, dict[int, tuple[Ids, Floats]]] = defaultdict(dict)  # by both tokens, the last one first
        # The same among the tokens that were asked about, which come first.
        self._placed: dict[int, dict[int, tuple[Ids, Ids, Floats]]] = defaultdict(dict)
        self.grow(text)

    def grow(self, text: Sequence[int]) -> None:
        """Go on with a text that begins with the one so far."""
        known = len(self._text)
        if len(text) > known:
            self._text += text[known:]
            for place, token in enumerate(self._text[known - 1 : -1], known - 1):
                self._places[token].append(place)
                self._known.pop(token, None)
                self._placed.pop(token, None)

    def after(self, before: int, last: int) -> tuple[Ids, Floats]:
        """The tokens that follow `last` in the text, ascending, and what is added to their logits. before: the token before
        `last`.
        """
        known = self._known[last]
        if before not in known:
            known[before] = self._scored(before, last)
        return known[before]

    def among(self, before: int, last: int, tokens: Ids) -> tuple[Ids, Floats]:
        """The same for those among `tokens`, which ascend: their places there."""
        placed = self._placed[last]
        if before not in placed or placed[before][0] is not tokens:
            ids, added = self.after(before, last)
            places = np.minimum(np.searchsorted(tokens, ids), len(tokens) - 1)
            known = tokens[places] == ids
            placed[before] = tokens, places[known], added[known]
        return placed[before][1:]

    def _scored(self, before: int, last: int) -> tuple[Ids, Floats]:
        text, places = self._text, self._places.get(last, ())
        counts = Counter([text[place + 1] for place in places])
        narrow = Counter([text[place + 1] for place in places if place and text[place - 1] == before])
        score = self._score_after(last, len(places), narrow)
        tokens = sorted(counts) if len(counts) <= MOST_FOLLOWERS else []
        return np.array(tokens, np.int64), np.array([score(token, counts[token]) for token in tokens], np.float32)

    def _score_after(self, last: int, total: int, narrow: "Counter[int]") -> Callable[[int, int], float]:
        """The score of a token with so many places after `last`, which has `total`."""
        common, common_share, rare, rare_share, same, same_share, other, known, known_common = self._weights
        is_common, narrow_total = last in self._frequent, narrow.total()
        constant, slope = (common, common_share) if is_common else (rare, rare_share)
        known += known_common * is_common

        def score(token: int, count: int) -> float:
            found: float = constant + slope * log(count / total) + known * (token in self._frequent)
            if token in narrow:
                return found + same + same_share * log(narrow[token] / narrow_total)
            return found + other * bool(narrow)

        return score


class TokenPairs:
    """Scores of pairs of tokens, of which other tokens have none. ids [tokens]; before, after [tokens, rank], fp32. followers
    [9]: weights of what follows what in a text; None: it has no score. beginnings: of answers, where they are known.

    Raises ValueError for another number of weights, or for beginnings of another number of tokens.
    """

    def __init__(
        self,
        ids: Ids,
        before: Floats,
        after: Floats,
        followers: Floats | None = None,
        beginnings: Beginnings | None = None,
    ) -> None:
        if followers is not None and followers.shape != FITTED.shape:
            raise ValueError(f"followers has shape {list(followers.shape)}, not {list(FITTED.shape)}")
        if beginnings and beginnings.logits.shape[-1] != len(ids) + 1:
            raise ValueError(f"beginnings are of {beginnings.logits.shape[-1] - 1} tokens, not of {len(ids)}")
        self.ids, self.before, self.after, self.followers = ids, before, after, followers
        self.beginnings = beginnings
        self._rows = {token: row for row, token in enumerate(ids.tolist())}
        self._padded = np.concatenate([after, np.zeros_like(after[:1])])  # the last row is that of all other tokens
        self._places = np.full(int(ids.max(initial=0)) + 2, len(ids), np.int64)
        self._places[ids] = np.arange(len(ids))
        self._after: dict[int, Floats] = {}  # the scores of all tokens after one, once it is asked for
        self._asked = ids, self._places[ids]  # the tokens that were asked for last, and their places
        self._asked_after: dict[int, Floats] = {}  # their scores after one

    def scores(self, previous: int, tokens: Ids) -> Floats:
        """[tokens] what is added to the logit of each of `tokens` after `previous`. Shared: do not write to it."""
        if tokens is not self._asked[0]:
            self._asked = tokens, self.places(tokens)
            self._asked_after = {}
        if (found := self._asked_after.get(previous)) is None:
            known = self.scores_after(previous)
            found = np.zeros(len(tokens), np.float32) if known is None else known[self._asked[1]]
            self._asked_after[previous] = found
        return found

    def places(self, tokens: Ids) -> Ids:
        """[tokens] the place of each among the frequent ones; behind them, that of all others."""
        found: Ids = self._places[np.minimum(tokens, len(self._places) - 1)]
        return found

    def beginning(self, end: tuple[int, int], tokens: Ids) -> Floats | None:
        """[positions, tokens] logits of the first tokens of an answer to a prompt with this end, before what is added for the
        tokens before each; None where nothing is known.
        """
        known = self.beginnings.behind(end) if self.beginnings else None
        return None if known is None else known.take(self.places(tokens), 1)

    def scores_after(self, previous: int) -> Floats | None:
        """[frequent tokens, and one for all others]; None where the token before has no scores. The array stays the same."""
        if (row := self._rows.get(previous)) is None:
            return None
        if row not in self._after:
            self._after[row] = np.einsum("tr,r->t", self._padded, self.before[row])  # not by BLAS: see `KernelRotation`
        return self._after[row]

    def in_text(self, text: Sequence[int]) -> "TextScores":
        """The scores in a text; an empty one has no followers, and never gets any."""
        if self.followers is None or not text:
            return TextScores(self, None)
        return TextScores(self, Followers(text, self.followers, self._rows))


@dataclass(frozen=True, slots=True)
class TextScores:
    """Scores of pairs, and of what follows what in one text."""

    pairs: TokenPairs
    followers: Followers | None
    best: None = None  # nothing ranks corrected logits faster than their reader does

    def grow(self, text: Sequence[int]) -> None:
        """Go on with a text that begins with the one so far."""
        if self.followers:
            self.followers.grow(text)

    def corrected(self, logits: Floats, tail: tuple[int, int], tokens: Ids) -> Floats:
        """[tokens] logits and what is added to that of each of `tokens`, which ascend. tail: the last two tokens before it."""
        found: Floats = logits + self.pairs.scores(tail[-1], tokens)
        if self.followers:
            places, added = self.followers.among(*tail, tokens)
            found[places] += added
        return found
