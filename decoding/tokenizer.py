"""Converts text to token ids and back for a checkpoint folder, with only the `tokenizers` library (no transformers at start).

A chat's format is the checkpoint's own Jinja template. It comes with a downloaded model, so it runs in jinja2's immutable
sandbox. The pieces of a text as it grows add up to exactly what `tokenizers` returns for all tokens at once; the decoder named
in tokenizer.json determines how.
"""

import codecs
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, Protocol

import tokenizers
from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import decoders, pre_tokenizers

from decoding.checkpoints.model_config import read_json, token_ids
from decoding.errors import ModelUnavailable, UnsupportedModel


class _GenerationBlock(Extension):
    """`{% generation %}...{% endgeneration %}`, with which training code marks the assistant's words: renders its content."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's own interface)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """JSON without escaped HTML: Jinja's own filter escapes it, which models have not seen in training."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


class ChatTemplate:
    """One compiled template. Raises UnsupportedModel when it is not valid Jinja."""

    def __init__(self, source: str, constants: Mapping[str, Any]) -> None:
        """`constants`: what the template sees besides the messages, such as `bos_token`."""
        self._constants = dict(constants)
        try:
            self._template = _environment().from_string(source)
        except TemplateError as error:
            raise UnsupportedModel(f"this model's chat template is no valid Jinja: {error}") from error

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **more: Any) -> str:
        """Messages ({"role": ..., "content": ...}) as one prompt; `more` is passed to the template (`enable_thinking`, ...).

        Raises UnsupportedModel when the template refuses the messages, for instance a system role that it does not know.
        """
        values = {"tools": None, "documents": None} | self._constants | more
        try:
            return self._template.render(messages=list(messages), add_generation_prompt=add_generation_prompt, **values)
        except (TemplateError, TypeError, KeyError, ValueError) as error:
            raise UnsupportedModel(f"this model's chat template refuses the conversation: {error}") from error


