"""Training of mask adapters: masks predict as they will when decoding, and learn what the target says later.

Masks learn the same on a GPU's forward as on a processor's.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_mask

from decoding.checkpoints.identity import TargetIdentity, target_identity
from decoding.checkpoints.mask_adapter import Ahead, read_mask_adapter
from decoding.checkpoints.weight_files import read_weights
from decoding.engine.draft import Draft
from decoding.engine.sampler import Sampler
from decoding.engine.target import ForwardInput
from decoding.targets.fast_target import FastModel, FastTarget
from tests.decoding.models.random_heads import random_masks
from tests.decoding.models.tiny_models import tiny_checkpoint
from tests.decoding.training.model.test_gpu_model import forest, small
from tests.decoding.training.model.test_gpu_model import packed as packed_gpu_mask_model
from training.config import TrainConfig, TrainingError
from training.heads.features import packs_of
from training.heads.mask_model import (
    GpuMaskModel,
    MaskConfig,
    MaskLesson,
    MaskModel,
    _drawn,
    _seen,
    frequent_tokens,
    mask_blocks,
    mask_rows,
    new_mask_adapter,
    padded,
)
from training.heads.responses import Response
from training.loop import train
from training.packs.packing import Pack
from training.run.base import Base, load_base
from training.run.gpu_model import BLOCK, TrainModel

DEPTHS, CPU = 3, torch.device("cpu")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return load_base(str(tiny_checkpoint(tmp_path_factory.mktemp("tiny"), "llama", seed=3)))


def responses(count: int = 6) -> list[Response]:
    """Prompts that share their first tokens, each with an answer that counts up from its prompt's last token."""
    found = []
    for index in range(count):
        prompt, first = (*range(3, 15), 100 + 9 * index), 101 + 9 * index
        found.append(Response(str(index), "plan", "", prompt, 12, (tuple(range(first, first + 8)),)))
    return found


def own_responses(base: Base) -> list[Response]:
    """The target's own greedy answers of eight tokens to the same prompts."""
    model, found = TrainModel(base.config, read_weights(base.folder), {}, 0.0, torch.float32, CPU), []
    for response in responses():
        answer = tuple[int, ...]()
        for _ in range(8):
            (pack,), _ = packs_of([replace(response, answers=((*answer, 0),))], 512, seed=0)
            answer = (*answer, int(model.logits(model.rows(pack))[-1].argmax()))
        found.append(replace(response, answers=(answer,)))
    return found


def packed(texts: Sequence[Response] = ()) -> Pack:
    (pack,), left_out = packs_of(texts or responses(), 512, seed=0)
    assert left_out == 0
    return pack


def test_a_mask_is_to_say_what_the_target_says_after_the_next_token_of_the_same_answer() -> None:
    pack = packed()
    masks = mask_rows(pack, [0, 5, 7], DEPTHS)  # an answer has 8 tokens
    (asked,) = masks.asked
    assert asked.targets.tolist() == [1, 2, 3, 6, 7] and asked.places.tolist() == [0, 1, 2, 3, 4]
    assert asked.firsts.tolist() == [0, 0, 0, 5, 5] and asked.depths.tolist() == [0, 1, 2, 0, 1]
    assert masks.anchors.tolist() == pack.sources[[0, 5, 7]].tolist()


def test_heads_are_to_say_what_comes_after_their_rows_own_tokens() -> None:
    masks = mask_rows(packed(), [0, 3], depths=4, stride=2, ahead=2)  # masks for depths 0 and 2
    assert (masks.masks, masks.stride) == (2, 2)
    found = [(each.of_masks, each.head, each.places.tolist(), each.depths.tolist()) for each in masks.asked]
    assert found[:3] == [
        (True, 0, [0, 1, 2, 3], [0, 2, 0, 2]),
        (True, 1, [0, 1, 2, 3], [1, 3, 1, 3]),
        (True, 2, [0, 1, 2], [2, 4, 2]),  # the answer ends after 4 more tokens
    ]
    assert found[3:] == [(False, 1, [0, 1], [0, 0]), (False, 2, [0, 1], [1, 1])]
    assert (masks.targets == masks.firsts + 1 + masks.depths).all()


