"""Published heads compute what the authors' code describes: each is computed a second time here, plainly and in fp64.

The references follow what the code named in `decoding.heads.published.LAYOUTS` does. They share no line with ours.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from decoding.checkpoints.identity import TargetIdentity
from decoding.checkpoints.model_config import ModelConfig, load_config
from decoding.engine.method import LookupCorpus
from decoding.engine.sampler import Sampler
from decoding.errors import UnsupportedModel
from decoding.heads.head import HeadMismatch, load_head, save_head
from decoding.heads.modules.block import BlockHead, DominoHead
from decoding.heads.modules.drafters import Eagle3Head, FalconHead
from decoding.heads.on_torch.block import TorchBlock, TorchPaths
from decoding.heads.on_torch.context import TensorContext
from decoding.heads.on_torch.drafters import TorchEagle3
from decoding.heads.published import read_published
from tests.decoding.heads.test_published_heads import (
    ATTENTION,
    DOMINO,
    EAGLE3,
    FALCON,
    HIDDEN,
    LAYERS,
    PREFIX_GRU,
    SPECULATORS,
    VOCAB,
    Tensors,
    block,
    dflash,
    eagle3,
    falcon,
    layer,
    random,
    written,
)
from tests.decoding.models.tiny_models import tiny_checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")

HEADS, KV_HEADS, DIM, EPS = 4, 2, 8, 1e-6
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return load_config(tiny_checkpoint(tmp_path_factory.mktemp("target"), num_hidden_layers=LAYERS))


def read(folder: Path, config: Mapping[str, Any] | None, tensors: Tensors, target: ModelConfig) -> Any:
    return read_published(written(folder, config, tensors), target).double()


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def context(width: int = HIDDEN) -> TensorContext:
    embedding, lm_head = normal(VOCAB, width, seed=5), normal(VOCAB, width, seed=6)
    return TensorContext(Sampler(), embedding, lm_head, LookupCorpus())


# --- the authors' layers, plainly


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return weight.double() * x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt()


def turned(x: Tensor, positions: Tensor, frequencies: Tensor) -> Tensor:
    """x [rows, heads, dim] by transformers' `rotate_half`."""
    angles = (positions.double()[:, None] * frequencies.double()).repeat(1, 2)[:, None]
    half = x.shape[-1] // 2
    return x * angles.cos() + torch.cat([-x[..., half:], x[..., :half]], -1) * angles.sin()


def frequencies(theta: float = 1e4, scaling: Mapping[str, Any] | None = None) -> Tensor:
    config = LlamaConfig(hidden_size=32, num_attention_heads=4, head_dim=DIM, max_position_embeddings=131072)
    config.rope_parameters = {"rope_type": "default", "rope_theta": theta, **(scaling or {})}
    return LlamaRotaryEmbedding(config).inv_freq


def mixed(
    w: Tensors, queries: Tensor, sources: Tensor, at: Tensor, source_at: Tensor, seen: Tensor, turns: Tensor
) -> Tensor:
    """Attention of rows to sources, and the output projection. w: of one `self_attn.`."""

    def heads(name: str, x: Tensor, count: int) -> Tensor:
        made = x @ w[f"{name}_proj.weight"].double().T + w.get(f"{name}_proj.bias", torch.zeros(1)).double()
        split = made.view(len(x), count, DIM)
        return rms(split, w[f"{name}_norm.weight"]) if f"{name}_norm.weight" in w else split

    q, k = turned(heads("q", queries, HEADS), at, turns), turned(heads("k", sources, KV_HEADS), source_at, turns)
    v, out = heads("v", sources, KV_HEADS), []
    for head in range(HEADS):
        of = head * KV_HEADS // HEADS
        scores = (q[:, head] @ k[:, of].T / DIM**0.5).masked_fill(~seen, float("-inf"))
        out.append(scores.softmax(-1) @ v[:, of])
    flat = torch.stack(out, 1).flatten(1)
    return flat @ w["o_proj.weight"].double().T + w.get("o_proj.bias", torch.zeros(1)).double()


def gated(w: Tensors, x: Tensor) -> Tensor:
    gate, up, down = (w[f"{name}_proj.weight"].double() for name in ("gate", "up", "down"))
    inner = x @ gate.T
    return (inner * inner.sigmoid() * (x @ up.T)) @ down.T


