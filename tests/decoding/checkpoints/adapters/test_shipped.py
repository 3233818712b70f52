"""What comes with the embedded model: an adapter with masks, and masks for the model without it."""

from dataclasses import replace
from pathlib import Path

import pytest

from decoding.checkpoints.adapter import read_adapter
from decoding.checkpoints.catalog import SHIPPED_ADAPTER, chosen_adapter, chosen_masks
from decoding.checkpoints.identity import target_identity
from decoding.serving.load import load_text_decoder
from decoding.serving.text_decoder import SamplingParams, TextDecoder

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
