"""Adapters: the error of int8 files, peft's format, merging, factorising, and loading with either target.

What comes with the embedded model: an adapter with masks, and masks for the model without it.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from decoding.checkpoints.adapter import (
    About,
    Adapter,
    AdapterMismatch,
    Factors,
    check_base,
    merged_weights,
    read_adapter,
    write_adapter,
    write_peft,
)
from decoding.checkpoints.catalog import SHIPPED_ADAPTER, chosen_adapter, chosen_masks
from decoding.checkpoints.identity import target_identity
from decoding.checkpoints.weight_files import base_sha256, read_weights
from decoding.errors import ModelUnavailable, UnsupportedModel
from decoding.serving.load import Kind, load_text_decoder
from decoding.serving.text_decoder import SamplingParams, TextDecoder
from decoding.targets.fast_target import FastTarget
from decoding.targets.hf_target import HfTarget
from tests.decoding.models.tiny_models import tiny_checkpoint
from training.low_rank import averaged, compressed, factorise

MODULES = {"model.layers.0.self_attn.q_proj": (32, 32), "model.layers.1.mlp.down_proj": (32, 48)}
ABOUT = About("tiny", "0" * 64, prompt_version=3, notes={"licence": "CC BY-SA 4.0", "steps": 7})


def adapter(rank: int = 4, seed: int = 0, about: About = ABOUT) -> Adapter:
    chance = torch.Generator().manual_seed(seed)
    factors = {
        module: Factors(torch.randn(rank, columns, generator=chance), torch.randn(out, rank, generator=chance))
        for module, (out, columns) in MODULES.items()
    }
    return Adapter(factors, rank, 8.0, about)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


def test_int8_files_keep_the_change_within_one_percent(tmp_path: Path) -> None:
    """And the bound that rounding gives per row: half a step of its scale."""
    written = adapter(rank=16)
    write_adapter(written, tmp_path)
    read = read_adapter(tmp_path)
    assert (read.about, read.rank, read.alpha, read.scale) == (ABOUT, 16, 8.0, 0.5)
    for module, factors in written.factors.items():
        assert relative(read.difference(module), written.difference(module)) < 0.015
        for rows, got in ((factors.a, read.factors[module].a), (factors.b.T, read.factors[module].b.T)):
            assert ((rows - got).abs() <= rows.abs().amax(1, keepdim=True) / 127 / 2 * 1.001).all()


def test_a_small_component_is_not_drowned_by_a_large_one(tmp_path: Path) -> None:
    """Seeded fault: one scale per tensor, or per row of B [out, rank], loses the second component altogether."""
    factors = adapter(rank=2).factors["model.layers.0.self_attn.q_proj"]
    sizes = torch.tensor([1.0, 1e-3])
    written = replace(adapter(rank=2), factors={"m": Factors(factors.a * sizes[:, None], factors.b * sizes)})
    write_adapter(written, tmp_path)
    read = read_adapter(tmp_path).factors["m"]
    assert relative(read.b[:, 1:] @ read.a[1:], (factors.b * sizes)[:, 1:] @ (factors.a * sizes[:, None])[1:]) < 0.015


def test_zeros_stay_zeros(tmp_path: Path) -> None:
    """A module that training did not touch has B = 0; a scale of 0 must not become NaN."""
    write_adapter(replace(adapter(), factors={"m": Factors(torch.randn(4, 8), torch.zeros(6, 4))}), tmp_path)
    assert read_adapter(tmp_path).difference("m").abs().max() == 0.0


def test_the_embedded_model_s_adapter_stays_under_ten_megabytes(tmp_path: Path) -> None:
    """Rank 32 on every linear layer of SmolLM2-135M."""
    shapes = {"q": (576, 576), "k": (192, 576), "v": (192, 576), "o": (576, 576)}
    shapes |= {"gate": (1536, 576), "up": (1536, 576), "down": (576, 1536)}
    factors = {
        f"model.layers.{layer}.{name}_proj": Factors(torch.ones(32, columns), torch.ones(out, 32))
        for layer in range(30)
        for name, (out, columns) in shapes.items()
    }
    assert write_adapter(Adapter(factors, 32, 64.0, ABOUT), tmp_path) < 10_000_000


def wide(rank: int, decay: float) -> Adapter:
    """An adapter whose components get weaker."""
    chance = torch.Generator().manual_seed(0)
    sizes = decay ** torch.arange(rank)
    a, b = torch.randn(rank, 64, generator=chance), torch.randn(96, rank, generator=chance)
    return Adapter({"m": Factors(a * sizes[:, None], b)}, rank, 2.0 * rank, ABOUT)


def test_weaker_components_in_4_bits_lose_little_and_save_much(tmp_path: Path) -> None:
    """Compared with int8: twice the components in about the same bytes, and nearer to the change."""
    whole = wide(32, 0.9)
    few = write_adapter(compressed(whole, 12), tmp_path / "int8")
    many = write_adapter(compressed(whole, 20, fine=4), tmp_path / "int4", fine=4)
    assert many < 1.2 * few
    losses = [
        relative(read_adapter(tmp_path / name).difference("m"), whole.difference("m")) for name in ("int8", "int4")
    ]
    assert losses[1] < 0.75 * losses[0]
    assert read_adapter(tmp_path / "int4").rank == 20


def test_what_is_compressed_is_stored_as_it_is(tmp_path: Path) -> None:
    """And fitting the factors to each other's rounding is nearer than rounding each by itself."""
    whole = wide(16, 0.9)
    small = compressed(whole, 16, fine=2)
    write_adapter(small, tmp_path / "fitted", fine=2)
    write_adapter(Adapter(factorise({"m": whole.difference("m")}, 16), 16, 16.0, ABOUT), tmp_path / "rounded", fine=2)
    assert relative(read_adapter(tmp_path / "fitted").difference("m"), small.difference("m")) < 1e-3
    fitted, rounded = (
        relative(read_adapter(tmp_path / name).difference("m"), whole.difference("m")) for name in ("fitted", "rounded")
    )
    assert fitted < 0.85 * rounded