def test_chains_are_drawn_where_their_masks_have_something_to_say() -> None:
    pack, how = packed(), MaskConfig(depths=3, chains=9)  # six answers of eight tokens
    torch.manual_seed(5)
    draws = Counter(place % 8 for _ in range(400) for place in _drawn(pack, how))
    shares = [draws[place] / sum(draws.values()) for place in range(8)]
    assert draws[7] == 0  # an answer's last token has none after it
    assert shares[5] == pytest.approx(2 / 18, abs=0.02) and shares[6] == pytest.approx(1 / 18, abs=0.02)
    assert all(share == pytest.approx(3 / 18, abs=0.02) for share in shares[:5])
    everything = _drawn(pack, replace(how, chains=100))
    assert everything == list(range(48))


def test_a_chain_counts_to_where_the_target_would_write_something_else(base: Base) -> None:
    adapter, texts = random_masks(base.config, DEPTHS), own_responses(base)
    other = (texts[0].answers[0][4] + 1) % base.config.vocab_size
    changed = replace(texts[0], answers=((*texts[0].answers[0][:4], other, *texts[0].answers[0][5:]),))
    model = MaskModel(base.config, read_weights(base.folder), adapter, torch.float32, CPU)
    owns = []
    for each in (texts[0], changed):
        pack = packed([each])
        owns.append(model.predictions(pack, mask_rows(pack, range(5), DEPTHS)).own.view(5, DEPTHS).tolist())
    assert owns[0] == [[True] * 3] * 5
    assert owns[1] == [[True] * 3, [True] * 3, [True, True, False], [True, False, False], [False] * 3]


def test_masks_predict_in_training_what_they_predict_in_decoding(base: Base) -> None:
    adapter, pack = random_masks(base.config, DEPTHS), packed()
    model = MaskModel(base.config, read_weights(base.folder), adapter, torch.float32, CPU)
    predicted = model.predictions(pack, mask_rows(pack, range(len(pack.sources)), DEPTHS))
    assert predicted.target.requires_grad is False and predicted.masks.requires_grad
    ids, found = predicted.ids, predicted.masks.detach()
    target = FastTarget(FastModel(base.config, read_weights(base.folder), masks=adapter), cache_bytes=0)
    answers = {answer for _, answer in pack.pairs}
    assert len(answers) == 6
    at = 0
    for response in sorted(responses(), key=lambda each: [i for _, i in pack.pairs].index(each.id)):
        text = (*response.prompt_ids, *response.answers[0])
        for end in range(len(response.prompt_ids), len(text)):
            if not (depths := min(DEPTHS, len(text) - 1 - end)):
                continue
            sequence = target.open(text[:end], Sampler())
            (scores,) = target.score([ForwardInput(sequence, text[:end], Draft.chain(target.mask_tokens[:depths]))])
            want = torch.from_numpy(np.asarray(scores.after(range(depths)))).reshape(depths, -1)
            torch.testing.assert_close(found[at : at + depths], want[:, ids], atol=2e-4, rtol=1e-4)
            at += depths
            target.close(sequence)
    assert at == len(found)


@pytest.mark.parametrize("ahead", [0, 1])
def test_masks_learn_and_the_target_does_not(base: Base, tmp_path: Path, ahead: int) -> None:
    identity, texts = target_identity(base.sha256, None), own_responses(base)
    how = MaskConfig(depths=2, rank=8, pair_rank=4, ahead=ahead, ahead_rank=8)
    lesson = MaskLesson(how, base, None, identity, frequent=frequent_tokens(each.answers[0] for each in texts))
    config = TrainConfig(
        lora=None, steps=40, learning_rate=1e-2, accumulate=1, pack_tokens=512, dtype="fp32", device="cpu"
    )
    outcome = train(config, base, texts, tmp_path, held_out=texts, objective=lesson.objective, subject=lesson.subject)
    before = lesson.subject(config, base, None, torch.float32, CPU).model  # type: ignore[arg-type]
    first = lesson._values(before, [packed(texts)])
    assert outcome.finished and outcome.held_out["loss"] < first["loss"] - 0.5
    assert {"right_0", "right_1"} <= set(outcome.held_out) and ("text_0" in outcome.held_out) == bool(ahead)
    found = read_mask_adapter(tmp_path / "masks")
    assert found is not None and found.target == identity and np.abs(found.up).max() > 0
    heads = {"ahead_down", "ahead_up"} if ahead else set()
    assert set(before.trained) == {"embeddings", "down", "up", "before", "after", "followers", *heads}
    assert (found.ahead is not None and bool(np.abs(found.ahead.up).max((1, 2, 3)).all())) == bool(ahead)
    assert found.pairs is not None and np.abs(found.pairs.after).max() > 0


