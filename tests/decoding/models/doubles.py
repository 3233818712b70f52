"""Methods and constraints made for tests: the two extremes, arbitrary trees, a head that needs hidden states, a grammar."""

import random
from collections.abc import Sequence

import numpy as np
import torch

from decoding.engine.constraint import Mask
from decoding.engine.draft import Draft
from decoding.engine.method import Context, Method
from decoding.engine.target import Array, ForwardOutput
from decoding.engine.verify import Verdict
from tests.decoding.models.toy import VOCAB


class Blank(Method):
    """Draws nothing; the base of the doubles."""

    def begin(self, prompt: Sequence[int], hidden: Array | None, context: Context) -> None:
        self.context = context

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        return Draft()

    def observe(self, draft: Draft, scores: ForwardOutput, verdict: Verdict) -> None: ...


class Oracle(Blank):
    """Always right: knows the text in advance."""

    def __init__(self, text: Sequence[int], length: int = 5) -> None:
        self.text, self.length = text, length

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        return Draft.chain(self.text[len(tokens) : len(tokens) + min(self.length, room)])


class AlwaysWrong(Oracle):
    """Always wrong: every guess is one off."""

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        right = super().propose(tokens, room).tokens
        return Draft.chain((token + 1) % VOCAB for token in right)


class Fuzz(Blank):
    """Arbitrary trees, duplicate siblings included, and deeper than the room that is left."""

    def __init__(self, seed: int, vocab: int = VOCAB) -> None:
        self.random, self.vocab = random.Random(seed), vocab

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        count = self.random.randrange(0, 12)
        tokens = [self.random.randrange(self.vocab) for _ in range(count)]
        return Draft(tuple(tokens), tuple(self.random.randrange(-1, i) if i else -1 for i in range(count)))


class TappedHead(Blank):
    """A head: keeps the hidden state of every committed token."""

    taps = (1, 2)

    def begin(self, prompt: Sequence[int], hidden: Array | None, context: Context) -> None:
        super().begin(prompt, hidden, context)
        self.features = torch.empty(0, len(self.taps), VOCAB) if hidden is None else torch.as_tensor(hidden)
        self.drafted_rounds = 0

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        assert len(self.features) == len(tokens) - 1, "a state for every committed token but the last"
        self.drafted_rounds += 1
        guess = int(self.features[-1, 0, 0]) % VOCAB
        return Draft.trie([[guess, 3, 1], [guess, 5], [7, 7, 7]])

    def observe(self, draft: Draft, scores: ForwardOutput, verdict: Verdict) -> None:
        assert scores.hidden is not None
        pending = len(scores.hidden) - len(draft)
        new = torch.as_tensor(scores.hidden)
        self.features = torch.cat([self.features, new[:pending], new[pending:][list(verdict.path)]])


class NoAscent:
    """A grammar: a token may be at most `most` above the last one; after 9 come 2 and 3, always; 11 is the stop token."""

    STOP = 11

    def __init__(self, vocab: int = VOCAB, most: int = 4) -> None:
        self.vocab, self.most, self.steps = vocab, most, 0

    def start(self) -> int:
        return 5

    def allowed(self, state: int) -> Mask:
        mask = np.arange(self.vocab) <= state + self.most
        if must := self.forced(state):
            mask = np.arange(self.vocab) == must[0]
        mask[self.STOP] = not self.forced(state)
        return mask

    def admits(self, state: int, token: int) -> bool:
        return bool(self.allowed(state)[token])

    def step(self, state: int, token: int) -> int:
        assert self.allowed(state)[token], "stepped over a forbidden token"
        assert token != self.STOP, "stepped over the stop token"
        self.steps += 1
        return 20 if (state, token) == (9, 2) else token if state != 20 else 3

    def forced(self, state: int) -> tuple[int, ...]:
        return {9: (2, 3), 20: (3,)}.get(state, ())
