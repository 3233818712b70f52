"""The floor counts what a forward reads and multiplies."""

from pathlib import Path

import pytest

from decoding.serving.load import load_text_decoder
from eval.speed.cost import Floor, measure_floor
from tests.decoding.models.tiny_models import tiny_checkpoint

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
