"""From the target's answers to a head that drafts: answers are collected and fed once; the head learns and ships.

How block heads are trained: with the same inputs as in decoding, and the papers' losses and curricula.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from decoding.engine.draft import Draft
from decoding.engine.sampler import Sampler
from decoding.engine.target import ForwardInput
from decoding.heads.head import Head, HeadMismatch, load_head
from decoding.heads.kinds import KINDS
from decoding.heads.on_torch.block import BlockContext
from decoding.methods.registry import load_method
from decoding.serving.text_decoder import SamplingParams
from decoding.targets.hf_target import HfTarget
from tests.decoding.models.block_data import HIDDEN, block_head, context_of, states_of
from tests.decoding.models.head_data import CONFIG, Taught, collected, taught
from tests.decoding.models.random_heads import small_head
from tests.decoding.models.tiny_models import tiny_checkpoint
from training.config import TrainingError
from training.heads.block_kinds import (
    BlockObjective,
    Blocks,
    DFlashObjective,
    DominoObjective,
    JetSpecObjective,
    corrected,
    figures,
)
from training.heads.features import STATES, Features, HeadBatch, load_objective
from training.heads.responses import read_responses
from training.heads.training import HeadLesson, export_head, make_features, train_head
from training.packs.collect import RecordLog
from training.packs.groups import TrainingDataError
from training.run.base import load_base
from training.run.progress import read_log

pytestmark = pytest.mark.usefixtures("one_thread")


BLOCK_HEADS = {"block_size": 5, "anchors": 64, "steps": 120}


@pytest.fixture(scope="module")
def target() -> Taught:
    return taught()


@pytest.mark.parametrize("kind", KINDS)
def test_a_trained_head_beats_its_random_initialisation(kind: str, target: Taught, tmp_path: Path) -> None:
    """Losslessness hides a head that learnt nothing, or that training and decoding feed differently."""
    target.train(kind, tmp_path, **(BLOCK_HEADS if kind in ("dflash", "domino", "jetspec", "path_tree") else {}))
    untrained = load_objective(kind).new(target.base.config, target.features.counts()).eval()
    before, after = (target.tokens_per_forward(kind, head) for head in (untrained, target.head(tmp_path)))
    assert after > 1.3 * before


def test_answers_are_the_targets_own_and_a_collection_goes_on(target: Taught, tmp_path: Path) -> None:
    """Greedy first; a second run tries nothing twice, and another target's file is not continued."""
    origin = {"target": {"base_sha256": target.base.sha256}}
    first = collected(target.decoder, RecordLog(tmp_path / "r.jsonl", origin), limit=5)
    again = collected(target.decoder, RecordLog(tmp_path / "r.jsonl", origin))
    assert (first["prompts"], first["remaining"], again["remaining"]) == (5, 0, 0)
    assert again["prompts"] == 15
    _, responses = read_responses([tmp_path / "r.jsonl"])
    found = {response.prompt: response for response in responses}
    assert found == {response.prompt: response for response in target.read()}
    assert any(len(response.answers) == 2 for response in found.values()), "sampled answers"
    for response in list(found.values())[:3]:
        generated = target.decoder.generate(response.prompt, SamplingParams(max_new_tokens=40))
        assert generated.tokens == response.answers[0][:-1]
    with pytest.raises(TrainingError, match="another target"):
        RecordLog(tmp_path / "r.jsonl", {"target": {"base_sha256": "x"}})
    (tmp_path / "other.jsonl").write_text(json.dumps({"target": {"base_sha256": "x"}}) + "\n")
    with pytest.raises(TrainingDataError, match="not all of one target"):
        read_responses([tmp_path / "r.jsonl", tmp_path / "other.jsonl"])


