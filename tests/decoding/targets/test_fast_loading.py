"""The fast target outside its walk: the embedded model in both types, loading, and misuse."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from decoding.checkpoints.cache_folder import silent
from decoding.checkpoints.model_config import load_config
from decoding.checkpoints.resolve import resolve
from decoding.checkpoints.weight_files import read_weights
from decoding.engine.draft import Draft
from decoding.engine.sampler import Sampler
from decoding.engine.target import ForwardInput
from decoding.errors import UnsupportedModel
from decoding.targets.fast_target import FastModel, FastTarget
from tests.decoding.models.tiny_models import tiny_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("qwen3"), "qwen3", seed=2)


@pytest.fixture(scope="module")
def embedded() -> Path:
    return resolve("embedded", silent)


@pytest.fixture(scope="module")
def embedded_text(embedded: Path) -> tuple[list[int], Tensor]:
    """Tokens, and transformers' fp32 logits after the 60th and each later one."""
    tokens = random.Random(3).choices(range(1000, 20000), k=120)
    model = AutoModelForCausalLM.from_pretrained(embedded, dtype=torch.float32)
    with torch.inference_mode():
        return tokens, model(torch.tensor([tokens])).logits[0, 59:]


def test_the_embedded_model_in_fp32(embedded: Path, embedded_text: tuple[list[int], Tensor]) -> None:
    """Logits reach 40 there: 3e-4 is 30 layers of fp32 rounding, and a thousandth of the gaps that decide."""
    tokens, want = embedded_text
    target = FastTarget.load(embedded)
    sequence = target.open(tokens, Sampler())
    (scores,) = target.score([ForwardInput(sequence, tokens[:60], Draft.chain(tokens[60:]))])
    torch.testing.assert_close(torch.as_tensor(scores.logits), want, atol=3e-4, rtol=0)


def test_bf16_is_as_near_to_fp32_as_transformers_bf16(embedded: Path, embedded_text: tuple[list[int], Tensor]) -> None:
    tokens, want = embedded_text
    model = AutoModelForCausalLM.from_pretrained(embedded, dtype=torch.bfloat16)
    with torch.inference_mode():
        theirs = (model(torch.tensor([tokens])).logits[0, 59:].float() - want).abs()
    target = FastTarget.load(embedded, torch.bfloat16)
    sequence = target.open(tokens, Sampler())
    (scores,) = target.score([ForwardInput(sequence, tokens[:60], Draft.chain(tokens[60:]))])
    ours = (torch.as_tensor(scores.logits) - want).abs()
    assert torch.as_tensor(scores.logits).dtype == torch.float32
    assert ours.mean() < 1.1 * theirs.mean()
    assert ours.max() < 1.5 * theirs.max()


def test_loading_imports_no_transformers(checkpoint: Path) -> None:
    """Its import alone takes seconds of the ten in which a second `sqlagent ask` must begin to answer."""
    code = (
        "import sys; from pathlib import Path; from decoding.targets.fast_target import FastTarget; "
        f"FastTarget.load(Path({str(checkpoint)!r})); print('transformers' in sys.modules)"
    )
    root = Path(__file__).parents[3]
    out = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert out.stdout == "False\n"


def test_weights_that_do_not_match_the_configuration_are_refused(checkpoint: Path) -> None:
    config, weights = load_config(checkpoint), dict(read_weights(checkpoint))
    lacking = {name: tensor for name, tensor in weights.items() if "layers.1.mlp.up_proj" not in name}
    with pytest.raises(UnsupportedModel, match=r"lacks the tensor model\.layers\.1\.mlp\.up_proj\.weight"):
        FastModel(config, lacking.items())
    with pytest.raises(UnsupportedModel, match=r"model\.norm\.weight has shape \[31\]"):
        FastModel(config, {**weights, "model.norm.weight": torch.ones(31)}.items())


def test_misuse_is_an_error_and_not_a_wrong_text(checkpoint: Path) -> None:
    target = FastTarget.load(checkpoint)
    with pytest.raises(ValueError, match="between 0 and 2"):
        target.open([1], Sampler(), taps=(3,))
    sequence = target.open([1, 2], Sampler())
    with pytest.raises(RuntimeError, match="without score"):
        target.commit(sequence, [])
    with pytest.raises(ValueError, match="nothing is pending"):
        target.score([ForwardInput(sequence, [], Draft((1,), (-1,)))])
    with pytest.raises(ValueError, match="513 tokens"):
        target.score([ForwardInput(sequence, [1] * 512, Draft((1,), (-1,)))])
    target.score([ForwardInput(sequence, [1, 2], Draft())])
    with pytest.raises(RuntimeError, match="between"):
        target.fork(sequence, Sampler())
    target.close(sequence)
    with pytest.raises(ValueError, match="closed"):
        target.score([ForwardInput(sequence, [1], Draft())])
