"""Training data and packing: what is fed once, what a row sees, what is learnt, and what is refused.

Retraining reproduces a recorded run: the embedded model on a small slice of the training data, by the documented command.

Recorded in fp32 on a CPU with AVX2. What differs between machines is the order of sums, far below the tolerance; a learning
rate, a mask or a weight that is wrong is far above it.
"""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from app.cli import app
from app.shared import exit_codes
from decoding.tokenizer import Tokenizer
from tests.decoding.models.tiny_models import write_tokenizer
from tests.decoding.models.training_data import agent_groups
from training.packs.groups import (
    Group,
    Pair,
    TokenPair,
    TrainingDataError,
    group_line,
    read_groups,
    stop_token,
    tokenise,
)
from training.packs.packing import ROOT, Pack, pack, pack_order
from training.run.progress import read_log


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, 400)
    return Tokenizer(folder)


@pytest.fixture(scope="module")
def pairs(tokenizer: Tokenizer) -> list[list[TokenPair]]:
    return list(tokenise(agent_groups(3, 4), tokenizer, stop=2))


def test_a_file_gives_back_its_groups(tmp_path: Path) -> None:
    groups = [*agent_groups(2, 2), Group("", (Pair("é\n", " ü", "plan", "x", 0.5),))]
    path = tmp_path / "groups.jsonl"
    path.write_text("".join(map(group_line, groups)), encoding="utf-8")
    assert list(read_groups(path)) == groups


@pytest.mark.parametrize("line", ["{", "[]", '{"prefix": ""}', '{"prefix": "", "pairs": [{"prompt": "a"}]}', "3"])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "groups.jsonl"
    path.write_text(group_line(agent_groups(1, 1)[0]) + line + "\n", encoding="utf-8")
    with pytest.raises(TrainingDataError, match="line 2"):
        list(read_groups(path))


def test_a_pair_is_what_the_decoder_would_see(tokenizer: Tokenizer) -> None:
    """Prompt tokens as `TextDecoder` encodes them, then the answer's; the stop token is learnt but not fed."""
    [group] = agent_groups(1, 1)
    for pair, tokens in zip(group.pairs, next(tokenise([group], tokenizer, stop=2)), strict=True):
        prompt, answer = tokenizer.encode(group.prefix + pair.prompt), tokenizer.encode(pair.answer)
        assert tokens.tokens.tolist() == prompt + answer
        assert tokens.targets.tolist() == [*answer, 2]
        assert tokens.prompt_tokens == len(prompt)


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (Group("ta", (Pair("b(a)\nsql:", " x", "plan", "1"),)), "end with a newline"),
        (Group("t(a)\n", (Pair("sql: a", "bc", "plan", "1"),)), "share a token"),
        (Group("", (Pair("", "a", "plan", "1"),)), "prompt is empty"),
    ],
)
def test_edges_that_the_tokenizer_would_not_cut_are_refused(tokenizer: Tokenizer, group: Group, message: str) -> None:
    """Else the model would learn token sequences that inference never produces, and no prefix cache would hit."""
    with pytest.raises(TrainingDataError, match=message):
        list(tokenise([group], tokenizer, stop=2))


def test_the_stop_token_must_be_clear(tokenizer: Tokenizer) -> None:
    assert stop_token(tokenizer) == stop_token(tokenizer, "<|im_end|>") == 2
    with pytest.raises(TrainingDataError, match="no stop token"):
        stop_token(tokenizer, "<|im_start|>")


def ancestors(one: Pack, row: int) -> list[int]:
    """The definition: rows that a row sees, from the tree's root to itself."""
    seen = [row]
    while (parent := int(one.parents[seen[-1]])) != ROOT:
        seen.append(parent)
    return seen[::-1]


