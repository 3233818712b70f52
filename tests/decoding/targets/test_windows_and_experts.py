"""Models that our own targets do not compute: with sliding windows, up to the window; with experts, through transformers.

Guards against a window or a router that is silently ignored: every text is the one that transformers generates.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from decoding.engine.loop import Request, decode
from decoding.engine.target import PromptTooLong
from decoding.errors import UnsupportedModel
from decoding.methods.registry import load_method
from decoding.serving.load import load_text_decoder
from decoding.targets.fast_target import FastTarget
from decoding.targets.hf_target import HfTarget
from tests.decoding.models.tiny_models import SIZES, tiny_checkpoint

WINDOW = 48
PROMPT = tuple(range(3, 30))
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(params=["qwen3_moe", "mistral"])
def other(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A random checkpoint with experts, or one with sliding windows of another family."""
    path = tiny_checkpoint(tmp_path / "model", "qwen3")
    for weights in path.glob("*.safetensors"):
        weights.unlink()
    torch.manual_seed(1)
    model: PreTrainedModel
    if request.param == "mistral":
        model = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=WINDOW))
    else:
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **EXPERTS))
    model.save_pretrained(path)
    return path


def generated(path: Path, count: int) -> list[int]:
    model = AutoModelForCausalLM.from_pretrained(path)
    text = model.generate(torch.tensor([PROMPT]), max_new_tokens=count, do_sample=False, eos_token_id=None)
    return text[0, len(PROMPT) :].tolist()  # type: ignore[no-any-return]


def decoded(target: Any, name: str, count: int, prompt: tuple[int, ...] = PROMPT) -> list[int]:
    return [token for each in decode(target, [Request(prompt, load_method(name), count)]) for token in each.committed]


def test_other_families_write_what_transformers_generates(other: Path) -> None:
    target = load_text_decoder(str(other), dtype="fp32", device="cpu").target
    assert isinstance(target, HfTarget)
    want = generated(other, 20)
    for name in ("plain", "jacobi_forcing", "adaptive"):
        assert decoded(target, name, 20) == want, name


def test_our_own_targets_refuse_them_with_one_line(other: Path) -> None:
    for more in ({"target": "fast", "dtype": "fp32"}, {"dtype": "int8"}):
        with pytest.raises(UnsupportedModel, match=r"^[^\n]+ model; supported here: llama, qwen2, qwen3$"):
            load_text_decoder(str(other), device="cpu", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_a_text_with_sliding_windows_ends_where_one_would_begin_to_matter(family: Any, tmp_path: Path) -> None:
    windows = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
    path = tiny_checkpoint(tmp_path / "model", family, seed=3, **windows)
    target = load_text_decoder(str(path), dtype="fp32", device="cpu").target
    assert isinstance(target, FastTarget) and target.max_length == WINDOW
    room = WINDOW - len(PROMPT)
    for name in ("plain", "jacobi_forcing"):
        found = decoded(target, name, 100)
        assert room - 1 <= len(found) <= room + 1
        assert found == generated(path, len(found)), name
    with pytest.raises(PromptTooLong, match=f"1 to {WINDOW - 1}"):
        decoded(target, "plain", 5, PROMPT * 2)
