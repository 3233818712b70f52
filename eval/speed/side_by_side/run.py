"""Runs the whole benchmark: collects prompts, runs every method and optionally peers, and writes the files."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from agent.assemble import LoadedModel, ModelChoice, load_model
from decoding.errors import ModelError
from decoding.serving.text_decoder import Settings, TextDecoder
from decoding.targets.own_thread import in_own_thread
from eval.datasets.official import Example
from eval.datasets.text_prompts import TextPrompt, chat_prompt
from eval.speed.cost.hardware_floor import measure_floor
from eval.speed.replay.methods import PLAIN, MethodSpec
from eval.speed.side_by_side.agent_prompts import agent_prompts
from eval.speed.side_by_side.compare import Prompt, Run, mean_prompt_tokens, rows, run_bench
from eval.speed.side_by_side.peers import peers_of, run_peers, time_plain_step


def benchmark(
    choice: ModelChoice,
    questions: Sequence[Example] | Sequence[TextPrompt],
    settings: Settings,
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
