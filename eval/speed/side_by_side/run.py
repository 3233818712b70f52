"""Runs the whole benchmark: every method, and the alternatives that a user has.

Runs the alternatives that a user has, transformers' `generate` and llama.cpp, on the same weights and prompts.

Each peer decodes greedily, with the same stop tokens and length limit, in its own process. As for our methods, the time is
wall time including prefill.

Runs the whole benchmark: collects prompts, runs every method and optionally peers, and writes the files.
"""

import json
import os
import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from agent.assemble import LoadedModel, ModelChoice, load_model
from decoding.checkpoints.resolve import resolve
from decoding.engine.loop import Request, decode
from decoding.engine.rounds import measure
from decoding.engine.target import AnyTarget
from decoding.errors import ModelError
from decoding.methods.registry import load_method
from decoding.serving.text_decoder import SamplingParams, TextDecoder
from decoding.targets.own_thread import in_own_thread
from eval.datasets.official import Example, TextPrompt, chat_prompt
from eval.speed.cost import measure_floor
from eval.speed.replay import PLAIN, MethodSpec
from eval.speed.side_by_side import llama_cpp_peer
from eval.speed.side_by_side.compare import Prompt, Run, agent_prompts, mean_prompt_tokens, rows, run_bench
from eval.speed.side_by_side.peer_process import Ask, PeerModel
from tools.processes import ChildProcess

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
        "rows": [row.to_dict() for row in rows(runs)],
        "families": {
            family: [row.to_dict() for row in rows(run for run in runs if prompts[run.prompt].family == family)]
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