def test_pairs_score_in_training_what_they_score_in_decoding(base: Base) -> None:
    adapter, pack = random_masks(base.config, DEPTHS), packed()
    masks = mask_rows(pack, range(0, len(pack.sources), 3), DEPTHS)
    model = MaskModel(base.config, read_weights(base.folder), adapter, torch.float32, CPU)
    predicted = model.predictions(pack, masks)
    added = (model.paired(predicted, pack, masks) - predicted.masks).detach().numpy()
    prompts = {response.id: response.prompt_ids for response in responses()}
    assert adapter.pairs is not None
    for row, target in enumerate(masks.targets.tolist()):
        source, name = pack.sources[target], pack.pairs[pack.owners[target]][1]
        tail = int(pack.tokens[pack.parents[source]]), int(pack.tokens[source])
        want = adapter.pairs.in_text(prompts[name]).corrected(
            np.zeros(len(predicted.ids), np.float32), tail, predicted.ids.numpy()
        )
        np.testing.assert_allclose(added[row], want, atol=1e-4)
    assert added.any(1).sum() > len(added) / 2


def test_rank_0_trains_no_pairs(base: Base) -> None:
    like = torch.zeros(base.config.hidden_size)
    for rank in (0, 4):
        made = new_mask_adapter(MaskConfig(rank=8, pair_rank=rank), base, like, [7, 9], seed=1)
        assert (made.pairs is None) == (rank == 0) and made.rank == 8


def test_responses_of_another_target_are_refused(base: Base) -> None:
    with pytest.raises(TrainingError, match="another target"):
        MaskLesson(MaskConfig(), base, None, TargetIdentity("0" * 64))


def test_a_grown_adapter_says_what_it_said(base: Base) -> None:
    adapter, pack = random_masks(base.config, DEPTHS), packed()
    masks = mask_rows(pack, range(len(pack.sources)), DEPTHS)
    said = []
    for each in (adapter, adapter.grown(DEPTHS, 9, seed=0)):
        model = MaskModel(base.config, read_weights(base.folder), each, torch.float32, CPU)
        said.append(model.predictions(pack, masks).masks.detach())
    torch.testing.assert_close(said[1], said[0], rtol=1e-5, atol=1e-5)
    deeper = adapter.grown(DEPTHS + 2, 4, seed=0)
    assert deeper.depths == DEPTHS + 2 and (deeper.embeddings[DEPTHS:] == adapter.embeddings[-1]).all()
    with pytest.raises(ValueError, match="no fewer"):
        deeper.grown(DEPTHS, 4, seed=0)
    with pytest.raises(ValueError, match="heads for 2 tokens"):
        adapter.with_ahead(2, 8, seed=0).with_ahead(1, 8, seed=0)


def test_new_heads_say_what_their_rows_say(base: Base) -> None:
    adapter, pack = random_masks(base.config, DEPTHS), packed()
    assert Ahead.new(2, 8, base.config.hidden_size, seed=0).tokens == 2
    model = MaskModel(
        base.config, read_weights(base.folder), adapter.with_ahead(2, 8, seed=0), torch.float32, torch.device("cpu")
    )
    masks = mask_rows(pack, [0], DEPTHS, stride=3, ahead=2)
    said = model.predictions(pack, masks).masks.detach()
    torch.testing.assert_close(said[1:3], said[:1].expand(2, -1), rtol=1e-4, atol=1e-4)


