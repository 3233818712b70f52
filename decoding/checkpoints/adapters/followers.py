"""What follows what in a text, as a correction of what mask tokens say.

A mask does not know the token before the one that it predicts. Where that is known and stands in the prompt or the text so far,
the tokens that follow it there get a score by nine learnt weights: names of columns and values take several tokens, which the
prompt has side by side. It is what an induction head does (Olsson et al., arXiv 2209.11895), for a row that cannot have one.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Sequence
from math import log

import numpy as np
import numpy.typing as npt

from kernels.cpu.job import MOST_FOLLOWERS

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
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
