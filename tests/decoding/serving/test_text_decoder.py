"""Text generation on a tiny checkpoint: streaming, stop strings, samples, cancellation, and the chat model around it.

What a model makes of a given text, against transformers' own forward.

A decode's log probability equals that of one whole forward over prompt and text, whichever method drafted.
"""

from collections.abc import Callable
from copy import copy
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from langchain_core.messages import HumanMessage, SystemMessage
from transformers import AutoModelForCausalLM

from decoding.engine.method import UnknownMethod
from decoding.engine.target import AnyTarget, Array, PromptTooLong
from decoding.methods.adaptive import Adaptive
from decoding.methods.registry import METHODS
from decoding.serving.model_queue import ModelQueue, QueueFull, Stopped
from decoding.serving.text_decoder import (
    ChatModel,
    Completion,
    SamplingParams,
    TextDecoder,
    TextDelta,
    other_beginnings,
    text_states,
    token_scores,
)
from decoding.targets.fast_target import FastTarget
from decoding.targets.hf_target import HfTarget
from decoding.targets.int8.cpu_target import CpuTarget
from decoding.tokenizer import Tokenizer
from kernels.cpu.processor import variant
from tests.decoding.engine.reading import read, rows_fed
from tests.decoding.models.one_of import OneOf
from tests.decoding.models.random_heads import head_options
from tests.decoding.models.tiny_models import tiny_checkpoint

PROMPT = "How many singers do we have?"


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> TextDecoder:
    path = tiny_checkpoint(Path(tmp_path_factory.mktemp("model")) / "tiny", seed=3)
    return TextDecoder(HfTarget.load(path), Tokenizer(path), "tiny")


def settings(**kw: object) -> SamplingParams:
    return SamplingParams(**{"max_new_tokens": 60, "temperature": 1.0, "seed": 4} | kw)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", METHODS)
def test_streamed_pieces_add_up_to_the_text(decoder: TextDecoder, name: str) -> None:
    *pieces, last = decoder.stream(PROMPT, [settings(decoder=name, options=head_options(name, decoder.target))])
    assert isinstance(last, Completion)
    text = "".join(piece.text for piece in pieces if isinstance(piece, TextDelta))
    assert text == last.text == decoder.tokenizer.decode(last.tokens)
    assert last.text == decoder.generate(PROMPT, settings()).text
    assert last.prompt_tokens == len(decoder.tokenizer.encode(PROMPT))


