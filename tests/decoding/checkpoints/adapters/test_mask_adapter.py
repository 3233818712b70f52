"""Mask tokens with weights of their own: they change guesses, and never a bit of the text."""

import random
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
import torch
from safetensors.numpy import save

from decoding.checkpoints.bigrams import Beginnings, TextScores, TokenPairs
from decoding.checkpoints.identity import TargetIdentity
from decoding.checkpoints.mask_adapter import (
    DEFAULT_PRIORS,
    FILE,
    Ahead,
    DraftPriors,
    MaskAdapter,
    read_mask_adapter,
    write_mask_adapter,
)
from decoding.checkpoints.model_config import load_config
from decoding.checkpoints.weight_files import read_weights
from decoding.engine.draft import ROOT, Draft
from decoding.engine.loop import Request, decode
from decoding.engine.method import Ensemble, Method
from decoding.engine.rounds import Round
from decoding.engine.sampler import Sampler
from decoding.engine.target import AnyTarget, ForwardInput, TokenSet
from decoding.errors import ModelUnavailable, UnsupportedModel
from decoding.methods.registry import METHODS, load_method
from decoding.targets.fast_target import FastModel, FastTarget
from decoding.targets.int8.cpu_target import CpuModel, CpuTarget
from decoding.targets.int8.packing import packed_model
from kernels.cpu.processor import variant
from tests.decoding.models.doubles import Fuzz, NoAscent
from tests.decoding.models.random_heads import ready_method
from tests.decoding.models.tiny_models import tiny_checkpoint
from training.heads.features import packs_of
from training.heads.mask_model import MaskModel, mask_rows
from training.heads.responses import Response

PROMPT = tuple(random.Random(1).choices(range(3, 300), k=20))
DEPTHS, RANK, AHEAD = 3, 5, 1
needs_kernels = pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
TYPES = ["fp32", pytest.param("int8", marks=needs_kernels)]


@cache
def checkpoint() -> Path:
    return tiny_checkpoint(Path(mkdtemp()) / "tiny", "llama", seed=3)


def random_adapter(seed: int = 0, scale: float = 1.0) -> MaskAdapter:
    config, chance = load_config(checkpoint()), np.random.default_rng(seed)
    shapes = [(DEPTHS, config.hidden_size), *[(config.layers, RANK, config.hidden_size)] * 2]
    embeddings, down, up = (scale * chance.standard_normal(shape, dtype=np.float32) for shape in shapes)
    before, after = chance.standard_normal((2, 40, 6), dtype=np.float32)
    followers = 4.0 * chance.standard_normal(9, dtype=np.float32)
    ahead = Ahead(*(0.3 * chance.standard_normal((2, 2, AHEAD, 70, config.hidden_size), dtype=np.float32)))
    begun = Beginnings(np.array([PROMPT[-2:]]), 3.0 * chance.standard_normal((1, 4, 41), dtype=np.float32))
    pairs = TokenPairs(np.arange(5, 45), before, after, followers, begun)
    return MaskAdapter(embeddings, down, up, pairs, ahead=ahead)


def target_of(kind: str, masks: MaskAdapter | None) -> AnyTarget:
    config, weights = load_config(checkpoint()), list(read_weights(checkpoint()))
    if kind == "int8":
        return CpuTarget(CpuModel(config, packed_model(config, weights), masks=masks), cache_bytes=0)
    return FastTarget(FastModel(config, weights, torch.float32, masks=masks), cache_bytes=0)


def rounds_of(target: AnyTarget, method: Method, sampler: Sampler, **kw: object) -> list[Round]:
    options = {"prompt": PROMPT, "max_new_tokens": 32, **kw}
    return list(decode(target, [Request(method=method, sampler=sampler, **options)]))  # type: ignore[arg-type]


