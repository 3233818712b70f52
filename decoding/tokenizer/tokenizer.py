"""Converts text to token ids and back for a checkpoint folder, with only the `tokenizers` library (no transformers at start).

A chat's format is the checkpoint's own template; what an agent's prompt says is not decided here.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers

from decoding.checkpoints.model_config import read_json, token_ids
from decoding.errors import ModelUnavailable, UnsupportedModel
from decoding.tokenizer.detokenize import Detokenizer, detokenizer_for

if TYPE_CHECKING:
    from decoding.tokenizer.chat_template import ChatTemplate

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
        from decoding.tokenizer.chat_template import ChatTemplate, template_source  # jinja2, for chats alone

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
        """The end of the text: what was held back, U+FFFD for incomplete characters."""
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
