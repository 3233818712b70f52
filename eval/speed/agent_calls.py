"""Records the agent's calls to the decoder, to decode them again with other methods."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent.assemble import LoadedModel, ModelChoice, load_model
from agent.context import AgentOptions
from decoding.serving.model_queue import never
from decoding.serving.text_decoder import Completion, SamplingParams, TextDecoder, TextDelta
from eval.accuracy.predict import AgentPredict, FirstTurn
from eval.accuracy.record import Prediction
from eval.datasets.official import Example
from tools.result import Limits


@dataclass(frozen=True, slots=True)
class Call:
    """One text of one of the agent's steps. `settings`: those used, without likelihoods, and with the
    recall as it was when decoding began."""

    step: str  # "plan", "generate" or "refine"
    prompt: str
    settings: SamplingParams
    generation: Completion


class CallRecorder(TextDecoder):
    """Decodes like `inner` and records every finished text; a dead end of the grammar leaves no record."""

    def __init__(self, inner: TextDecoder) -> None:
        super().__init__(inner.target, inner.tokenizer, inner.name, inner.adapter, batcher=inner.batcher)
        self.inner = inner
        self._calls: list[Call] = []

    def stream(
        self, prompt: str, settings: Sequence[SamplingParams], cancelled: Callable[[], bool] = never
    ) -> Iterator[TextDelta | Completion]:
        kept = [replace(each, recall=each.recall.copy(), likelihood=False) for each in settings]
        ended = 0
        for piece in super().stream(prompt, settings, cancelled):
            if isinstance(piece, Completion):
                sequence = piece.rounds[0].sequence if piece.rounds else ended
                self._calls.append(Call("", prompt, kept[sequence], piece))
                ended += 1
            yield piece

    def take(self, steps: Sequence[Mapping[str, Any]]) -> list[Call]:
        """Return the calls of the latest question, named by its answer's step records, and forget all since the last `take`.

        Each step with a model must be one call, so it must have asked for one sample. Raises ValueError otherwise.
        """
        names = [step["name"] for step in steps if step["decoder"]]
        calls = self._calls[len(self._calls) - len(names) :]
        self._calls = []
        if len(names) != len(calls):
            raise ValueError(f"{len(calls)} texts for {len(names)} steps")
        return [replace(call, step=name) for call, name in zip(calls, names, strict=True)]


def recording(loaded: LoadedModel) -> tuple[LoadedModel, CallRecorder]:
    """The same model with a recorder in front of its decoder, and that recorder."""
    recorder = CallRecorder(loaded.decoder)
    return replace(loaded, decoder=recorder), recorder


def plain_model(choice: ModelChoice) -> LoadedModel:
    """The model with plain decoding. What rows cost is measured, as it is for users, and told to methods from then on."""
    loaded = load_model(replace(choice, decoder="plain", decoder_options={}))
    loaded.plain_cost.step_cost()
    return loaded


def agent_calls(
    model: LoadedModel,
    examples: Iterable[Example],
    agent: AgentOptions,
    timeout_s: float,
    first_turn: FirstTurn = "own",
) -> Iterator[tuple[CallRecorder, Example, Prediction, list[Call]]]:
    """Let the agent answer on SQLite; yields for each question its prediction and the calls to the decoder."""
    loaded, recorder = recording(model)
    predict = AgentPredict(lambda: loaded, "sqlite", agent, Limits(deadline_s=timeout_s), first_turn)
    try:
        for example in examples:
            prediction = predict(example)
            yield recorder, example, prediction, recorder.take(prediction.steps)
    finally:
        predict.close()
