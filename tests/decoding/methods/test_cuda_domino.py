"""The GPU's correction loop guesses the same chain as the head itself."""

import pytest
import torch

from decoding.engine.method import Context
from decoding.engine.recall import Recall
from decoding.engine.sampling.sampler import Sampler
from decoding.heads.on_torch.paths import TorchPaths
from decoding.methods.blocks.domino import Domino
from decoding.methods.drafting.trees import Bounds
from decoding.methods.registry import load_method
from tests.decoding.models.random_heads import small_head

VOCAB, HIDDEN, TOKENS = 60, 32, [3, 9, 4]


@pytest.mark.filterwarnings("ignore:overflow")  # of the gates, as it should
@pytest.mark.parametrize("sampler", [Sampler(), Sampler(0.7, 5)], ids=str)
def test_the_same_chain(sampler: Sampler) -> None:
    """At every depth, with the noise of the right positions, and round after round in the same buffers."""
    torch.manual_seed(0)
    method = load_method("domino", head=small_head("domino", HIDDEN, VOCAB, "loud"))
    assert isinstance(method, Domino)
    embedding = torch.randn(VOCAB, HIDDEN)
    method.begin(TOKENS, None, Context(sampler, embedding, embedding, Recall()))
    assert isinstance(method._drafter, TorchPaths)
    chains = set()
    for depth in (4, 4, 2):
        states = torch.randn(depth, HIDDEN)
        want = method.grown(states, TOKENS, None, width=1, children=1, bounds=Bounds(depth)).tokens
        assert tuple(method._drafter.looped(states, TOKENS)) == want
        chains.add(want)
    assert len(chains) == 3
