"""What a model makes of a given text, against transformers' own forward."""

from collections.abc import Callable
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from decoding.engine.target import AnyTarget, Array
from decoding.serving.given_text import other_beginnings, text_states, token_scores
from decoding.serving.text_decoder import TextDecoder
from decoding.targets.fast_target import FastTarget
from decoding.targets.int8.cpu_target import CpuTarget
from decoding.tokenizer.tokenizer import Tokenizer
from kernels.cpu.processor import variant
from tests.decoding.engine.one_of import OneOf
from tests.decoding.engine.reading import read, rows_fed
from tests.decoding.models.tiny_models import tiny_checkpoint

PROMPT = "How many singers do we have?"
TEXTS = (
    "How many singers do we know of, and where do they live?",
    "How many singers do we have? Nine.",
    "How many singers do we have? Count them, and then say it.",
)
LOAD: dict[str, Callable[[Path], AnyTarget]] = {"fp32": FastTarget.load, "int8": CpuTarget.load}
INT8 = pytest.param(
    "int8", marks=pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny", seed=3)


@pytest.fixture(scope="module")
def decoder(checkpoint: Path) -> TextDecoder:
    return TextDecoder(FastTarget.load(checkpoint), Tokenizer(checkpoint), "tiny")


def expected_states(checkpoint: Path, decoder: TextDecoder, text: str, tap: int) -> Array:
    tokens = torch.tensor([decoder.tokenizer.encode(text)])
    states = AutoModelForCausalLM.from_pretrained(checkpoint)(tokens, output_hidden_states=True).hidden_states
    found: Array = states[tap][0].detach().numpy()
    return found


@pytest.mark.parametrize("tap", [1, 2])
def test_states_are_those_of_the_whole_text(checkpoint: Path, decoder: TextDecoder, tap: int) -> None:
    """Guards against states of other tokens, of the prompt's, and of another text."""
    found = text_states(decoder, PROMPT, TEXTS, (tap,))
    for states, text in zip(found, TEXTS, strict=True):
        own = len(decoder.tokenizer.encode(text)) - shared(decoder, text)
        assert states.shape[:2] == (own, 1)
        assert np.allclose(states[:, 0], expected_states(checkpoint, decoder, text, tap)[-own:], atol=1e-4)


def shared(decoder: TextDecoder, text: str) -> int:
    """How many tokens a text begins with like the prompt."""
    pairs = zip(decoder.tokenizer.encode(PROMPT), decoder.tokenizer.encode(text), strict=False)
    return len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])


@pytest.mark.parametrize("kind", ["fp32", INT8])
@pytest.mark.parametrize("cached", [None, (), (1,), (0, 1, 2)])
def test_a_prompt_that_is_cached_is_not_read_again(
    checkpoint: Path, kind: str, cached: tuple[int, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States are those of whole texts, whether nothing is cached, or the prompt with some taps. In int8 to the bit; in fp32 to
    1e-4, where rows of the text differ by more than 0.1."""
    decoder, cold = (TextDecoder(LOAD[kind](checkpoint), Tokenizer(checkpoint), "tiny") for _ in range(2))
    if cached is not None:
        read(decoder.target, decoder.tokenizer.encode(PROMPT), cached)
    fed = rows_fed(decoder.target, monkeypatch)
    found = text_states(decoder, PROMPT, TEXTS, (2, 1))
    for states, text in zip(found, TEXTS, strict=True):
        want = read(cold.target, decoder.tokenizer.encode(text), (2, 1))[shared(decoder, text) :]
        assert abs(want[1:] - want[:-1]).max(-1).min() > 0.1
        np.testing.assert_allclose(states, want, rtol=0, atol=0 if kind == "int8" else 1e-4)
    common = min(shared(decoder, text) for text in TEXTS)
    behind = [1 + len(decoder.tokenizer.encode(text)) - common for text in TEXTS]
    assert fed == ([] if cached is not None else [[common - 1]]) + [behind]
    text_states(decoder, PROMPT, TEXTS, (1,))
    assert fed[-1] == behind and len(fed) == (2 if cached is not None else 3), "what was read once stays in the cache"


def test_scores_are_the_log_probabilities_of_the_tokens(checkpoint: Path, decoder: TextDecoder) -> None:
    tokens = decoder.tokenizer.encode(" We have nine.")
    prompt = decoder.tokenizer.encode(PROMPT)
    logits = AutoModelForCausalLM.from_pretrained(checkpoint)(torch.tensor([[*prompt, *tokens]])).logits[0]
    rows = logits[len(prompt) - 1 : -1].log_softmax(-1)
    expected = rows[torch.arange(len(tokens)), torch.tensor(tokens)].tolist()
    found = token_scores(decoder, PROMPT, tokens, alternatives=1)
    assert [each.log_prob for each in found] == pytest.approx(expected, abs=1e-3)
    assert [each.alternatives[0][1] for each in found] == pytest.approx(rows.max(-1).values.tolist(), abs=1e-3)


def test_other_beginnings_are_ranked_by_the_whole_way(checkpoint: Path, decoder: TextDecoder) -> None:
    """Guards against the other token's own probability as the rank, against probabilities among all tokens, and against leaving
    the text where it is forced."""
    one, two, three, four, five = (decoder.tokenizer.encode(letter)[0] for letter in "abcde")
    stop = decoder.tokenizer.stop_ids
    texts = [(one, two, three), (one, two, four), (one, five), (four, five)]
    choice = OneOf(texts, stop, decoder.target.vocab_size)
    scores = transformers_scores(checkpoint, decoder, PROMPT, texts[0])

    def chance(place: int, token: int, allowed: tuple[int, ...]) -> float:
        return float(scores[place, token] - np.logaddexp.reduce(scores[place, list(allowed)]))

    so_far = chance(0, one, (one, four))
    further = so_far + chance(1, two, (two, five))
    expected = {
        (four,): chance(0, four, (one, four)),
        (one, five): so_far + chance(1, five, (two, five)),
        (one, two, four): further + chance(2, four, (three, four)),
    }
    found = other_beginnings(decoder, PROMPT, [*texts[0], min(stop)], choice, count=5)
    assert found == sorted(expected, key=expected.__getitem__, reverse=True)
    assert other_beginnings(decoder, PROMPT, texts[0], choice, count=2) == found[:2]
    assert other_beginnings(decoder, PROMPT, [two], choice, count=5) == []  # not a text that is allowed
    assert other_beginnings(decoder, PROMPT, [], choice, count=5) == []


def transformers_scores(checkpoint: Path, decoder: TextDecoder, prompt: str, tokens: tuple[int, ...]) -> Array:
    """Log-probabilities [tokens, vocab] by which transformers predicts each token."""
    before = decoder.tokenizer.encode(prompt)
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(checkpoint)(torch.tensor([[*before, *tokens]])).logits[0]
    found: Array = torch.log_softmax(logits[len(before) - 1 : -1].double(), -1).numpy()
    return found
