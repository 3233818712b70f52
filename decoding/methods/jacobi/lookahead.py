"""Lookahead decoding (Fu et al., arXiv 2402.02057): a Jacobi window that collects n-grams, and guesses made of them.

The released code needs an attention mask of its own; here its two-dimensional window is an ordinary tree. Level 0 is a chain
under the root, and column i of the higher levels hangs below node i of that chain: a caterpillar. Guesses are further branches.
"""

from collections import OrderedDict
from collections.abc import Sequence

from decoding.engine.draft import ROOT, Draft
from decoding.engine.method import Context, Method
from decoding.engine.target import Array, Scores
from decoding.engine.verify import Verdict
from decoding.methods.jacobi.first_guess import PromptDraws


class Lookahead(Method):
    """Window of `window` columns and `ngram` - 1 levels, plus up to `guesses` n-grams that begin with the last token.

    window: columns (W of the paper). ngram: length of the collected n-grams (N). guesses: branches verified per round, and
    n-grams kept per first token (G). pool_from_prompt: seed the pool with the prompt's and the recall's own n-grams.
    whole_window: score the window also where a grammar forbids it. Otherwise a column ends at its first forbidden token,
    which saves most of the rows and, under a grammar, leaves hardly any n-grams of its own.
    """

    def __init__(
        self,
        window: int = 5,
        ngram: int = 4,
        guesses: int = 5,
        pool_from_prompt: bool = True,
        whole_window: bool = False,
    ) -> None:
        if window < 1 or ngram < 2 or guesses < 0:
            raise ValueError("need window >= 1, ngram >= 2 and guesses >= 0")
        self._window, self._ngram, self._guesses = window, ngram, guesses
        self._from_prompt, self._whole = pool_from_prompt, whole_window

    def begin(self, prompt: Sequence[int], hidden: Array | None, context: Context) -> None:
        self._draws = PromptDraws(prompt)
        self._columns: dict[int, list[int]] = {}  # position of level 0 -> tokens on level 0, 1, ... (a diagonal)
        self._pool = _NgramPool(self._guesses)
        if self._from_prompt:
            for text in (*reversed(context.recall.sequences), tuple(prompt)):
                for at in range(len(text) - self._ngram + 1):
                    self._pool.add(text[at : at + self._ngram])

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        positions = range(len(tokens), len(tokens) + self._window)
        self._columns = {at: self._columns.get(at) or self._draws.take(1) for at in positions}
        columns = list(self._columns.values())
        spine = [column[0] for column in columns]
        guesses = self._pool.following(tokens[-1])
        paths = [[*spine[:i], *column] for i, column in enumerate(columns)]
        return Draft.trie([*guesses, *paths], scored=len(paths) if self._whole else 0)

    def observe(self, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        children, spine = draft.children, ROOT
        answered: dict[int, list[int]] = {}
        for position, column in self._columns.items():
            nodes = _walk(children, spine, column)
            if len(nodes) < len(column):
                break  # cut by the length limit or a constraint, or another method's draft
            spine = nodes[0]
            answer = [*column, scores.choice(nodes[-1])]
            if len(answer) == self._ngram:
                self._pool.add(answer)
                position, answer = position + 1, answer[1:]
            if len(answer) > len(answered.get(position, ())):
                answered[position] = answer
        self._columns = answered


class _NgramPool:
    """The latest n-grams per first token."""

    def __init__(self, per_token: int) -> None:
        self._per_token = per_token
        self._by_first: dict[int, OrderedDict[tuple[int, ...], None]] = {}

    def add(self, ngram: Sequence[int]) -> None:
        entry = self._by_first.setdefault(ngram[0], OrderedDict())
        rest = tuple(ngram[1:])
        entry.pop(rest, None)
        entry[rest] = None
        if len(entry) > self._per_token:
            entry.popitem(last=False)

    def following(self, token: int) -> list[tuple[int, ...]]:
        """What followed `token`, newest first."""
        return list(reversed(self._by_first.get(token, ())))


def _walk(children: dict[tuple[int, int], int], node: int, tokens: Sequence[int]) -> list[int]:
    out: list[int] = []
    for token in tokens:
        if (node, token) not in children:
            break
        node = children[node, token]
        out.append(node)
    return out
