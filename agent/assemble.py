"""Assembles an agent from names: model, decoder, database, profile. Defaults are chosen here and nowhere else.

A model may also be served by an OpenAI-compatible endpoint (vLLM, SGLang, `sqlagent serve`). Its name is
`openai:http://host:port/v1#model`. If the endpoint wants a key, it is read from OPENAI_API_KEY. Options that only a model on
this machine can follow are refused.
"""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from agent.calibration import read_calibration, read_verifier
from agent.context import AgentContext, AgentOptions, EndpointForms, Larger
from agent.prompts.compact import PROMPT_VERSION
from agent.prompts.profiles import UnknownProfile, load_profile
from agent.prompts.slots import Profile
from decoding.checkpoints.adapter import About, AdapterMismatch
from decoding.checkpoints.cache_folder import Progress, on_stderr
from decoding.checkpoints.embedded import EMBEDDED_NAMES
from decoding.engine.method import PROMPT_ROWS
from decoding.errors import ModelUnavailable, pip_install
from decoding.methods.registry import load_method
from decoding.serving.load import load_text_decoder
from decoding.serving.text_decoder import ChatModel, SamplingParams, TextDecoder
from decoding.timing import PlainCost
from tools.databases.annotations import with_annotations
from tools.databases.database import Database
from tools.result import DEFAULT_LIMITS, Limits

DEFAULT_DECODER = "adaptive"
Found = TypeVar("Found")


