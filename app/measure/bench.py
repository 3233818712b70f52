"""`sqlagent bench`: measures how fast decoding is, method by method.

`sqlagent bench cost`: measures how decoding's cost grows with context, draft, batch and schema.

`sqlagent bench gpu`: what a GPU gives; the first command to run on one.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer

from agent.assemble import load_model
from app.measure.evaluate import FirstTurn
from app.shared import exit_codes, options, output
from app.shared.options import Asking, Decoding, spread
from decoding.methods.registry import load_method
from decoding.serving.text_decoder import SamplingParams
from eval.datasets.official import read_text_prompts
from eval.datasets.selection import load_dataset
from eval.speed.cost import measure_cost, write
from eval.speed.gpu_kernels import chosen_models, require_gpu, run
from eval.speed.replay import DEFAULT_METHODS, PLAIN, MethodSpec, Study, extra_parameters, run_methods
from eval.speed.replay_table import markdown, to_dict
from eval.speed.side_by_side.run import benchmark

if TYPE_CHECKING:
    from eval.datasets.official import Example


app = typer.Typer()

Compared = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        metavar="NAME[:OPTION=VALUE,...]",
        help="Method to measure; repeatable. Plain is always measured. Default: all that can draft for the model.",
    ),
]


@app.callback(invoke_without_command=True)
@spread
def bench(
    ctx: typer.Context,
    data: Annotated[
        Path | None, typer.Option("--data", help="Spider's official folder.", exists=True, file_okay=False)
    ] = None,
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            "--prompts",
            help="Instead: questions of Spec-Bench, GSM8K or HumanEval (.jsonl), for text that is no SQL; repeatable.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the results.")] = None,
    method: Compared = None,
    questions: Annotated[
        int,
        typer.Option(
            "--questions", min=1, help="Spider dev questions that the agent answers, or of each family of prompts."
        ),
    ] = 30,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1)] = 96,
    decoding: Decoding = Decoding(),
    seed: options.Seed = 0,
    peers: Annotated[
        bool,
        typer.Option(
            "--peers", help="Also transformers' generate and, where installed, llama.cpp, on the same weights."
        ),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Compare decoding methods: same target, same prompts, one run. The last line on stdout is the summary as JSON."""
    if ctx.invoked_subcommand:
        return
    if out is None or (data is None) == (not prompts):
        raise typer.BadParameter("the comparison needs --out, and --data or --prompts", ctx)
    with exit_codes.plain_errors(), exit_codes.own_heads_only():
        methods = method_specs(method or (), decoding)
        settings = SamplingParams("plain", {}, decoding.temperature, seed, max_new_tokens)
        asked = load_dataset("spider", data, sample=questions) if data else read_text_prompts(prompts or [], questions)
        with output.stderr.status("loading the model") as status:
            summary = benchmark(
                decoding.choice(), asked, settings, out, methods=methods, peers=peers, say=status.update
            )
    if not as_json:
        _print_floor(summary["floor"])
        _print_rows(summary["rows"])
        for family, rows in summary["families"].items():
            output.stdout.print(f"\n{family}", highlight=False)
            _print_rows(rows)
    output.print_json(summary)


def _print_floor(floor: dict[str, float]) -> None:
    output.stdout.print(
        f"floor: {floor['weight_bytes'] / 1e6:,.0f} MB of weights at {floor['bytes_per_s'] / 1e9:.1f} GB/s, "
        f"{floor['multiplications'] / 1e6:,.0f} M multiplications a row at {floor['flops_per_s'] / 1e9:,.0f} GFLOP/s: "
        f"{floor['plain_step_ms']:.1f} ms for a plain step, {floor['draft_of_16_ms']:.1f} ms for a draft of 16",
        highlight=False,
        soft_wrap=True,
    )


def _print_rows(rows: list[dict[str, Any]]) -> None:
    columns = {
        "decoder": "decoder",
        "tokens": "tokens",
        "tok/fwd": "tokens_per_forward",
        "tok/s": "tokens_per_s",
        "x plain": "speedup_vs_plain",
        "median ms": "median_ms",
        "prefill": "median_prefill_ms",
        "ms/token": "median_ms_per_token",
        "equal": "equal_to_plain",
    }
    shown = [[f"{row[c]:.2f}" if isinstance(row[c], float) else row[c] for c in columns.values()] for row in rows]
    output.print_table(list(columns), shown)


@dataclass(frozen=True, slots=True)
class Questions:
    """Options that choose the questions."""

    data: Annotated[
        Path,
        typer.Option(
            "--data",
            help="Spider's official folder; for held_out and follow_ups the one that holds spider/ and spider_syn/.",
            exists=True,
            file_okay=False,
        ),
    ]
    dataset: Annotated[
        str, typer.Option("--dataset", help="Data set whose questions are asked, as `sqlagent eval --help` lists them.")
    ] = "spider"
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first N questions.")] = None
    sample: Annotated[
        int | None, typer.Option("--sample", min=1, help="Only N questions, drawn at random but always the same.")
    ] = None

    def load(self) -> "list[Example]":
        """Load the questions. Raises DatasetError."""
        return load_dataset(self.dataset, self.data, limit=self.limit, sample=self.sample)


