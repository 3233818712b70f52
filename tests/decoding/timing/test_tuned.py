"""The cost model and its files: fits recover their lines, rounds cost what their forwards do, and saved files load again."""

from pathlib import Path

import pytest

from decoding.engine.records.rounds import Round
from decoding.serving.load import load_text_decoder
from decoding.timing.machine_key import running_as, would_run_as
from decoding.timing.tuned import ForwardCost, Tuned, load_tuned
from tests.decoding.models.tiny_models import tiny_checkpoint


def cost() -> ForwardCost:
    """10 ms, and for each node 1 ms and a hundredth for each token of context."""
    return ForwardCost.fit({(c, n): 10 + n * (1 + c / 100) for c in (100, 300, 800) for n in (0, 4, 16)})


def a_round(pending: int, draft: int, accepted: int) -> Round:
    tokens = tuple(range(accepted + 1))
    return Round(0, 0, 1, pending, (7,) * draft, (-1,) * draft, tokens[:-1], tokens, (), 0.5, 99.0, 0.25)


@pytest.mark.parametrize(
    ("context", "nodes"), [(100, 0), (450, 4), (800, 16), (200, 2), (200, 10), (200, 64), (2000, 32)]
)
def test_between_and_beyond_what_was_measured(context: int, nodes: int) -> None:
    assert cost().at(context, nodes) == pytest.approx(10 + nodes * (1 + context / 100))


def test_one_context_and_falling_times_make_a_flat_line() -> None:
    flat = ForwardCost.fit({(100, 0): 5.0, (100, 1): 6.0})
    assert (flat.at(9, 0), flat.at(900, 1)) == (5.0, 6.0)
    falling = ForwardCost.fit({(100, 0): 6.0, (200, 0): 4.0, (100, 1): 9.0, (200, 1): 9.0})
    assert falling.at(5000, 0) == pytest.approx(5.0), "noise must not promise negative times"


def test_rounds_cost_what_their_rows_cost_where_they_stand() -> None:
    rounds = [a_round(1, 4, 3), a_round(2, 0, 0)]
    first, second = cost().at(99, 4), cost().at(99 + 1 + 3, 1)  # two pending tokens are as much as one and a node
    assert cost().of(rounds, prompt_tokens=100) == pytest.approx(first + second + 2 * 0.75)


def test_what_is_kept_comes_back_and_rubbish_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQLAGENT_HOME", str(tmp_path))
    found = Tuned("jacobi", {"block_size": 8}, 2.0, 1.5, 3.0, cost())
    path = found.save("key")
    assert load_tuned("key") == found
    assert load_tuned("other") is None
    for rubbish in ('{"decoder": "jacobi"}', path.read_text().replace("block_size", "wings"), "{"):
        path.write_text(rubbish)
        assert load_tuned("key") is None


def test_a_loaded_model_has_the_key_that_was_foretold(tmp_path: Path) -> None:
    tiny = str(tiny_checkpoint(tmp_path))
    keys = {dtype: running_as(load_text_decoder(tiny, dtype=dtype)) for dtype in ("fp32", "int8")}
    assert keys == {dtype: would_run_as(tiny, dtype) for dtype in keys}
    assert len(set(keys.values())) == 2
