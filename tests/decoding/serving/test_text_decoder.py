"""Text generation on a tiny checkpoint: streaming, stop strings, samples, cancellation, and the chat model around it."""

from copy import copy
from pathlib import Path

import pytest
from langchain_core.messages import HumanMessage, SystemMessage

from decoding.engine.method import UnknownMethod
from decoding.engine.target import PromptTooLong
from decoding.methods.adaptive import Adaptive
from decoding.methods.registry import METHODS
from decoding.serving.chat_model import ChatModel
from decoding.serving.model_queue import ModelQueue, QueueFull, Stopped
from decoding.serving.text_decoder import Completion, SamplingParams, TextDecoder, TextDelta
from decoding.targets.hf_target import HfTarget
from decoding.tokenizer import Tokenizer
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