@app.command("methods")
@spread
def methods(
    asked: Questions,
    out: options.Out,
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(
            "--checkpoint",
            metavar="[NAME=]ADAPTER",
            help="An adapter's folder, 'none' or 'auto'; repeatable, the first is what others are compared with.",
        ),
    ] = None,
    method: Compared = None,
    step: Annotated[
        list[str] | None, typer.Option("--step", help="Decode only these steps again: plan, generate, refine.")
    ] = None,
    first_turn: FirstTurn = "own",
    decoding: Decoding = Decoding(),
    asking: Asking = Asking(),
    timeout: options.Timeout = 30.0,
    as_json: options.Json = False,
) -> None:
    """Compare checkpoints and decoding methods on what the agent asks: tokens per forward, time, and accuracy.

    Writes records.jsonl, summary.json and table.md to `out`; the last line on stdout is the summary as JSON. To measure
    cross-step recycling: `--dataset follow_ups --method jacobi_forcing --method jacobi_forcing:from_recall=false`.
    """
    with exit_codes.plain_errors(), exit_codes.own_heads_only():
        compared = method_specs(method or DEFAULT_METHODS, decoding)
        named = dict(_checkpoint(text) for text in checkpoint or [decoding.adapter])
        study = Study(
            {name: replace(decoding.choice(), adapter=adapter) for name, adapter in named.items()},
            [PLAIN, *(each for each in compared if each.name != PLAIN.name)],
            asked.dataset,
            asking.agent_options(rerank=False),
            tuple(step or ()),
            first_turn,
            timeout,
        )
        with output.stderr.status("") as status:
            records = run_methods(study, asked.load(), out, say=status.update)
        parameters = {each.name: extra_parameters(load_method(each.decoder, **each.options)) for each in study.methods}
        summary = to_dict(records, parameters) | {"model": decoding.model, "dataset": asked.dataset} | machine()
        write_summary(out, summary, markdown(summary))
        if not as_json:
            output.stdout.print(markdown(summary), markup=False, highlight=False, soft_wrap=True)
        output.print_json(summary)


def _checkpoint(text: str) -> tuple[str, str]:
    """(name, adapter) from "name=adapter"; without a name, the adapter is its own name."""
    name, found, adapter = text.partition("=")
    return (name, adapter) if found else (text, text)


def method_specs(named: Sequence[str], decoding: Decoding) -> "list[MethodSpec]":
    """The methods that `--method` names, each once. Raises UnknownMethod, and BadParameter where `--decoder` names one, too."""
    if decoding.decoder or decoding.decoder_option:
        raise typer.BadParameter("name what is compared with --method", param_hint="--decoder")
    return [method_spec(text) for text in dict.fromkeys(named)]


def method_spec(text: str) -> "MethodSpec":
    """A method with options from "name:option=value,option=value". Raises UnknownMethod."""
    name, _, rest = text.partition(":")
    given = options.decoder_options([pair for pair in rest.split(",") if pair])
    load_method(name, **given)
    return MethodSpec(text, name, given)


def machine() -> dict[str, Any]:
    """The machine on which times depend, besides the software."""
    import platform

    return {"processor": platform.processor() or platform.machine(), "threads": torch.get_num_threads()}


def write_summary(folder: Path, summary: dict[str, Any], table: str) -> None:
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    (folder / "table.md").write_text(table, encoding="utf-8")


@spread
def cost(
    out: options.Out,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Forwards per size; the median counts.")] = 5,
    decoding: Decoding = Decoding(),
    as_json: options.Json = False,
) -> None:
    """Time forwards by context, draft size and batch size, and questions by schema size.

    Writes cost.json to `out`; the last line on stdout is everything as JSON.
    """
    with exit_codes.plain_errors():
        choice = decoding.choice()
        out.mkdir(parents=True, exist_ok=True)
        with output.stderr.status("loading the model") as status:
            loaded = load_model(choice)
            points = measure_cost(loaded, out, repeats, status.update)
        write(points, out)
        if not as_json:
            shown = [
                [p.varied, p.size, f"{p.ms:.1f}", ", ".join(f"{name} {value:.4g}" for name, value in p.detail.items())]
                for p in points
            ]
            output.print_table(["varied", "size", "ms", "detail"], shown)
        output.print_json({"model": choice.model, "points": [asdict(p) for p in points]} | machine())


_GPU_METHODS = ("prompt_lookup", "jacobi_forcing", "mask_tokens:copies=0", "adaptive", "adaptive:copies=0")


def gpu(
    out: Annotated[
        Path | None, typer.Option("--out", help="Also write the results here, as JSON.", dir_okay=False)
    ] = None,
    models: Annotated[
        str, typer.Option("--models", help="Model sizes to time, separated by commas; 'none' for none.")
    ] = "all",
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", help="Spider's official folder: also the shipped model's table.", exists=True, file_okay=False
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Measure a GPU, the first command to run on one: bandwidth, launches, every kernel against its reference and its floor,
    forwards of 135M, 7B and 8B models and drafts of heads with random weights, and the shipped model's methods.

    Needs a CUDA GPU with 24 GB for the 8B model, and about ten minutes. The last line on stdout is the results as JSON.
    """
    with exit_codes.plain_errors():
        require_gpu()
        with output.stderr.status("measuring the machine") as status:
            results = run(chosen_models(models), status.update)
            if data:
                results["methods"] = _on_spider(data, status.update)
    if out:
        out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    if not as_json:
        for part in ("kernels", "forwards", "heads"):
            _print_table(results[part])
    output.print_json(results)


def _on_spider(data: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """The shipped model's methods on 30 questions, as the log has them."""
    methods = [PLAIN, *map(method_spec, _GPU_METHODS)]
    choice = Decoding(device="cuda").choice()
    study = Study({"shipped": choice}, methods, "spider", Asking().agent_options(rerank=False), (), "own", 30.0)
    with TemporaryDirectory() as folder:
        records = run_methods(study, load_dataset("spider", data, sample=30), Path(folder), say=say)
    return to_dict(records, {each.name: 0 for each in methods})


def _print_table(rows: list[dict[str, Any]]) -> None:
    if rows:
        shown = [[f"{cell:.3g}" if isinstance(cell, float) else cell for cell in row.values()] for row in rows]
        output.print_table(list(rows[0]), shown)
