"""A running model: prompts in, texts out, and the same for messages.

What a model makes of a text that is given, in one forward: log-probabilities of its tokens, what else it might have
written, or its hidden states.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from heapq import nlargest
from itertools import takewhile
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

from decoding.checkpoints.adapter import Adapter
from decoding.checkpoints.identity import TargetIdentity
from decoding.engine.constraint import Constraint, ConstraintCursor
from decoding.engine.draft import ROOT, Draft
from decoding.engine.experience import AcceptanceStats, RowCosts
from decoding.engine.loop import Request
from decoding.engine.method import LookupCorpus
from decoding.engine.rounds import Metrics, Round, measure, prefilled_tokens
from decoding.engine.sampler import Floats, Sampler, Shaping
from decoding.engine.target import AnyTarget, Array, ForwardInput, ForwardOutput, TargetSequence
from decoding.methods.registry import load_method, ready_methods
from decoding.serving.model_queue import Batcher, ModelQueue, Stopped, never
from decoding.targets.prefix_cache import common_length
from decoding.tokenizer import TextStream, Tokenizer

SEATS = 16  # sequences that are decoded together
Finish = Literal["stop", "length", "cancelled"]
Done = TypeVar("Done")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a text is decoded. `options` are the decoder's own (see `decoding.methods.registry.method_options`)."""

    decoder: str = "plain"
    options: Mapping[str, Any] = field(default_factory=dict)
    temperature: float = 0.0
    seed: int = 0
    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()  # the text ends before the first of these strings
    constraint: Constraint[Any] | None = None
    recall: LookupCorpus = field(default_factory=LookupCorpus)
    likelihood: bool = False
    other_prompts: tuple[str, ...] = ()  # further prompts for the same text, see `decoding.engine.method`
    kind: str = ""  # of text: texts of one kind teach their method what to expect of the next
    shaping: Shaping | None = None  # top-p and its kind, penalties

    @property
    def sampler(self) -> Sampler:
        return Sampler(self.temperature, self.seed, self.shaping)