def inside(tensors: Tensors, prefix: str) -> Tensors:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


# --- EAGLE-3


def eagle3_states(
    tensors: Tensors, config: Mapping[str, Any], embedded: Tensor, fused: Tensor, turns: Tensor
) -> Tensor:
    """Of pairs at 0, 1, ..., each of which sees those before it."""
    w, count = inside(tensors, "midlayer.") or inside(tensors, "layers.0."), len(fused)
    normed = rms(fused, w["hidden_norm.weight"])
    x = torch.cat([rms(embedded, w["input_layernorm.weight"]), normed], 1)
    places, causal = torch.arange(count), torch.ones(count, count, dtype=torch.bool).tril()
    residual = normed if config.get("norm_before_residual") else fused
    x = residual + mixed(inside(w, "self_attn."), x, x, places, places, causal, turns)
    x = x + gated(inside(w, "mlp."), rms(x, w["post_attention_layernorm.weight"]))
    return rms(x, tensors["norm.weight"]) if config.get("norm_output") else x


def eagle3_guesses(tensors: Tensors, config: Mapping[str, Any], state: Tensor, lm_head: Tensor) -> Tensor:
    """Log-probabilities [vocab] of a state's next token; -inf for tokens that are not drafted."""
    own = tensors["lm_head.weight"].double() if "lm_head.weight" in tensors else lm_head
    scores = (state if config.get("norm_output") else rms(state, tensors["norm.weight"])) @ own.T
    found = torch.full((VOCAB,), float("-inf"), dtype=torch.float64)
    ids = torch.arange(len(own)) + tensors.get("d2t", torch.zeros(len(own), dtype=torch.long))
    found[ids] = scores.log_softmax(-1)
    return found


NORMED = {"norm_before_fc": True, "fc_norm": False, "norm_output": True}
EACH = {"norm_before_fc": False, "fc_norm": True, "norm_output": True}
FC_NORMS = random(**{f"fc_norm__{i}__weight": (HIDDEN,) for i in range(3)})
QK_NORMS = {f"midlayer.self_attn.{n}": t for n, t in random(q_norm__weight=(8,), k_norm__weight=(8,)).items()}
BIASES = random(q_proj__bias=(32,), k_proj__bias=(16,), v_proj__bias=(16,), o_proj__bias=(HIDDEN,))
EAGLE3_CASES: dict[str, tuple[dict[str, Any], Tensors]] = {
    "authors'": (EAGLE3, eagle3()),
    "llama3 scaling": (EAGLE3 | {"rope_theta": 5e5, "rope_scaling": LLAMA3}, eagle3()),
    "speculators": (SPECULATORS, eagle3("layers.0.")),
    "speculators, llama3": (
        SPECULATORS | {"transformer_layer_config": {**ATTENTION, "rope_parameters": {"rope_theta": 5e5, **LLAMA3}}},
        eagle3("layers.0."),
    ),
    "3.1, normed together": (SPECULATORS | NORMED, eagle3("layers.0.") | random(input_norm__weight=(3 * HIDDEN,))),
    "3.1, normed each": (SPECULATORS | EACH, eagle3("layers.0.") | FC_NORMS),
    "qk norms": (EAGLE3, eagle3() | QK_NORMS),
    "biases": (EAGLE3, eagle3() | {f"midlayer.self_attn.{name}": each for name, each in BIASES.items()}),
    "target's LM head": (
        {name: value for name, value in EAGLE3.items() if name != "draft_vocab_size"},
        {name: tensor for name, tensor in eagle3().items() if name not in ("lm_head.weight", "d2t", "t2d")},
    ),
    "trained embedding": (SPECULATORS | {"embed_requires_grad": True}, eagle3("layers.0.")),
}


@pytest.mark.parametrize("case", EAGLE3_CASES)
def test_eagle3_forwards(case: str, target: ModelConfig, tmp_path: Path) -> None:
    config, tensors = EAGLE3_CASES[case]
    check_eagle3(config, tensors, target, tmp_path)


