"""What a person may change about how questions are answered. Changes hold from the next question on."""

from dataclasses import astuple, dataclass, replace
from typing import Any

from agent.assemble import DEFAULT_DECODER, ModelChoice
from agent.graph.toolbox import AgentOptions
from decoding.engine.method import UnknownMethod
from decoding.methods.name_value import name_and_value
from decoding.methods.registry import METHODS, load_method, method_options, option_value
from tools.result import Limits


@dataclass(frozen=True, slots=True)
class Settings:
    """`options`: the decoder's own, as `name=value` pairs separated by spaces or commas. `measure`: race every step plainly.
    `clarify`: ask back where a question is unclear."""

    model: str = "embedded"
    decoder: str = DEFAULT_DECODER
    options: str = ""
    temperature: float = 0.0
    attempts: int = 3
    max_rows: int = 1000
    deadline_s: float = 30.0
    measure: bool = False
    constrain: bool = True
    clarify: bool = True
    seed: int = 0

    def check(self) -> None:
        """Raise ModelError or ValueError (UnknownMethod is one) with a line that says what is wrong."""
        if None in astuple(self):
            raise ValueError("a number is missing")
        load_method(self.decoder, **self.decoder_options())

    def decoder_options(self) -> dict[str, Any]:
        """Raises ValueError, or UnknownMethod for an option that the decoder lacks."""
        known = method_options(self.decoder)
        given: dict[str, Any] = {}
        for pair in self.options.replace(",", " ").split():
            name, text = name_and_value(pair)
            if name not in known:
                raise UnknownMethod(f"{self.decoder} has no option {name}; it has: {', '.join(known) or 'none'}")
            given[name] = option_value(text)
        return given

    def choice(self, base: ModelChoice) -> ModelChoice:
        """`base` with what is set here."""
        same = self.model == base.model
        return replace(
            base,
            model=self.model,
            adapter=base.adapter if same else "auto",
            profile=base.profile if same else None,
            decoder=self.decoder,
            decoder_options=self.decoder_options(),
            temperature=self.temperature,
        )

    def agent_options(self) -> AgentOptions:
        return AgentOptions(
            max_attempts=self.attempts,
            race=self.measure,
            constrain=self.constrain,
            clarify=self.clarify,
            seed=self.seed,
            second_look=True,
        )

    def limits(self) -> Limits:
        return Limits(deadline_s=self.deadline_s, max_rows=self.max_rows)


def options_hint(decoder: str) -> str:
    """The decoder's options with their defaults, as one would write them."""
    known = method_options(decoder) if decoder in METHODS else {}
    return " ".join(f"{name}={value}" for name, value in known.items()) or "no options"