def test_features_are_the_states_that_decoding_taps(target: Taught) -> None:
    """Guards against taps off by one, rows out of order, and a norm left out."""
    reference, pack = HfTarget.load(target.base.folder), target.features.packs[0]
    taps = target.features.origin.taps
    stored, path = target.features.states(pack, taps), [int(pack.sources[pack.owners == 2][-1])]
    while pack.parents[path[0]] >= 0:
        path.insert(0, int(pack.parents[path[0]]))
    tokens = pack.tokens[path].tolist()
    sequence = reference.open(tokens, Sampler(), taps)
    (scores,) = reference.score([ForwardInput(sequence, tokens, Draft())])
    torch.testing.assert_close(stored[path], scores.hidden, atol=0.02, rtol=0.01)  # bf16 has 8 bits
    assert int((stored[path[-1], -1] @ reference.lm_head.T).argmax()) == int(scores.logits[0].argmax())


def test_an_interrupted_pass_goes_on(target: Taught, tmp_path: Path) -> None:
    """Also where it was killed in the middle of a pack."""
    asked = iter([False, True])
    for folder, stopped in (("a", lambda: next(asked)), ("b", lambda: False)):
        make_features(target.base, None, [target.responses], tmp_path / folder, pack_tokens=192, stopped=stopped)
    with pytest.raises(TrainingError, match="not finished"):
        Features(tmp_path / "a")
    with (tmp_path / "a" / STATES).open("ab") as file:
        file.write(b"half a row")
    assert make_features(target.base, None, [target.responses], tmp_path / "a", pack_tokens=192)
    assert (tmp_path / "a" / STATES).read_bytes() == (tmp_path / "b" / STATES).read_bytes()
    with pytest.raises(TrainingError, match="another pack_tokens"):
        make_features(target.base, None, [target.responses], tmp_path / "a", pack_tokens=160)


def stop_after(steps: int) -> Any:
    asked = iter(range(steps))
    return lambda: next(asked, None) is None