def test_an_eagle3_head_may_be_narrower_than_its_target(target: ModelConfig, tmp_path: Path) -> None:
    """It has an embedding of its own then. Guards against such heads being refused."""
    wide = replace(target, hidden_size=48)
    tensors = eagle3() | random(fc__weight=(HIDDEN, 3 * 48))
    check_eagle3(EAGLE3 | {"target_hidden_size": 48}, tensors, wide, tmp_path, width=48)
    with pytest.raises(HeadMismatch, match="the model has 32"):
        read(tmp_path / "other", EAGLE3 | {"target_hidden_size": 48}, tensors, target)


def check_eagle3(
    config: Mapping[str, Any], tensors: Tensors, target: ModelConfig, folder: Path, width: int = HIDDEN
) -> None:
    head = read(folder / "head", config, tensors, target)
    assert isinstance(head, Eagle3Head)
    layers = config.get("transformer_layer_config", config)
    rope = layers.get("rope_parameters") or {}
    turns = frequencies(
        rope.get("rope_theta") or layers.get("rope_theta", 1e4),
        layers.get("rope_scaling") or (rope if "factor" in rope else None),
    )
    target_side, text = (
        context(width),
        torch.randint(0, VOCAB, (13,), generator=torch.Generator().manual_seed(2)).tolist(),
    )
    own = width != HIDDEN or config.get("embed_requires_grad")
    embedding = tensors["embed_tokens.weight"].double() if own else target_side.embedding
    hidden = normal(len(text) - 1, 3, width, seed=3)
    runtime = TorchEagle3(head, target_side, text)
    runtime.read(hidden[:9])
    runtime.paired([(runtime, text[:10], 0)])
    runtime.read(hidden[9:])
    ((state, found),) = runtime.paired([(runtime, text, 5)])

    flat = hidden.flatten(1)
    if config.get("norm_before_fc"):
        flat = rms(flat, tensors["input_norm.weight"])
    if config.get("fc_norm"):
        flat = torch.cat([rms(hidden[:, tap], tensors[f"fc_norm.{tap}.weight"]) for tap in range(3)], 1)
    fused, tokens = flat @ tensors["fc.weight"].double().T, list(text)
    for drafted in (7, 8, 9):
        wanted = eagle3_states(tensors, config, embedding[tokens[1:]], fused, turns)[-1]
        torch.testing.assert_close(state[0], wanted, **CLOSE)
        guesses = eagle3_guesses(tensors, config, wanted, target_side.lm_head)
        assert found is not None
        ids, scores = found
        torch.testing.assert_close(scores[0], guesses.topk(5).values, **CLOSE)
        torch.testing.assert_close(guesses[ids[0]], guesses.topk(5).values, **CLOSE)
        ((state, found),) = runtime.grown([(runtime, [drafted], state, [0], len(tokens), 5)])
        tokens.append(drafted)
        fused = torch.cat([fused, wanted[None]])


def test_eagle3_reads_the_layers_that_are_meant(target: ModelConfig, tmp_path: Path) -> None:
    """By layers' outputs in `eagle_config`, else by index of hidden state: one layer apart, and nothing fails."""
    outputs = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 4]}}
    assert read(tmp_path / "a", EAGLE3 | outputs, eagle3(), target).config.taps == (1, 2, 5)
    assert read(tmp_path / "b", SPECULATORS, eagle3("layers.0."), target).config.taps == (1, 3, 5)
    lifted = SPECULATORS | {
        "eagle_aux_hidden_state_layer_ids": [1, 2, 2]
    }  # a converted head: outputs of the usual layers
    assert read(tmp_path / "c", lifted, eagle3("layers.0."), target).config.taps == (2, 3, 3)
    beyond = SPECULATORS | {"eagle_aux_hidden_state_layer_ids": [1, 46, 90]}
    with pytest.raises(HeadMismatch, match="hidden state 46 of a model of 6 layers"):
        read(tmp_path / "d", beyond, eagle3("layers.0."), target)


# --- block heads


def block_states(
    tensors: Tensors, hidden: Tensor, embedded: Tensor, causal: bool, turns: Tensor, layers: int = 2
) -> Tensor:
    """Of all positions of a block behind a context of tapped states [tokens, taps, hidden]."""
    features = rms(hidden.flatten(1) @ tensors["fc.weight"].double().T, tensors["hidden_norm.weight"])
    before, size, x = len(features), len(embedded), embedded
    places = torch.arange(before + size)
    seen = torch.ones(size, before + size, dtype=torch.bool)
    seen = seen.tril(before) if causal else seen
    for index in range(layers):
        w = inside(tensors, f"layers.{index}.")
        normed = rms(x, w["input_layernorm.weight"])
        sources = torch.cat([features, normed])
        x = x + mixed(inside(w, "self_attn."), normed, sources, places[before:], places, seen, turns)
        x = x + gated(inside(w, "mlp."), rms(x, w["post_attention_layernorm.weight"]))
    return rms(x, tensors["norm.weight"])


