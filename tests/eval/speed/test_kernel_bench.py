"""The GPU's benchmark on a CPU: tiny sizes, so that its tables and what they count are held, not the times."""

from pathlib import Path

import pytest
import torch

from eval.speed.gpu_kernels import (
    SHAPES,
    Machine,
    NoGpu,
    Run,
    Shape,
    Sizes,
    UnknownShape,
    chosen_models,
    config_of,
    measure,
    measure_target,
    measured_machine,
    random_weights,
    require_gpu,
    step_bytes,
)
from kernels.gpu import tree_attention

ROOT = Path(__file__).resolve().parents[3]
TINY = Shape(
    heads=4, kv_heads=2, head_dim=8, intermediate=24, vocab=70, gru=8, rank=4, context=9, nodes=4, accepted=2, guesses=2,
    dtype=torch.float32, device="cpu",
)  # fmt: skip
TINY_MODEL = config_of("qwen2", 1, 32, 48, (4, 2, 8), 90, 1e4)


def once(run: Run) -> float:
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
    assert len(measured) == 9 and written == 7
    assert all((ROOT / "tests" / "kernels" / f"test_{name}.py").exists() for name in measured)
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
    (row,) = measure_target("tiny", TINY_MODEL, 1e6, Sizes((5,), (2, 3)), "cpu", lambda text: None)
    assert {"plain_ms", "floor_ms", "of_floor", "eager", "draft_2", "draft_3"} < set(row)


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