@dataclass(frozen=True, slots=True)
class TextDelta:
    """What one round added: `text` never splits a character and never contains part of a stop string."""

    sequence: int
    text: str
    round: Round


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished text with the records of its decode."""

    text: str
    tokens: tuple[int, ...]  # without the stop token
    prompt_tokens: int
    rounds: tuple[Round, ...]
    finish: Finish

    @property
    def new_tokens(self) -> int:
        return len(self.tokens)

    @property
    def log_probs(self) -> tuple[float, ...]:
        """Of each token that no constraint forced, of a text that was made with `likelihood`; empty if they are not known."""
        return tuple(known for r in self.rounds for known in r.log_probs or ())

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
        self._experience = AcceptanceStats()

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
        self, prompt: str, settings: Sequence[SamplingParams], cancelled: Callable[[], bool] = never
    ) -> Iterator[TextDelta | Completion]:
        """Decode `prompt` once per settings, together; yields pieces as they come and each sequence's `Completion`.

        Several settings share the prompt's prefill. Raises PromptTooLong, UnknownMethod and QueueFull before anything is
        computed.
        """
        try:
            with self.queue.take(sum(1 + len(each.other_prompts) for each in settings), cancelled):
                yield from self._decoded(prompt, settings, cancelled)
        except Stopped:  # nothing was begun
            yield from (Completion("", (), 0, (), "cancelled") for _ in settings)

    def _decoded(
        self, prompt: str, settings: Sequence[SamplingParams], cancelled: Callable[[], bool]
    ) -> Iterator[TextDelta | Completion]:
        tokens = tuple(self.tokenizer.encode(prompt))
        texts = [_GrowingText(self.tokenizer, each.stop) for each in settings]
        requests = [self._request(tokens, each) for each in settings]
        if len(requests) > 1:
            self._prefill(requests[0])
        ended = [False] * len(requests)
        for r in self.batcher.decode(requests, cancelled=lambda i: texts[i].stopped or cancelled()):
            text = texts[r.sequence]
            yield TextDelta(r.sequence, text.push(r, self.tokenizer.stop_ids), r)
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

    def generate(self, prompt: str, settings: SamplingParams) -> Completion:
        """The whole text at once."""
        return self.samples(prompt, [settings])[0]

    def samples(
        self, prompt: str, settings: Sequence[SamplingParams], cancelled: Callable[[], bool] = never
    ) -> list[Completion]:
        """One text per settings, decoded together."""
        done = [piece for piece in self.stream(prompt, settings, cancelled) if isinstance(piece, Completion)]
        return sorted(done, key=lambda generation: generation.rounds[0].sequence if generation.rounds else 0)

    def _request(self, tokens: tuple[int, ...], settings: SamplingParams) -> Request:
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
        for token in r.text_tokens:
            if token not in stop_ids and not self.stopped:
                self._tokens.append(token)
                self._take(self._stream.push([token]))
        if r.finish and not self.stopped:
            self._take(self._stream.flush())
        ready = len(self._text) if self.stopped or r.finish else len(self._text) - self._held_out()
        shown, self._shown = self._text[self._shown : ready], max(ready, self._shown)
        return shown

    def _take(self, text: str) -> None:
        """More text. A stop string ends it, and the tokens with it: a draft may have brought further ones."""
        looked_at = max(0, len(self._text) - max(map(len, self._stops), default=0))
        self._text += text
        found = [at for stop in self._stops if (at := self._text.find(stop, looked_at)) >= 0]
        if found:
            self._text, self.stopped = self._text[: min(found)], True

    def _held_out(self) -> int:
        """Length of the text's longest suffix with which a stop string begins."""
        longest = max(map(len, self._stops), default=1) - 1
        ends = range(min(longest, len(self._text)), 0, -1)
        return next((n for n in ends if any(stop.startswith(self._text[-n:]) for stop in self._stops)), 0)

    def generation(self, prompt_tokens: int) -> Completion:
        last = self._rounds[-1].finish if self._rounds else None
        finish: Finish = "stop" if self.stopped else last or "cancelled"
        return Completion(self._text, tuple(self._tokens), prompt_tokens, tuple(self._rounds), finish)


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A token as text and as bytes, which may be a part of a character; its natural log-probability at temperature 1 and
    without a constraint; and the likeliest ones there."""

    text: str
    spelled: bytes
    log_prob: float
    alternatives: "tuple[TokenScore, ...]" = ()


def token_scores(decoder: TextDecoder, prompt: str, tokens: Sequence[int], alternatives: int = 0) -> list[TokenScore]:
    """The scores of `tokens` after `prompt`, with `alternatives` of the likeliest tokens at each place, best first."""
    if not tokens:
        return []
    logits = _logits(decoder, decoder.tokenizer.encode(prompt), tokens)
    found = []
    for row, token in zip(_log_probabilities(logits.astype(np.float64)), tokens, strict=True):
        best = np.argsort(-row, kind="stable")[:alternatives]
        likeliest = tuple(_score(decoder, int(each), row) for each in best)
        found.append(replace(_score(decoder, token, row), alternatives=likeliest))
    return found


def _score(decoder: TextDecoder, token: int, row: Floats) -> TokenScore:
    return TokenScore(_text(decoder, token), decoder.tokenizer.spelled(token), float(row[token]))


def other_beginnings(
    decoder: TextDecoder, prompt: str, tokens: Sequence[int], constraint: Constraint[Any], count: int
) -> list[tuple[int, ...]]:
    """The `count` likeliest ways to leave a text, best first: some of its first tokens, and then another token than its own.

    A way is as likely as all its tokens among those that the constraint allows. Stop tokens are left out, at the text's end and
    as other tokens, and so is what follows a token that the constraint does not allow.
    """
    stop = decoder.tokenizer.stop_ids
    cursor, so_far = ConstraintCursor.start(constraint, stop), 0.0
    found: list[tuple[float, tuple[int, ...]]] = []
    written = list(takewhile(lambda token: token not in stop, tokens))
    logits = _logits(decoder, decoder.tokenizer.encode(prompt), written) if written else ()
    for place, (token, row) in enumerate(zip(written, logits, strict=True)):
        if not cursor.admits(token):
            break
        if not cursor.run:
            ids = np.flatnonzero(cursor.allowed())
            known = dict(zip(ids.tolist(), _log_probabilities(row[ids].astype(np.float64)).tolist(), strict=True))
            others = nlargest(count, (each for each in known if each != token and each not in stop), known.__getitem__)
            found += [(so_far + known[each], (*written[:place], each)) for each in others]
            so_far += known[token]
        cursor = cursor.after(token)
    return [way for _, way in nlargest(count, found)]


def _logits(decoder: TextDecoder, prompt: Sequence[int], tokens: Sequence[int]) -> Floats:
    """[tokens, vocab] by which each of `tokens` is predicted after `prompt`."""

    def alone(target: AnyTarget) -> Floats:
        with ExitStack() as opened:
            sequence = target.open(prompt, Sampler())
            opened.callback(target.close, sequence)
            work = ForwardInput(sequence, prompt[sequence.cached :], Draft.chain(tokens[:-1]))
            return target.score([work])[0].after([ROOT, *range(len(tokens) - 1)])

    return decoder.alone(alone)


def text_states(decoder: TextDecoder, prompt: str, texts: Sequence[str], taps: tuple[int, ...]) -> list[Array]:
    """The hidden states [tokens, taps, hidden], float32, of each text, at its tokens after those that it begins with like
    `prompt`. Taps are those of `decoding.engine.target.Target`; at least one text is needed.

    One forward reads all texts. Its rows are the last token that all of them share with the prompt, and what follows it. What
    comes before is taken from the prefix cache, which needs no states; if it is not there, another forward reads it once.
    """
    before, wholes = decoder.tokenizer.encode(prompt), [decoder.tokenizer.encode(text) for text in texts]
    own = [common_length(before, whole) for whole in wholes]

    def alone(target: AnyTarget) -> list[Array]:
        with ExitStack() as opened:
            sequences = _begun(target, before[: min(own)], len(texts), opened)
            parts = [
                ForwardInput(each, whole[each.cached :], Draft(), taps)
                for each, whole in zip(sequences, wholes, strict=True)
            ]
            counts = [len(whole) - first for whole, first in zip(wholes, own, strict=True)]
            return [_last_states(*each) for each in zip(target.score(parts), counts, strict=True)]

    return decoder.alone(alone)


def _begun(target: AnyTarget, tokens: Sequence[int], count: int, opened: ExitStack) -> list[TargetSequence]:
    """`count` sequences in which all of `tokens` but the last are cached. Closing `opened` closes them."""
    first = target.open(tokens, Sampler())
    opened.callback(target.close, first)
    if unread := tokens[first.cached : -1]:
        target.score([ForwardInput(first, unread, Draft())])
        target.commit(first, ())
    sequences = [first]
    for _ in range(count - 1):
        sequences.append(target.fork(first, Sampler()))
        opened.callback(target.close, sequences[-1])
    return sequences


def _last_states(scores: ForwardOutput, count: int) -> Array:
    if scores.hidden is None:
        raise ValueError("a forward with taps gave no hidden states")
    rows = scores.hidden[len(scores.hidden) - count :]
    return np.array(rows.tolist(), np.float32).reshape(rows.shape)  # a tensor's too, without torch


def _text(decoder: TextDecoder, token: int) -> str:
    return decoder.tokenizer.decode([token], special=True)


def _log_probabilities(scores: Floats) -> Floats:
    """Log-softmax over the last dimension. NaN becomes -inf."""
    shifted = scores - scores.max(-1, keepdims=True)
    found: Floats = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    found[np.isnan(found)] = -np.inf
    return found


_ROLES = {"human": "user", "ai": "assistant", "system": "system"}


class Message(Protocol):
    """type: "human", "ai" or "system"."""

    type: str

    @property
    def text(self) -> str: ...


@dataclass(frozen=True, slots=True)
class ChatModel:
    """Messages in, texts out, decoded by a `TextDecoder`.

    `raw` concatenates the messages' texts as they are instead of applying the checkpoint's chat template. With the
    template, a last message of the assistant is the beginning of its answer, and reasoning models answer without a thought.
    Every field of `SamplingParams` may be given per call in `options`; strings to stop at are added to those of `settings`.
    """

    decoder: TextDecoder
    settings: SamplingParams = field(default_factory=SamplingParams)
    raw: bool = False
    cancelled: Callable[[], bool] = never

    @contextmanager
    def reserved(
        self, texts: int, cancelled: Callable[[], bool], waiting: Callable[[int], None] = lambda ahead: None
    ) -> Iterator["ChatModel"]:
        """This model with seats for `texts` texts at once, which end when `cancelled`; see `TextDecoder.reserved`."""
        with self.decoder.reserved(texts, cancelled, waiting) as decoder:
            yield replace(self, decoder=decoder, cancelled=cancelled)

    def prompt(self, messages: Sequence[Message]) -> str:
        """The text that the model is fed."""
        if self.raw:
            return "".join(str(message.text) for message in messages)
        begun = [messages[-1].text] if messages and messages[-1].type == "ai" else []
        asked = messages[: len(messages) - len(begun)]
        chat = [{"role": _ROLES[message.type], "content": message.text} for message in asked]
        return "".join([_thought(self.decoder.tokenizer.chat(chat, enable_thinking=False)), *begun])

    def stream(self, messages: Sequence[Message], options: Mapping[str, Any]) -> Iterator[TextDelta | Completion]:
        """One text, as it comes and at the end as a whole."""
        return self.decoder.stream(self.prompt(messages), [self._settings(options)], self.cancelled)

    def complete(self, messages: Sequence[Message], options: Mapping[str, Any]) -> Completion:
        """One text."""
        return self.samples(messages, options, 1)[0]

    def samples(self, messages: Sequence[Message], options: Mapping[str, Any], count: int) -> list[Completion]:
        """Several texts, decoded together: of more than one the first is greedy, and the others have derived seeds."""
        settings = self._settings(options)
        seeds = (settings.sampler.derive("sample", index).seed for index in range(1, count))
        others = [replace(settings, seed=seed) for seed in seeds]
        first = replace(settings, temperature=0.0) if others else settings
        return self.decoder.samples(self.prompt(messages), [first, *others], self.cancelled)

    def _settings(self, options: Mapping[str, Any]) -> SamplingParams:
        return replace(self.settings, **{**options, "stop": (*self.settings.stop, *options.get("stop", ()))})


def _thought(prompt: str) -> str:
    """The prompt with an empty thought where its template has opened one and knows no `enable_thinking`."""
    return f"{prompt.rstrip()}\n\n</think>\n\n" if prompt.rstrip().endswith("<think>") else prompt
