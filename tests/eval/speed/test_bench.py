"""The benchmark on a tiny model: every method is there, equal texts are called equal and unequal ones are not.

The cost sweeps: every size that fits is there, more work takes longer, and the files can be read.

The floor counts what a forward reads and multiplies.

Losslessness where sums are rounded: texts part from plain decoding's at near-ties only, and the measure of that can fail.

The GPU's benchmark on a CPU: tiny sizes, so that its tables and what they count are held, not the times.
"""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from app.cli import app
from app.shared import exit_codes
from decoding.checkpoints.adapter import About, Adapter, Factors
from decoding.engine.draft import Draft
from decoding.engine.method import LookupCorpus
from decoding.engine.sampler import Sampler
from decoding.engine.target import ForwardInput
from decoding.errors import ModelError
from decoding.methods.registry import METHODS
from decoding.serving.load import load_text_decoder
from decoding.serving.text_decoder import SamplingParams, TextDecoder
from decoding.targets.fast_target import FastTarget
from decoding.targets.hf_target import HfTarget
from eval.speed import cost
from eval.speed.cost import Floor, measure_floor
from eval.speed.gpu_kernels import (
    SHAPES,
    Machine,
    NoGpu,
    Shape,
    Sizes,
    UnknownShape,
    chosen_models,
    config_of,
    head_configs,
    launch_us,
    measure,
    measure_target,
    measured_machine,
    random_weights,
    require_gpu,
    step_bytes,
)
from eval.speed.gpu_kernels import Run as RunOfKernelBench
from eval.speed.replay import TOLERANCE, parting_gap
from eval.speed.side_by_side.peer_process import Ask
from eval.speed.side_by_side.run import (
    PeerProcess,
    Prompt,
    Run,
    peer_model,
    peers_of,
    rows,
    run_bench,
    run_peers,
    time_plain_step,
)
from eval.speed.side_by_side.transformers_peer import WAYS, generate, load_assistant, load_model
from kernels.gpu import tree_attention
from tests.decoding.models.jacobi_data import ending_checkpoint
from tests.decoding.models.random_heads import head_options, small_head
from tests.decoding.models.tiny_models import tiny_checkpoint

PROMPTS = [Prompt("SELECT name FROM singer WHERE country ="), Prompt("How many singers are there in each country?")]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> TextDecoder:
    path = tiny_checkpoint(Path(tmp_path_factory.mktemp("model")) / "tiny", seed=5)
    return load_text_decoder(str(path), dtype="fp32", prefix_cache_mb=0)


@pytest.fixture(scope="module")
def runs(decoder: TextDecoder) -> list[Run]:
    settings = {
        name: SamplingParams(name, max_new_tokens=24, options=head_options(name, decoder.target)) for name in METHODS
    }
    return run_bench(decoder, PROMPTS, settings)


def test_every_method_has_a_row_and_equals_plain(runs: list[Run]) -> None:
    table = {row.decoder: row for row in rows(runs)}
    assert list(table) == list(METHODS)
    assert all(row.equal_to_plain and row.first_difference is None and row.n == 2 for row in table.values())
    assert table["plain"].tokens_per_forward == 1.0
    assert table["plain"].speedup_vs_plain == 1.0
    assert all(row.tokens == table["plain"].tokens for row in table.values())


def test_a_difference_is_found_where_it_is(runs: list[Run]) -> None:
    """Guards against an `equal_to_plain` that cannot be false."""
    at = next(i for i, run in enumerate(runs) if run.decoder == "jacobi" and run.prompt == 1)
    tokens = (*runs[at].tokens[:7], runs[at].tokens[7] + 1, *runs[at].tokens[8:])
    wrong = [*runs[:at], replace(runs[at], tokens=tokens), *runs[at + 1 :]]
    row = next(row for row in rows(wrong) if row.decoder == "jacobi")
    assert row.equal_to_plain is False
    assert row.first_difference == {"prompt": 1, "token": 7}


def test_the_prefix_cache_is_off(runs: list[Run], decoder: TextDecoder) -> None:
    assert all(run.rounds[0].pending == len(decoder.tokenizer.encode(PROMPTS[run.prompt].text)) for run in runs)


def test_drafts_copy_from_what_the_agent_recalled(decoder: TextDecoder, runs: list[Run]) -> None:
    recall = LookupCorpus()
    recall.add(runs[0].tokens)
    lookup = {"lookup": SamplingParams("prompt_lookup", max_new_tokens=24)}
    without, with_it = (
        run_bench(decoder, [replace(PROMPTS[0], recall=each)], lookup)[0] for each in (LookupCorpus(), recall)
    )
    assert with_it.tokens == without.tokens
    assert len(with_it.rounds) < len(without.rounds)