def biased(tensors: Tensors) -> Tensors:
    return tensors | {f"layers.{i}.self_attn.{name}": each + i for i in range(2) for name, each in BIASES.items()}


BLOCK_CASES: dict[str, tuple[dict[str, Any], Tensors, bool]] = {
    "dflash": (dflash(), block(), False),
    "dflash, scaled": (dflash() | {"rope_parameters": {"rope_theta": 5e5, **LLAMA3}}, block(), False),
    "dflash, attention_bias": (dflash() | {"attention_bias": True}, biased(block()), False),
    "dflash, is_causal": (dflash() | {"is_causal": True}, block(), True),
    "jetspec": (dflash(causal_head=True), block(), True),
}


@pytest.mark.parametrize("case", BLOCK_CASES)
def test_block_forwards(case: str, target: ModelConfig, tmp_path: Path) -> None:
    config, tensors, causal = BLOCK_CASES[case]
    head = read(tmp_path / "head", config, tensors, target)
    assert isinstance(head, BlockHead) and head.config.taps == (1, 3, 5)
    rope = config["rope_parameters"]
    turns = frequencies(rope["rope_theta"], rope if "factor" in rope else None)
    target_side, hidden = context(), normal(11, 3, HIDDEN, seed=3)
    runtime = TorchBlock(head, target_side, list(range(12)))
    for end in (7, 11):
        runtime.append(hidden[runtime.count : end])
        embedded = target_side.embedding[[40, *[300] * 4]]
        wanted = block_states(tensors, hidden[:end], embedded, causal, turns)[1:]
        torch.testing.assert_close(runtime.states([40], 4), wanted, **CLOSE)


def test_domino_forwards(target: ModelConfig, tmp_path: Path) -> None:
    tensors = block() | PREFIX_GRU
    head = read(tmp_path / "head", DOMINO, tensors, target)
    assert isinstance(head, DominoHead)
    target_side, hidden, turns = context(), normal(11, 3, HIDDEN, seed=3), frequencies(1e6)
    runtime, text = TorchPaths(head, target_side, list(range(12))), [*range(11), 40]
    runtime.append(hidden)
    states = runtime.states([40], 4)
    wanted = block_states(tensors, hidden, target_side.embedding[[40, *[300] * 4]], False, turns)
    torch.testing.assert_close(states, wanted, **CLOSE)  # shifted: the anchor's position guesses, too
    expand, state, last = runtime.expansion(states, text, 6), torch.zeros(10, dtype=torch.float64), 40
    w = {name.rpartition(".")[2]: each.double() for name, each in PREFIX_GRU.items() if name.startswith("prefix_gru")}
    down, up = (PREFIX_GRU[f"embed_proj.{place}.weight"].double() for place in (0, 2))
    for depth in range(5):
        read_in, kept = w["weight_ih_l0"] @ target_side.embedding[last], w["weight_hh_l0"] @ state
        reset, update = ((read_in[a : a + 10] + kept[a : a + 10]).sigmoid() for a in (0, 10))
        state = (1 - update) * (read_in[20:] + reset * kept[20:]).tanh() + update * state
        logits = target_side.lm_head @ wanted[depth]
        if depth:  # the first guess is the block head's own: `pure_draft_prefix_len` 1
            inner = down @ torch.cat([wanted[depth], state])
            logits = logits + up @ (inner * inner.sigmoid())
        best = logits.log_softmax(-1).topk(6)
        ids, scores = expand(depth, [last] if depth else [], [0])
        torch.testing.assert_close(scores[0], best.values, **CLOSE)
        assert ids[0].tolist() == best.indices.tolist()
        last = int(ids[0, 1])


# --- Falcon


