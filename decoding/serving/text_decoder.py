"""Text in, text out: prompts, stop strings and streaming around the decode loop. It knows neither chat formats nor agents."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from decoding.checkpoints.adapters.adapter import Adapter
from decoding.checkpoints.target_identity import TargetIdentity
from decoding.engine.constraint import Constraint
from decoding.engine.loop import Request
from decoding.engine.recall import Recall
from decoding.engine.records.experience import Experience
from decoding.engine.records.metrics import Metrics, measure, prefilled_tokens
from decoding.engine.records.rounds import Round
from decoding.engine.records.row_costs import RowCosts
from decoding.engine.sampling.sampler import Sampler
from decoding.engine.target import AnyTarget
from decoding.methods.registry import load_method, ready_methods
from decoding.serving.batcher import Batcher
from decoding.serving.model_queue import ModelQueue, Stopped, never
from decoding.tokenizer.tokenizer import TextStream, Tokenizer

SEATS = 16  # sequences that are decoded together
Finish = Literal["stop", "length", "cancelled"]
Done = TypeVar("Done")


@dataclass(frozen=True, slots=True)
class Settings:
    """How a text is decoded. `options` are the decoder's own (see `decoding.methods.registry.method_options`)."""

    decoder: str = "plain"
    options: Mapping[str, Any] = field(default_factory=dict)
    temperature: float = 0.0
    seed: int = 0
    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()  # the text ends before the first of these strings
    constraint: Constraint[Any] | None = None
    recall: Recall = field(default_factory=Recall)
    likelihood: bool = False
    other_prompts: tuple[str, ...] = ()  # further prompts for the same text, see `decoding.engine.ensemble`
    kind: str = ""  # of text: texts of one kind teach their method what to expect of the next

    @property
    def sampler(self) -> Sampler:
        return Sampler(self.temperature, self.seed)


@dataclass(frozen=True, slots=True)
class Piece:
    """What one round added: `text` never splits a character and never contains part of a stop string."""

    sequence: int
    text: str
    round: Round


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished text with the records of its decode."""

    text: str
    tokens: tuple[int, ...]  # without the stop token
    prompt_tokens: int
    rounds: tuple[Round, ...]
    finish: Finish

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens taken from the prefix cache."""
        return self.prompt_tokens - prefilled_tokens(self.rounds)

    @property
    def metrics(self) -> Metrics:
        return measure(self.rounds)


