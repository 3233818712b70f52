"""Losslessness where sums are rounded: texts part from plain decoding's at near-ties only, and the measure of that can fail."""

from dataclasses import replace
from pathlib import Path

import pytest

from decoding.engine.draft import Draft
from decoding.engine.sampler import Sampler
from decoding.engine.target import ForwardInput
from decoding.serving.load import load_text_decoder
from decoding.serving.text_decoder import SamplingParams, TextDecoder
from decoding.targets.fast_target import FastTarget
from eval.speed.replay import TOLERANCE, parting_gap
from tests.decoding.models.tiny_models import tiny_checkpoint

PROMPTS = (
    "The three largest cities of France are Paris,",
    "SELECT name, count(*) FROM singer JOIN concert ON",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def tiny(checkpoint: Path) -> TextDecoder:
    return load_text_decoder(str(checkpoint), dtype="fp32", device="cpu", adapter="none")


@pytest.mark.parametrize("sampler", [Sampler(), Sampler(0.7, 3)], ids=str)
def test_the_gap_is_between_the_first_tokens_that_differ(checkpoint: Path, tiny: TextDecoder, sampler: Sampler) -> None:
    prompt = "some words"
    settings = SamplingParams("plain", {}, sampler.temperature, sampler.seed, 12)
    plain = tiny.generate(prompt, settings)
    assert len(plain.tokens) == 12
    for at in (0, 5, 11):
        other = replace(plain, tokens=(*plain.tokens[:at], 7, 9))
        before = [*tiny.tokenizer.encode(prompt), *plain.tokens[:at]]
        target = FastTarget.load(checkpoint)
        (scores,) = target.score([ForwardInput(target.open(before, sampler), before, Draft())])
        ranks = sampler.rank(scores.logits[0], len(before)) * (sampler.temperature or 1.0)
        want = float(ranks.max() - ranks[7])
        assert plain.tokens[at] == int(ranks.argmax())
        assert parting_gap(tiny, prompt, plain, other, sampler) == pytest.approx(want, abs=1e-4)
    stops = sorted(tiny.tokenizer.stop_ids)
    ended = replace(plain, tokens=plain.tokens[:-1])
    before = [*tiny.tokenizer.encode(prompt), *ended.tokens]
    (scores,) = target.score([ForwardInput(target.open(before, sampler), before, Draft())])
    ranks = sampler.rank(scores.logits[0], len(before)) * (sampler.temperature or 1.0)
    want = float(ranks.max() - ranks[stops].max())
    assert parting_gap(tiny, prompt, plain, ended, sampler) == pytest.approx(want, abs=1e-4)
    assert parting_gap(tiny, prompt, plain, plain, sampler) == 0


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_texts_of_the_embedded_model_part_at_near_ties_only(dtype: str) -> None:
    decoder = load_text_decoder(dtype=dtype, device="cpu")
    for prompt in PROMPTS:
        plain = decoder.generate(prompt, SamplingParams(max_new_tokens=24))
        for method in ("prompt_lookup", "lookahead", "mask_tokens"):
            other = decoder.generate(prompt, SamplingParams(method, max_new_tokens=24))
            assert parting_gap(decoder, prompt, plain, other, Sampler()) < TOLERANCE, (prompt, method)
    wrong = replace(plain, tokens=(*plain.tokens[:-1], (plain.tokens[-1] + 1000) % 40000))
    assert parting_gap(decoder, prompt, plain, wrong, Sampler()) > TOLERANCE