@pytest.mark.parametrize("max_rows", [64, 100, 1000])
def test_each_row_sees_its_own_text_and_nothing_else(pairs: list[list[TokenPair]], max_rows: int) -> None:
    packs, _ = pack(pairs, max_rows, seed=0)
    for one in packs:
        assert one.rows <= max_rows
        mask, positions = one.mask(), one.positions()
        for row in range(one.rows):
            seen = ancestors(one, row)
            assert np.flatnonzero(mask[row]).tolist() == sorted(seen)
            assert positions[row] == len(seen) - 1


def texts(one: Pack) -> list[tuple[str, list[int], list[int]]]:
    """Per pair: its id and step, the tokens that its last source row sees, and its targets."""
    found = []
    for index, (step, name) in enumerate(one.pairs):
        sources, targets = one.sources[one.owners == index], one.targets[one.owners == index]
        for before, source in pairwise(sources):
            assert int(one.parents[source]) == before, "an answer's rows follow one another"
        found.append((f"{step} {name}", one.tokens[ancestors(one, int(sources[-1]))].tolist(), targets.tolist()))
    return found


@pytest.mark.parametrize("max_rows", [64, 100, 1000])
def test_packs_hold_every_pair_once(pairs: list[list[TokenPair]], max_rows: int) -> None:
    packs, left_out = pack(pairs, max_rows, seed=0)
    wanted = [
        (f"{pair.step} {pair.id}", pair.tokens.tolist(), pair.targets.tolist())
        for group in pairs
        for pair in group
        if len(pair.tokens) <= max_rows
    ]
    assert left_out == sum(map(len, pairs)) - len(wanted)
    assert sorted(text for one in packs for text in texts(one)) == sorted(wanted)


def test_what_pairs_share_is_fed_once(pairs: list[list[TokenPair]]) -> None:
    """The prefix of a group, and the plan's prompt and answer that the SQL's prompt begins with."""
    [one], _ = pack(pairs[:1], 1000, seed=0)
    distinct = {tuple(pair.tokens[:count]) for pair in pairs[0] for count in range(1, len(pair.tokens) + 1)}
    plans = [pair for pair in pairs[0] if pair.step == "plan"]
    assert len(distinct) <= one.rows <= len(distinct) + 12 * len(plans)  # "question: " of another id may be fed again
    assert Counter(one.parents.tolist())[ROOT] == 1


def test_order_is_a_function_of_the_seed(pairs: list[list[TokenPair]]) -> None:
    def names(seed: int) -> list[tuple[tuple[str, str], ...]]:
        return [one.pairs for one in pack(pairs, 100, seed)[0]]

    assert names(0) == names(0) != names(1)
    orders = [pack_order(20, 0, epoch).tolist() for epoch in range(3)]
    assert orders == [pack_order(20, 0, epoch).tolist() for epoch in range(3)]
    assert all(sorted(order) == list(range(20)) for order in orders) and orders[0] != orders[1]


def test_weights_reach_every_target_of_their_pair(tokenizer: Tokenizer) -> None:
    group = Group("t(a)\n", (Pair("q:", " a", "plan", "1", 0.5), Pair("q:", " b", "plan", "2", 2.0)))
    [one], _ = pack(tokenise([group], tokenizer, 2), 100, seed=0)
    for index, (_, name) in enumerate(one.pairs):
        assert set(one.weights[one.owners == index].tolist()) == {0.5 if name == "1" else 2.0}


FIXTURES = Path(__file__).parent / "fixtures"
TOLERANCE = 0.02  # of the loss of a step


def test_the_recorded_loss_curve_comes_again(tmp_path: Path) -> None:
    recorded = json.loads((FIXTURES / "loss_curve.json").read_text(encoding="utf-8"))
    slice_file = str(FIXTURES / "loss_curve.jsonl")
    command = [slice_file if word == "loss_curve.jsonl" else word for word in recorded["command"].split()]
    result = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "run")])
    assert result.exit_code == exit_codes.OK, result.output
    losses = [record["loss"] for record in read_log(tmp_path / "run")]
    assert losses == pytest.approx(recorded["losses"], rel=TOLERANCE)