def test_falcon_forwards(target: ModelConfig, tmp_path: Path) -> None:
    """Each place has an LSTM of its own, as the released code feeds a text; the first layer has no norm in front."""
    tensors = falcon()
    head = read(tmp_path / "head", FALCON, tensors, target)
    assert isinstance(head, FalconHead)
    pairs = normal(6, 2 * HIDDEN)
    x = pairs
    for index in range(2):
        w = {name: each.double() for name, each in inside(tensors, "lstm.").items() if name.endswith(f"_l{index}")}
        gates = x @ w[f"weight_ih_l{index}"].T + w[f"bias_ih_l{index}"] + w[f"bias_hh_l{index}"]
        enter, _, cell, leave = gates.chunk(4, -1)
        x = leave.sigmoid() * (enter.sigmoid() * cell.tanh()).tanh()
    torch.testing.assert_close(head.read(pairs[:, None]), x, **CLOSE)
    places, seen = torch.arange(6), torch.ones(6, 6, dtype=torch.bool).tril()
    seen[4, 5] = True  # the last two are a glance
    got, _ = head(x, places, [[], []], seen)
    for index in range(2):
        w = inside(tensors, f"layers.{index}.")
        normed = rms(x, w["input_layernorm.weight"]) if index else x
        x = x + mixed(inside(w, "self_attn."), normed, normed, places, places, seen, frequencies())
        x = x + gated(inside(w, "mlp."), rms(x, w["post_attention_layernorm.weight"]))
    torch.testing.assert_close(got, x, **CLOSE)


# --- what would be computed otherwise is refused, and what was read is kept


WINDOWS = {"use_sliding_window": True, "sliding_window": 512, "max_window_layers": 0}
REFUSED: dict[str, tuple[dict[str, Any], Tensors, str]] = {
    "eagle3, windows": (EAGLE3 | WINDOWS, eagle3(), "sliding windows"),
    "eagle3, a layer's window": (
        SPECULATORS | {"transformer_layer_config": {**ATTENTION, "layer_types": ["sliding_attention"]}},
        eagle3("layers.0."),
        "sliding windows",
    ),
    "block, windows": (
        {name: value for name, value in dflash().items() if name != "layer_types"} | WINDOWS,
        block(),
        "sliding windows",
    ),
    "eagle3, yarn": (
        EAGLE3 | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        eagle3(),
        "'yarn' is not supported",
    ),
    "block, trained embedding": (dflash() | {"embed_requires_grad": True}, block(), "a trained embedding"),
    "block, own vocabulary": (
        dflash(),
        block() | random(lm_head__weight=(20, HIDDEN)) | {"d2t": torch.zeros(20, dtype=torch.long)},
        "an LM head of its own",
    ),
    "block, scaled logits": (dflash(output_multiplier=0.5), block(), "output_multiplier = 0.5"),
    "block, DFlash 2": (
        dflash(),
        block() | random(candidate_selector__hidden_projection__weight=(8, HIDDEN)),
        "DFlash 2",
    ),
    "block, gelu": (dflash() | {"hidden_act": "gelu"}, block(), "only silu"),
    "eagle3, two layers": (EAGLE3 | {"num_hidden_layers": 2}, eagle3() | layer("layers.1.", HIDDEN), "several layers"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_be_computed_otherwise_is_refused(case: str, target: ModelConfig, tmp_path: Path) -> None:
    config, tensors, told = REFUSED[case]
    with pytest.raises(UnsupportedModel, match=told):
        read(tmp_path / "head", config, tensors, target)


def test_a_dflash_head_reads_as_many_layers_as_it_has_where_none_are_named(target: ModelConfig, tmp_path: Path) -> None:
    """Guards against five taps for any head."""
    for layers, fused, taps in ((1, 1, (4,)), (2, 2, (2, 4))):
        config = dflash() | {"num_hidden_layers": layers, "dflash_config": {"mask_token_id": 300}}
        tensors = block(layers) | random(fc__weight=(HIDDEN, fused * HIDDEN))
        assert read(tmp_path / str(layers), config, tensors, target).config.taps == taps


def test_what_was_read_is_kept(target: ModelConfig, tmp_path: Path) -> None:
    config, tensors = EAGLE3_CASES["speculators, llama3"]
    head = read_published(written(tmp_path / "theirs", config, tensors), target)
    save_head(head, tmp_path / "ours", TargetIdentity("0"))
    again = load_head(tmp_path / "ours")
    assert again.config == head.config and again.size("rope_scaling")["factor"] == 8.0