def test_peers_write_the_same_text_greedily(decoder: TextDecoder, runs: list[Run], tmp_path: Path) -> None:
    nothing = Factors(torch.ones(2, 32), torch.zeros(32, 2))
    adapter = Adapter({"model.layers.0.self_attn.q_proj": nothing}, 2, 2.0, About("tiny", ""))
    with peers_of(TextDecoder(decoder.target, decoder.tokenizer, decoder.name, adapter), tmp_path, 24) as peers:
        assert [set(peer.names) for peer in peers] == [set(WAYS)], "no drafter is shipped for a tiny model"
        of_peers = run_peers(peers, decoder, PROMPTS, 24)
        step = time_plain_step(peers[0], decoder, context=40, steps=4, repeats=2)
    assert all(0 < run.prefill_ms < run.wall_ms for run in [*runs, *of_peers])
    table = {row.decoder: row for row in rows([*runs, *of_peers])}
    assert all(table[name].equal_to_plain for name in WAYS)
    assert table["transformers"].tokens_per_forward is None, "a peer does not tell its forwards"
    assert step.ours_ms > 0
    assert step.transformers_ms > 0


def test_our_drafter_assists_transformers(decoder: TextDecoder, runs: list[Run]) -> None:
    model = load_model(peer_model(decoder, 24))
    assistant = load_assistant(model, small_head("draft_model", *reversed(decoder.target.embedding.shape)))
    ids = tuple(decoder.tokenizer.encode(PROMPTS[0].text))
    tokens, _ = generate(model, decoder.tokenizer.stop_ids, {"assistant_model": assistant}, Ask("", ids, 24))
    assert tuple(tokens) == next(run.tokens for run in runs if run.prompt == 0)


def test_a_peer_that_dies_says_so(decoder: TextDecoder, tmp_path: Path) -> None:
    broken = replace(peer_model(decoder, 24), checkpoint=tmp_path)
    with pytest.raises(ModelError, match=r"the peer transformers died \(exit code 1\)"):
        PeerProcess("transformers", broken)


def test_a_peer_that_dies_on_the_way_is_left_out_and_the_others_go_on(decoder: TextDecoder) -> None:
    """llama.cpp ended with a segmentation fault in the middle of a run, which was lost."""
    dying, lasting = (PeerProcess("transformers", peer_model(decoder, 8)) for _ in range(2))
    lasting.names = ("transformers_prompt_lookup",)
    dying.names = ("transformers",)
    died: list[ModelError] = []
    try:
        killed = run_peers([dying, lasting], decoder, PROMPTS, 8, lambda run: dying._child.kill(), died.append)
    finally:
        dying.close()
        lasting.close()
    assert [run.decoder for run in killed] == ["transformers_prompt_lookup"] * len(PROMPTS)
    assert len(died) == 1 and "the peer transformers died" in str(died[0])


def test_the_command_begins_with_the_floor_and_ends_with_one_line_of_json(invented: Path, tmp_path: Path) -> None:
    entries = [{"db_id": "library", "question": "Which authors are there?", "query": "SELECT name FROM author"}]
    (invented / "dev.json").write_text(json.dumps(entries))
    tiny = tiny_checkpoint(tmp_path / "tiny", seed=5, max_position_embeddings=2048)
    result = CliRunner().invoke(
        app,
        ["bench", "--data", str(invented), "--out", str(tmp_path / "out"), "--method", "prompt_lookup:matches=2", "--peers",
         "--model", str(tiny), "--dtype", "fp32", "--profile", "compact", "--max-new-tokens", "8"],
    )  # fmt: skip
    assert result.exit_code == exit_codes.OK, result.output
    first, *_, last = result.stdout.splitlines()
    assert first.startswith("floor: ") and "ms for a plain step" in first
    summary = json.loads(last)
    assert [row["decoder"] for row in summary["rows"]] == ["plain", "prompt_lookup:matches=2", *WAYS]
    assert all(row["median_ms"] > row["median_prefill_ms"] > 0 for row in summary["rows"])
    assert summary == json.loads((tmp_path / "out" / "summary.json").read_text())


def test_a_token_takes_what_is_left_after_the_prefill() -> None:
    assert Run(0, "peer", (1, 2, 3), (), wall_ms=70.0, prefill_ms=50.0).ms_per_token == 10.0
    assert Run(0, "peer", (1,), (), wall_ms=50.0, prefill_ms=50.0).ms_per_token is None