def test_what_drafts_count_on_comes_with_the_masks(tmp_path: Path) -> None:
    """Priors that were fitted for one adapter counted for every model, because they stood in the code."""
    worthless = DraftPriors(masks=(0.0,) * 12, masks_with_copies=(0.0,) * 12, asking=0.1)
    write_mask_adapter(replace(random_adapter(), priors=worthless), tmp_path)
    read = read_mask_adapter(tmp_path)
    assert read and read.priors == worthless and random_adapter().priors == DEFAULT_PRIORS
    for masks, is_hung in ((read, False), (random_adapter(), True)):
        target = target_of("fp32", masks)
        first = rounds_of(target, load_method("adaptive", row_cost=0.01, copies=0), Sampler())[0]
        assert target.draft_priors == masks.priors
        assert any(token in target.mask_tokens for token in first.draft_tokens) is is_hung
    with pytest.raises(ValueError, match="masks has 1 values, not 12"):
        DraftPriors(masks=(0.5,))


def text(rounds: list[Round]) -> list[int]:
    return [token for r in rounds for token in r.text_tokens]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("sampler", [Sampler(), Sampler(0.7, 1), Sampler(1.3, 2)], ids=str)
def test_texts_are_those_of_plain_decoding_under_every_method(kind: str, sampler: Sampler) -> None:
    plain, target = target_of(kind, None), target_of(kind, random_adapter())
    assert target.mask_tokens == range(plain.vocab_size, plain.vocab_size + DEPTHS)
    grammar = NoAscent(plain.vocab_size, most=150)
    for kw in ({}, {"constraint": grammar, "stop": frozenset({NoAscent.STOP})}):
        want = text(rounds_of(plain, load_method("plain"), sampler, **kw))
        for name in METHODS:
            assert text(rounds_of(target, ready_method(name, target), sampler, **kw)) == want, name
        fuzz = Fuzz(1, vocab=plain.vocab_size + DEPTHS)  # masks anywhere in a tree
        assert text(rounds_of(target, fuzz, sampler, **kw)) == want


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", ["mask_tokens", "adaptive", "jacobi", "jacobi_forcing"])
def test_methods_with_masks_use_the_targets_own(kind: str, name: str) -> None:
    target = target_of(kind, random_adapter())
    options = {"first_guess": "mask"} if name.startswith("jacobi") else {}
    rounds = rounds_of(target, load_method(name, **options), Sampler())
    drafted = {token for r in rounds for token in r.draft_tokens}
    assert drafted & set(target.mask_tokens)
    assert all(r.draft_tokens[node] < target.vocab_size for r in rounds for node in r.accepted)


