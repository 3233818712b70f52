"""The fused correction loop against one that keeps the corrected logits, and against the head itself."""

import torch
from torch import nn

from kernels.gpu.domino import Correction, correct_chain, correct_chain_reference
from tests.kernels.ragged_data import DEVICE

VOCAB, SIZE, RANK, GRU, HIDDEN, DEPTH = 170, 150, 5, 132, 7, 6


@torch.no_grad()
def test_the_chain_of_the_head_in_its_own_words() -> None:
    """Each guess depends on all before it; the first goes without correction. Tokens may be drafted in any order."""
    torch.manual_seed(0)
    gru = nn.GRU(HIDDEN, GRU, bias=False).to(DEVICE)
    states, embedding, outputs = (
        torch.randn(n, m, device=DEVICE) for n, m in ((DEPTH, HIDDEN), (VOCAB, HIDDEN), (VOCAB, RANK))
    )
    from_state, from_encoder = torch.randn(RANK, HIDDEN, device=DEVICE), torch.randn(RANK, GRU, device=DEVICE)
    ids = torch.randperm(VOCAB, device=DEVICE)[:SIZE]
    base, state = torch.randn(DEPTH, SIZE, device=DEVICE), torch.randn(GRU, device=DEVICE)
    inputs, recurrent = gru.all_weights[0]
    correction = Correction(embedding @ inputs.T, torch.cat([from_encoder, recurrent]), outputs)

    want, prefix = [], state[None]
    for place in range(DEPTH):
        factor = nn.functional.silu(from_state @ states[place] + from_encoder @ prefix[0])
        want.append(int(ids[(base[place] + (outputs[ids] @ factor if place else 0)).argmax()]))
        prefix = torch.gru_cell(embedding[want[-1:]], prefix, inputs, recurrent)

    places = states @ from_state.T
    assert correct_chain_reference(base, ids, places, state, correction).tolist() == want
    assert correct_chain(base, ids, places, state, correction).tolist() == want
    assert ids[base.argmax(1)].tolist() != want
