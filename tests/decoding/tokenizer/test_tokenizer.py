"""Guards against broken characters in streamed text, and against tokens or prompts that the model was not trained on."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Core
from tokenizers import decoders, models, normalizers
from transformers import AutoTokenizer

from decoding.errors import ModelUnavailable, UnsupportedModel
from decoding.tokenizer import TextStream, Tokenizer
from tests.decoding.models.tiny_models import tiny_checkpoint, write_tokenizer

TEXTS = st.text() | st.text(st.sampled_from("aé日本🙂👩‍💻🇪🇸\u0301 \n\t▁<|im_end|>'\"\ufffd\x00"))
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "¿Qué? <b>"}]


def sentencepiece(strip: bool) -> Core:
    """Llama 2's kind: `▁` for a space, byte tokens for everything outside a small vocabulary."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdeé日", "▁a", "ab"]
    merges = [("▁", "a"), ("a", "b")]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    core = Core(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    spaces = normalizers.Replace(" ", "▁")
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if strip else spaces
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    core.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    core.add_special_tokens(["<s>", "</s>"])
    return core


def byte_level() -> Core:
    from tests.decoding.models.tiny_models import tiny_tokenizer

    return tiny_tokenizer(400)


def metaspace() -> Core:
    """A decoder that has no streaming form here."""
    core = sentencepiece(strip=True)
    core.decoder = decoders.Metaspace()
    return core


CORES = {
    "byte-level": byte_level,
    "sentencepiece": lambda: sentencepiece(strip=True),
    "sentencepiece-no-prefix": lambda: sentencepiece(strip=False),
    "metaspace": metaspace,
}


@pytest.fixture(scope="module", params=CORES)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp(request.param)
    CORES[request.param]().save(str(folder / "tokenizer.json"))
    return Tokenizer(folder)


def streamed(tokenizer: Tokenizer, ids: list[int], step: int) -> list[str]:
    stream = TextStream(tokenizer)
    pieces = [stream.push(ids[at : at + step]) for at in range(0, len(ids), step)]
    return [*pieces, stream.flush()]


@settings(deadline=None)
@given(text=TEXTS, step=st.integers(1, 5))
def test_streamed_text_adds_up_and_never_splits_a_character(tokenizer: Tokenizer, text: str, step: int) -> None:
    ids = tokenizer.encode(text, literal=True)
    pieces = streamed(tokenizer, ids, step)
    assert "".join(pieces) == tokenizer.decode(ids)
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


@settings(deadline=None)
@given(numbers=st.lists(st.integers(0, 10_000)), step=st.integers(1, 5))
def test_any_tokens_stream_to_what_decode_says(tokenizer: Tokenizer, numbers: list[int], step: int) -> None:
    """Models emit nonsense too: broken UTF-8, markers in the middle, ids that no token has."""
    ids = [number % (tokenizer.vocab_size + 3) for number in numbers]
    assert "".join(streamed(tokenizer, ids, step)) == tokenizer.decode(ids)


@settings(deadline=None)
@given(text=TEXTS)
def test_byte_level_text_comes_back_unchanged(byte_tokenizer: Tokenizer, text: str) -> None:
    assert byte_tokenizer.decode(byte_tokenizer.encode(text, literal=True), special=True) == text


@pytest.fixture(scope="module")
def byte_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(tiny_checkpoint(tmp_path_factory.mktemp("model"), vocab=400))


def test_text_is_shown_as_soon_as_a_character_is_whole(byte_tokenizer: Tokenizer) -> None:
    """A stream that only speaks at the end would pass every other test here."""
    pieces = streamed(byte_tokenizer, byte_tokenizer.encode("a🙂b"), 1)
    assert pieces == ["a", "", "", "", "🙂", "b", ""]


def test_markers_are_tokens_in_prompts_and_plain_text_in_data(byte_tokenizer: Tokenizer) -> None:
    assert byte_tokenizer.encode("<|im_end|>") == [2]
    spelled = byte_tokenizer.encode("<|im_end|>", literal=True)
    assert 2 not in spelled
    assert byte_tokenizer.decode(spelled) == "<|im_end|>"
    assert byte_tokenizer.encode("<|im_end|>") == [2], "the two ways must not leak into each other"


def test_decode_leaves_markers_out_unless_asked(byte_tokenizer: Tokenizer) -> None:
    ids = byte_tokenizer.encode("<|im_start|>hi<|im_end|>")
    assert byte_tokenizer.decode(ids) == "hi"
    assert byte_tokenizer.decode(ids, special=True) == "<|im_start|>hi<|im_end|>"


def test_stop_ids_come_from_all_three_files(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    (path / "config.json").write_text(json.dumps(json.loads((path / "config.json").read_text()) | {"eos_token_id": 7}))
    assert Tokenizer(path).stop_ids == frozenset({2, 5, 6, 7})


TEMPLATES = {
    "chatml": None,
    "helpers": "{{ bos_token }}{% for m in messages %}{% if m.role == 'tool' %}{% continue %}{% endif %}"
    "{% generation %}{{ m | tojson }}{% endgeneration %}\n{% endfor %}\n  {{ strftime_now('%Y') }}{{ thinking }}",
}


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
@pytest.mark.parametrize("prompt", [False, True])
def test_chat_equals_transformers(tmp_path: Path, template: str | None, prompt: bool) -> None:
    path = tiny_checkpoint(tmp_path)
    if template is not None:
        (path / "chat_template.jinja").write_text(template)
    theirs = AutoTokenizer.from_pretrained(path).apply_chat_template(
        MESSAGES, add_generation_prompt=prompt, tokenize=False, thinking=3
    )
    ours = Tokenizer(path)
    assert ours.chat(MESSAGES, add_generation_prompt=prompt, thinking=3) == theirs
    assert ours.encode(theirs) == AutoTokenizer.from_pretrained(path)(theirs, add_special_tokens=False)["input_ids"]


def set_template(path: Path, template: Any) -> Path:
    file = path / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": template}))
    return path


def test_a_list_of_templates_has_a_default(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    assert Tokenizer(set_template(tiny_checkpoint(tmp_path), named)).chat(MESSAGES) == "plain"


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ ''.__class__.__base__ }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception('no system role') }}",
        "{% if %}",
        None,
    ],
)
def test_hostile_broken_and_missing_templates_are_refused(tmp_path: Path, template: str | None) -> None:
    tokenizer = Tokenizer(set_template(tiny_checkpoint(tmp_path), template))
    with pytest.raises(UnsupportedModel) as caught:
        tokenizer.chat(MESSAGES)
    assert "\n" not in str(caught.value)


def test_a_damaged_or_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"has no tokenizer\.json"):
        Tokenizer(tmp_path)
    write_tokenizer(tmp_path, 300)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelUnavailable, match="damaged"):
        Tokenizer(tmp_path)