def test_runs_can_be_written_as_json(runs: list[Run]) -> None:
    from dataclasses import asdict

    assert json.loads(json.dumps(asdict(runs[0])))["decoder"] == "plain"


def test_the_peer_is_loaded_in_the_targets_type(decoder: TextDecoder) -> None:
    model = load_model(peer_model(decoder, 24))
    assert model.dtype == torch.float32
    assert isinstance(HfTarget(model), HfTarget)


def test_the_command_writes_table_and_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "SCHEMAS", (1, 3))
    tiny = ending_checkpoint(tmp_path / "tiny", 8, max_position_embeddings=2048)
    result = CliRunner().invoke(
        app,
        ["bench", "cost", "--model", str(tiny), "--dtype", "fp32", "--profile", "compact", "--repeats", "1",
         "--out", str(tmp_path / "out")],
    )  # fmt: skip
    assert result.exit_code == exit_codes.OK, result.output
    points = json.loads(result.stdout.splitlines()[-1])["points"]
    assert points == json.loads((tmp_path / "out" / "cost.json").read_text())
    sizes = {
        name: [p["size"] for p in points if p["varied"] == name] for name in ("context", "draft", "batch", "schema")
    }
    assert sizes["context"] == [64, 256, 512, 1024, 2048 - 17], "the longest that leaves room for a draft"
    assert sizes["draft"] == list(cost.DRAFTS) and sizes["batch"] == list(cost.BATCHES)
    assert sizes["schema"] == [1, 3]
    assert all(p["ms"] > 0 for p in points)


HEAD, LAYERS = 320 * 32, 2 * (32 * (32 + 16 + 16 + 32) + 3 * 32 * 48)


@pytest.mark.parametrize(("dtype", "item_bytes"), [("fp32", 4), ("int8", 1)])
def test_bytes_and_multiplications_are_those_of_the_matrices(dtype: str, item_bytes: int, tmp_path: Path) -> None:
    floor = measure_floor(load_text_decoder(str(tiny_checkpoint(tmp_path)), dtype=dtype))
    assert floor.weight_bytes == (LAYERS + HEAD) * item_bytes
    assert floor.multiplications == LAYERS + HEAD
    assert floor.to_dict()["plain_step_ms"] == floor.ms(1) > 0


def test_a_few_rows_cost_the_reading_and_many_the_multiplying() -> None:
    floor = Floor(weight_bytes=2_000, multiplications=500, bytes_per_s=1e6, flops_per_s=1e6)
    assert (floor.ms(1), floor.ms(2), floor.ms(17)) == (2.0, 2.0, 17.0)