def test_a_stop_string_ends_the_text_before_it_and_is_never_shown(decoder: TextDecoder) -> None:
    whole = decoder.generate(PROMPT, settings()).text
    stop = whole[len(whole) // 2 :][:2]
    *pieces, last = decoder.stream(PROMPT, [settings(stop=(stop, "never there"))])
    assert isinstance(last, Completion)
    assert last.text == whole[: whole.index(stop)]
    assert last.finish == "stop"
    assert "".join(piece.text for piece in pieces if isinstance(piece, TextDelta)) == last.text
    assert len(last.rounds) < 60


@pytest.mark.parametrize("name", ["plain", "jetspec"])
def test_samples_differ_by_seed_and_each_equals_its_own_decode(decoder: TextDecoder, name: str) -> None:
    options = head_options(name, decoder.target)
    many = [settings(decoder=name, options=options, seed=seed) for seed in range(4)]
    fresh = TextDecoder(HfTarget(decoder.target.model), decoder.tokenizer, "fresh")  # type: ignore[attr-defined]
    together = fresh.samples(PROMPT, many)
    assert [g.text for g in together] == [decoder.generate(PROMPT, each).text for each in many]
    assert len({g.text for g in together}) == 4
    assert all(g.rounds[0].pending == 1 for g in together), "the prompt was computed once for all"


def test_cancelling_keeps_what_was_written(decoder: TextDecoder) -> None:
    calls = iter([False] * 5 + [True] * 100)
    *pieces, last = decoder.stream(PROMPT, [settings()], lambda: next(calls))
    assert isinstance(last, Completion)
    assert last.finish == "cancelled"
    assert len(pieces) == len(last.rounds) == 5


def test_bad_requests_fail_before_anything_is_computed(decoder: TextDecoder) -> None:
    with pytest.raises(PromptTooLong):
        decoder.generate("word " * 2000, settings())
    with pytest.raises(UnknownMethod, match="choose one of: plain"):
        decoder.generate(PROMPT, settings(decoder="medusa9"))
    with pytest.raises(UnknownMethod, match="no option blok"):
        decoder.generate(PROMPT, settings(decoder="jacobi", options={"blok": 3}))


def test_chat_model_streams_counts_and_reports(decoder: TextDecoder) -> None:
    model = ChatModel(decoder, settings(decoder="prompt_lookup"))
    messages = [SystemMessage("You write SQL."), HumanMessage(PROMPT)]
    whole = model.complete(messages, {})
    *deltas, last = model.stream(messages, {})
    assert isinstance(last, Completion) and all(isinstance(each, TextDelta) for each in deltas)
    assert "".join(each.text for each in deltas) == last.text == whole.text
    assert (last.prompt_tokens, last.new_tokens) == (whole.prompt_tokens, whole.new_tokens)
    assert last.cached_tokens == whole.prompt_tokens - 1
    assert [r.committed for r in last.rounds] == [r.committed for r in whole.rounds]
    tokens = [token for r in whole.rounds for token in r.text_tokens if token not in decoder.tokenizer.stop_ids]
    assert decoder.tokenizer.decode(tokens) == whole.text and len(tokens) == whole.new_tokens
    assert "<|im_start|>user" in model.prompt(messages)


def test_chat_model_takes_settings_per_call(decoder: TextDecoder) -> None:
    model, asked = ChatModel(decoder, settings(), raw=True), [HumanMessage(PROMPT)]
    text = model.complete(asked, {}).text
    assert model.complete(asked, {"max_new_tokens": 3}).new_tokens <= 3
    assert model.complete(asked, {"seed": 9}).text != text
    assert model.complete(asked, {"stop": [text[5:8]]}).text == text[: text.index(text[5:8])]
    assert len({each.text for each in model.samples(asked, {}, 3)}) == 3


def test_seats_bound_the_batch_and_a_closed_stream_gives_its_seat_back(decoder: TextDecoder) -> None:
    small = copy(decoder)
    small.queue = ModelQueue(seats=2)
    first, second = (small.stream(PROMPT, [settings(seed=seed)]) for seed in range(2))
    assert isinstance(next(first), TextDelta) and isinstance(next(second), TextDelta)
    stops = iter([False, False, True])
    (left,) = small.stream(PROMPT, [settings()], cancelled=lambda: next(stops))
    assert isinstance(left, Completion) and (left.finish, left.text) == ("cancelled", "")
    first.close()  # type: ignore[attr-defined]
    assert small.generate(PROMPT, settings(seed=5)).text == decoder.generate(PROMPT, settings(seed=5)).text
    second.close()  # type: ignore[attr-defined]
    many = [settings(seed=seed) for seed in range(3)]
    assert len(small.samples(PROMPT, many)) == 3, "more than the seats: alone it may"
    assert len(small.queue) == 0


def test_reserved_seats_are_one_place_in_the_line(decoder: TextDecoder) -> None:
    small = copy(decoder)
    small.queue = ModelQueue(seats=2, most_callers=1)
    with small.reserved(2, lambda: False) as view:
        streams = [view.stream(PROMPT, [settings(seed=seed)]) for seed in range(2)]
        assert all(isinstance(next(stream), TextDelta) for stream in streams)
        with pytest.raises(QueueFull):
            small.generate(PROMPT, settings())
        for stream in streams:
            stream.close()  # type: ignore[attr-defined]
    with small.queue.take(), pytest.raises(QueueFull), small.reserved(1, lambda: False):
        pass
    small.queue.most_callers = None
    with small.queue.take(2), pytest.raises(Stopped), small.reserved(1, lambda: True):
        pass
    assert small.generate(PROMPT, settings()).text == decoder.generate(PROMPT, settings()).text


def test_a_decoder_keeps_experience_apart_by_method_options_and_kind(
    decoder: TextDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    begin = Adaptive.begin
    monkeypatch.setattr(Adaptive, "begin", lambda self, *args: (seen.append(args[2].experience), begin(self, *args)))
    ways = [
        SamplingParams("adaptive", kind="plan", max_new_tokens=6),
        SamplingParams("adaptive", kind="generate", max_new_tokens=6),
        SamplingParams("adaptive", {"top_k": 3}, kind="plan", max_new_tokens=6),
    ]
    for settings in (*ways, ways[0]):
        decoder.generate("How many?", settings)
    rates = [each.rate().tokens_per_step for each in seen]
    assert rates[0] == rates[3] != 2.5, "the first and the last share theirs"
    assert seen[0]._kind != seen[1]._kind != seen[2]._kind != seen[0]._kind


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
def decoder_given_text(checkpoint: Path) -> TextDecoder:
    return TextDecoder(FastTarget.load(checkpoint), Tokenizer(checkpoint), "tiny")


def expected_states(checkpoint: Path, decoder: TextDecoder, text: str, tap: int) -> Array:
    tokens = torch.tensor([decoder.tokenizer.encode(text)])
    states = AutoModelForCausalLM.from_pretrained(checkpoint)(tokens, output_hidden_states=True).hidden_states
    found: Array = states[tap][0].detach().numpy()
    return found


@pytest.mark.parametrize("tap", [1, 2])
def test_states_are_those_of_the_whole_text(checkpoint: Path, decoder_given_text: TextDecoder, tap: int) -> None:
    """Guards against states of other tokens, of the prompt's, and of another text."""
    found = text_states(decoder_given_text, PROMPT, TEXTS, (tap,))
    for states, text in zip(found, TEXTS, strict=True):
        own = len(decoder_given_text.tokenizer.encode(text)) - shared(decoder_given_text, text)
        assert states.shape[:2] == (own, 1)
        assert np.allclose(states[:, 0], expected_states(checkpoint, decoder_given_text, text, tap)[-own:], atol=1e-4)


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
    decoder_given_text, cold = (TextDecoder(LOAD[kind](checkpoint), Tokenizer(checkpoint), "tiny") for _ in range(2))
    if cached is not None:
        read(decoder_given_text.target, decoder_given_text.tokenizer.encode(PROMPT), cached)
    fed = rows_fed(decoder_given_text.target, monkeypatch)
    found = text_states(decoder_given_text, PROMPT, TEXTS, (2, 1))
    for states, text in zip(found, TEXTS, strict=True):
        want = read(cold.target, decoder_given_text.tokenizer.encode(text), (2, 1))[shared(decoder_given_text, text) :]
        assert abs(want[1:] - want[:-1]).max(-1).min() > 0.1
        np.testing.assert_allclose(states, want, rtol=0, atol=0 if kind == "int8" else 1e-4)
    common = min(shared(decoder_given_text, text) for text in TEXTS)
    behind = [1 + len(decoder_given_text.tokenizer.encode(text)) - common for text in TEXTS]
    assert fed == ([] if cached is not None else [[common - 1]]) + [behind]
    text_states(decoder_given_text, PROMPT, TEXTS, (1,))
    assert fed[-1] == behind and len(fed) == (2 if cached is not None else 3), "what was read once stays in the cache"


def test_scores_are_the_log_probabilities_of_the_tokens(checkpoint: Path, decoder_given_text: TextDecoder) -> None:
    tokens = decoder_given_text.tokenizer.encode(" We have nine.")
    prompt = decoder_given_text.tokenizer.encode(PROMPT)
    logits = AutoModelForCausalLM.from_pretrained(checkpoint)(torch.tensor([[*prompt, *tokens]])).logits[0]
    rows = logits[len(prompt) - 1 : -1].log_softmax(-1)
    expected = rows[torch.arange(len(tokens)), torch.tensor(tokens)].tolist()
    found = token_scores(decoder_given_text, PROMPT, tokens, alternatives=1)
    assert [each.log_prob for each in found] == pytest.approx(expected, abs=1e-3)
    assert [each.alternatives[0].log_prob for each in found] == pytest.approx(rows.max(-1).values.tolist(), abs=1e-3)


def test_other_beginnings_are_ranked_by_the_whole_way(checkpoint: Path, decoder_given_text: TextDecoder) -> None:
    """Guards against the other token's own probability as the rank, against probabilities among all tokens, and against leaving
    the text where it is forced."""
    one, two, three, four, five = (decoder_given_text.tokenizer.encode(letter)[0] for letter in "abcde")
    stop = decoder_given_text.tokenizer.stop_ids
    texts = [(one, two, three), (one, two, four), (one, five), (four, five)]
    choice = OneOf(texts, stop, decoder_given_text.target.vocab_size)
    scores = transformers_scores(checkpoint, decoder_given_text, PROMPT, texts[0])

    def chance(place: int, token: int, allowed: tuple[int, ...]) -> float:
        return float(scores[place, token] - np.logaddexp.reduce(scores[place, list(allowed)]))

    so_far = chance(0, one, (one, four))
    further = so_far + chance(1, two, (two, five))
    expected = {
        (four,): chance(0, four, (one, four)),
        (one, five): so_far + chance(1, five, (two, five)),
        (one, two, four): further + chance(2, four, (three, four)),
    }
    found = other_beginnings(decoder_given_text, PROMPT, [*texts[0], min(stop)], choice, count=5)
    assert found == sorted(expected, key=expected.__getitem__, reverse=True)
    assert other_beginnings(decoder_given_text, PROMPT, texts[0], choice, count=2) == found[:2]
    assert other_beginnings(decoder_given_text, PROMPT, [two], choice, count=5) == []  # not a text that is allowed
    assert other_beginnings(decoder_given_text, PROMPT, [], choice, count=5) == []


def transformers_scores(checkpoint: Path, decoder: TextDecoder, prompt: str, tokens: tuple[int, ...]) -> Array:
    """Log-probabilities [tokens, vocab] by which transformers predicts each token."""
    before = decoder.tokenizer.encode(prompt)
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(checkpoint)(torch.tensor([[*before, *tokens]])).logits[0]
    found: Array = torch.log_softmax(logits[len(before) - 1 : -1].double(), -1).numpy()
    return found


SETTINGS = SamplingParams(temperature=0.7, seed=4, max_new_tokens=30, likelihood=True)


@pytest.fixture(scope="module")
def checkpoint_likelihood(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny", seed=3)


@pytest.fixture(scope="module")
def model(checkpoint_likelihood: Path) -> ChatModel:
    decoder = TextDecoder(HfTarget.load(checkpoint_likelihood), Tokenizer(checkpoint_likelihood), "tiny")
    return ChatModel(decoder, SETTINGS, raw=True)


@pytest.mark.parametrize("decoder", ["plain", "prompt_lookup", "jacobi"])
def test_it_is_the_log_probability_of_the_tokens(checkpoint_likelihood: Path, model: ChatModel, decoder: str) -> None:
    """Guards against probabilities at the wrong row of a draft, and of tokens that were cut off."""
    message = model.complete([HumanMessage(PROMPT)], {"decoder": decoder})
    prompt = model.decoder.tokenizer.encode(PROMPT)
    text = [token for r in message.rounds for token in r.committed]
    logits = AutoModelForCausalLM.from_pretrained(checkpoint_likelihood)(torch.tensor([[*prompt, *text]])).logits[0]
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
