"""Converts token strings to text, a few at a time, without ever splitting a character.

A detokenizer's pieces add up to exactly what the `tokenizers` library returns for all tokens at once. The decoder named in
tokenizer.json determines which detokenizer is used.
"""

import codecs
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from tokenizers import decoders, pre_tokenizers

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Detokenizer(Protocol):
    """It is fed every token once, in order; `flush` returns at the end what was held back."""

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
    """GPT-2, Llama 3, Qwen, SmolLM: tokens spell bytes; incomplete UTF-8 is held back."""

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

    A run is text if all of it is valid UTF-8, otherwise one replacement character per byte; so it is held back until it ends.
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
