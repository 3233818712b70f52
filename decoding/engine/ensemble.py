"""One text behind several prompts: the target predicts behind each of them, and the mean of its logits chooses the token.

The mean of logits is the normalised geometric mean of the distributions (a product of experts; Hinton, Neural Computation
14, 2002). Prompts that say the same in another order make it an ensemble without other weights, as permutation
self-consistency does for whole answers (Tang et al., arXiv 2310.07712). A draft is scored behind all prompts in one forward
and verified against the mean, so every method writes the text of plain decoding here as well.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from decoding.engine.draft import Draft
from decoding.engine.sampler import Floats, Sampler
from decoding.engine.target import AnyTarget, Array, DraftCaches, ForwardInput, ForwardOutput, TargetSequence, TokenSet

PROMPT_ROWS = 256  # of newcomers' prompts in a forward that texts under way wait for


def parts_of_prompts(unread: Sequence[int], most: int = PROMPT_ROWS) -> list[int | None]:
    """For each text of a forward how many of its unread rows it reads, or None where it reads the rest and decodes. A text by
    itself reads all. Several share `most` rows (0: any number), so that a long prompt does not stop the others: half of them
    go to the text that came first, the rest to the shortest prompts, which so do not wait for the long ones.

    >>> parts_of_prompts([0, 200, 900, 30], 256), parts_of_prompts([0, 900], 0), parts_of_prompts([900], 256)
    ([None, None, 26, None], [None, None], [None])
    """
    if not most or len(unread) == 1:
        return [None for _ in unread]
    shortest = sorted(range(len(unread)), key=unread.__getitem__)
    first = next((index for index, rows in enumerate(unread) if rows), 0)
    parts, left = [0 for _ in unread], most
    for index, share in [(first, -(-most // 2)), *((index, most) for index in shortest)]:
        rows = min(unread[index] - parts[index], share, left)
        parts[index] += rows
        left -= rows
    return [None if part == rows else part for part, rows in zip(parts, unread, strict=True)]


class Ensemble:
    """The target's sequences of one text, one behind each prompt. Closing `opened` closes them.

    What a method sees beside the pooled logits (cached tokens, hidden states, draft caches) is that of the first.
    """

    def __init__(
        self,
        target: AnyTarget,
        prompts: Sequence[Sequence[int]],
        sampler: Sampler,
        taps: tuple[int, ...],
        opened: ExitStack,
    ) -> None:
        self._target, self._sampler = target, sampler
        self._sequences: list[TargetSequence] = []
        for prompt in prompts:
            sequence: TargetSequence = target.open(prompt, sampler, () if self._sequences else taps)
            opened.callback(target.close, sequence)
            self._sequences.append(sequence)
        self._parts: list[int] = []  # rows of each prompt that the forward under way reads
        self._unseen = [list(prompt[each.cached :]) for prompt, each in zip(prompts, self._sequences, strict=True)]

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def cached(self) -> int:
        return self._sequences[0].cached

    @property
    def hidden(self) -> Array | None:
        return self._sequences[0].hidden

    @property
    def draft_caches(self) -> DraftCaches:
        return self._sequences[0].draft_caches

    @property
    def unread(self) -> int:
        """Rows of the prompts that can be read before the first token is wanted: all but the last of each."""
        return sum(len(rest) - 1 for rest in self._unseen)

    def part(self, rows: int) -> list[ForwardInput[Any]]:
        """As many rows of the prompts, one prompt after the other, for the next forward; `keep_part` then keeps them."""
        self._parts = []
        for rest in self._unseen:
            self._parts.append(min(rows, len(rest) - 1))
            rows -= self._parts[-1]
        fed = zip(self._sequences, self._unseen, self._parts, strict=True)
        return [ForwardInput(sequence, rest[:count], Draft()) for sequence, rest, count in fed if count]

    def keep_part(self) -> None:
        for index, count in enumerate(self._parts):
            if count:
                self._target.commit(self._sequences[index], ())
                self._unseen[index] = self._unseen[index][count:]
        self._parts = []

    def work(self, pending: Sequence[int], draft: Draft) -> list[ForwardInput[Any]]:
        """What the next forward computes: before the first `commit` the rest of each prompt, then `pending` behind each."""
        rests: Sequence[Sequence[int]] = self._unseen or [pending] * len(self)
        return [ForwardInput(sequence, rest, draft) for sequence, rest in zip(self._sequences, rests, strict=True)]

    def pooled(self, scores: Sequence[ForwardOutput], position: Callable[[int], int]) -> ForwardOutput:
        """One forward's scores behind each prompt as one: the mean of their logits. position: of the token after a node."""
        if len(scores) == 1:
            return scores[0]

        def after(nodes: Sequence[int]) -> Floats:
            return _mean([each.after(nodes) for each in scores])

        def among(nodes: Sequence[int], tokens: TokenSet) -> Floats:
            return _mean([each.among(nodes, tokens) for each in scores])

        def choice(node: int) -> int:
            """Where greedy choices agree, the mean has its maximum there too, and no logits are needed."""
            agreed = {each.choice(node) for each in scores} if self._sampler.temperature == 0 else ()
            if len(agreed) == 1:
                return agreed.pop()
            return self._sampler.pick(after([node])[0], position(node))

        def ahead(asked: Sequence[tuple[int, int]], tokens: TokenSet | None) -> Floats:
            return _mean([each.ahead(asked, tokens) for each in scores if each.ahead])

        return ForwardOutput(
            after, scores[0].hidden, choice, scores[0].nodes, among, ahead=ahead if scores[0].ahead else None
        )

    def commit(self, path: Sequence[int]) -> None:
        for sequence in self._sequences:
            self._target.commit(sequence, path)
        self._unseen = []


def _mean(logits: Sequence[Floats]) -> Floats:
    """Added up in the order of the prompts, so that it depends on nothing else."""
    total = np.array(logits[0], np.float32)
    for each in logits[1:]:
        total += each
    total /= np.float32(len(logits))
    return total