def test_the_mean_of_two_adapters_changes_weights_by_the_mean_of_their_changes() -> None:
    one, other = adapter(rank=4), replace(adapter(rank=6, seed=1), alpha=3.0, rank_stabilised=True)
    mean = averaged(one, other)
    assert mean.rank == 10
    for module in MODULES:
        wanted = (one.difference(module) + other.difference(module)) / 2
        torch.testing.assert_close(mean.difference(module), wanted)
    with pytest.raises(ValueError, match="different modules"):
        averaged(one, replace(other, factors={"m": other.factors[min(MODULES)]}))


def test_rows_that_4_bits_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="keep all components in int8"):
        write_adapter(Adapter({"m": Factors(torch.ones(4, 40), torch.ones(64, 4))}, 4, 4.0, ABOUT), tmp_path, fine=1)


def test_peft_s_format_is_without_loss_and_has_its_names(tmp_path: Path) -> None:
    written = replace(adapter(), rank_stabilised=True)
    write_peft(written, tmp_path)
    stored = load_file(tmp_path / "adapter_model.safetensors")
    assert set(stored) == {f"base_model.model.{m}.lora_{part}.weight" for m in MODULES for part in "AB"}
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    wanted = {"peft_type": "LORA", "r": 4, "lora_alpha": 8.0, "lora_dropout": 0.0, "use_rslora": True}
    assert wanted.items() <= config.items()
    assert config["target_modules"] == ["down_proj", "q_proj"]
    read = read_adapter(tmp_path)
    assert (read.about, read.scale) == (ABOUT, 4.0)
    for module, factors in written.factors.items():
        assert torch.equal(read.factors[module].a, factors.a) and torch.equal(read.factors[module].b, factors.b)


