"""Top-k, top-p, min-p and penalties: the distribution is transformers', and the text is the same whatever was drafted."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from decoding.engine.sampler import Floats, Sampler, Shaping
from decoding.methods.registry import METHODS, load_method
from tests.decoding.engine.test_lossless import PROMPT, rounds_of, text_of
from tests.decoding.models.doubles import NoAscent
from tests.decoding.models.random_heads import ready_method
from tests.decoding.models.toy import VOCAB, ToyTarget, toy_logits

SHAPINGS = {
    "top_k": Shaping(top_k=3),
    "top_p": Shaping(top_p=0.6),
    "min_p": Shaping(min_p=0.2),
    "all": Shaping(top_k=6, top_p=0.9, min_p=0.05, repetition=1.3, presence=0.4, frequency=0.2),
}


def theirs(shaping: Shaping, logits: Floats, temperature: float, text: Sequence[int]) -> list[int]:
    """The tokens that transformers keeps, penalties included where it has them."""
    steps = LogitsProcessorList(
        [RepetitionPenaltyLogitsProcessor(shaping.repetition), TemperatureLogitsWarper(temperature)]
    )
    steps += [TopKLogitsWarper(shaping.top_k)] if shaping.top_k else []
    steps += [TopPLogitsWarper(shaping.top_p)] if shaping.top_p < 1 else []
    steps += [MinPLogitsWarper(shaping.min_p)] if shaping.min_p else []
    row = steps(torch.tensor([list(text)]), torch.from_numpy(logits)[None].clone())[0]
    return row.isfinite().nonzero()[:, 0].tolist()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
def test_the_tokens_that_are_kept_are_those_of_transformers(temperature: float) -> None:
    chance = np.random.default_rng(0)
    for number in range(60):
        logits = (3.0 * chance.standard_normal(50)).astype(np.float32)
        text = chance.integers(0, 50, 12).tolist()
        shaping = Shaping(
            top_k=int(chance.integers(0, 20)),
            top_p=float(chance.choice([1.0, 0.3, 0.8, 0.95])),
            min_p=float(chance.choice([0.0, 0.05, 0.3])),
            repetition=float(chance.choice([1.0, 1.3, 0.7])),
        )
        row = shaping.shaped(logits, temperature, text[:5], text[5:])
        assert np.flatnonzero(np.isfinite(row)).tolist() == theirs(shaping, logits, temperature, text), number
        assert row.argmax() == Shaping(repetition=shaping.repetition).shaped(logits, 0.0, text, []).argmax()


def test_penalties_are_openais_formula() -> None:
    logits = np.array([1.0, 2.0, 3.0, -1.0], np.float32)
    row = Shaping(presence=0.5, frequency=0.25).shaped(logits, 0.0, [3], [1, 1, 2])
    assert row.tolist() == [1.0, 1.0, 2.25, -1.0], "the prompt counts for neither"
    row = Shaping(repetition=2.0).shaped(logits, 0.0, [3], [1])
    assert row.tolist() == [1.0, 1.0, 3.0, -2.0], "here it does, and a negative logit falls"
    assert logits.tolist() == [1.0, 2.0, 3.0, -1.0]


def test_tokens_come_as_often_as_the_shaped_distribution_says() -> None:
    """Under keyed noise, over positions."""
    logits, shaping = np.array([2.0, 1.5, 1.0, 0.0, -1.0], np.float32), Shaping(top_k=4, top_p=0.9)
    row = shaping.shaped(logits, 0.8, [], [])
    shares = np.exp(row.astype(np.float64) / 0.8)
    shares /= shares.sum()
    count = 20_000
    found = Counter(Sampler(0.8, 3, shaping).pick_after(logits, position, [], []) for position in range(count))
    for token, share in enumerate(shares):
        assert found[token] / count == pytest.approx(share, abs=0.012)
        assert (found[token] > 0) == (share > 0)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "plain"])
def test_a_shaped_text_is_the_same_under_every_method(name: str) -> None:
    for temperature, shaping in ((0.0, SHAPINGS["all"]), (0.9, SHAPINGS["all"]), (0.9, SHAPINGS["top_p"])):
        sampler = Sampler(temperature, 4, shaping)
        target = ToyTarget()
        assert text_of(ready_method(name, target), sampler) == text_of(load_method("plain"), sampler)


@pytest.mark.parametrize("name", ["adaptive", "jacobi_forcing", "path_tree"])
def test_under_a_constraint_what_is_allowed_is_shaped(name: str) -> None:
    sampler = Sampler(0.9, 4, SHAPINGS["all"])
    bounds = {"constraint": NoAscent(), "stop": frozenset({NoAscent.STOP}), "max_new_tokens": 30}
    target = ToyTarget()
    want = text_of(load_method("plain"), sampler, **bounds)
    assert text_of(ready_method(name, target), sampler, **bounds) == want and len(want) > 1


@pytest.mark.parametrize("shaping", SHAPINGS.values(), ids=SHAPINGS)
def test_a_text_follows_the_rule_token_by_token(shaping: Shaping) -> None:
    """Against a loop without any engine."""
    sampler, text = Sampler(0.9, 7, shaping), list(PROMPT)
    for _ in range(40):
        row = shaping.shaped(toy_logits(text).numpy(), 0.9, PROMPT, text[len(PROMPT) :])
        text.append(Sampler(0.9, 7).pick(row, len(text)))
    rounds = rounds_of(load_method("prompt_lookup"), sampler, max_new_tokens=40)
    assert [token for each in rounds for token in each.text_tokens] == text[len(PROMPT) :]
    plain = text_of(load_method("plain"), Sampler(0.9, 7), max_new_tokens=40)
    assert text[len(PROMPT) :] != plain and max(text) < VOCAB


@pytest.mark.parametrize("wrong", [{"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}, {"min_p": -0.1}, {"repetition": 0.0}])
def test_wrong_values_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="top_k must be 0 or more"):
        Shaping(**wrong)  # type: ignore[arg-type]