PROMPTS_NEAR_TIES = (
    "The three largest cities of France are Paris,",
    "SELECT name, count(*) FROM singer JOIN concert ON",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def tiny(checkpoint: Path) -> TextDecoder:
    return load_text_decoder(str(checkpoint), dtype="fp32", device="cpu", adapter="none")


@pytest.mark.parametrize("sampler", [Sampler(), Sampler(0.7, 3)], ids=str)
def test_the_gap_is_between_the_first_tokens_that_differ(checkpoint: Path, tiny: TextDecoder, sampler: Sampler) -> None:
    prompt = "some words"
    settings = SamplingParams("plain", {}, sampler.temperature, sampler.seed, 12)
    plain = tiny.generate(prompt, settings)
    assert len(plain.tokens) == 12
    for at in (0, 5, 11):
        other = replace(plain, tokens=(*plain.tokens[:at], 7, 9))
        before = [*tiny.tokenizer.encode(prompt), *plain.tokens[:at]]
        target = FastTarget.load(checkpoint)
        (scores,) = target.score([ForwardInput(target.open(before, sampler), before, Draft())])
        ranks = sampler.rank(scores.logits[0], len(before)) * (sampler.temperature or 1.0)
        want = float(ranks.max() - ranks[7])
        assert plain.tokens[at] == int(ranks.argmax())
        assert parting_gap(tiny, prompt, plain, other, sampler) == pytest.approx(want, abs=1e-4)
    stops = sorted(tiny.tokenizer.stop_ids)
    ended = replace(plain, tokens=plain.tokens[:-1])
    before = [*tiny.tokenizer.encode(prompt), *ended.tokens]
    (scores,) = target.score([ForwardInput(target.open(before, sampler), before, Draft())])
    ranks = sampler.rank(scores.logits[0], len(before)) * (sampler.temperature or 1.0)
    want = float(ranks.max() - ranks[stops].max())
    assert parting_gap(tiny, prompt, plain, ended, sampler) == pytest.approx(want, abs=1e-4)
    assert parting_gap(tiny, prompt, plain, plain, sampler) == 0


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_texts_of_the_embedded_model_part_at_near_ties_only(dtype: str) -> None:
    decoder = load_text_decoder(dtype=dtype, device="cpu")
    for prompt in PROMPTS_NEAR_TIES:
        plain = decoder.generate(prompt, SamplingParams(max_new_tokens=24))
        for method in ("prompt_lookup", "lookahead", "mask_tokens"):
            other = decoder.generate(prompt, SamplingParams(method, max_new_tokens=24))
            assert parting_gap(decoder, prompt, plain, other, Sampler()) < TOLERANCE, (prompt, method)
    wrong = replace(plain, tokens=(*plain.tokens[:-1], (plain.tokens[-1] + 1000) % 40000))
    assert parting_gap(decoder, prompt, plain, wrong, Sampler()) > TOLERANCE


ROOT = Path(__file__).resolve().parents[3]
TINY = Shape(
    heads=4, kv_heads=2, head_dim=8, intermediate=24, vocab=70, gru=8, rank=4, context=9, nodes=4, accepted=2, guesses=2,
    dtype=torch.float32, device="cpu",
)  # fmt: skip
TINY_MODEL = config_of("qwen2", 1, 32, 48, (4, 2, 8), 90, 1e4)


def once(run: RunOfKernelBench) -> float:
    run()
    return 2.0


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # random numbers in the place of logits and states
def test_every_kernel_has_a_test_of_its_name_and_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_attention, "_PROGRAMS", 4)  # the interpreter runs one after another
    machine = Machine(1e3, 1e9)
    rows = list(measure(TINY, machine, once, lambda text: None))
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "kernels" / "gpu").glob("*.py")]
    written = sum("@triton.jit" in text for text in sources)  # modules with kernels; `norm` and `choice` hold several
    measured = {row["kernel"] for row in rows}
    assert len(measured) == 9 and written == 6
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "kernels").glob("test_*.py"))
    compared = [name for source in sources for name in re.findall(r"^def (\w+)_reference\(", source, re.MULTILINE)]
    assert len(compared) == 9 and all(re.search(rf"\b{name}(_reference)?\b", tests) for name in compared), compared
    assert all(row["us"] == 2000 and row["times_as_long"] == 1 for row in rows)
    floors = {str(row["kernel"]): row["floor_us"] for row in rows}
    assert floors["choice"] == 4 * 70 * 4, "every logit is read once"
    assert floors["gate"] == 4 * (2 * 24 + 24) * 4
    assert floors["tree_attention"] == (2 * 4 * 32 + 2 * 2 * 13 * 8) * 4


def test_the_machine_is_measured() -> None:
    machine = measured_machine(once, "cpu", copied_bytes=1000, side=10)
    assert machine == Machine(1000.0, 1000.0)


@pytest.mark.usefixtures("references")
def test_forwards_are_told_in_plain_steps() -> None:
    row, *heads = measure_target("tiny", TINY_MODEL, 1e6, Sizes((5,), (2, 3)), "cpu", lambda text: None)
    assert {"plain_ms", "floor_ms", "of_floor", "eager", "draft_2", "draft_3", "a_row"} < set(row)
    drafted = {each["method"]: each["nodes"] for each in heads}
    assert list(drafted) == list(head_configs(TINY_MODEL)) and all(drafted.values()), "a head that drafts nothing"
    assert launch_us("cpu", 3) > 0


@pytest.fixture
def references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def test_a_step_reads_all_but_the_embedding() -> None:
    weights = dict(random_weights(TINY_MODEL, torch.bfloat16, "cpu"))
    read = sum(tensor.nbytes for name, tensor in weights.items() if "embed" not in name)
    assert step_bytes(TINY_MODEL, 10) == read + 2 * 2 * 8 * 10 * 2
    billions = {name: step_bytes(config, 0) / 2e9 for name, config in SHAPES.items()}
    assert billions == pytest.approx({"SmolLM2-135M": 0.1345, "Qwen2.5-Coder-7B": 7.07, "Qwen3-8B": 7.57}, rel=1e-2)


def test_models_by_name() -> None:
    assert chosen_models("none") == []
    assert chosen_models("all") == list(SHAPES)
    assert chosen_models("Qwen3-8B") == ["Qwen3-8B"]
    with pytest.raises(UnknownShape, match="SmolLM2-135M"):
        chosen_models("Qwen3-9B")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(NoGpu, match="needs a CUDA GPU"):
        require_gpu()
