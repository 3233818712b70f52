"""Assembles an agent from names: model, decoder, database, profile. Defaults are chosen here and nowhere else."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from agent.graph.doubt.calibration import read_calibration
from agent.graph.doubt.verifier import read_verifier
from agent.graph.toolbox import AgentOptions, Toolbox
from agent.prompts.profiles import load_profile
from agent.prompts.profiles.compact import PROMPT_VERSION
from agent.prompts.profiles.profile import Profile
from decoding.checkpoints.adapters.adapter import About, AdapterMismatch
from decoding.checkpoints.fetch.embedded import EMBEDDED_NAMES
from decoding.checkpoints.fetch.progress import Progress, on_stderr
from decoding.engine.ensemble import PROMPT_ROWS
from decoding.methods.registry import load_method
from decoding.serving.chat_model import FastChatModel
from decoding.serving.load import load_text_decoder
from decoding.serving.text_decoder import Settings, TextDecoder
from decoding.timing.plain_cost import PlainCost
from tools.databases.database import Database
from tools.databases.reading.annotations import with_annotations
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
    which may hold values of the database, may be kept on disk. prompt_rows: see `decoding.serving.batcher.Batcher`.
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

    def with_choice(self, choice: ModelChoice) -> "LoadedModel":
        """The same model with another choice of decoder, profile and temperature."""
        return replace(self, choice=choice)

    def toolbox(
        self, database: Database, options: AgentOptions | None = None, limits: Limits = DEFAULT_LIMITS
    ) -> Toolbox:
        """Raises OptionRefused."""
        settings = Settings(
            decoder=self.choice.decoder_name,
            options=self.choice.decoder_options,
            temperature=self.choice.temperature,
        )
        profile = profile_of(self.choice, self.decoder.adapter.about if self.decoder.adapter else None)
        options = options or AgentOptions()
        return Toolbox(
            database=with_annotations(database, options.knowledge.annotations),
            model=FastChatModel(decoder=self.decoder, settings=settings, raw=profile.raw),
            profile=profile,
            options=options,
            limits=limits,
            estimate_plain=self.plain_cost.estimate_ms,
            calibration=self._beside_adapter(read_calibration) if profile.raw else None,
            verifier=self._beside_adapter(read_verifier) if profile.raw else None,
        )

    def _beside_adapter(self, read: Callable[[Path], Found | None]) -> Found | None:
        """What `read` finds in the folder of the adapter."""
        adapter = self.decoder.adapter
        return read(adapter.files[0].parent) if adapter and adapter.files else None


def load_model(choice: ModelChoice, progress: Progress = on_stderr) -> LoadedModel:
    """Check the names, then fetch and load. Raises UnknownMethod, UnknownProfile, ModelUnavailable, UnsupportedModel."""
    choice.check()
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
    return LoadedModel(choice, decoder, cost)


def profile_of(choice: ModelChoice, adapter: About | None) -> Profile:
    """The profile. Raises AdapterMismatch if the adapter was trained on prompts of another version."""
    profile = load_profile(choice.profile_name)
    if profile.name == "compact" and adapter and adapter.prompt_version not in (None, PROMPT_VERSION):
        raise AdapterMismatch(
            f"the adapter was trained on prompts of version {adapter.prompt_version}, and this release writes version "
            f"{PROMPT_VERSION}: train it again, or give --adapter none"
        )
    return profile
