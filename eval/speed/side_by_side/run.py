"""Runs peers side by side with our decoder, each in a process of its own.

The methods take turns at each prompt, so that drifts of the machine's speed affect all equally. Times are wall time of the
decode, including prefill; prefill is the time to the first token, which for our methods includes their first draft. The
prefix cache is off.

Peers are what a user has instead: transformers' `generate` and llama.cpp, on the same weights and prompts. Each decodes
greedily, with the same stop tokens and length limit, in its own process. As for our methods, the time is wall time including
prefill.
"""

import json
import os
import pickle
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import Any

import torch

from agent.assemble import LoadedModel, ModelChoice, load_model
from agent.context import AgentOptions
from decoding.checkpoints.catalog import resolve
from decoding.engine.loop import Request, decode
from decoding.engine.method import LookupCorpus
from decoding.engine.rounds import Metrics, Round, acceptance_by_depth, measure
from decoding.engine.target import AnyTarget
from decoding.errors import ModelError
from decoding.methods.registry import load_method
from decoding.serving.text_decoder import SamplingParams, TextDecoder
from decoding.targets.own_thread import in_own_thread
from eval.datasets.official import Example, TextPrompt, chat_prompt
from eval.speed.agent_calls import agent_calls
from eval.speed.cost import measure_floor
from eval.speed.replay import PLAIN, MethodSpec
from eval.speed.side_by_side import llama_cpp_peer
from eval.speed.side_by_side.peer_process import Ask, PeerModel
from tools.processes import ChildProcess


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt to decode. `recall`: what drafts may copy from, in addition to the prompt."""

    text: str
    family: str = "sql"
    recall: LookupCorpus = field(default_factory=LookupCorpus)


@dataclass(frozen=True, slots=True)
class Run:
    """One prompt decoded with one method."""

    prompt: int
    decoder: str  # the method's name in the table, with its options
    tokens: tuple[int, ...]  # without a stop token
    rounds: tuple[Round, ...]
    wall_ms: float
    prefill_ms: float  # until the first token

    @property
    def ms_per_token(self) -> float | None:
        """Milliseconds per token after the prefill; None if the prefill made the only token."""
        made = len(self.rounds[0].text_tokens) if self.rounds else 1
        return (self.wall_ms - self.prefill_ms) / (len(self.tokens) - made) if len(self.tokens) > made else None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the benchmark. Times are in milliseconds and summed over the prompts; medians are over the prompts."""

    decoder: str
    n: int
    tokens: int
    target_forwards: int
    tokens_per_forward: float | None  # None if the decoder does not say (peers)
    tokens_per_s: float
    decode_tokens_per_s: float | None
    speedup_vs_plain: float | None
    median_ms: float
    median_prefill_ms: float
    median_ms_per_token: float | None  # without prefill
    draft_ms: float
    target_ms: float
    verify_ms: float
    acceptance_by_depth: tuple[
        float, ...
    ]  # from depth 1: of the rounds that drafted to this depth, the share that accepted a token there
    equal_to_plain: bool | None
    first_difference: dict[str, int] | None  # {"prompt": i, "token": j} of the first text that differs from plain


def run_bench(
    decoder: TextDecoder,
    prompts: Sequence[Prompt],
    methods: Mapping[str, SamplingParams],
    on_run: Callable[[Run], None] = lambda run: None,
) -> list[Run]:
    """Decode every prompt with every method, by name. `on_run` is called with each run as it ends."""
    for name, settings in methods.items():
        _timed(decoder, 0, prompts[0], name, settings)  # warm-up, not counted
    runs: list[Run] = []
    for index, prompt in enumerate(prompts):
        for name, settings in methods.items():
            runs.append(_timed(decoder, index, prompt, name, settings))
            on_run(runs[-1])
    return runs


def _timed(decoder: TextDecoder, index: int, prompt: Prompt, name: str, settings: SamplingParams) -> Run:
    settings = replace(settings, recall=prompt.recall.copy())
    start = perf_counter()
    generation = decoder.generate(prompt.text, settings)
    wall_ms = 1e3 * (perf_counter() - start)
    prefill_ms = measure(generation.rounds[:1]).wall_ms
    return Run(index, name, generation.tokens, generation.rounds, wall_ms, prefill_ms)