@pytest.mark.parametrize("change", [{"use_dora": True}, {"bias": "all"}, {"rank_pattern": {"q_proj": 8}}])
def test_peft_adapters_of_another_kind_are_refused(tmp_path: Path, change: dict[str, object]) -> None:
    """Read as plain LoRA they would give another model without a word."""
    write_peft(adapter(), tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps(config | change))
    with pytest.raises(UnsupportedModel):
        read_adapter(tmp_path)


def test_damaged_and_missing_files_are_one_line_errors(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="holds no adapter"):
        read_adapter(tmp_path)
    write_adapter(adapter(), tmp_path)
    stored = load_file(tmp_path / "adapter.safetensors")
    save_file({n: t for n, t in stored.items() if not n.endswith("b_scale")}, tmp_path / "adapter.safetensors")
    with pytest.raises(ModelUnavailable, match="lacks"):
        read_adapter(tmp_path)
    (tmp_path / "adapter.safetensors").write_bytes(b"no")
    with pytest.raises(ModelUnavailable, match="damaged"):
        read_adapter(tmp_path)


def test_merging_adds_scale_b_a_and_leaves_the_rest(checkpoint: Path) -> None:
    """peft's definition: W + alpha / r * B A."""
    given, before = adapter(), dict(read_weights(checkpoint))
    after = dict(merged_weights(read_weights(checkpoint), given))
    assert list(after) == list(before)
    for name, tensor in after.items():
        factors = given.factors.get(name.removesuffix(".weight"))
        if factors is None:
            assert torch.equal(tensor, before[name])
        else:
            torch.testing.assert_close(tensor, before[name] + 8.0 / 4 * factors.b @ factors.a)
    assert dict(merged_weights(before.items(), None)).keys() == before.keys()


def test_merging_adds_in_fp32() -> None:
    """Seeded fault: added in bf16, a change below half a step of the weight is lost, and so is its sum with others."""
    weight = torch.ones(4, 4, dtype=torch.bfloat16)
    small = Adapter({"m": Factors(torch.full((1, 4), 1e-3), torch.ones(4, 1))}, 1, 1.0, ABOUT)
    [(_, merged)] = merged_weights([("m.weight", weight)], small)
    assert merged.dtype == torch.float32
    torch.testing.assert_close(merged, torch.full((4, 4), 1.001))


def test_an_adapter_of_another_model_is_refused(checkpoint: Path) -> None:
    with pytest.raises(AdapterMismatch, match="trained on tiny"):
        check_base(adapter(), base_sha256(checkpoint))
    check_base(adapter(), base_sha256(checkpoint), force=True)
    check_base(replace(adapter(), about=About("tiny", base_sha256(checkpoint))), base_sha256(checkpoint))
    for wrong in ({"nowhere": adapter().factors["model.layers.0.self_attn.q_proj"]},
                  {"model.layers.0.mlp.down_proj": Factors(torch.zeros(4, 8), torch.zeros(8, 4))}):  # fmt: skip
        with pytest.raises(AdapterMismatch):
            dict(merged_weights(read_weights(checkpoint), replace(adapter(), factors=wrong)))


