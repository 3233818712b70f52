"""A checkpoint's Jinja chat template, rendered as transformers does it, in jinja2's immutable sandbox.

A template comes with a downloaded model, so it must neither reach Python's internals nor change its arguments.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from decoding.checkpoints.model_config import read_json
from decoding.errors import UnsupportedModel


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
