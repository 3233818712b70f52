"""int8 weights: near to what they round, and a row's result does not depend on its neighbours, to the bit."""

import resource
from pathlib import Path

import pytest
import torch
from torch import Tensor

from decoding.checkpoints.model_config import load_config
from decoding.checkpoints.weight_files import read_weights
from decoding.engine.draft import Draft
from decoding.engine.loop import Request, decode
from decoding.engine.sampler import Sampler
from decoding.engine.target import ForwardInput
from decoding.errors import UnsupportedModel
from decoding.methods.registry import METHODS
from decoding.serving.load import load_text_decoder
from decoding.targets.fast_ops import Projection
from decoding.targets.fast_target import FastModel, FastTarget
from decoding.targets.int8 import quantize
from decoding.targets.int8.quantize import kept, rounded
from decoding.targets.int8.rounding import block_rotation, rotated
from tests.decoding.models.random_heads import ready_method
from tests.decoding.models.tiny_models import tiny_checkpoint

TOKENS = [5, 6, 7, 8]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SQLAGENT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("llama"), num_hidden_layers=2, attention_bias=True)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def projection(weight: Tensor, bias: Tensor | None = None, rotates: bool = False) -> Projection:
    stored = torch.from_numpy(rotated(weight.numpy(), block_rotation(weight.shape[1]))) if rotates else weight
    return quantize.projection(rounded(stored), bias, rotates)


def logits_of(target: FastTarget, draft: Draft) -> Tensor:
    sequence = target.open(TOKENS, Sampler())
    target.score([ForwardInput(sequence, TOKENS[:-1], Draft())])
    target.commit(sequence, [])
    (scores,) = target.score([ForwardInput(sequence, TOKENS[-1:], draft)])
    target.close(sequence)
    return torch.as_tensor(scores.logits)


def test_integers_use_their_range_and_are_chosen_for_the_scale_as_rounded() -> None:
    weight = torch.cat([random(50, 64) * torch.logspace(-3, 3, 50)[:, None], torch.zeros(1, 64)])
    steps, scale = rounded(weight)
    assert torch.equal(scale, scale.to(torch.bfloat16).float())
    assert steps[:-1].abs().amax(1).min() >= 126, "every row uses the whole range: no scale is shared"
    error = (steps * scale[:, None] - weight).abs()
    assert (error <= 1.01 * scale[:, None]).all()  # half a step, and one where the largest was clamped
    assert error.mean() < 0.3 * scale.mean()


@pytest.mark.parametrize("rows", [1, 9, 40])
@pytest.mark.parametrize("columns", [64, 1536])
def test_a_projection_is_near_the_product(rows: int, columns: int) -> None:
    """Rows of very different size, in input and weights alike, with the error of 8 and 7 bits at most."""
    weight = random(48, columns) * torch.logspace(-2, 2, 48)[:, None]
    bias, x = random(48, seed=1), random(rows, columns, seed=2) * torch.logspace(-3, 3, rows)[:, None]
    got, want = projection(weight, bias)(x) - bias, x @ weight.t()
    size = x.norm(dim=1)[:, None] * weight.norm(dim=1) / columns**0.5
    assert ((got - want).abs() / size).square().mean().sqrt() < 0.03 * columns**0.5 / 8
    assert torch.equal(projection(weight)(torch.zeros(2, columns)), torch.zeros(2, 48))


@pytest.mark.parametrize("columns", [40, 576, 1537])
def test_turned_inputs_meet_turned_weights(columns: int) -> None:
    weight, x = random(96, columns), random(20, columns, seed=1)
    want = x @ weight.t()
    as_is, turned = (projection(weight, rotates=rotates)(x) - want for rotates in (False, True))
    assert turned.norm() < 0.01 * want.norm() > as_is.norm()


@pytest.mark.parametrize("count", [7, 12])
def test_a_nodes_logits_do_not_depend_on_its_siblings(checkpoint: Path, count: int) -> None:
    """Bit for bit: the first node among siblings that are quiet, and among others whose activations are not."""
    target = FastTarget.load(checkpoint, torch.int8, cache_bytes=0)
    siblings = [tuple(range(start, start + count)) for start in (10, 200)]
    first, second = (logits_of(target, Draft((9, *more[1:]), (-1,) * count)) for more in siblings)
    assert torch.equal(first[:2], second[:2])
    assert not torch.equal(first[2:], second[2:])