class OptionRefused(ValueError):
    """Options that the model cannot follow; the message names them."""


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """Which model to load, and how. decoder None: the default decoder. profile None: compact for the embedded model, chat
    for every other.

    adapter: "auto" (the adapter shipped with the embedded model), "none", or a folder. keep_prompts: whether parts of prompts,
    which may hold values of the database, may be kept on disk. prompt_rows: see `decoding.serving.model_queue.Batcher`.
    escalate: the name of a larger model, for questions of whose answers this one is not sure; empty: none.
    """

    model: str = "embedded"
    adapter: str = "auto"
    decoder: str | None = None
    decoder_options: Mapping[str, Any] = field(default_factory=dict)
    profile: str | None = None
    dtype: str = "auto"
    kv_dtype: str = "auto"
    device: str = "auto"
    target: Literal["auto", "fast", "hf"] = "auto"
    temperature: float = 0.0
    prefix_cache_mb: int = 1024
    keep_prompts: bool = False
    prompt_rows: int = PROMPT_ROWS
    escalate: str = ""

    def check(self) -> None:
        """Raise UnknownMethod or UnknownProfile before anything slow happens."""
        load_method(self.decoder_name, **self.decoder_options)
        load_profile(self.profile_name)

    @property
    def decoder_name(self) -> str:
        return self.decoder or DEFAULT_DECODER

    @property
    def profile_name(self) -> str:
        return self.profile or ("compact" if self.model in EMBEDDED_NAMES else "chat")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A loaded model, which any number of toolboxes can share, each in its own thread."""

    choice: ModelChoice
    decoder: TextDecoder
    plain_cost: PlainCost
    larger: Larger | None = None

    def with_choice(self, choice: ModelChoice) -> "LoadedModel":
        """The same model with another choice of decoder, profile and temperature."""
        return replace(self, choice=choice)

    def toolbox(
        self, database: Database, options: AgentOptions | None = None, limits: Limits = DEFAULT_LIMITS
    ) -> AgentContext:
        """Raises OptionRefused."""
        settings = SamplingParams(
            decoder=self.choice.decoder_name,
            options=self.choice.decoder_options,
            temperature=self.choice.temperature,
        )
        profile = profile_of(self.choice, self.decoder.adapter.about if self.decoder.adapter else None)
        options = options or AgentOptions()
        calibration = self._beside_adapter(read_calibration) if profile.raw else None
        if options.at_least and not (calibration and calibration.answer_from):
            raise OptionRefused(
                "--at-least needs a model with bounds: `sqlagent train verifier --held-out` fits them; leave it out until then"
            )
        if self.larger and not (calibration and calibration.answer_from):
            raise OptionRefused("--escalate needs a model that knows how sure it is: leave --model and --profile out")
        return AgentContext(
            database=with_annotations(database, options.knowledge.annotations),
            model=ChatModel(self.decoder, settings, profile.raw),
            profile=profile,
            options=options,
            limits=limits,
            estimate_plain=self.plain_cost.estimate_ms,
            calibration=calibration,
            verifier=self._beside_adapter(read_verifier) if profile.raw else None,
            larger=self.larger,
        )

    def as_larger(self) -> Larger:
        """The model as the larger one of another."""
        profile = load_profile(self.choice.profile_name)
        settings = SamplingParams(decoder=self.choice.decoder_name)
        name = self.decoder.name.rstrip("/").rpartition("/")[2]  # of a folder or a hub id
        return Larger(name, ChatModel(self.decoder, settings, profile.raw), profile)

    def _beside_adapter(self, read: Callable[[Path], Found | None]) -> Found | None:
        """What `read` finds in the folder of the adapter."""
        adapter = self.decoder.adapter
        return read(adapter.files[0].parent) if adapter and adapter.files else None


def load_model(choice: ModelChoice, progress: Progress = on_stderr) -> LoadedModel:
    """Check the names, then fetch and load. Raises UnknownMethod, UnknownProfile, ModelUnavailable, UnsupportedModel, and
    OptionRefused for a larger model that is none."""
    choice.check()
    larger = _larger(choice).as_larger() if choice.escalate else None
    adapter: Path | Literal["auto", "none"] = "auto"
    if choice.adapter != "auto":
        adapter = "none" if choice.adapter == "none" else Path(choice.adapter)
    decoder = load_text_decoder(
        choice.model,
        adapter=adapter,
        dtype=choice.dtype,
        kv_dtype=choice.kv_dtype,
        device=choice.device,
        target=choice.target,
        prefix_cache_mb=choice.prefix_cache_mb,
        keep_prompts=choice.keep_prompts,
        prompt_rows=choice.prompt_rows,
        progress=progress,
    )
    profile_of(choice, decoder.adapter.about if decoder.adapter else None)
    cost = PlainCost(decoder)
    decoder.row_costs = cost.row_costs
    return LoadedModel(choice, decoder, cost, larger)


def _larger(choice: ModelChoice) -> "LoadedModel | RemoteModel":
    if choice.escalate in (choice.model, *EMBEDDED_NAMES):
        raise OptionRefused(
            f"--escalate {choice.escalate} is no larger model: name a folder, a .gguf file, a hub id, or openai:URL#NAME"
        )
    device = "auto" if choice.escalate.startswith(SCHEME) else choice.device
    return any_model(ModelChoice(choice.escalate, profile="chat", device=device, keep_prompts=choice.keep_prompts))


def profile_of(choice: ModelChoice, adapter: About | None) -> Profile:
    """The profile. Raises AdapterMismatch if the adapter was trained on prompts of another version."""
    profile = load_profile(choice.profile_name)
    if profile.name == "compact" and adapter and adapter.prompt_version not in (None, PROMPT_VERSION):
        raise AdapterMismatch(
            f"the adapter was trained on prompts of version {adapter.prompt_version}, and this release writes version "
            f"{PROMPT_VERSION}: train it again, or give --adapter none"
        )
    return profile


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
    "escalate": "--escalate",
}


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """An endpoint that has answered. Its decoder and its number of forwards are unknown here."""

    choice: ModelChoice
    chat: Any  # langchain's ChatOpenAI
    forms: EndpointForms = field(default_factory=lambda: EndpointForms(_on_stderr))

    def toolbox(
        self, database: Database, options: AgentOptions | None = None, limits: Limits = DEFAULT_LIMITS
    ) -> AgentContext:
        """Raises OptionRefused."""
        options = options or AgentOptions()
        if options.race:
            raise OptionRefused("--race decodes a step again without drafts, which an endpoint cannot do: leave it out")
        if options.at_least:
            raise OptionRefused(
                "--at-least needs the embedded model: nobody knows how often an endpoint's answers are right"
            )
        annotated = with_annotations(database, options.knowledge.annotations)
        profile = load_profile(self.choice.profile_name)
        return AgentContext(annotated, self.chat, profile, options, limits, forms=self.forms)

    def as_larger(self) -> Larger:
        """See `LoadedModel.as_larger`."""
        name = self.choice.model.partition("#")[2]
        return Larger(name, self.chat, load_profile(self.choice.profile_name), self.forms)


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
