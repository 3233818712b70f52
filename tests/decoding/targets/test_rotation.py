"""A turned model is the same model, and no number of a row stands out of it as much as before."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from decoding.checkpoints.model_config import load_config
from decoding.checkpoints.weight_files import read_weights
from decoding.engine.draft import Draft
from decoding.engine.sampler import Sampler
from decoding.engine.target import ForwardInput
from decoding.targets.fast_target import FastModel, FastTarget
from decoding.targets.int8 import rounding
from decoding.targets.int8.quantize import rotated
from decoding.targets.int8.rounding import KernelRotation, cosines, rotated_layers, stream_rotation
from kernels.cpu.processor import variant
from tests.decoding.models.tiny_models import tiny_checkpoint

PROMPT = list(range(10, 30))
FAMILIES = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "qwen2": {},
    "qwen3": {"tie_word_embeddings": False},
}


@pytest.fixture(params=FAMILIES)
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tiny_checkpoint(tmp_path, request.param, seed=3, num_hidden_layers=2, **FAMILIES[request.param])


def run(target: FastTarget) -> Iterator[Tensor]:
    sequence = target.open(PROMPT, Sampler(), (0, 1, 2))
    (scores,) = target.score([ForwardInput(sequence, PROMPT, Draft.chain([5, 6, 7]))])
    yield torch.as_tensor(scores.logits)
    assert scores.hidden is not None
    yield torch.as_tensor(scores.hidden)


def test_logits_and_hidden_states_are_those_of_the_model(checkpoint: Path) -> None:
    draw = torch.Generator().manual_seed(1)
    weights = {  # norms and biases are ones and zeros in a new model
        name: tensor + torch.randn(tensor.shape, generator=draw) if tensor.dim() == 1 else tensor
        for name, tensor in read_weights(checkpoint)
    }
    config = load_config(checkpoint)
    want = list(run(FastTarget(FastModel(config, weights.items()))))
    layers = rotated_layers(config, weights.items())
    model = FastModel(config, ((name, torch.from_numpy(array)) for name, array in layers))
    model.rotation = torch.from_numpy(stream_rotation(config.hidden_size))
    got = list(run(FastTarget(model)))
    for one, other in zip(want, got, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [1, 2, 9, 64, 192])
def test_the_matrix_is_orthogonal_and_flat(size: int) -> None:
    matrix = torch.from_numpy(cosines(size))
    torch.testing.assert_close(matrix @ matrix.t(), torch.eye(size, dtype=torch.float64))
    assert matrix.abs().max() <= (2 / size) ** 0.5 + 1e-12


@pytest.mark.parametrize(("hidden", "block"), [(576, 192), (32, 32), (4096, 128), (7, 7), (1531, 1)])
def test_a_block_divides_the_width(hidden: int, block: int) -> None:
    assert stream_rotation(hidden).shape == (block, block)


def test_one_large_number_is_shared_out_and_comes_back() -> None:
    x, turn = torch.zeros(1, 3, 576), torch.from_numpy(stream_rotation(576))
    x[..., 100] = 1000.0
    spread = rotated(x, turn)
    assert spread.abs().max() < 110
    torch.testing.assert_close(rotated(spread, turn.t()), x, rtol=1e-5, atol=1e-3)


def test_a_row_is_turned_alike_in_any_company() -> None:
    draw, turn = (
        partial(torch.randn, generator=torch.Generator().manual_seed(0)),
        torch.from_numpy(stream_rotation(576)),
    )
    x = draw(1, 576)
    for count in (1, 7, 16, 200):
        assert torch.equal(rotated(torch.cat([x, draw(count, 576)]), turn)[:1], rotated(x, turn))


@pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
@pytest.mark.parametrize(("hidden", "shape"), [(576, (5, 576)), (576, (2, 3, 576)), (7, (4, 7)), (1531, (2, 1531))])
def test_the_kernel_turns_as_numpy_does_and_each_row_alike_in_any_company(hidden: int, shape: tuple[int, ...]) -> None:
    matrix = stream_rotation(hidden).astype(np.float32)
    x = np.random.default_rng(hidden).standard_normal(shape, dtype=np.float32)
    turn, back = KernelRotation(matrix), KernelRotation(matrix.T)
    found = turn(x)
    np.testing.assert_allclose(found, rounding.rotated(x, matrix), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(back(found), x, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(turn(x[:1]), found[:1])
    np.testing.assert_array_equal(turn(x[..., ::-1][..., ::-1]), found)