def rows(runs: Iterable[Run], baseline: str = "plain") -> list[Row]:
    """One row per method, in the order of first appearance."""
    by_method: dict[str, list[Run]] = {}
    for run in runs:
        by_method.setdefault(run.decoder, []).append(run)
    plain = {run.prompt: run for run in by_method.get(baseline, [])}
    return [_row(name, mine, plain) for name, mine in by_method.items()]


def _row(name: str, runs: Sequence[Run], plain: dict[int, Run]) -> Row:
    metrics = measure(r for run in runs for r in run.rounds)
    rate = _tokens_per_s(runs)
    plain_rate = _tokens_per_s([plain[run.prompt] for run in runs]) if plain else None
    per_token = [ms for run in runs if (ms := run.ms_per_token) is not None]
    differences = [d for run in runs if plain and (d := _difference(run, plain[run.prompt]))]
    return Row(
        decoder=name,
        n=len(runs),
        tokens=sum(len(run.tokens) for run in runs),
        target_forwards=metrics.target_forwards,
        tokens_per_forward=metrics.tokens_per_forward or None,
        tokens_per_s=rate,
        decode_tokens_per_s=_after_prefill(runs).tokens_per_s or None,
        speedup_vs_plain=rate / plain_rate if plain_rate else None,
        median_ms=median(run.wall_ms for run in runs),
        median_prefill_ms=median(run.prefill_ms for run in runs),
        median_ms_per_token=median(per_token) if per_token else None,
        draft_ms=metrics.draft_ms,
        target_ms=metrics.target_ms,
        verify_ms=metrics.verify_ms,
        acceptance_by_depth=tuple(acceptance_by_depth(r for run in runs for r in run.rounds).values()),
        equal_to_plain=not differences if plain else None,
        first_difference=differences[0] if differences else None,
    )


def _tokens_per_s(runs: Sequence[Run]) -> float:
    return 1e3 * sum(len(run.tokens) for run in runs) / sum(run.wall_ms for run in runs)


def _after_prefill(runs: Sequence[Run]) -> Metrics:
    return measure(r for run in runs for r in run.rounds[1:])


def _difference(run: Run, plain: Run) -> dict[str, int] | None:
    if run.tokens == plain.tokens:
        return None
    pairs = zip(run.tokens, plain.tokens, strict=False)
    shorter = min(len(run.tokens), len(plain.tokens))
    return {"prompt": run.prompt, "token": next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)}


def mean_prompt_tokens(runs: Iterable[Run]) -> float:
    """Mean prompt length in tokens: what the first rounds fed, because the prefix cache is off."""
    return fmean(run.rounds[0].pending for run in runs if run.rounds)


_TIMEOUT_S = 30.0  # deadline of each query that the agent runs


def agent_prompts(
    loaded: LoadedModel, examples: Sequence[Example], say: Callable[[str], None] = lambda text: None
) -> Iterator[Prompt]:
    """Prompt and recall of every text that the agent asks for when it answers the executable examples on SQLite."""
    executable = [example for example in examples if example.executable]
    answered = agent_calls(loaded, executable, AgentOptions(), _TIMEOUT_S)
    for number, (_, _, _, calls) in enumerate(answered, 1):
        say(f"prompts of question {number} of {len(executable)}")
        for call in calls:
            yield Prompt(call.prompt, call.step, call.settings.recall)


PLAIN_PEER = "transformers"
_LONGEST_PROMPT = 4096  # tokens for which llama.cpp reserves room
_QUIET = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}


@dataclass(frozen=True, slots=True)
class PlainStep:
    """Median milliseconds of a plain decoding step, ours and that of transformers' `generate`, measured in turns."""

    context: int
    ours_ms: float
    transformers_ms: float

    @property
    def ratio(self) -> float:
        """How many of our steps take as long as one of transformers'."""
        return self.transformers_ms / self.ours_ms


