"""A decode's log probability equals that of one whole forward over prompt and text, whichever method drafted."""

from pathlib import Path
from typing import Any

import pytest
import torch
from langchain_core.messages import HumanMessage
from transformers import AutoModelForCausalLM

from decoding.serving.chat_model import ChatModel
from decoding.serving.text_decoder import SamplingParams, TextDecoder
from decoding.targets.hf_target import HfTarget
from decoding.tokenizer import Tokenizer
from tests.decoding.models.tiny_models import tiny_checkpoint

PROMPT = "How many singers do we have?"
SETTINGS = SamplingParams(temperature=0.7, seed=4, max_new_tokens=30, likelihood=True)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny", seed=3)


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> ChatModel:
    decoder = TextDecoder(HfTarget.load(checkpoint), Tokenizer(checkpoint), "tiny")
    return ChatModel(decoder, SETTINGS, raw=True)


@pytest.mark.parametrize("decoder", ["plain", "prompt_lookup", "jacobi"])
def test_it_is_the_log_probability_of_the_tokens(checkpoint: Path, model: ChatModel, decoder: str) -> None:
    """Guards against probabilities at the wrong row of a draft, and of tokens that were cut off."""
    message = model.complete([HumanMessage(PROMPT)], {"decoder": decoder})
    prompt = model.decoder.tokenizer.encode(PROMPT)
    text = [token for r in message.rounds for token in r.committed]
    logits = AutoModelForCausalLM.from_pretrained(checkpoint)(torch.tensor([[*prompt, *text]])).logits[0]
    rows = logits[len(prompt) - 1 : -1].log_softmax(-1)
    expected = rows[torch.arange(len(text)), torch.tensor(text)].sum()
    assert sum(message.log_probs) == pytest.approx(expected.item(), abs=1e-3)


def test_unasked_it_is_not_computed(model: ChatModel) -> None:
    message = model.complete([HumanMessage(PROMPT)], {"likelihood": False})
    assert {r.log_prob for r in message.rounds} == {None}
    assert message.log_probs == ()


def test_the_first_of_several_samples_is_the_greedy_one(model: ChatModel) -> None:
    """Guards votes against being worse than one answer by mere luck."""
    greedy = model.complete([HumanMessage(PROMPT)], {"temperature": 0.0}).text
    first, *others = model.samples([HumanMessage(PROMPT)], {}, 3)
    assert first.text == greedy
    assert len({greedy, *(each.text for each in others)}) == 3


@pytest.mark.parametrize("decoder", ["prompt_lookup", "jacobi"])
def test_samples_depend_on_the_seed_and_not_on_the_method(model: ChatModel, decoder: str) -> None:
    """Guards the choice among samples against changing with the decoder."""

    def texts(**settings: Any) -> list[str]:
        return [each.text for each in model.samples([HumanMessage(PROMPT)], settings, 4)]

    assert texts(decoder=decoder) == texts(decoder="plain")
    assert texts(decoder=decoder, seed=5)[1:] != texts(decoder=decoder)[1:]