@pytest.mark.parametrize("name", ["mask_tokens", "adaptive"])
def test_a_prompt_corrects_what_masks_say_unless_it_is_not_to(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter, prompts, texts = random_adapter(), [], []
    corrected = TokenPairs.in_text

    def noted(pairs: TokenPairs, prompt: Sequence[int]) -> TextScores:
        prompts.append(tuple(prompt))
        return corrected(pairs, prompt)

    monkeypatch.setattr(TokenPairs, "in_text", noted)
    for followers in (True, False):
        method = load_method(name, copies=0, followers=followers)
        texts.append(text(rounds_of(target_of("fp32", adapter), method, Sampler())))
    assert prompts == [PROMPT, ()] and texts[0] == texts[1]


def masked_logits(target: AnyTarget, draft: Draft) -> np.ndarray:
    sequence = target.open(PROMPT, Sampler())
    (scores,) = target.score([ForwardInput(sequence, PROMPT, draft)])
    target.close(sequence)
    return np.asarray(scores.after(range(-1, len(draft))))


def test_int8_logits_at_masks_are_near_those_of_fp32() -> None:
    adapter, first = random_adapter(scale=0.3), load_config(checkpoint()).vocab_size
    draft = Draft((first, first + 1, 7, first, first + 2), (-1, 0, -1, 2, 3))
    want, found = (masked_logits(target_of(kind, adapter), draft) for kind in ("fp32", "int8"))
    similar = torch.nn.functional.cosine_similarity(torch.as_tensor(found), torch.as_tensor(want))
    assert similar.min() > 0.97
    without = masked_logits(target_of("int8", random_adapter(seed=1, scale=0.3)), draft)
    assert (found[[0, 3]] == without[[0, 3]]).all(), "rows of tokens do not see the adapter"
    assert not np.allclose(found[[1, 2, 4, 5]], without[[1, 2, 4, 5]], atol=0.05)


@needs_kernels
def test_a_masks_logits_are_the_same_to_the_bit_in_a_chain_and_in_a_tree() -> None:
    target = target_of("int8", random_adapter())
    first = target.vocab_size
    chain = masked_logits(target, Draft.chain([7, first, first + 1]))
    tree = masked_logits(target, Draft((first, 7, first, 9, first + 1, first), (-1, -1, 1, 1, 2, 3)))
    assert (tree[[0, 2, 3, 5]] == chain).all()


@pytest.mark.parametrize("kind", TYPES)
def test_logits_of_some_tokens_are_those_of_all_to_the_bit(kind: str) -> None:
    target = target_of(kind, random_adapter())
    draft, chance = Draft((target.vocab_size, 7, 9), (-1, -1, 1)), random.Random(3)
    sequence = target.open(PROMPT, Sampler())
    (scores,) = target.score([ForwardInput(sequence, PROMPT, draft)])
    for count in (1, 15, 64, 200, target.vocab_size):
        tokens = TokenSet(np.array(sorted(chance.sample(range(target.vocab_size), count)), np.int64))
        for _ in range(2):  # the second time from what is kept of the set
            found = np.asarray(scores.among([1, -1, 0], tokens))
            assert (found == np.asarray(scores.after([1, -1, 0]))[:, tokens.ids]).all()
    target.close(sequence)


@pytest.mark.parametrize("kind", TYPES)
def test_heads_say_what_they_say_in_training(kind: str) -> None:
    text = PROMPT[-5:]
    (pack,), _ = packs_of([Response("", "plan", "", PROMPT[:-5], 3, (text,))], 64, seed=0)
    adapter, config = random_adapter(), load_config(checkpoint())
    model = MaskModel(config, read_weights(checkpoint()), adapter, torch.float32, torch.device("cpu"))
    masks = mask_rows(pack, [0], DEPTHS, stride=2, ahead=AHEAD)  # masks for depths 0 and 2
    learnt = model.predictions(pack, masks)
    target, tokens = target_of(kind, adapter), TokenSet(learnt.ids.numpy())
    assert target.ahead == AHEAD
    sequence = target.open(PROMPT[:-5], Sampler())
    draft = Draft.chain(tuple(target.mask_tokens)[::2])
    (scores,) = target.score([ForwardInput(sequence, PROMPT[:-5], draft)])
    assert scores.ahead is not None
    asked = [(place if each.of_masks else ROOT, each.head) for each in masks.asked for place in each.places.tolist()]
    assert asked == [(0, 0), (1, 0), (0, 1), (1, 1), (ROOT, 1)]
    found, want = np.asarray(scores.ahead(asked, tokens)), learnt.masks.detach().numpy()
    for row, wanted in zip(found, want, strict=True):
        assert np.corrcoef(row, wanted)[0, 1] > 0.99
    if kind == "fp32":
        np.testing.assert_allclose(found, want, rtol=0, atol=1e-4)
    others = [np.corrcoef(found[row], want[other])[0, 1] for row in range(5) for other in range(row)]
    assert max(others) < 0.95, "heads and rows differ"
    own = np.asarray(scores.among([0, 1], tokens))
    np.testing.assert_allclose(scores.ahead([(0, 0), (1, 0)], tokens), own, rtol=0, atol=0 if kind == "int8" else 1e-5)
    target.close(sequence)


@pytest.mark.parametrize("kind", TYPES)
def test_a_mask_speaks_for_several_positions(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain has a mask for every second depth, and rows of text answer where no mask is attached. On torch every depth had a
    mask, for which the masks that `train masks --ahead` writes were not trained.
    """
    asked: list[tuple[bool, int]] = []
    heads_of = Ahead.heads

    def noted(ahead: Ahead, heads: Sequence[tuple[bool, int]]) -> list[int]:
        asked.extend(heads)
        return heads_of(ahead, heads)

    monkeypatch.setattr(Ahead, "heads", noted)
    target = target_of(kind, random_adapter())
    rounds = rounds_of(target, load_method("adaptive", copies=0, row_cost=0.01), Sampler())
    drafted = {token for r in rounds for token in r.draft_tokens if token >= target.vocab_size}
    assert drafted == set(target.mask_tokens[::2])
    assert {(True, 0), (True, 1), (False, 1)} == set(asked)
    asked.clear()
    rounds_of(target, load_method("adaptive", masks=0, row_cost=0.01), Sampler())
    assert not asked, "without masks nothing that was trained is asked"
    with pytest.raises(ValueError, match="not negative"):
        load_method("adaptive", stride=-1)


@needs_kernels
def test_heads_speak_for_the_mean_of_several_prompts() -> None:
    target, tokens, others = target_of("int8", random_adapter()), TokenSet(np.arange(5, 45)), (PROMPT, PROMPT[3:])
    with ExitStack() as opened:
        together = Ensemble(target, others, Sampler(), (), opened)
        work = together.work((), Draft.chain(tuple(target.mask_tokens)[:1]))
        each = target.score(work)
        asked, scores = [(0, 1), (ROOT, 1)], together.pooled(each, lambda node: 0)
        assert scores.ahead is not None
        want = np.mean([one.ahead(asked, tokens) for one in each if one.ahead], 0)
        np.testing.assert_allclose(scores.ahead(asked, tokens), want, rtol=1e-6, atol=1e-6)


@needs_kernels
def test_rows_of_tokens_are_packed_once_and_make_room_for_others() -> None:
    target = target_of("int8", random_adapter())
    assert isinstance(target, CpuTarget)
    part, chance = target.model.head_part, random.Random(4)
    part.spare = 8
    sequence = target.open(PROMPT, Sampler())
    (scores,) = target.score([ForwardInput(sequence, PROMPT, Draft())])
    every, counts = np.asarray(scores.after([-1])), []
    for _ in range(30):
        tokens = TokenSet(np.array(sorted(chance.sample(range(target.vocab_size), 20)), np.int64))
        assert (np.asarray(scores.among([-1], tokens)) == every[:, tokens.ids]).all()
        counts.append(part.count)
    assert max(counts) <= 64 and any(more < before for before, more in pairwise(counts)), "rows that nobody asks for go"
    assert part.places(tokens) is part.places(tokens)
    target.close(sequence)


def test_an_adapter_comes_back_from_its_file_as_it_was_but_for_rounding(tmp_path: Path) -> None:
    adapter = random_adapter()
    named = replace(adapter, target=TargetIdentity("base", "adapter", None))
    assert read_mask_adapter(tmp_path) is None
    assert write_mask_adapter(named, tmp_path) == (tmp_path / FILE).stat().st_size
    found = read_mask_adapter(tmp_path)
    assert found is not None and found.target == named.target
    np.testing.assert_allclose(found.embeddings, named.embeddings, rtol=1e-3, atol=1e-6)
    assert found.ahead and named.ahead
    for got, wanted in ((found, named), (found.ahead, named.ahead)):
        for name in ("down", "up"):
            want = getattr(wanted, name)
            steps = np.abs(want).max(-1, keepdims=True) / 127
            assert (np.abs(getattr(got, name) - want) <= 0.501 * steps).all()
    assert found.pairs is not None and named.pairs is not None
    ids = np.array([4, 5, 44, 45, 319])
    for previous in (4, 5, 44, 45):
        scores = found.pairs.scores(previous, ids)
        np.testing.assert_allclose(scores, named.pairs.scores(previous, ids), atol=1e-2)
        assert scores.any() == (5 <= previous < 45) and not scores[[0, 3, 4]].any()
    got, wanted = (each.beginning(PROMPT[-2:], ids) for each in (found.pairs, named.pairs))
    assert got is not None and wanted is not None
    np.testing.assert_allclose(got, wanted, atol=1e-2)


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    adapter = random_adapter()
    tensors = {name: getattr(adapter, name).astype(np.float16) for name in ("embeddings", "down", "up")}
    (tmp_path / FILE).write_bytes(save(tensors, {"format": "1", "target": ""}))
    with pytest.raises(UnsupportedModel, match="has format 1"):
        read_mask_adapter(tmp_path)


def test_a_damaged_file_or_one_of_another_model_says_so(tmp_path: Path) -> None:
    write_mask_adapter(random_adapter(), tmp_path)
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(whole[:-7])
    with pytest.raises(ModelUnavailable, match="is damaged"):
        read_mask_adapter(tmp_path)
    adapter = random_adapter()
    other = replace(adapter, down=adapter.down[:1])
    for kind in ("fp32", "int8"):
        with pytest.raises(UnsupportedModel, match="of another model: down has shape"):
            target_of(kind, other)
