"""What is added to what a mask says, where the tokens before its own are known: scores of pairs, and of followers in the text.

A low-rank score for each pair of frequent tokens is as in Domino (arXiv 2605.29707), without its recurrence. `followers` has
the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from decoding.checkpoints.adapters.beginnings import Beginnings
from decoding.checkpoints.adapters.followers import FITTED, Followers

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


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