@pytest.mark.parametrize("sampler", [Sampler(), Sampler(1.0, 1)], ids=str)
def test_every_method_gives_plain_text(checkpoint: Path, sampler: Sampler) -> None:
    target = FastTarget.load(checkpoint, torch.int8)
    texts = {}
    for name in METHODS:
        request = Request(tuple(range(20, 40)), ready_method(name, target), 32, sampler)
        texts[name] = [token for each in decode(target, [request]) for token in each.committed]
    assert all(text == texts["plain"] for text in texts.values())


def test_text_is_nearly_that_of_fp32_and_it_needs_a_processor(checkpoint: Path) -> None:
    exact = logits_of(FastTarget.load(checkpoint, cache_bytes=0), Draft.chain(TOKENS))
    rough = logits_of(load_text_decoder(str(checkpoint), dtype="int8", target="fast").target, Draft.chain(TOKENS))  # type: ignore[arg-type]
    similar = torch.nn.functional.cosine_similarity(exact, rough)
    assert similar.min() > 0.98
    assert not torch.equal(exact, rough)
    with pytest.raises(UnsupportedModel, match="processor"):
        load_text_decoder(str(checkpoint), dtype="int8", target="hf")


def test_integers_are_made_once_for_a_model_and_an_adapter(tmp_path: Path, home: Path) -> None:
    files, made = [tmp_path / "model.safetensors"], list[str]()
    files[0].write_bytes(b"weights")

    def get(adapter: str | None) -> Tensor:
        def make() -> dict[str, Tensor]:
            made.append(str(adapter))
            return {"a.steps": random(4, 6).t()}

        return kept(files, adapter, make)["a.steps"]

    first = get(None)
    assert torch.equal(get(None), first) and made == ["None"]
    get("another")
    assert made == ["None", "another"]
    (folder,) = home.iterdir()
    for file in folder.iterdir():
        file.write_bytes(b"damaged")
    assert torch.equal(get(None), first) and made[2:] == ["None"]
    files[0].write_bytes(b"other weights")
    get(None)
    assert len(made) == 4, "files that were changed"
    for adapter in "bcdef":
        get(adapter)
    assert len(list(folder.iterdir())) == 3, "old files go, and nothing unfinished stays"


def test_integers_need_no_place_to_be_kept(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home.write_text("a file where the folder should be")
    assert torch.equal(kept([], None, lambda: {"a": torch.ones(2)})["a"], torch.ones(2))
    said = capsys.readouterr().err
    assert "cannot be kept" in said and said.count("\n") == 1


def test_a_full_disk_costs_a_line_and_no_answer(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """safetensors raises an error of its own, which is no OSError."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # no file of this process may grow beyond that
    try:
        found = kept([], None, lambda: {"a": torch.ones(4096)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert torch.equal(found["a"], torch.ones(4096))
    said = capsys.readouterr().err
    assert "cannot be kept" in said and "File too large" in said and said.count("\n") == 1
    assert list((home / "int8").iterdir()) == []


def test_damaged_integers_are_made_anew(home: Path) -> None:
    """A file of a valid shape, in which one weight has changed."""

    def make() -> dict[str, Tensor]:
        return {"a": torch.ones(4096)}

    kept([], None, make)
    (path,) = (home / "int8").iterdir()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    for _ in range(2):
        assert torch.equal(kept([], None, make)["a"], torch.ones(4096))


def test_what_was_kept_is_the_same_model(checkpoint: Path, home: Path) -> None:
    direct = logits_of(FastTarget.load(checkpoint, torch.int8, cache_bytes=0), Draft.chain(TOKENS))
    for _ in range(2):
        decoder = load_text_decoder(str(checkpoint), dtype="int8", target="fast")
        assert torch.equal(logits_of(decoder.target, Draft.chain(TOKENS)), direct)  # type: ignore[arg-type]
    assert len(list((home / "int8").iterdir())) == 1


def test_weights_that_do_not_fit_are_refused_in_a_line(checkpoint: Path) -> None:
    weights = dict(read_weights(checkpoint))
    norm = "model.layers.0.input_layernorm.weight"
    for wrong in (weights | {norm: torch.ones(31)}, {name: tensor for name, tensor in weights.items() if name != norm}):
        with pytest.raises(UnsupportedModel, match=r"config.json and weights do not match"):
            FastModel(load_config(checkpoint), wrong.items(), torch.int8)
