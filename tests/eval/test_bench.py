"""The benchmark on a tiny model: every method is there, equal texts are called equal and unequal ones are not."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from decoding.hf_target import HfTarget
from decoding.load import load_text_decoder
from decoding.method import METHODS
from decoding.text import Settings, TextDecoder
from eval.bench import Run, histogram, rows, run_bench
from eval.peers import PEERS, load_peer, run_peers, time_plain_step
from tests.heads import head_options
from tests.tiny_models import tiny_checkpoint

PROMPTS = ["SELECT name FROM singer WHERE country =", "How many singers are there in each country?"]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> TextDecoder:
    path = tiny_checkpoint(Path(tmp_path_factory.mktemp("model")) / "tiny", seed=5)
    return load_text_decoder(str(path), dtype="fp32", prefix_cache_mb=0)


@pytest.fixture(scope="module")
def runs(decoder: TextDecoder) -> list[Run]:
    settings = [Settings(name, max_new_tokens=24, options=head_options(name, decoder.target)) for name in METHODS]
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
    assert all(run.rounds[0].pending == len(decoder.tokenizer.encode(PROMPTS[run.prompt])) for run in runs)


def test_peers_write_the_same_text_greedily(decoder: TextDecoder, runs: list[Run]) -> None:
    model = load_peer(decoder)
    beside = run_peers(model, decoder, PROMPTS, 24)
    table = {row.decoder: row for row in rows([*runs, *beside])}
    assert set(PEERS) <= set(table)
    assert all(table[name].equal_to_plain for name in PEERS)
    assert table["transformers"].tokens_per_forward is None, "a peer does not tell its forwards"
    step = time_plain_step(model, decoder, context=40, steps=4, repeats=2)
    assert step.ours_ms > 0
    assert step.transformers_ms > 0


def test_runs_can_be_written_as_json(runs: list[Run]) -> None:
    from dataclasses import asdict

    assert json.loads(json.dumps(asdict(runs[0])))["decoder"] == "plain"


def test_the_peer_is_loaded_in_the_targets_type(decoder: TextDecoder) -> None:
    assert load_peer(decoder).dtype == torch.float32
    assert isinstance(HfTarget(load_peer(decoder)), HfTarget)