def test_texts_of_others_are_learnt_too(base: Base) -> None:
    texts = own_responses(base)
    config = TrainConfig(lora=None, steps=1, pack_tokens=512)
    identity = target_identity(base.sha256, None)
    lesson = MaskLesson(MaskConfig(depths=2), base, None, identity, pairs=[texts[0].pairs(), texts[1].pairs()])
    learnt = lesson.objective(config, base, texts[2:], ())
    assert sorted(name for each in learnt.packs for _, name in each.pairs) == ["0", "1", "2", "3", "4", "5"]


__all__ = ["small"]
CPU_GPU_MASK_MODEL, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("depths", [3, 8])
def test_blocks_of_masks_hold_all_that_masks_see(depths: int) -> None:
    one, chance = forest(3 * BLOCK - 20, 0), np.random.default_rng(1)
    anchors = np.sort(chance.choice(one.rows, 2 * BLOCK, replace=False)).astype(np.int32)
    answers = replace(one, sources=anchors, owners=np.zeros(len(anchors), np.int32))
    masks = padded(mask_rows(answers, range(len(anchors)), depths), BLOCK)
    blocks = mask_blocks(
        np.concatenate([one.ends(), np.zeros(20, np.int32)]),
        np.repeat(masks.anchors, depths),
        depths,
        CPU_GPU_MASK_MODEL,
    )
    count = len(masks.anchors) * depths
    want = _seen(one, masks)
    want = np.concatenate([want[:, : one.rows], np.zeros((count, 20), bool), want[:, one.rows :]], 1)
    dense = create_mask(blocks.mask_mod, 1, 1, count, 3 * BLOCK + count, device="cpu")[0, 0]
    assert dense.tolist() == want.tolist()
    assert blocks.full_kv_num_blocks is not None and blocks.full_kv_indices is not None
    for row in range(count // BLOCK):
        part = want[row * BLOCK : (row + 1) * BLOCK].reshape(BLOCK, -1, BLOCK)
        partly = blocks.kv_indices[0, 0, row, : blocks.kv_num_blocks[0, 0, row]].tolist()
        wholly = blocks.full_kv_indices[0, 0, row, : blocks.full_kv_num_blocks[0, 0, row]].tolist()
        assert set(np.flatnonzero(part.any((0, 2))).tolist()) <= {*partly, *wholly}
        assert not {*partly} & {*wholly} and all(part[:, key].all() for key in wholly)


@pytest.mark.usefixtures("small")
def test_predictions_and_gradients_equal_those_on_a_cpu(tmp_path: Path) -> None:
    base = load_base(str(tiny_checkpoint(tmp_path, "llama", seed=3)))
    check(base, CPU_GPU_MASK_MODEL, 1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_compiled_on_a_gpu(tmp_path: Path) -> None:
    check(load_base(str(tiny_checkpoint(tmp_path, "llama", head_dim=16, seed=3))), CUDA, 5e-3)


def check(base: Base, device: torch.device, error: float) -> None:
    adapter, one = random_masks(base.config, 3), packed_gpu_mask_model(base)
    noise = np.random.default_rng(2).standard_normal((2, 2, 2, 8, base.config.hidden_size), dtype=np.float32)
    adapter = replace(adapter, ahead=Ahead(noise[0], 0.1 * noise[1]))
    masks = mask_rows(one, range(0, len(one.sources), 2), 3, stride=2, ahead=2)
    found, gradients = list[Tensor](), list[dict[str, Tensor]]()
    for kind, where in ((MaskModel, CPU_GPU_MASK_MODEL), (GpuMaskModel, device)):
        model = kind(base.config, read_weights(base.folder), adapter, torch.float32, where)
        predicted = model.predictions(one, masks)
        paired = model.paired(predicted, one, masks)
        loss = -(predicted.target.softmax(-1) * paired.log_softmax(-1)).sum(-1).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        found.append(paired.detach().cpu())
        gradients.append({name: leaf.grad.cpu() for name, leaf in model.trained.items() if leaf.grad is not None})
    torch.testing.assert_close(found[1], found[0], rtol=error, atol=error)
    names = {"embeddings", "down", "up", "before", "after", "followers", "ahead_down", "ahead_up"}
    assert set(gradients[1]) == names
    for name, want in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], want, rtol=10 * error, atol=error, msg=name)
