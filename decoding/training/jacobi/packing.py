"""Clean and noisy text of many answers in one forward, as branches of one token forest.

An answer's clean text follows its prompt. A noisy chain branches off where its window begins: its ancestors are the prompt, the
clean blocks of earlier windows, and the earlier noisy blocks of its own window. So the forest's mask is the noise-conditioned
causal mask of Jacobi Forcing, and a row's position, which is its depth, is prompt + j * n + i in both the clean and the noisy
block j. Tokens that a chain shares with the clean text are fed once, like the shared prefix of prompts.
"""

from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from decoding.training.data.groups import Tokens
from decoding.training.data.packing import NO_PATH, Floats, Forest, Pack, Path, common
from decoding.training.jacobi.states import Chain, first_difference
from decoding.training.jacobi.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Example:
    """An answer, and the noisy chains from which it is learnt."""

    step: str
    id: str
    prompt: Tokens
    answer: Tokens  # it ends with the stop token
    chains: tuple[Chain, ...]

    @classmethod
    def of(cls, trajectory: Trajectory, chains: tuple[Chain, ...]) -> "Example":
        prompt, answer = (np.array(ids, dtype=np.int32) for ids in (trajectory.prompt_ids, trajectory.answer_ids))
        return cls(trajectory.step, trajectory.id, prompt, answer, chains)

    @property
    def tokens(self) -> Tokens:
        """The clean text that is fed, without the stop token, which is only a target."""
        return np.concatenate([self.prompt, self.answer[:-1]])

    def branch(self, start: int, tokens: tuple[int, ...]) -> Tokens:
        """The text with `tokens` after the answer's first `start` tokens, cut where the clean text ends."""
        noisy = np.array(tokens, dtype=np.int32)[: len(self.answer) - 1 - start]
        return np.concatenate([self.tokens[: len(self.prompt) + start], noisy])

    @property
    def branch_rows(self) -> int:
        """Rows that its branches take."""
        texts = [(chain.start, tokens) for chain in self.chains for tokens in (chain.tokens, chain.teacher) if tokens]
        branches = [self.branch(*text) for text in texts]
        return sum(len(branch) - common(branch, self.tokens) for branch in branches)

    @property
    def rows(self) -> int:
        return len(self.tokens) + self.branch_rows


@dataclass(frozen=True, slots=True)
class JacobiPack(Pack):
    """A pack whose `sources` continue after those of the targets: a row per term of the consistency loss, then teachers' rows.

    Term i: the logits of source `len(targets) + i` should equal those of source `teachers[i]`.
    """

    teachers: Tokens  # [terms] index into sources
    shares: Floats  # [terms] 1 / terms of the same block

    @property
    def students(self) -> Tokens:
        """[terms] the rows of each block from its first wrong token on."""
        first = len(self.targets)
        return self.sources[first : first + len(self.teachers)]

    def arrays(self) -> tuple[np.ndarray, ...]:
        return (*Pack.arrays(self), self.teachers, self.shares)


class JacobiBuilder:
    """A pack under construction."""

    def __init__(self) -> None:
        self._forest, self._last = Forest(), NO_PATH
        self._learnt: list[tuple[Tokens, Example]] = []
        self._students: list[Tokens] = []
        self._teachers: list[Tokens] = []  # rows

    @property
    def rows(self) -> int:
        return self._forest.rows

    def new_rows(self, item: Example) -> int:
        return item.rows - common(item.tokens, self._last.tokens)

    def add(self, item: Example) -> None:
        """Add the clean text, which shares rows with the previous example's, and the branches, which share rows with it."""
        clean = self._last = self._forest.grow(item.tokens, self._last)
        self._learnt.append((clean.rows[len(item.prompt) - 1 :], item))
        for chain in item.chains:
            noisy = self._forest.grow(item.branch(chain.start, chain.tokens), clean)
            taught = clean
            if chain.teacher:
                taught = self._forest.grow(item.branch(chain.start, chain.teacher), clean)
            self._match(item, chain, noisy, taught)

    def _match(self, item: Example, chain: Chain, noisy: Path, taught: Path) -> None:
        """Add a term for every row of a block from its first wrong token on, except the stop token's: nothing follows it."""
        fixed = chain.teacher or item.answer[chain.start : chain.start + len(chain.tokens)].tolist()
        edges = list(accumulate((len(block) for block in chain.blocks), initial=0))
        for start, stop in pairwise(edges):
            wrong = start + first_difference(chain.tokens[start:stop], fixed[start:stop])
            first = len(item.prompt) + chain.start
            rows = slice(first + wrong, min(first + stop, len(item.tokens)))
            if len(noisy.rows[rows]):
                self._students.append(noisy.rows[rows])
                self._teachers.append(taught.rows[rows])

    def pack(self) -> JacobiPack:
        examples = [example for _, example in self._learnt]
        counts = [len(example.answer) for example in examples]
        learnt = np.concatenate([rows for rows, _ in self._learnt])
        students, teachers = _joined(self._students), _joined(self._teachers)
        lengths = np.array([len(rows) for rows in self._students], dtype=np.int64)
        others = np.setdiff1d(teachers, learnt)
        sources = np.concatenate([learnt, students, others])
        index_of = {row: index for index, row in reversed(list(enumerate(sources.tolist())))}
        return JacobiPack(
            tokens=self._forest.tokens(),
            parents=self._forest.parents(),
            sources=sources,
            targets=np.concatenate([example.answer for example in examples]),
            weights=np.ones(sum(counts), dtype=np.float32),
            owners=np.repeat(np.arange(len(examples), dtype=np.int32), counts),
            pairs=tuple((example.step, example.id) for example in examples),
            teachers=np.array([index_of[row] for row in teachers.tolist()], dtype=np.int32),
            shares=np.repeat(1 / lengths, lengths).astype(np.float32),
        )


def _joined(rows: list[Tokens]) -> Tokens:
    return np.concatenate([NO_PATH.rows, *rows])
