"""Published heads, from tiny folders with exactly their keys and shapes: they are read whole and draft as before, or are
refused with a clear error."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from decoding.checkpoints.model_config import load_config
from decoding.engine.loop import Request, decode
from decoding.errors import ModelUnavailable, UnsupportedModel
from decoding.heads.head import Head, HeadMismatch
from decoding.heads.modules.block import DominoHead
from decoding.heads.modules.drafters import Eagle3Head, MedusaHead
from decoding.heads.published import read_published
from decoding.methods.registry import load_method, method_options
from decoding.targets.fast_target import FastTarget
from tests.decoding.models.tiny_models import tiny_checkpoint

HIDDEN, VOCAB, LAYERS = 32, 320, 6
ATTENTION = {
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-6,
    "vocab_size": VOCAB,
}
Tensors = dict[str, Tensor]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("target"), num_hidden_layers=LAYERS)


def random(**shapes: tuple[int, ...]) -> Tensors:
    """Tensors of these shapes, `__` for a dot in their names."""
    chance = torch.Generator().manual_seed(1)
    return {name.replace("__", "."): 0.3 * torch.randn(shape, generator=chance) for name, shape in shapes.items()}


def written(folder: Path, config: Mapping[str, Any] | None, tensors: Tensors, file: str = "model.safetensors") -> Path:
    folder.mkdir(parents=True)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    if file.endswith(".safetensors"):
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / file)
    else:
        torch.save(tensors, folder / file)
    return folder


def layer(prefix: str, inputs: int, qk_norm: bool = False) -> Tensors:
    found = random(
        self_attn__q_proj__weight=(32, inputs),
        self_attn__k_proj__weight=(16, inputs),
        self_attn__v_proj__weight=(16, inputs),
        self_attn__o_proj__weight=(HIDDEN, 32),
        mlp__gate_proj__weight=(48, HIDDEN),
        mlp__up_proj__weight=(48, HIDDEN),
        mlp__down_proj__weight=(HIDDEN, 48),
        post_attention_layernorm__weight=(HIDDEN,),
    )
    if qk_norm:
        found |= random(self_attn__q_norm__weight=(8,), self_attn__k_norm__weight=(8,))
    return {prefix + name: tensor for name, tensor in found.items()}


def medusa(own: bool = True) -> Tensors:
    found: Tensors = {}
    for i in range(3):
        found |= random(**{f"{i}__0__linear__weight": (HIDDEN, HIDDEN), f"{i}__0__linear__bias": (HIDDEN,)})
        found |= random(**{f"{i}__1__weight": (VOCAB, HIDDEN)}) if own else {}
    return found


def eagle3(prefix: str = "midlayer.") -> Tensors:
    norms = random(input_layernorm__weight=(HIDDEN,), hidden_norm__weight=(HIDDEN,))
    ids = torch.tensor([5, 9, 2, *range(20, 37)])
    return {
        **layer(prefix, 2 * HIDDEN),
        **{prefix + name: tensor for name, tensor in norms.items()},
        **random(fc__weight=(HIDDEN, 3 * HIDDEN), norm__weight=(HIDDEN,), lm_head__weight=(20, HIDDEN)),
        **random(embed_tokens__weight=(VOCAB, HIDDEN)),
        "d2t": ids - torch.arange(20),
        "t2d": torch.isin(torch.arange(VOCAB), ids),
    }


EAGLE3 = {**ATTENTION, "architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 20}
SPECULATORS = {
    "speculators_model_type": "eagle3",
    "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "x"}},
    "transformer_layer_config": {**ATTENTION, "rope_theta": 1e6},
    "draft_vocab_size": 20,
    "norm_before_residual": True,
    "eagle_aux_hidden_state_layer_ids": [1, 3, 5],
}


def block(layers: int = 2) -> Tensors:
    found = random(fc__weight=(HIDDEN, 3 * HIDDEN), hidden_norm__weight=(HIDDEN,), norm__weight=(HIDDEN,))
    for i in range(layers):
        found |= layer(f"layers.{i}.", HIDDEN, qk_norm=True)
        found |= random(**{f"layers__{i}__input_layernorm__weight": (HIDDEN,)})
    return found


def dflash(**own: Any) -> dict[str, Any]:
    theirs = {"mask_token_id": 300, "target_layer_ids": [0, 2, 4], **own}
    return {
        **ATTENTION,
        "architectures": ["DFlashDraftModel"],
        "num_hidden_layers": 2,
        "block_size": 5,
        "num_target_layers": LAYERS,
        "layer_types": ["full_attention"] * 2,
        "rope_parameters": {"rope_theta": 1e6},
        "dflash_config": theirs,
    }


DOMINO = dflash(projector_type="domino", emb_dim=6, gru_hidden_dim=10, pure_draft_prefix_len=1, shift_label=True)
PREFIX_GRU = random(
    prefix_gru__weight_ih_l0=(30, HIDDEN),
    prefix_gru__weight_hh_l0=(30, 10),
    embed_proj__0__weight=(6, HIDDEN + 10),
    embed_proj__2__weight=(VOCAB, 6),
)
FALCON = {**ATTENTION, "k_mask": 2, "bias": True, "num_hidden_layers": 2}


def falcon() -> Tensors:
    found = (
        layer("layers.0.", HIDDEN) | layer("layers.1.", HIDDEN) | random(layers__1__input_layernorm__weight=(HIDDEN,))
    )
    for i, inputs in enumerate((2 * HIDDEN, HIDDEN)):
        shapes = {"weight_ih": (4 * HIDDEN, inputs), "weight_hh": (4 * HIDDEN, HIDDEN), "bias_ih": (4 * HIDDEN,)}
        found |= random(**{f"lstm__{name}_l{i}": shape for name, shape in {**shapes, "bias_hh": (4 * HIDDEN,)}.items()})
    return found | random(embed_tokens__weight=(VOCAB, HIDDEN))


def fused(tensors: Tensors) -> Tensors:
    """As some publish them: queries, keys and values in one, gate and up in one."""
    found = {name: tensor for name, tensor in tensors.items() if not any(f"{p}_proj" in name for p in "qkv")}
    for i in range(2):
        attention, mlp = f"layers.{i}.self_attn.", f"layers.{i}.mlp."
        found[f"{attention}qkv_proj.weight"] = torch.cat([tensors[f"{attention}{p}_proj.weight"] for p in "qkv"])
        found[f"{mlp}gate_up_proj.weight"] = torch.cat([found.pop(f"{mlp}{p}_proj.weight") for p in ("gate", "up")])
    return found


CASES: dict[str, tuple[str, Mapping[str, Any] | None, Tensors, str]] = {
    "medusa v0.1": ("medusa", {"medusa_num_heads": 3, "medusa_num_layers": 1}, medusa(), "medusa_lm_head.pt"),
    "medusa v2": ("medusa", None, medusa(own=False), "medusa_lm_head.safetensors"),
    "medusa v1.0 merged": (
        "medusa",
        {"model_type": "mistral"},
        {f"medusa_head.{name}": tensor for name, tensor in medusa().items()} | random(lm_head__weight=(VOCAB, HIDDEN)),
        "pytorch_model.bin",
    ),
    "eagle3": ("eagle3", EAGLE3, eagle3(), "pytorch_model.bin"),
    "eagle3 speculators": ("eagle3", SPECULATORS, eagle3("layers.0."), "model.safetensors"),
    "eagle3.1 speculators": (
        "eagle3",
        SPECULATORS | {"norm_before_fc": True, "norm_output": True},
        eagle3("layers.0.") | random(input_norm__weight=(3 * HIDDEN,)),
        "model.safetensors",
    ),
    "dflash": ("dflash", dflash(), block(), "model.safetensors"),
    "dflash, nested block size, fused": (
        "dflash",
        {key: value for key, value in dflash(block_size=5).items() if key != "block_size"},
        fused(block()),
        "model.safetensors",
    ),
    "dflash, settings at the top": (
        "dflash",
        {key: value for key, value in dflash().items() if key != "dflash_config"}
        | {"mask_token_id": 300, "target_layer_ids": [0, 2, 4], "rope_theta": 1e6},
        block(),
        "model.safetensors",
    ),
    "jetspec": ("jetspec", dflash(causal_head=True), block(), "model.safetensors"),
    "domino": ("domino", DOMINO, block() | PREFIX_GRU, "model.safetensors"),
    "domino, older": (
        "domino",
        DOMINO,
        block() | {f"logit_head.{name}": tensor for name, tensor in PREFIX_GRU.items()},
        "model.safetensors",
    ),
    "falcon": ("falcon", FALCON, falcon(), "pytorch_model.bin"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_published_head_is_read_whole_and_drafts(case: str, target: Path, tmp_path: Path) -> None:
    kind, config, tensors, file = CASES[case]
    head = read_published(written(tmp_path / "head", config, tensors, file), load_config(target))
    assert head.config.kind == kind
    running = FastTarget.load(target)
    texts = []
    every = {"least": 0.0} if "least" in method_options(kind) else {}  # random weights are sure of nothing
    for method in (load_method("plain"), load_method(kind, head=head, **every)):
        rounds = list(decode(running, [Request(tuple(range(40, 60)), method, 24)]))
        texts.append([token for r in rounds for token in r.committed])
    assert texts[0] == texts[1]
    assert sum(len(r.draft_tokens) for r in rounds) > 20


def read(case: str, target: Path, folder: Path) -> tuple[Head, Tensors]:
    _, config, tensors, file = CASES[case]
    return read_published(written(folder, config, tensors, file), load_config(target)), tensors


def test_medusa_reads_its_own_matrices(target: Path, tmp_path: Path) -> None:
    head, tensors = read("medusa v1.0 merged", target, tmp_path / "head")
    assert isinstance(head, MedusaHead)
    states = torch.randn(4, HIDDEN)
    x = states + functional.silu(
        states @ tensors["medusa_head.1.0.linear.weight"].T + tensors["medusa_head.1.0.linear.bias"]
    )
    got = head.logits(head(states), torch.zeros(VOCAB, HIDDEN))[:, 1]
    torch.testing.assert_close(got, x @ tensors["medusa_head.1.1.weight"].T)


def test_eagle3_knows_its_vocabulary_its_layers_and_its_residual(target: Path, tmp_path: Path) -> None:
    """Guards against d2t taken for ids, rows left unsorted, and the residual of the other layout."""
    head, tensors = read("eagle3", target, tmp_path / "a")
    other, _ = read("eagle3 speculators", target, tmp_path / "b")
    assert isinstance(head, Eagle3Head) and isinstance(other, Eagle3Head)
    assert head.config.frequent == (2, 5, 9, *range(20, 37))
    torch.testing.assert_close(head.lm_head.weight[1], tensors["lm_head.weight"][0])
    assert (head.config.taps, other.config.taps) == ((2, 3, 3), (1, 3, 5))
    assert (head.size("rope_theta"), other.size("rope_theta")) == (1e4, 1e6)
    embedded, features = torch.randn(2, 1, HIDDEN)
    one, two = (each(embedded, features, torch.tensor([3]), [])[0] for each in (head, other))
    attended = head.midlayer.self_attn(head.midlayer.joined(embedded, features), torch.tensor([3]), [], None)[0]
    before = features + attended
    torch.testing.assert_close(one, before + head.midlayer.mlp(head.midlayer.post_attention_layernorm(before)))
    assert not torch.allclose(one, two)


def test_block_heads_take_layers_for_taps_and_the_mask_from_either_place(target: Path, tmp_path: Path) -> None:
    """Guards against the off-by-one of layer ids, and against settings that are looked for in one place alone."""
    heads = [read(case, target, tmp_path / str(i))[0] for i, case in enumerate(CASES) if case.startswith("dflash")]
    for head in heads:
        assert head.config.taps == (1, 3, 5)
        assert [head.size(name) for name in ("block_size", "mask_token", "rope_theta")] == [5, 300, 1e6]
        for name, tensor in heads[0].state_dict().items():
            torch.testing.assert_close(head.state_dict()[name], tensor)
    domino, tensors = read("domino, older", target, tmp_path / "domino")
    assert isinstance(domino, DominoHead)
    torch.testing.assert_close(domino.embed_proj[2].weight, tensors["logit_head.embed_proj.2.weight"])


def test_falcons_lstm_reads_every_place_by_itself(target: Path, tmp_path: Path) -> None:
    """The released code runs it along the batch axis: two places of a text never meet in it."""
    head, tensors = read("falcon", target, tmp_path / "head")
    lstm = torch.nn.LSTM(2 * HIDDEN, HIDDEN, 2)
    lstm.load_state_dict(
        {name.removeprefix("lstm."): each for name, each in tensors.items() if name.startswith("lstm.")}
    )
    text = torch.randn(1, 5, 2 * HIDDEN)  # [batch, places, ...], given to a module that takes the first for the places
    torch.testing.assert_close(head.read(text[0, :, None]), lstm(text)[0][0])  # type: ignore[operator]


def test_what_does_not_fit_is_told(target: Path, tmp_path: Path) -> None:
    config = load_config(target)

    def refuse(name: str, raw: Mapping[str, Any] | None, tensors: Tensors, file: str = "model.safetensors") -> str:
        folder = written(tmp_path / name, raw, tensors, file)
        with pytest.raises((HeadMismatch, UnsupportedModel, ModelUnavailable)) as error:
            read_published(folder, config)
        assert "\n" not in str(error.value)
        return str(error.value)

    assert "the model has 32" in refuse("width", EAGLE3 | {"hidden_size": 64}, eagle3())
    assert "the model has 320" in refuse("vocabulary", EAGLE3 | {"vocab_size": 99}, eagle3())
    assert "lacks the tensor d2t" in refuse("d2t", EAGLE3, {k: v for k, v in eagle3().items() if k != "d2t"})
    assert "names tokens twice" in refuse("ids", EAGLE3, eagle3() | {"d2t": -torch.arange(20)})
    assert "lacks the tensor input_norm" in refuse("norm", SPECULATORS | {"norm_before_fc": True}, eagle3("layers.0."))
    assert "has 6" in refuse("layers", dflash() | {"num_target_layers": 36}, block())
    assert "lacks the tensor layers.1" in refuse("missing", dflash(), block(layers=1))
    assert "has the tensor layers.2" in refuse("more", dflash(), block(layers=3))
    assert "has shape [32, 96]" in refuse("taps", dflash(target_layer_ids=[1]), block())
    assert "does not say mask_token_id" in refuse("mask", dflash() | {"dflash_config": {}}, block())
    apart = medusa() | {
        f"0.1.linear.{name[11:]}": tensor + 1 for name, tensor in medusa().items() if name[:8] == "0.0.line"
    }
    assert "different blocks" in refuse("blocks", None, apart, "medusa_lm_head.safetensors")
    assert "no head of a known layout" in refuse("nothing", {}, random(x=(1,)))
    assert "lacks the tensor 0.0.linear.weight" in refuse(
        "medusa", None, random(**{"0__1__weight": (VOCAB, HIDDEN)}), "medusa_lm_head.pt"
    )
