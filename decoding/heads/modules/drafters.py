"""Networks of drafters: Medusa, a small language model, EAGLE-3 and Falcon.

- Medusa's heads (arXiv 2401.10774): each guesses one token further ahead, all from the same hidden state of the target.
- A small language model: a few layers of the target's own kind and a norm, between its embedding and its LM head. The shipped
  one is cut from the target's first layers and distilled. This module is for training; `fast_target` makes drafts with it.
- EAGLE-3's drafter (arXiv 2503.01840): one decoder layer over pairs of a token and the feature of the token before it, which
  continues from its own states. The feature of a committed token is fused from three of the target's hidden states.
- Falcon's drafter (arXiv 2412.12639): k tokens per pass, from an LSTM and attention over such pairs. The last k pairs are a
  glance: they see each other and everything before them, and give the features of the next k positions, from which the
  target's LM head reads the tokens. The paper's LSTM runs over the text; here it runs over the last `memory` pairs of each
  position, from zeros, so that all positions, and all nodes of a tree, are computed at once. The released weights need
  memory 1, since the released code feeds the text along the batch axis.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from decoding.checkpoints.model_config import ModelConfig, Rope
from decoding.heads.head import Head, HeadConfig
from decoding.heads.modules.layer import (
    LAYER_SIZES,
    Attention,
    DecoderLayer,
    GatedMlp,
    KeysValues,
    LayerShape,
    RmsNorm,
    TextRows,
)
from kernels.gpu.ragged import Ragged


class ResBlock(nn.Module):
    """x + SiLU(W x + b). W and b are zero at first, so an untrained head guesses what the LM head does."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] -> [..., width]."""
        return x + functional.silu(self.linear(x))


class MedusaHead(Head):
    """Reads its last tap, the output of the target's final norm; head i guesses the token 2 + i positions after that state's.

    heads: how many. layers: how often each head applies its residual block, one and the same, as in the released code.
    own_lm_head: whether each head has its own output matrix, as released heads do; otherwise it shares the target's.
    """

    sizes: ClassVar[Mapping[str, Any]] = {"heads": 4, "layers": 1, "own_lm_head": False}

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config)
        self.blocks = nn.ModuleList(ResBlock(config.hidden) for _ in range(self.size("heads")))
        self.lm_heads = nn.ModuleList(
            nn.Linear(config.hidden, config.vocab, bias=False)
            for _ in range(self.size("heads") if self.size("own_lm_head") else 0)
        )

    def forward(self, states: Tensor) -> Tensor:
        """[rows, hidden] -> [rows, heads, hidden]."""
        found = []
        for block in self.blocks:
            x = states
            for _ in range(self.size("layers")):
                x = block(x)
            found.append(x)
        return torch.stack(found, 1)

    def logits(self, states: Tensor, lm_head: Tensor, ids: Tensor | None = None) -> Tensor:
        """[..., heads, size] from `forward`'s states [..., heads, hidden]. lm_head [size, hidden]: the target's rows `ids`."""
        if not self.size("own_lm_head"):
            return states @ lm_head.T
        own: list[Tensor] = [each.weight for each in self.lm_heads]  # type: ignore[misc]
        weights = own if ids is None else [each[ids] for each in own]
        return torch.stack([states[..., i, :] @ weight.T for i, weight in enumerate(weights)], -2)


MAX_POSITIONS = 1 << 20  # rotary positions have no limit of their own