@pytest.mark.parametrize("shape", [(40, 12), (12, 40)])
def test_factorising_gives_the_best_approximation_of_its_rank(shape: tuple[int, int]) -> None:
    difference = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    factors = factorise({"m": difference}, 5)["m"]
    left, sizes, right = torch.linalg.svd(difference, full_matrices=False)
    torch.testing.assert_close(factors.b @ factors.a, left[:, :5] * sizes[:5] @ right[:5], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(factors.a.norm(dim=1), factors.b.norm(dim=0))


def test_factorising_less_than_its_rank_is_exact() -> None:
    low = adapter(rank=2).difference("model.layers.0.self_attn.q_proj")
    factors = factorise({"m": low}, 8)["m"]
    assert factors.a.isfinite().all() and factors.b.isfinite().all()
    assert relative(factors.b @ factors.a, low) < 1e-4


def test_both_targets_load_the_adapter(checkpoint: Path, tmp_path: Path) -> None:
    """The fast one and transformers write the same text with it, and another without it."""
    write_adapter(adapter(about=About("tiny", base_sha256(checkpoint))), tmp_path)
    settings = SamplingParams(max_new_tokens=24)
    texts = {}
    for kind in ("fast", "hf"):
        for folder in (tmp_path, "none", "auto"):
            decoder = load_text_decoder(str(checkpoint), dtype="fp32", target=kind, adapter=folder)  # type: ignore[arg-type]
            assert isinstance(decoder.target, FastTarget if kind == "fast" else HfTarget)
            texts[kind, str(folder)] = decoder.generate("select", settings).tokens
    assert texts["fast", str(tmp_path)] == texts["hf", str(tmp_path)]
    assert texts["fast", "none"] == texts["hf", "none"] == texts["hf", "auto"] == texts["fast", "auto"]
    assert texts["fast", "none"] != texts["fast", str(tmp_path)]


@pytest.mark.parametrize("kind", ["fast", "hf"])
def test_a_target_says_on_which_first_guess_it_was_trained(checkpoint: Path, tmp_path: Path, kind: Kind) -> None:
    for notes, wanted in (
        ({}, False),
        ({"jacobi": {"first_guess": "prompt"}}, False),
        ({"jacobi": {"first_guess": "mask"}}, True),
    ):
        write_adapter(adapter(about=About("tiny", base_sha256(checkpoint), notes=notes)), tmp_path / str(wanted))
        decoder = load_text_decoder(str(checkpoint), dtype="fp32", target=kind, adapter=tmp_path / str(wanted))
        assert decoder.target.prompt_mask is wanted
    assert not load_text_decoder(str(checkpoint), dtype="fp32", target=kind).target.prompt_mask


def test_loading_refuses_another_base_unless_told_otherwise(checkpoint: Path, tmp_path: Path) -> None:
    write_adapter(adapter(), tmp_path)
    with pytest.raises(AdapterMismatch):
        load_text_decoder(str(checkpoint), dtype="fp32", adapter=tmp_path)
    load_text_decoder(str(checkpoint), dtype="fp32", adapter=tmp_path, any_base=True)


PROMPT = "<|im_start|>user\nWrite a short letter to a friend about the sea.<|im_end|>\n<|im_start|>assistant\n"


def test_masks_belong_to_the_target_that_they_come_with() -> None:
    adapter = read_adapter(SHIPPED_ADAPTER)
    for merged in (adapter, None):
        masks = chosen_masks("embedded", merged)
        assert masks and masks.target and masks.pairs
        mine = target_identity(adapter.about.base_sha256, merged)
        assert not masks.target.difference(replace(mine, prompt_hash=masks.target.prompt_hash))


def test_other_models_have_the_masks_beside_their_adapter_alone(tmp_path: Path) -> None:
    adapter = read_adapter(SHIPPED_ADAPTER)
    assert chosen_masks("other/model", None) is None
    assert chosen_masks("other/model", adapter) is not None
    assert chosen_masks("embedded", replace(adapter, files=())) is None
    assert chosen_adapter("embedded", tmp_path, "none") is None and chosen_adapter("other", tmp_path, "auto") is None


@pytest.fixture(scope="module")
def base() -> TextDecoder:
    return load_text_decoder("embedded", dtype="int8", device="cpu", adapter="none")


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mask_tokens", {"copies": 0, "budget": 16, "masked": 8, "masks": 4}),
        ("jacobi_forcing", {"block_size": 4, "blocks": 4, "candidates": 0, "pool_size": 0}),
        ("adaptive", {"copies": 0, "row_cost": 0.01}),
        ("adaptive", {}),
    ],
)
def test_the_base_s_masks_change_no_text_and_save_forwards(
    base: TextDecoder, name: str, options: dict[str, object], temperature: float
) -> None:
    settings = SamplingParams(decoder="plain", temperature=temperature, seed=4, max_new_tokens=40)
    want = base.generate(PROMPT, settings)
    found = base.generate(PROMPT, replace(settings, decoder=name, options=options))
    assert found.tokens == want.tokens
    assert len(found.rounds) < len(want.rounds)