def template_source(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """The default chat template of a checkpoint folder, from any of its files; `settings`: its tokenizer_config.json."""
    if (folder / "chat_template.jinja").exists():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    found = settings.get("chat_template")
    if found is None and (folder / "chat_template.json").exists():
        found = read_json(folder / "chat_template.json").get("chat_template")
    if isinstance(found, list):
        named = {entry["name"]: entry["template"] for entry in found}
        found = named.get("default", next(iter(named.values()), None))
    return found


_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Detokenizer(Protocol):
    """It is fed every token once, in order; `flush` returns at the end what was held out."""

    def feed(self, tokens: Iterable[str]) -> str: ...

    def flush(self) -> str: ...


def detokenizer_for(decoder: decoders.Decoder | None) -> Callable[[], Detokenizer]:
    """A factory of detokenizers that are equivalent to the library's `decoder`."""
    if decoder is None:
        return lambda: Whole(" ".join)
    spec = json.loads(decoder.__getstate__())
    steps = spec.get("decoders", [spec])
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return ByteLevel
    if kinds and all(_is_sentencepiece(step) for step in steps):
        return lambda: SentencePiece(strip="Strip" in kinds, bytes_="ByteFallback" in kinds)
    return lambda: Whole(decoder.decode)


def _is_sentencepiece(step: Mapping[str, Any]) -> bool:
    if step.get("type") == "Replace":
        return step.get("pattern") == {"String": "▁"} and step.get("content") == " "
    if step.get("type") == "Strip":
        return (step.get("content"), step.get("start"), step.get("stop")) == (" ", 1, 0)
    return step.get("type") in ("ByteFallback", "Fuse")


def byte_alphabet() -> dict[str, int]:
    """Maps GPT-2's printable stand-in for each byte to the byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(rest)}
    assert alphabet.keys() == set(pre_tokenizers.ByteLevel.alphabet())
    return alphabet


_ALPHABET = byte_alphabet()


class ByteLevel:
    """GPT-2, Llama 3, Qwen, SmolLM: tokens spell bytes; incomplete UTF-8 is held out."""

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, tokens: Iterable[str]) -> str:
        return self._utf8.decode(b"".join(map(_spelled, tokens)))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


def _spelled(token: str) -> bytes:
    try:
        return bytes(_ALPHABET[character] for character in token)
    except KeyError:  # an added token written as it is, such as one with a space
        return token.encode()


class SentencePiece:
    """Llama 2, Gemma: `▁` is a space; runs of byte tokens spell characters outside the vocabulary.

    A run is text if all of it is valid UTF-8, otherwise one replacement character per byte; so it is held out until it ends.
    """

    def __init__(self, *, strip: bool, bytes_: bool) -> None:
        self._strip, self._bytes = strip, bytes_  # whether to remove one leading space; whether byte tokens are bytes
        self._run = bytearray()

    def feed(self, tokens: Iterable[str]) -> str:
        return self._stripped("".join(map(self._text, tokens)))

    def flush(self) -> str:
        return self._stripped(self._end_run())

    def _text(self, token: str) -> str:
        byte = _BYTE_TOKEN.fullmatch(token) if self._bytes else None
        if byte is None:
            return self._end_run() + token.replace("▁", " ")
        self._run.append(int(byte[1], 16))
        return ""

    def _end_run(self) -> str:
        run, self._run = bytes(self._run), bytearray()
        try:
            return run.decode()
        except UnicodeDecodeError:
            return "\ufffd" * len(run)

    def _stripped(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text


class Whole:
    """Any other decoder: its text may depend on what follows, so all of it comes with `flush`."""

    def __init__(self, decode: Callable[[list[str]], str]) -> None:
        self._decode, self._tokens = decode, list[str]()

    def feed(self, tokens: Iterable[str]) -> str:
        self._tokens += tokens
        return ""

    def flush(self) -> str:
        tokens, self._tokens = self._tokens, []
        return self._decode(tokens)


_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")


class Tokenizer:
    """The tokenizer of one checkpoint. Threads may share it."""

    def __init__(self, folder: Path) -> None:
        """Raises ModelUnavailable if the folder holds no usable tokenizer."""
        self._core = _load(folder)
        self._folder = folder
        self._settings = _optional_json(folder / "tokenizer_config.json")
        self._special = {
            number: token.content for number, token in self._core.get_added_tokens_decoder().items() if token.special
        }
        self.vocab_size: int = self._core.get_vocab_size()
        self.bos_id: int | None = self._named_id("bos_token")
        self.stop_ids: frozenset[int] = self._stop_ids()

    def encode(self, text: str, special: bool = False, *, literal: bool = False) -> list[int]:
        """Token ids of `text`. Markers in it, such as <|im_end|>, become their tokens.

        `special` adds what the checkpoint puts around a text (a BOS token, say). `literal` encodes markers as plain text
        instead, so that data inside a prompt cannot end a turn.
        """
        core = self._literal if literal and self._markers.search(text) else self._core
        return list(core.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: Iterable[int], special: bool = False) -> str:
        """Text of token ids; `special` keeps markers. Incomplete characters become U+FFFD."""
        return str(self._core.decode(list(ids), skip_special_tokens=not special))

    @property
    def size(self) -> int:
        """How many ids the vocabulary has, added tokens included."""
        return int(self._core.get_vocab_size())

    def token(self, number: int) -> str:
        """The token's string in the vocabulary's own spelling (`Ġselect`); empty for an id that no token has."""
        return self._core.id_to_token(number) or ""

    def spelled(self, number: int) -> bytes:
        """The bytes that a token adds to a text; one of a character's is no text by itself."""
        token = self.token(number)
        if number in self._special:
            return token.encode()
        if isinstance(self.detokenizer(), ByteLevel):
            return _spelled(token)
        byte = _BYTE_TOKEN.fullmatch(token)
        return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()

    def id(self, token: str) -> int | None:
        """Id of a token given in the vocabulary's own spelling."""
        return self._core.token_to_id(token)

    def is_special(self, number: int) -> bool:
        """Whether a token is a marker, which `decode` leaves out."""
        return number in self._special

    def serialised(self) -> str:
        """The text of a tokenizer.json, for libraries that read it."""
        return str(self._core.to_str())

    def chat(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **more: Any) -> str:
        """A conversation ({"role": ..., "content": ...}) as one prompt, by the checkpoint's chat template.

        Raises UnsupportedModel if it has none, or if the template refuses the messages.
        """
        return self._template.render(messages, add_generation_prompt=add_generation_prompt, **more)

    def detokenizer(self) -> Detokenizer:
        """A fresh detokenizer; most callers want `TextStream`."""
        return self._detokenizers()

    @cached_property
    def _detokenizers(self) -> Callable[[], Detokenizer]:
        return detokenizer_for(self._core.decoder)

    @cached_property
    def _template(self) -> "ChatTemplate":

        source = template_source(self._folder, self._settings)
        if source is None:
            raise UnsupportedModel(f"{self._folder.name} has no chat template: it is no chat model; choose another")
        return ChatTemplate(source, {name: self._named(name) or "" for name in _SPECIAL_NAMES})

    @cached_property
    def _markers(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self._special.values())) or r"(?!)")

    @cached_property
    def _literal(self) -> tokenizers.Tokenizer:
        core = tokenizers.Tokenizer.from_str(self._core.to_str())
        core.encode_special_tokens = True
        return core

    def _named(self, name: str) -> str | None:
        """A special token's text by its name in tokenizer_config.json, where it may be a string or an object."""
        entry = self._settings.get(name)
        return entry.get("content") if isinstance(entry, dict) else entry

    def _named_id(self, name: str) -> int | None:
        token = self._named(name)
        return None if token is None else self._core.token_to_id(token)

    def _stop_ids(self) -> frozenset[int]:
        files = (self._folder / "generation_config.json", self._folder / "config.json")
        ids = {number for file in files for number in token_ids(_optional_json(file).get("eos_token_id"))}
        eos = self._named_id("eos_token")
        return frozenset(ids if eos is None else ids | {eos})


class TextStream:
    """Token ids in, text out as soon as it is certain: never part of a character, and never retracted.

    The pieces and the result of `flush` add up to `tokenizer.decode` of all ids.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = tokenizer.detokenizer()

    def push(self, ids: Iterable[int]) -> str:
        """Take ids in; returns the text that they complete. Markers add nothing."""
        known = (self._tokenizer.token(number) for number in ids if not self._tokenizer.is_special(number))
        return self._detokenizer.feed(token for token in known if token)

    def flush(self) -> str:
        """The end of the text: what was held out, U+FFFD for incomplete characters."""
        return self._detokenizer.flush()


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _load(folder: Path) -> tokenizers.Tokenizer:
    path = folder / "tokenizer.json"
    if not path.exists():
        return _from_transformers(folder)
    try:
        core = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise ModelUnavailable(f"{path} is damaged ({error}); fetch the model again") from error
    core.no_padding()
    core.no_truncation()
    return core


def _from_transformers(folder: Path) -> tokenizers.Tokenizer:
    """Checkpoints without tokenizer.json: transformers converts the older formats, at the cost of importing it."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder).backend_tokenizer
    except Exception as error:  # many kinds, from a missing file to a missing package
        reason = str(error).strip().partition("\n")[0]
        raise ModelUnavailable(f"{folder} has no tokenizer.json and none can be made ({reason})") from error