class PeerProcess:
    """The process of the peers of one kind (see `peer_process.MODULES`). Raises ModelError if they cannot be loaded."""

    def __init__(self, kind: str, model: PeerModel) -> None:
        self._kind = kind
        self._child = ChildProcess("eval.speed.side_by_side.peer_process", environment={**os.environ, **_QUIET})
        # Pickled here, because torch would send tensors as shared memory, which not every process can receive.
        self._child.tell(pickle.dumps((kind, model)))
        self.names: tuple[str, ...] = self._heard()

    def __call__(self, ask: Ask) -> tuple[list[int], float, float]:
        """New tokens, milliseconds to the first, and to the last. Raises ModelError if the process has died."""
        start = perf_counter()
        with suppress(OSError):  # what it cannot be told, it will not answer
            self._child.tell(ask)
        tokens, first_ms = self._heard()
        return tokens, first_ms, 1e3 * (perf_counter() - start)

    def _heard(self) -> Any:
        try:
            return self._child.pipe.recv()
        except (EOFError, OSError):
            raise ModelError(
                f"the peer {self._kind} died ({self._child.cause_of_death()}); its message is above"
            ) from None

    def close(self) -> None:
        self._child.close()


@contextmanager
def peers_of(decoder: TextDecoder, folder: Path, limit: int) -> Iterator[list[PeerProcess]]:
    """transformers, and llama.cpp if it is installed and the model came as a GGUF file, each loaded and waiting.

    folder: where copies of that file with our weights are written. limit: most new tokens that will be asked for.
    """
    model, source = peer_model(decoder, limit), llama_cpp_peer.gguf_of(decoder.name)
    opened: list[PeerProcess] = []
    try:
        opened.append(PeerProcess("transformers", model))
        if llama_cpp_peer.is_installed() and source is not None:
            merged = in_own_thread(lambda: llama_cpp_peer.write_merged(decoder, source, folder / "merged.gguf"))
            opened.append(PeerProcess("llama.cpp", peer_model(decoder, limit, llama_cpp_peer.quantised(merged))))
        yield opened
    finally:
        for peer in opened:
            peer.close()


def peer_model(decoder: TextDecoder, limit: int, gguf: Sequence[Path] = ()) -> PeerModel:
    """The decoder's own model; peers get 8-bit matrices as fp32."""
    weight = torch.as_tensor(decoder.target.lm_head)
    return PeerModel(
        checkpoint=resolve(decoder.name),
        adapter=decoder.adapter,
        dtype=weight.dtype,
        device=weight.device.type,
        stop_ids=decoder.tokenizer.stop_ids,
        threads=torch.get_num_threads(),
        context=min(decoder.target.max_length, _LONGEST_PROMPT + limit),
        gguf=tuple(gguf),
    )


def run_peers(
    peers: Sequence[PeerProcess],
    decoder: TextDecoder,
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    on_run: Callable[[Run], None] = lambda run: None,
    on_death: Callable[[ModelError], None] = lambda error: None,
) -> list[Run]:
    """Run every peer on every prompt, in turns; a peer's `Run` has no rounds.

    A process that dies is left out with all of its peers, and `on_death` is called with the reason.
    """
    runs: list[Run] = []
    alive = list(peers)
    for index, prompt in enumerate([prompts[0], *prompts]):  # the first is a warm-up
        ids = tuple(decoder.tokenizer.encode(prompt.text))
        for process in list(alive):
            try:
                done = [_asked(process, Ask(name, ids, max_new_tokens), max(index - 1, 0)) for name in process.names]
            except ModelError as error:
                alive.remove(process)
                runs = [run for run in runs if run.decoder not in process.names]
                on_death(error)
                continue
            for run in done if index else ():
                runs.append(run)
                on_run(run)
    return runs


def _asked(process: Callable[[Ask], tuple[list[int], float, float]], ask: Ask, prompt: int) -> Run:
    tokens, prefill_ms, wall_ms = process(ask)
    return Run(prompt, ask.peer, tuple(tokens), (), wall_ms, prefill_ms)


def time_plain_step(
    peer: PeerProcess, decoder: TextDecoder, context: int = 400, steps: int = 24, repeats: int = 7
) -> PlainStep:
    """Time steps at `context` to `context + steps` tokens; for transformers, the time of `steps` more tokens in `generate`."""
    prompt = tuple(random.Random(0).choices(range(decoder.target.vocab_size), k=context))
    ours, theirs = [], []
    for _ in range(repeats + 1):
        ours.append(decoder.alone(lambda target: _plain_ms(target, prompt, steps)) / steps)
        short, long = (peer(Ask(PLAIN_PEER, prompt, count, exact=True))[2] for count in (1, steps + 1))
        theirs.append((long - short) / steps)
    return PlainStep(context, median(ours[1:]), median(theirs[1:]))


