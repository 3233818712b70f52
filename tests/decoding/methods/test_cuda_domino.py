"""The GPU's correction loop guesses the same chain as the head itself."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from decoding.engine.constraint import ConstraintCursor, Mask
from decoding.engine.method import Context, LookupCorpus
from decoding.engine.sampler import Sampler
from decoding.heads.on_torch.block import DominoLoop, TorchPaths
from decoding.methods.blocks import Domino
from decoding.methods.registry import load_method
from decoding.methods.trees import Bounds
from kernels.gpu import domino
from tests.decoding.models.random_heads import small_head
from tests.decoding.models.waits import Waits, as_kernels

VOCAB, HIDDEN, TOKENS = 60, 32, [3, 9, 4]
STOP = 2


class Multiples:
    """Allows 7 and multiples of 4; after a multiple of 8, 11 and 12 are forced."""

    def start(self) -> int:
        return 0

    def step(self, state: int, token: int) -> int:
        return token

    def admits(self, state: int, token: int) -> bool:
        return token == 7 or token % 4 == 0

    def allowed(self, state: int) -> Mask:
        return np.array([self.admits(state, token) for token in range(VOCAB)])

    def forced(self, state: int) -> tuple[int, ...]:
        return (11, 12) if state % 8 == 0 else ()


def loaded(sampler: Sampler) -> Domino:
    torch.manual_seed(0)
    method = load_method("domino", head=small_head("domino", HIDDEN, VOCAB, "loud"))
    assert isinstance(method, Domino)
    started(method, TOKENS, sampler, torch.randn(VOCAB, HIDDEN))
    return method


def started(method: Domino, prompt: list[int], sampler: Sampler, embedding: torch.Tensor) -> TorchPaths:
    method.begin(prompt, None, Context(sampler, embedding, embedding, LookupCorpus()))
    assert isinstance(method._drafter, TorchPaths)
    return method._drafter


@pytest.mark.filterwarnings("ignore:overflow")  # of the gates, as it should
@pytest.mark.parametrize("sampler", [Sampler(), Sampler(0.7, 5)], ids=str)
def test_the_same_chain(sampler: Sampler) -> None:
    """At every depth, with the noise of the right positions, and round after round in the same buffers."""
    method = loaded(sampler)
    assert isinstance(method._drafter, TorchPaths)
    chains = set()
    for depth in (4, 4, 2):
        states = torch.randn(depth, HIDDEN)
        want = method.grown(states, TOKENS, None, width=1, children=1, bounds=Bounds(depth)).tokens
        assert tuple(method._drafter.looped(states, TOKENS)) == want
        chains.add(want)
    assert len(chains) == 3


@pytest.mark.usefixtures("references")
@pytest.mark.parametrize("sampler", [Sampler(), Sampler(0.7, 5)], ids=str)
def test_the_chain_that_a_constraint_allows(sampler: Sampler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guesses after a forbidden one follow what stands in its place; forced tokens need not be in the draft vocabulary."""
    monkeypatch.setattr("decoding.methods.trees.OFFERED", VOCAB)
    method = loaded(sampler)
    assert isinstance(method._drafter, TorchPaths)
    free = forced = 0
    for seed in range(20):
        states = torch.randn(6, HIDDEN, generator=torch.Generator().manual_seed(seed))
        cursor = ConstraintCursor.start(Multiples(), frozenset({STOP})).after(4 + 4 * (seed % 2))
        want = method.grown(states, TOKENS, cursor, width=1, children=1, bounds=Bounds(6)).tokens
        assert tuple(method._drafter.looped(states, TOKENS, cursor)) == want
        free, forced = free + (11 not in want), forced + (11 in want)
    assert free and forced


def noted(names: list[str], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which adds its name to a list."""

    def run(*args: Any) -> Any:
        names.append(name)
        return function(*args)

    return run


@pytest.mark.usefixtures("references")
def test_tables_and_graphs_serve_all_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table is a product over the vocabulary, and a capture runs the loop three times: neither belongs in a request."""
    made: list[str] = []
    for name in ("__init__", "_capture"):
        monkeypatch.setattr(DominoLoop, name, noted(made, name, getattr(DominoLoop, name)))
    head, embedding = small_head("domino", HIDDEN, VOCAB, "loud"), torch.randn(VOCAB, HIDDEN)
    states = torch.randn(4, HIDDEN)
    for prompt in ([3, 9, 4], [5, 6, 7, 8]):
        method = load_method("domino", head=head)
        assert isinstance(method, Domino)
        started(method, prompt, Sampler(), embedding).looped(states, prompt)
    assert made == ["__init__", "_capture"]


@pytest.mark.usefixtures("references")
def test_a_chain_waits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    method, states = loaded(Sampler()), torch.randn(4, HIDDEN)
    assert isinstance(method._drafter, TorchPaths)
    method._drafter.looped(states, TOKENS)
    with Waits(monkeypatch) as waits:
        as_kernels(waits, monkeypatch, (domino, "correct_chain_reference"))
        method._drafter.looped(states, TOKENS)
    assert waits.seen == ["tolist"]


@pytest.fixture
def references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
