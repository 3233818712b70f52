"""A model behind an OpenAI-compatible endpoint (vLLM, SGLang, `sqlagent serve`) instead of one that runs here.

Its name is `openai:http://host:port/v1#model`. If the endpoint wants a key, it is read from OPENAI_API_KEY. Options that
only a model here can follow are refused.
"""

import os
import sys
from dataclasses import dataclass, field
from typing import Any

from agent.assemble import LoadedModel, ModelChoice, OptionRefused, load_model
from agent.graph.toolbox import AgentOptions, EndpointForms, Toolbox
from agent.prompts.profiles import UnknownProfile, load_profile
from decoding.errors import ModelUnavailable, pip_install
from tools.databases.database import Database
from tools.databases.reading.annotations import with_annotations
from tools.result import DEFAULT_LIMITS, Limits

SCHEME = "openai:"
ANSWER_TIMEOUT_S = 120.0
HELLO_TIMEOUT_S = 10.0
_OPTIONS_HERE = {
    "adapter": "--adapter",
    "decoder": "--decoder",
    "decoder_options": "-o",
    "dtype": "--dtype",
    "kv_dtype": "--kv-dtype",
    "device": "--device",
    "target": "target",
}


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """An endpoint that has answered. Its decoder and its number of forwards are unknown here."""

    choice: ModelChoice
    chat: Any  # langchain's ChatOpenAI
    forms: EndpointForms = field(default_factory=lambda: EndpointForms(_on_stderr))

    def toolbox(
        self, database: Database, options: AgentOptions | None = None, limits: Limits = DEFAULT_LIMITS
    ) -> Toolbox:
        """Raises OptionRefused."""
        options = options or AgentOptions()
        if options.race:
            raise OptionRefused(
                "--race decodes a step again plainly, which an endpoint cannot be told to do: leave it out"
            )
        annotated = with_annotations(database, options.knowledge.annotations)
        profile = load_profile(self.choice.profile_name)
        return Toolbox(annotated, self.chat, profile, options, limits, forms=self.forms)


def _on_stderr(line: str) -> None:
    print(f"sqlagent: {' '.join(line.split())}", file=sys.stderr)


def any_model(choice: ModelChoice) -> LoadedModel | RemoteModel:
    """The local or remote model that `choice` names. Raises the same errors as `load_model`, and OptionRefused."""
    if not choice.model.startswith(SCHEME):
        return load_model(choice)
    if choice.profile_name != "chat":
        raise UnknownProfile("a remote model is asked through its chat template: leave --profile out")
    _check_options(choice)
    return RemoteModel(choice, _connected(choice))


def _check_options(choice: ModelChoice) -> None:
    own = ModelChoice()
    given = [option for name, option in _OPTIONS_HERE.items() if getattr(choice, name) != getattr(own, name)]
    if given:
        raise OptionRefused(
            f"{choice.model} runs elsewhere and decodes as its server does: leave out {', '.join(given)}"
        )


def _connected(choice: ModelChoice) -> Any:
    """A connected chat model. Raises ModelUnavailable if the endpoint does not answer or does not serve that model."""
    url, _, name = choice.model.removeprefix(SCHEME).partition("#")
    try:
        import openai
        from langchain_openai import ChatOpenAI
    except ImportError as error:
        raise ModelUnavailable(f"a remote model needs: {pip_install('remote')}") from error
    key = os.environ.get("OPENAI_API_KEY") or "none"
    try:
        with openai.OpenAI(base_url=url, api_key=key, timeout=HELLO_TIMEOUT_S, max_retries=0) as client:
            served = [model.id for model in client.models.list()]
    except openai.OpenAIError as error:
        raise ModelUnavailable(f"no OpenAI-compatible endpoint answers at {url}: {error}") from error
    if name not in served:
        raise ModelUnavailable(f"{url} serves no {name!r}; write {SCHEME}{url}#NAME, one of: {', '.join(served)}")
    return ChatOpenAI(
        model=name,
        base_url=url,
        api_key=lambda: key,
        timeout=ANSWER_TIMEOUT_S,
        temperature=choice.temperature,
        stream_usage=True,
    )