def test_a_resumed_run_is_one_that_was_never_stopped(target: Taught, tmp_path: Path) -> None:
    """Bit for bit, with the chance and the curriculum of Falcon's training in it."""
    config = replace(CONFIG, steps=5)
    objective = load_objective("falcon", lstm=16)
    for name, stops in (("whole", [99]), ("parts", [2, 99])):
        for stop in stops:
            train_head(
                config,
                target.base,
                target.features,
                objective,
                tmp_path / name,
                held_out_part=0.2,
                resume=True,
                stopped=stop_after(stop),
            )
    logs = [
        [{k: v for k, v in r.items() if k != "seconds"} for r in read_log(tmp_path / n)] for n in ("whole", "parts")
    ]
    assert logs[0] == logs[1]
    whole, parts = (load_head(tmp_path / name / "head").state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_glancing_shows_what_was_wrong_less_and_less(target: Taught) -> None:
    """At the end of the run, and where it is switched off, the loss is that of no help at all."""
    losses = {}
    for glancing in (0.0, 1.0):
        lesson = HeadLesson(
            load_objective("falcon", glancing=glancing, noise=0.0, lstm=16), target.features, target.base
        )
        head = lesson.subject(CONFIG, target.base, None, torch.float32, torch.device("cpu")).model  # type: ignore[arg-type]
        for progress in (0.0, 1.0):
            torch.manual_seed(0)
            batch = lesson.batch(target.features.packs[0], head.config.taps, progress)
            loss, _ = load_objective("falcon", glancing=glancing, noise=0.0).loss(head, batch)
            losses[glancing, progress] = float(loss.detach())
    assert losses[1.0, 1.0] == losses[0.0, 1.0] == losses[0.0, 0.0]
    assert losses[1.0, 0.0] != losses[0.0, 0.0]


def test_a_head_begins_with_anothers_weights(target: Taught) -> None:
    """One backbone for all block heads: what both have is taken, what one lacks is new."""
    kinds = {kind: load_objective(kind) for kind in ("jetspec", "domino", "medusa")}
    heads = {kind: each.new(target.base.config, target.features.counts()) for kind, each in kinds.items()}

    def begun(kind: str, begin: str) -> Head:
        lesson = HeadLesson(kinds[kind], target.features, target.base, begin=heads[begin])
        return lesson.subject(CONFIG, target.base, None, torch.float32, torch.device("cpu")).model  # type: ignore

    taken = begun("domino", "jetspec").state_dict()
    for name, tensor in heads["jetspec"].state_dict().items():
        assert torch.equal(taken[name], tensor), name
    assert {"prefix_gru.weight_ih_l0"} < set(taken) - set(heads["jetspec"].state_dict())
    with pytest.raises(TrainingError, match="no weight"):
        begun("jetspec", "medusa")


def test_what_is_shipped_is_small_and_its_loss_is_told(target: Taught, tmp_path: Path) -> None:
    target.train("medusa", tmp_path / "run")
    trained, out = tmp_path / "run" / "head", tmp_path / "shipped"
    done = export_head(trained, out, target.decoder, target.read(), limit=6, most_bytes=100_000)
    assert done.bytes == sum(file.stat().st_size for file in out.iterdir())
    assert done.fp32_tokens_per_forward and done.int4_tokens_per_forward
    assert done.lost == pytest.approx(
        (done.fp32_tokens_per_forward - done.int4_tokens_per_forward) / (done.fp32_tokens_per_forward - 1), abs=1e-3
    )
    assert done.untrained_tokens_per_forward and done.untrained_tokens_per_forward < done.int4_tokens_per_forward
    assert load_head(out).identity == load_head(trained).identity
    with pytest.raises(TrainingError, match="train a smaller one"):
        export_head(trained, out, target.decoder, [], limit=0, most_bytes=100)


def test_features_of_another_target_are_refused(target: Taught, tmp_path: Path) -> None:
    other = load_base(str(tiny_checkpoint(tmp_path / "other")))
    with pytest.raises(HeadMismatch, match="another target"):
        HeadLesson(load_objective("medusa"), target.features, other)
    with pytest.raises(TrainingError, match="another target"):
        make_features(other, None, [target.responses], tmp_path / "features")
    with pytest.raises(TrainingError, match="it has: heads, layers, decay"):
        load_objective("medusa", depth=3)


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


def self_corrected(
    head: Any, base: Tensor, factor_rows: Tensor, blocks: Blocks, batch: HeadBatch, ids: Tensor
) -> Tensor:
    """Logits [blocks, guesses, size], corrected by the head's own best tokens before, one after another as in drafting."""
    prefix = head.read(head.start(len(base)), functional.embedding(blocks.anchors, batch.embedding))
    logits = [base[:, 0]]
    for depth in range(1, base.shape[1]):
        guessed = ids[logits[-1].argmax(-1)]
        prefix = head.read(prefix, functional.embedding(guessed, batch.embedding))
        logits.append(base[:, depth] + head.factor(blocks.states[:, depth], prefix) @ factor_rows.T)
    return torch.stack(logits, 1)


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
    forced = corrected(head, base, rows, blocks, batch)  # type: ignore[arg-type]
    torch.testing.assert_close(forced[block], own[block], atol=1e-5, rtol=1e-4)


def loss_of(objective: BlockObjective, progress: float = 0.5) -> float:
    """On the same head and anchors."""
    head = small_head("domino" if isinstance(objective, DominoObjective) else "dflash", HIDDEN, 20)
    torch.manual_seed(5)
    return float(objective.loss(head, replace(batch_of(12), progress=progress))[0])


def test_dominos_curriculum_goes_from_the_base_to_the_corrected_guesses() -> None:
    start, middle, end = (loss_of(DominoObjective(), progress) for progress in (0.0, 0.5, 1.0))
    assert middle == pytest.approx((start + end) / 2, rel=1e-5)
    assert start != pytest.approx(end, rel=1e-3)
    assert loss_of(DominoObjective(decay=0.5), 0.5) == pytest.approx(end, rel=1e-6)


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