def _plain_ms(target: AnyTarget, prompt: tuple[int, ...], steps: int) -> float:
    """Milliseconds of `steps` plain steps after the prefill."""
    return measure(list(decode(target, [Request(prompt, load_method("plain"), steps + 1)]))[1:]).wall_ms


def benchmark(
    choice: ModelChoice,
    questions: Sequence[Example] | Sequence[TextPrompt],
    settings: SamplingParams,
    out: Path,
    *,
    methods: Sequence[MethodSpec] = (),
    peers: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Run and return the summary. Writes runs.jsonl (every round of every run) and summary.json to `out`.

    questions: for examples, every text that the agent asks for is decoded; prompts of several families also get rows for each
    family. There is no grammar, so that peers do the same work. methods: besides plain; if empty, all that can draft for
    this model without further options. The prefix cache is off, so that no method profits from another. `say` is
    called with progress messages.
    """
    loaded = load_model(replace(choice, prefix_cache_mb=0))
    decoder = loaded.decoder
    compared = methods or [MethodSpec(name, name) for name in decoder.ready_methods()]
    named = {each.name: replace(settings, decoder=each.decoder, options=each.options) for each in (PLAIN, *compared)}
    prompts = _prompts(loaded, questions, say)
    out.mkdir(parents=True, exist_ok=True)
    with (out / "runs.jsonl").open("w", encoding="utf-8") as log:

        def on_run(run: Run) -> None:
            log.write(json.dumps(asdict(run)) + "\n")
            say(f"prompt {run.prompt + 1} of {len(prompts)}: {run.decoder}")

        say("measuring the floor")
        floor = in_own_thread(lambda: measure_floor(decoder))
        runs = run_bench(decoder, prompts, named, on_run)
        more = _beside_peers(decoder, prompts, settings.max_new_tokens, runs, on_run, out, say) if peers else {}
    summary = {
        **_circumstances(decoder, choice),
        "temperature": settings.temperature,
        "questions": len(questions),
        "prompts": len(prompts),
        "mean_prompt_tokens": mean_prompt_tokens(run for run in runs if run.decoder == "plain"),
        "floor": floor.to_dict(),
        "rows": [asdict(row) for row in rows(runs)],
        "families": {
            family: [asdict(row) for row in rows(run for run in runs if prompts[run.prompt].family == family)]
            for family in dict.fromkeys(prompt.family for prompt in prompts)
        },
        **more,
    }
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return summary


def _prompts(
    loaded: LoadedModel, questions: Sequence[Example] | Sequence[TextPrompt], say: Callable[[str], None]
) -> list[Prompt]:
    tokenizer = loaded.decoder.tokenizer
    texts = [Prompt(chat_prompt(tokenizer, each), each.family) for each in questions if isinstance(each, TextPrompt)]
    return texts or list(agent_prompts(loaded, [each for each in questions if isinstance(each, Example)], say))


def _beside_peers(
    decoder: TextDecoder,
    prompts: Sequence[Prompt],
    limit: int,
    runs: list[Run],
    on_run: Callable[[Run], None],
    out: Path,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Add the peers' runs, and time a plain step of ours and of transformers'. `died`: why a peer's rows are missing."""
    died: list[str] = []

    def on_death(error: ModelError) -> None:
        died.append(str(error))
        say(str(error))

    with peers_of(decoder, out, limit) as peers:
        runs += run_peers(peers, decoder, prompts, limit, on_run, on_death)
        step = time_plain_step(peers[0], decoder)
    return {"plain_step": asdict(step) | {"ratio": step.ratio}, "died": died}


def _circumstances(decoder: TextDecoder, choice: ModelChoice) -> dict[str, Any]:
    weight = torch.as_tensor(decoder.target.lm_head)
    return {
        "model": choice.model,
        "target": type(decoder.target).__name__,
        "dtype": str(weight.dtype).removeprefix("torch."),
        "device": str(weight.device),
        "threads": torch.get_num_threads(),
        "profile": choice.profile_name,
    }
