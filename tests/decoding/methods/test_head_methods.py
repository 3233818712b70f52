"""Training and drafting agree: at an anchor, each head's training forward gives the states with which its method drafts.

Guards against pairs, positions, masks or windows that are off by one on one side: such a head trains well but drafts badly.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from decoding.checkpoints.weight_files import read_weights
from decoding.engine.loop import Request, decode
from decoding.engine.method import Context, Drafting, LookupCorpus
from decoding.engine.sampler import Sampler
from decoding.heads.head import Head, HeadConfig, new_head
from decoding.heads.kinds import KINDS
from decoding.heads.modules.drafters import SmallLm
from decoding.methods.drafters import DraftModel, Eagle3, Falcon
from decoding.methods.registry import METHODS, load_method, method_class
from tests.decoding.models.doubles import NoAscent
from tests.decoding.models.head_data import CONFIG, Taught, taught
from tests.decoding.models.random_heads import ready_method
from tests.decoding.models.toy import ToyTarget
from training.heads import drafter_kinds
from training.heads.features import HeadBatch, load_objective
from training.heads.training import HeadLesson

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def target() -> Taught:
    return taught()


def lesson(target: Taught, kind: str, **options: Any) -> tuple[Any, HeadBatch]:
    """A random head, and a forest that it would learn from."""
    made = HeadLesson(load_objective(kind, **options), target.features, target.base)
    head = made.subject(CONFIG, target.base, None, torch.float32, torch.device("cpu")).model.eval()  # type: ignore[arg-type]
    return head, made.batch(target.features.packs[0], head.config.taps)


def text_at(batch: HeadBatch, anchor: int) -> list[int]:
    """Rows of the text that ends with the anchor's."""
    rows = [int(batch.sources[anchor])]
    while batch.parents[rows[0]] >= 0:
        rows.insert(0, int(batch.parents[rows[0]]))
    return rows


def begun(method: Any, batch: HeadBatch, rows: list[int]) -> list[int]:
    """The method behind the text of some rows, with the states of all its tokens but the last; the tokens."""
    tokens = batch.tokens[rows].tolist()
    context = Context(Sampler(), batch.embedding, batch.lm_head, LookupCorpus())
    method.begin(tokens, batch.hidden[rows[:-1]], context)
    method.propose(tokens, 8)
    return tokens


@pytest.mark.parametrize("anchor", [0, 7])
def test_eagle3(target: Taught, anchor: int) -> None:
    head, batch = lesson(target, "eagle3")
    index, _ = batch.ahead(3)
    states = [step[anchor] for step in drafter_kinds.unrolled(head, batch, index)]
    method = Eagle3(head)
    tokens = begun(method, batch, text_at(batch, anchor))
    drafter = method._drafter
    ((state, _),) = drafter.paired([(drafter, tokens, 0)])
    torch.testing.assert_close(state[0], states[0], atol=1e-5, rtol=1e-4)
    for step in (1, 2):
        token = int(batch.targets[index[anchor, step - 1]])
        ((state, _),) = drafter.grown([(drafter, [token], state, [0], len(tokens) - 1 + step, 0)])
        torch.testing.assert_close(state[0], states[step], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("k", "layers", "memory"), [(1, 1, 4), (2, 1, 1), (2, 1, 4), (3, 2, 4)])
@torch.inference_mode()
def test_falcon(target: Taught, k: int, layers: int, memory: int) -> None:
    head, batch = lesson(target, "falcon", k=k, layers=layers, memory=memory, lstm=16)
    learnt = drafter_kinds._Lesson(head, batch, noise=0.0)
    features = learnt.guessed(torch.zeros_like(learnt.valid))[7]
    method = Falcon(head)
    tokens = begun(method, batch, text_at(batch, 7))
    drafter = method._drafter
    (line,) = drafter.paired([(drafter, tokens)])
    ((got, _),) = drafter.glanced([(drafter, line, [0], len(tokens) - k, 1)])
    torch.testing.assert_close(got[0], features, atol=1e-5, rtol=1e-4)


