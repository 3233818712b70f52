"""The benchmark on a tiny model: every method is there, equal texts are called equal and unequal ones are not."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from app.cli import app
from app.shared import exit_codes
from decoding.checkpoints.adapter import About, Adapter, Factors
from decoding.engine.method import LookupCorpus
from decoding.errors import ModelError
from decoding.methods.registry import METHODS
from decoding.serving.load import load_text_decoder
from decoding.serving.text_decoder import SamplingParams, TextDecoder
from decoding.targets.hf_target import HfTarget
from eval.speed.side_by_side.compare import Prompt, Run, histogram, rows, run_bench
from eval.speed.side_by_side.peer_process import Ask
from eval.speed.side_by_side.run import PeerProcess, peer_model, peers_of, run_peers, time_plain_step
from eval.speed.side_by_side.transformers_peer import WAYS, generate, load_assistant, load_model
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
    assert sum(histogram(runs, "plain")) == 1, "plain commits one token a round"


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
        beside = run_peers(peers, decoder, PROMPTS, 24)
        step = time_plain_step(peers[0], decoder, context=40, steps=4, repeats=2)
    assert all(0 < run.prefill_ms < run.wall_ms for run in [*runs, *beside])
    table = {row.decoder: row for row in rows([*runs, *beside])}
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