class SmallLm(Head):
    """layers: how many. bias: of queries, keys and values (Qwen2). qk_norm: as in Qwen3."""

    sizes: ClassVar[Mapping[str, Any]] = {
        **LAYER_SIZES,
        "layers": 1,
        "bias": False,
        "qk_norm": False,
    }

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config)
        flags = {name: self.size(name) for name in ("bias", "qk_norm")}
        shape = LayerShape.of(config.hidden, config.hidden, self.all_sizes, **flags)
        self.layers = nn.ModuleList(DecoderLayer(shape) for _ in range(self.size("layers")))
        self.norm = RmsNorm(config.hidden, self.size("eps"))

    def forward(self, embedded: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        """States [rows, hidden] that give logits with the target's LM head; visible [rows, rows]: what each row sees."""
        x = embedded
        for layer in self.layers:
            x, _ = layer(x, positions, [], visible)
        states: Tensor = self.norm(x)
        return states

    def weights(self, embedding: Tensor) -> Iterator[tuple[str, Tensor]]:
        """The weights by transformers' names, for `FastModel`."""
        yield "model.embed_tokens.weight", embedding
        for name, tensor in self.state_dict().items():
            yield f"model.{name}", tensor

    def model_config(self) -> ModelConfig:
        """The configuration that `FastModel` needs."""
        return ModelConfig(
            family="llama",
            vocab_size=self.config.vocab,
            hidden_size=self.config.hidden,
            intermediate_size=self.size("intermediate"),
            layers=self.size("layers"),
            heads=self.size("heads"),
            kv_heads=self.size("kv_heads"),
            head_dim=self.size("head_dim"),
            rope=Rope.of(self.all_sizes),
            rms_norm_eps=self.size("eps"),
            tie_embeddings=True,
            qkv_bias=self.size("bias"),
            output_bias=False,
            mlp_bias=False,
            qk_norm=self.size("qk_norm"),
            max_positions=MAX_POSITIONS,
            sliding_windows=(None,) * int(self.size("layers")),
        )


class Eagle3Head(Head):
    """own_lm_head: whether it has its own output matrix for the tokens `config.frequent` (all, if empty), as released heads do;
    otherwise it shares the target's rows. width: of its states and embeddings, if not the target's; it then has an embedding of
    its own, as with own_embedding. norm_before_residual: whether the residual is the normed feature (heads of `speculators`).
    EAGLE-3.1 (arXiv 2605.09992): norm_before_fc norms the tapped states together, fc_norm each by itself; with norm_output a
    state is normed before the next pair reads it, too.
    """

    sizes: ClassVar[Mapping[str, Any]] = {
        **LAYER_SIZES,
        "intermediate": 1024,
        "bias": False,
        "own_lm_head": False,
        "norm_before_residual": False,
        "output_bias": False,
        "qk_norm": False,
        "width": None,
        "own_embedding": False,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
    }

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config)
        width, eps, taps = self.width, self.size("eps"), len(config.taps)
        self.fc = nn.Linear(taps * config.hidden, width, bias=False)
        self.input_norm = RmsNorm(taps * config.hidden, eps) if self.size("norm_before_fc") else None
        each = [RmsNorm(config.hidden, eps) for _ in config.taps] if self.size("fc_norm") else ()
        self.fc_norm = nn.ModuleList(each)
        flags = {name: self.size(name) for name in ("bias", "output_bias", "qk_norm")}
        shape = LayerShape.of(width, 2 * width, self.all_sizes, **flags)
        self.midlayer = _PairLayer(shape, self.size("norm_before_residual"))
        self.norm = RmsNorm(width, eps)
        if self.size("own_embedding") or width != config.hidden:
            self.embed_tokens = nn.Embedding(config.vocab, width)
        if self.size("own_lm_head"):
            self.lm_head = nn.Linear(width, len(config.frequent) or config.vocab, bias=False)

    @property
    def width(self) -> int:
        """Of its states."""
        return int(self.size("width") or self.config.hidden)

    @property
    def needs_torch(self) -> bool:
        others = "output_bias", "qk_norm", "own_embedding", "norm_before_fc", "fc_norm", "norm_output"
        return self.width != self.config.hidden or any(self.size(name) for name in others)

    def embedded(self, ids: Tensor, embedding: Tensor) -> Tensor:
        """[ids, width]: the head's own embeddings of tokens, or those of the target's `embedding` [vocab, hidden]."""
        own = getattr(self, "embed_tokens", None)
        return functional.embedding(ids, embedding if own is None else own.weight)

    def fused(self, hidden: Tensor) -> Tensor:
        """Features [rows, width] from tapped states [rows, taps, hidden]."""
        if self.fc_norm:
            hidden = torch.stack([norm(hidden[:, tap]) for tap, norm in enumerate(self.fc_norm)], 1)
        flat = hidden.flatten(1)
        features: Tensor = self.fc(flat if self.input_norm is None else self.input_norm(flat))
        return features

    def keys_values(self, embedded: Tensor, features: Tensor, positions: Tensor) -> KeysValues:
        """The keys and values that later pairs see of these pairs."""
        return self.midlayer.self_attn.keys_values(self.midlayer.joined(embedded, features), positions)

    def forward(
        self,
        embedded: Tensor,
        features: Tensor,
        positions: Tensor,
        known: Sequence[KeysValues] | TextRows,
        visible: Tensor | None = None,
    ) -> tuple[Tensor, KeysValues]:
        """(states [pairs, width], the pairs' keys and values).

        embedded [pairs, width]: of tokens at `positions` [pairs]; features [pairs, width]: of the tokens before them. visible
        [pairs, known + pairs]: see `Attention`. A state is the feature of the pair's token and predicts the next one.
        """
        states, own = self.midlayer(embedded, features, positions, known, visible)
        return self.norm(states) if self.size("norm_output") else states, own

    @property
    def read_shape(self) -> tuple[int, ...]:
        """Of what a row of `in_tables` reads: a feature."""
        return (self.width,)

    def in_tables(self, features: Tensor, rows: Ragged, embedding: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        """`forward` over tables, as a graph can hold it. turn: see `Attention.in_tables`."""
        layer = self.midlayer
        pairs = layer.joined(self.embedded(rows.token, embedding), features)
        states = layer.after_attention(features, layer.self_attn.in_tables(pairs, rows, 0, turn))
        return self.norm(states) if self.size("norm_output") else states

    def logits(self, states: Tensor, lm_head: Tensor) -> Tensor:
        """[..., size] from states [..., width]; lm_head: the target's rows, unless the head has its own."""
        weight = self.lm_head.weight if self.size("own_lm_head") else lm_head
        return functional.linear(states if self.size("norm_output") else self.norm(states), weight)


class _PairLayer(nn.Module):
    """A Llama layer whose attention reads the token and the feature, and whose residual is the feature."""

    def __init__(self, shape: LayerShape, norm_before_residual: bool) -> None:
        super().__init__()
        self._normed_residual = norm_before_residual
        self.input_layernorm = RmsNorm(shape.width, shape.eps)
        self.hidden_norm = RmsNorm(shape.width, shape.eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RmsNorm(shape.width, shape.eps)
        self.mlp = GatedMlp(shape.width, shape.intermediate)

    def joined(self, embedded: Tensor, features: Tensor) -> Tensor:
        """[pairs, 2 * hidden]."""
        return torch.cat([self.input_layernorm(embedded), self.hidden_norm(features)], -1)

    def forward(
        self,
        embedded: Tensor,
        features: Tensor,
        positions: Tensor,
        known: Sequence[KeysValues] | TextRows,
        visible: Tensor | None,
    ) -> tuple[Tensor, KeysValues]:
        mixed, own = self.self_attn(self.joined(embedded, features), positions, known, visible)
        return self.after_attention(features, mixed), own

    def after_attention(self, features: Tensor, mixed: Tensor) -> Tensor:
        """States [pairs, hidden]. mixed: what attention adds."""
        x = mixed + (self.hidden_norm(features) if self._normed_residual else features)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class FalconHead(Head):
    """Reads its last tap, the output of the target's final norm, and guesses that output at later positions.

    k: tokens of a glance. lstm: width of its two layers; if that is not the target's, a matrix projects back. layers: of
    attention. memory: see above. bias: of the LSTM.
    """

    sizes: ClassVar[Mapping[str, Any]] = {
        "k": 2,
        "lstm": 256,
        "memory": 4,
        "layers": 1,
        **LAYER_SIZES,
        "intermediate": 1024,
        "bias": True,
        "attention_bias": False,
    }

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config)
        width, inner = config.hidden, self.size("lstm")
        shape = LayerShape.of(width, width, self.all_sizes, bias=self.size("attention_bias"))
        self.k, self.memory = int(self.size("k")), int(self.size("memory"))
        self.lstm = nn.LSTM(2 * width, inner, 2, bias=self.size("bias"), batch_first=True)
        self.out = nn.Identity() if inner == width else nn.Linear(inner, width, bias=False)
        self.layers = nn.ModuleList(DecoderLayer(shape, first_norm=index > 0) for index in range(self.size("layers")))

    def read(self, windows: Tensor) -> Tensor:
        """The LSTM's output [rows, hidden] after windows [rows, memory, 2 * hidden] of pairs, the row's own pair last."""
        states: Tensor = self.out(self.lstm(windows)[0][:, -1])
        return states

    def forward(
        self, x: Tensor, positions: Tensor, known: Sequence[Sequence[KeysValues] | TextRows], visible: Tensor | None
    ) -> tuple[Tensor, list[KeysValues]]:
        """(features [rows, hidden], each layer's keys and values of the rows).

        x [rows, hidden]: from `read`. known: by layer, the keys and values before them; visible [rows, known + rows]: see
        `Attention.forward`.
        """
        found = []
        for layer, before in zip(self.layers, known, strict=True):
            x, own = layer(x, positions, before, visible)
            found.append(own)
        return x, found


def pairs_of(embedded: Tensor, features: Tensor) -> Tensor:
    """[..., 2 * hidden] from tokens' embeddings and the features of the tokens before them."""
    return torch.cat([embedded, features], -1)


def windows_of(pairs: Tensor, memory: int) -> Tensor:
    """[..., length - memory + 1, memory, 2 * hidden] from consecutive pairs [..., length, 2 * hidden]."""
    return pairs.unfold(-2, memory, 1).transpose(-1, -2)