@torch.inference_mode()
def test_draft_model(target: Taught) -> None:
    """It begins as the target's first layer, and the decoding forward is the training forward."""
    head, batch = lesson(target, "draft_model")
    assert isinstance(head, SmallLm)
    stored = dict(head.weights(batch.embedding))
    torch.testing.assert_close(stored["model.layers.0.mlp.up_proj.weight"], first_layer(target))
    rows = text_at(batch, 7)
    states = head(batch.embedding[batch.tokens], batch.positions, batch.sees)
    method = DraftModel(head)
    tokens = begun(method, batch, rows[:-3])
    reader = method._reader
    ((got, _),) = reader.after([(reader, batch.tokens[rows[len(tokens) :]].tolist(), True, 0, 0)])
    torch.testing.assert_close(got[0], states[rows[-1]], atol=1e-5, rtol=1e-4)


def first_layer(target: Taught) -> torch.Tensor:
    return dict(read_weights(target.base.folder))["model.layers.0.mlp.up_proj.weight"]


def test_a_draft_model_may_be_any_small_model(target: Taught) -> None:
    """Here the target itself: every guess is right, at any temperature, for the noise is shared."""
    for sampler in (Sampler(), Sampler(1.0, 3)):
        prompt = target.read()[0].prompt_ids
        method = load_method("draft_model", head=str(target.base.folder), draft_tokens=5, threshold=0.0)
        request = Request(prompt, method, 24, sampler)
        rounds = list(decode(target.decoder.target, [request]))
        plain = list(decode(target.decoder.target, [replace(request, method=load_method("plain"))]))
        assert [t for r in rounds for t in r.committed] == [t for r in plain for t in r.committed]
        assert len(rounds) == 4


@pytest.mark.parametrize("sizes", [{"k": 1}, {"k": 3}, {"k": 4, "layers": 2}, {"memory": 1}], ids=str)
def test_falcon_is_lossless_whatever_its_glance(sizes: dict[str, Any]) -> None:
    """Also behind forced tokens, whose features the target has not computed yet."""
    head: Head = (
        new_head(HeadConfig("falcon", 12, 12, (1, 2), {**KINDS["falcon"].small, **sizes})).eval().requires_grad_(False)
    )
    for seed in range(4):
        made = {"max_new_tokens": 60, "sampler": Sampler(0.8, seed), "stop": frozenset({NoAscent.STOP})}
        texts = []
        for method in (load_method("plain"), load_method("falcon", head=head)):
            rounds = list(decode(ToyTarget(), [Request((1, 2, 3, 4, 5), method, constraint=NoAscent(), **made)]))  # type: ignore[arg-type]
            texts.append([token for r in rounds for token in r.text_tokens])
        assert texts[0] == texts[1]


@pytest.mark.parametrize("name", [name for name in METHODS if method_class(name).kind])
def test_heads_draft_nothing_that_the_constraint_forbids(name: str) -> None:
    """What a head spends on forbidden tokens the engine throws away; a random head would guess mostly those. Stop tokens are
    not verified, because the target ends the text by itself."""
    proposed: list[int] = []

    def counted(tokens: Sequence[int], room: int) -> Drafting:
        draft = yield from drafting(tokens, room)
        proposed.append(sum(token != NoAscent.STOP for token in draft.tokens))
        return draft

    method = ready_method(name, ToyTarget())
    drafting, method.drafting = method.drafting, counted  # type: ignore[method-assign]
    request = Request((1, 2, 3), method, 60, Sampler(0.8, 1), frozenset({NoAscent.STOP}), NoAscent())
    rounds = list(decode(ToyTarget(), [request]))
    drafted = [len(r.draft_tokens) for r in rounds]
    assert drafted == (proposed if len(proposed) == len(drafted) else [0, *proposed])
    assert sum(drafted) > len(drafted)
