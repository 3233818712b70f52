"""What a model makes of a given text, against transformers' own forward."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from decoding.engine.target import Array
from decoding.serving.given_text import text_states, token_scores
from decoding.serving.text_decoder import TextDecoder
from decoding.targets.fast_target import FastTarget
from decoding.tokenizer.tokenizer import Tokenizer
from tests.decoding.models.tiny_models import tiny_checkpoint

PROMPT, TEXT = "How many singers do we have?", "How many singers do we know of, and where do they live?"


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
    """Guards against states of other tokens, of the prompt's, and of a cached prompt that has none."""
    token_scores(decoder, PROMPT, decoder.tokenizer.encode(" Nine"))  # leaves the prompt in the cache, without states
    found = text_states(decoder, PROMPT, TEXT, (tap,))
    tokens, prompt = decoder.tokenizer.encode(TEXT), decoder.tokenizer.encode(PROMPT)
    own = len(tokens) - next(i for i, pair in enumerate(zip(tokens, prompt, strict=False)) if pair[0] != pair[1])
    assert found.shape[:2] == (own, 1)
    assert np.allclose(found[:, 0], expected_states(checkpoint, decoder, TEXT, tap)[-own:], atol=1e-4)


def test_scores_are_the_log_probabilities_of_the_tokens(checkpoint: Path, decoder: TextDecoder) -> None:
    tokens = decoder.tokenizer.encode(" We have nine.")
    prompt = decoder.tokenizer.encode(PROMPT)
    logits = AutoModelForCausalLM.from_pretrained(checkpoint)(torch.tensor([[*prompt, *tokens]])).logits[0]
    rows = logits[len(prompt) - 1 : -1].log_softmax(-1)
    expected = rows[torch.arange(len(tokens)), torch.tensor(tokens)].tolist()
    found = token_scores(decoder, PROMPT, tokens, alternatives=1)
    assert [each.log_prob for each in found] == pytest.approx(expected, abs=1e-3)
    assert [each.alternatives[0][1] for each in found] == pytest.approx(rows.max(-1).values.tolist(), abs=1e-3)
