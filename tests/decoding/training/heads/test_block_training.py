"""How block heads are trained: with the same inputs as in decoding, and the papers' losses and curricula."""

from dataclasses import replace

import pytest
import torch

from decoding.heads.on_torch.block import BlockContext
from decoding.methods.registry import load_method
from tests.decoding.models.block_data import HIDDEN, block_head, context_of, states_of
from tests.decoding.models.random_heads import small_head
from training.heads.block_kinds import (
    BlockObjective,
    DFlashObjective,
    DominoObjective,
    JetSpecObjective,
    corrected,
    figures,
    self_corrected,
)
from training.heads.features import HeadBatch

pytestmark = pytest.mark.usefixtures("one_thread")


def batch_of(rows: int) -> HeadBatch:
    """One text of which the first four tokens are the prompt."""
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(20, (rows,), generator=generator)
    sources = torch.arange(3, rows)
    context = context_of()
    return HeadBatch(
        tokens=tokens,
        positions=torch.arange(rows),
        parents=torch.arange(rows) - 1,
        sees=torch.ones(rows, rows, dtype=torch.bool).tril(),
        hidden=states_of(rows),
        final=torch.randn(rows, HIDDEN, generator=generator),
        sources=sources,
        targets=torch.cat([tokens[4:], torch.tensor([0])]),
        owners=torch.zeros_like(sources),
        embedding=context.embedding,
        lm_head=context.lm_head,
        progress=0.5,
    )


@pytest.mark.parametrize("known", [1, 3])
@pytest.mark.parametrize("kind", ["dflash", "jetspec", "domino"])
def test_training_feeds_a_head_what_decoding_feeds_it(kind: str, known: int) -> None:
    """Guards against a context that reaches the anchor, positions off by one, and guesses that are of another token."""
    head, batch = block_head(kind), batch_of(12)
    torch.manual_seed(5)
    blocks = DFlashObjective(block_size=4, known=known).blocks(head, batch)
    torch.manual_seed(5)
    drawn = torch.randperm(len(batch.targets))
    late = int(torch.randint(2, ()) * torch.randint(known, ()))
    masks = 3
    for block, anchor in enumerate(drawn.tolist()):
        place = anchor + 3  # of the block's first token in the text
        if not bool(blocks.valid[block].all()):
            continue
        context = BlockContext(head)
        context.append(batch.hidden[:place])
        text = batch.tokens[: place + late + 1]
        want = head(
            text[None, place:], torch.tensor([place]), masks, batch.embedding, context.layers(), last=context.last
        )
        torch.testing.assert_close(blocks.states[block], want[0], atol=1e-5, rtol=1e-4)
        guessed = batch.targets[blocks.index[block]]
        following = torch.cat([batch.tokens, torch.tensor([0])])[len(text) : len(text) + masks + head.shift]
        assert guessed.tolist() == following.tolist()


def test_dominos_correction_in_training_is_that_of_decoding() -> None:
    """Guards against an encoder that reads one token too many or too few."""
    head, batch = small_head("domino", HIDDEN, 20), batch_of(12)
    objective = DominoObjective(block_size=4, known=1)
    blocks = objective.blocks(head, batch)  # type: ignore[arg-type]
    ids = torch.arange(20)
    rows = head.factor_rows(batch.lm_head, ids)  # type: ignore[operator]
    base = blocks.states @ batch.lm_head.T
    own = self_corrected(head, base, rows, blocks, batch, ids)  # type: ignore[arg-type]
    block = int(blocks.valid.all(1).nonzero()[0])
    place = int((batch.sources[blocks.index[block, 0]]).item())
    method = load_method("domino", head=head, block_size=4)
    method.begin(batch.tokens[:place].tolist(), batch.hidden[:place], context_of())
    assert method.propose(batch.tokens[: place + 1].tolist(), 9).tokens == tuple(ids[own[block].argmax(-1)].tolist())
    # What is true and what is guessed agree for a text that is made of the guesses.
    batch.targets[blocks.index[block, :-1]] = own[block].argmax(-1)[:-1]
    forced = corrected(head, base, rows, blocks, batch, ids)  # type: ignore[arg-type]
    torch.testing.assert_close(forced[block], own[block], atol=1e-5, rtol=1e-4)


def loss_of(objective: BlockObjective, progress: float = 0.5) -> float:
    """On the same head and anchors."""
    head = small_head("domino" if isinstance(objective, DominoObjective) else "dflash", HIDDEN, 20)
    torch.manual_seed(5)
    return float(objective.loss(head, replace(batch_of(12), progress=progress))[0])


def test_dominos_curriculum_goes_from_the_base_to_the_corrected_guesses() -> None:
    """And `anchored=False` teaches the corrected ones alone, from the start."""
    start, middle, end = (loss_of(DominoObjective(), progress) for progress in (0.0, 0.5, 1.0))
    assert middle == pytest.approx((start + end) / 2, rel=1e-5)
    assert start != pytest.approx(end, rel=1e-3)
    assert loss_of(DominoObjective(anchored=False), 0.0) == pytest.approx(end, rel=1e-6)
    assert loss_of(DominoObjective(decay=0.5), 0.5) == pytest.approx(end, rel=1e-6)
    assert loss_of(DominoObjective(teacher_forcing=False), 1.0) != pytest.approx(end, rel=1e-4)


def test_losses_are_weighted_by_depth_and_may_learn_a_distribution() -> None:
    """A tiny gamma leaves the first guess alone; the target's own logits have the least soft cross-entropy."""
    batch, ids = batch_of(12), torch.arange(20)
    objective = JetSpecObjective(gamma=1e-3)
    blocks = objective.blocks(block_head("jetspec"), batch)
    teacher = (batch.final[batch.sources] @ batch.lm_head.T)[blocks.index]
    entropy = -(teacher.softmax(-1) * teacher.log_softmax(-1)).sum(-1)
    first = entropy[:, 0][blocks.valid[:, 0]]
    assert objective.weighted(teacher, blocks, batch, ids) == pytest.approx(float(first.mean()), rel=1e-5)
    assert JetSpecObjective().weighted(teacher, blocks, batch, ids) == pytest.approx(
        float(entropy[blocks.valid].mean()), rel=1e-5
    )
    true = torch.nn.functional.one_hot(batch.targets[blocks.index], 20) * 50.0
    assert DFlashObjective().weighted(true, blocks, batch, ids) < 1e-6
    found = figures(true, blocks, batch, ids)
    assert (found["accepted"], found["faithful"]) == (blocks.valid.sum(1).float().mean(), 1)
    true[:, -1] = true[:, -1].roll(1, -1)
    assert figures(true, blocks, batch, ids)["faithful"] == (~blocks.valid[:, -1]).float().mean()
