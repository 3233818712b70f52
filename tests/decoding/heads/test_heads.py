"""Head files: what is written can be read again, and what does not fit gives a one-line error."""

import json
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import decoding.heads.head
from decoding.checkpoints.identity import TargetIdentity
from decoding.checkpoints.low_bits import packed, quantised, restored, unpacked
from decoding.engine.method import Context, LookupCorpus
from decoding.engine.sampler import Sampler
from decoding.errors import ModelUnavailable
from decoding.heads.head import (
    HeadMismatch,
    HeadUnavailable,
    OtherTarget,
    Storage,
    find_head,
    head_of,
    load_head,
    save_head,
)
from decoding.heads.kinds import KINDS
from decoding.heads.on_torch.context import to_target
from tests.decoding.models.random_heads import small_head

TARGET = TargetIdentity("b" * 64, "a" * 64, "p" * 8)


@pytest.mark.parametrize("storage", ["fp32", "bf16", "int4"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_head_is_read_as_it_was_written(kind: str, storage: Storage, tmp_path: Path) -> None:
    """Guards against sizes that the file leaves out, and against nibbles, groups or rows that change places."""
    head = small_head(kind, hidden=32, vocab=20)
    head.config = replace(head.config, frequent=(3, 5))
    size = save_head(head, tmp_path, TARGET, storage)
    again = load_head(tmp_path)
    assert size == sum(file.stat().st_size for file in tmp_path.iterdir())
    assert (again.config, again.identity) == (head.config, TARGET)
    for name, tensor in head.state_dict().items():
        error = {"fp32": 0.0, "bf16": 0.005, "int4": 0.13}[storage] * tensor.abs().max()
        torch.testing.assert_close(again.state_dict()[name], tensor, atol=float(error), rtol=0)


def test_int4_takes_four_and_a_half_bits_and_little_accuracy() -> None:
    weight = torch.randn(64, 96, generator=torch.Generator().manual_seed(0))
    weight[3, :32] = 0.0
    codes, scale = quantised(weight)
    assert codes.numel() + 2 * scale.numel() == weight.numel() * 4.5 / 8
    error = (torch.from_numpy(restored(codes.numpy(), scale.numpy())) - weight).square().mean()
    plain = (weight.view(64, 3, 32).abs().amax(2) / 7).repeat_interleave(32, 1)
    rounded = ((weight / plain.clamp_min(1e-9)).round() * plain - weight).square().mean()
    assert error < 0.85 * rounded, "the scale is searched for"
    odd = {"a": torch.randn(5, 33), "b.scale": torch.ones(3)}
    assert all(torch.allclose(value, odd[name], atol=2e-3) for name, value in unpacked(packed(odd)).items())


def test_another_target_is_told(tmp_path: Path) -> None:
    save_head(small_head("dflash", 32, 20), tmp_path, TARGET)
    head, other = find_head("dflash", str(tmp_path)), replace(TARGET, adapter_sha256=None)

    def on(width: int, identity: TargetIdentity | None) -> Context:
        matrix = torch.zeros(20, width)
        return Context(Sampler(), matrix, matrix, LookupCorpus(), (lambda: identity) if identity else None)

    with pytest.warns(OtherTarget, match="another target: adapter aaaaaaaaaaaa and not none"):
        to_target(head, on(32, other))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for known in (None, TARGET, replace(TARGET, prompt_hash=None)):
            to_target(head, on(32, known))
        with pytest.raises(HeadMismatch, match="another target"):
            to_target(head, on(32, other))
    with pytest.raises(HeadMismatch, match="20 tokens of width 32; the model has 20 of width 64"):
        to_target(head, on(64, None))


def test_a_missing_or_damaged_head_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(HeadUnavailable, match=r"nowhere holds none: train one \(sqlagent train head --method dflash\)"):
        find_head("dflash", str(tmp_path / "nowhere"))
    save_head(small_head("domino", 32, 20), tmp_path, TARGET)
    told = json.loads((tmp_path / "config.json").read_text())
    for change, words in (
        ({"format": 9}, "format 9"),
        ({"kind": "oracle"}, "no head of kind 'oracle'"),
        ({"sizes": {"layers": 2}}, "damaged"),
        ({"sizes": {"storeys": 2}}, "no size storeys"),
        ({"target": {}}, "damaged"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(told | change))
        with pytest.raises(ModelUnavailable, match=words) as error:
            load_head(tmp_path)
        assert "\n" not in str(error.value)


def test_a_rewritten_folder_is_read_anew_and_else_read_once(tmp_path: Path) -> None:
    save_head(small_head("dflash", 32, 20), tmp_path, TARGET)
    once = find_head("dflash", str(tmp_path))
    assert find_head("dflash", str(tmp_path)) is once
    (tmp_path / "config.json").touch()
    assert find_head("dflash", str(tmp_path)) is not once


def test_the_head_of_a_target_is_the_shipped_one_that_was_trained_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding.heads.head, "SHIPPED", tmp_path)
    base = replace(TARGET, adapter_sha256=None, prompt_hash=None)
    save_head(small_head("dflash", 32, 20), tmp_path / "dflash", TARGET)
    assert head_of(TARGET, "dflash") is find_head("dflash")
    assert head_of(replace(TARGET, prompt_hash=None), "dflash") is find_head("dflash"), "a decoder has no prompts"
    assert head_of(base, "dflash") is None
    assert head_of(TARGET, "domino") is None, "none is shipped"