class TextDecoder:
    """A loaded model: one target and its tokenizer. Several threads may decode; they share the target's forwards.

    `adapter`: the one merged into the weights; None if there is none. `identity`: returns the target's identity, for draft
    heads. `batcher`: the target's, if it has one already; only its thread may compute (see `decoding.targets.own_thread`).
    """

    def __init__(
        self,
        target: AnyTarget,
        tokenizer: Tokenizer,
        name: str,
        adapter: Adapter | None = None,
        identity: Callable[[], TargetIdentity] | None = None,
        batcher: Batcher | None = None,
    ) -> None:
        self.target, self.tokenizer, self.name, self.adapter = target, tokenizer, name, adapter
        self._identity = identity
        self.batcher = batcher or Batcher(target)
        self.queue = ModelQueue(SEATS)
        self.row_costs: Callable[[], RowCosts | None] = lambda: None  # what is known of this machine
        self._experience = Experience()

    @contextmanager
    def reserved(
        self, texts: int, cancelled: Callable[[], bool], waiting: Callable[[int], None] = lambda ahead: None
    ) -> Iterator["TextDecoder"]:
        """Reserve seats for `texts` texts at once; yields a view of this decoder that decodes them without another wait. See
        `ModelQueue.take` for `waiting`. Raises Stopped and QueueFull.
        """
        with self.queue.take(texts, cancelled, waiting):
            view = copy(self)
            view.queue = ModelQueue(texts)
            yield view

    def stream(
        self, prompt: str, settings: Sequence[Settings], cancelled: Callable[[], bool] = never
    ) -> Iterator[Piece | Generation]:
        """Decode `prompt` once per settings, together; yields pieces as they come and each sequence's `Generation`.

        Several settings share the prompt's prefill. Raises PromptTooLong, UnknownMethod and QueueFull before anything is
        computed.
        """
        try:
            with self.queue.take(sum(1 + len(each.other_prompts) for each in settings), cancelled):
                yield from self._decoded(prompt, settings, cancelled)
        except Stopped:  # nothing was begun
            yield from (Generation("", (), 0, (), "cancelled") for _ in settings)

    def _decoded(
        self, prompt: str, settings: Sequence[Settings], cancelled: Callable[[], bool]
    ) -> Iterator[Piece | Generation]:
        tokens = tuple(self.tokenizer.encode(prompt))
        texts = [_GrowingText(self.tokenizer, each.stop) for each in settings]
        requests = [self._request(tokens, each) for each in settings]
        if len(requests) > 1:
            self._prefill(requests[0])
        ended = [False] * len(requests)
        for r in self.batcher.decode(requests, cancelled=lambda i: texts[i].stopped or cancelled()):
            text = texts[r.sequence]
            yield Piece(r.sequence, text.push(r, self.tokenizer.stop_ids), r)
            if r.finish or text.stopped:
                ended[r.sequence] = True
                yield text.generation(len(tokens))
        for text, done in zip(texts, ended, strict=True):
            if not done:
                yield text.generation(len(tokens))

    def ready_methods(self) -> list[str]:
        """The methods that can draft for this model without further training; see `decoding.methods.registry.ready_methods`."""
        return ready_methods(self._identity() if self._identity else None)

    def alone(self, do: Callable[[AnyTarget], Done]) -> Done:
        """Do something with the target while nothing is decoded."""
        return self.batcher.run(lambda: do(self.target))

    def generate(self, prompt: str, settings: Settings) -> Generation:
        """The whole text at once."""
        return self.samples(prompt, [settings])[0]

    def samples(self, prompt: str, settings: Sequence[Settings]) -> list[Generation]:
        """One text per settings, decoded together."""
        done = [piece for piece in self.stream(prompt, settings) if isinstance(piece, Generation)]
        return sorted(done, key=lambda generation: generation.rounds[0].sequence if generation.rounds else 0)

    def _request(self, tokens: tuple[int, ...], settings: Settings) -> Request:
        return Request(
            prompt=tokens,
            method=load_method(settings.decoder, **settings.options),
            max_new_tokens=settings.max_new_tokens,
            sampler=settings.sampler,
            stop=self.tokenizer.stop_ids,
            constraint=settings.constraint,
            recall=settings.recall,
            likelihood=settings.likelihood,
            identity=self._identity,
            other_prompts=tuple(tuple(self.tokenizer.encode(prompt)) for prompt in settings.other_prompts),
            row_costs=self.row_costs(),
            experience=self._experience.of(settings.decoder, frozenset(settings.options.items()), settings.kind),
        )

    def _prefill(self, request: Request) -> None:
        """Put the shared prompt into the prefix cache, so that each sample finds it there, with the states that it needs."""
        prompt, *others = (each[:-1] for each in request.prompts)
        method = load_method("plain")
        method.taps = request.method.taps
        shared = replace(request, prompt=prompt, other_prompts=tuple(others), max_new_tokens=1, method=method)
        if all(shared.prompts):
            for _ in self.batcher.decode([shared]):
                pass


class _GrowingText:
    """One sequence's text as it grows. It holds back what may turn out to be part of a stop string."""

    def __init__(self, tokenizer: Tokenizer, stop: Iterable[str]) -> None:
        self._stream, self._stops = TextStream(tokenizer), [s for s in stop if s]
        self._rounds: list[Round] = []
        self._tokens: list[int] = []
        self._text = ""  # everything decoded so far, up to a stop string
        self._shown = 0
        self.stopped = False

    def push(self, r: Round, stop_ids: frozenset[int]) -> str:
        """Take a round in; returns the text that may be shown now."""
        self._rounds.append(r)
        new = [token for token in r.text_tokens if token not in stop_ids]
        self._tokens += new
        self._text += self._stream.push(new)
        if r.finish:
            self._text += self._stream.flush()
        found = [at for stop in self._stops if (at := self._text.find(stop)) >= 0]
        if found:
            self._text, self.stopped = self._text[: min(found)], True
        ready = len(self._text) if self.stopped or r.finish else len(self._text) - self._held_back()
        shown, self._shown = self._text[self._shown : ready], max(ready, self._shown)
        return shown

    def _held_back(self) -> int:
        """Length of the text's longest suffix with which a stop string begins."""
        longest = max(map(len, self._stops), default=1) - 1
        ends = range(min(longest, len(self._text)), 0, -1)
        return next((n for n in ends if any(stop.startswith(self._text[-n:]) for stop in self._stops)), 0)

    def generation(self, prompt_tokens: int) -> Generation:
        last = self._rounds[-1].finish if self._rounds else None
        finish: Finish = "stop" if self.stopped else last or "cancelled"
        return Generation(self._text, tuple(self._tokens), prompt_tokens, tuple(self._rounds), finish)
