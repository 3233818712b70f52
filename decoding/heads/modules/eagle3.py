"""EAGLE-3's drafter (arXiv 2503.01840): one decoder layer over (token, feature) pairs, which continues from its own states.

The feature of a committed token is fused from three of the target's hidden states; that of a drafted token is the drafter's own
output. A pair joins a token with the feature of the token before it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from decoding.heads.head import Head, HeadConfig
from decoding.heads.modules.layer import LAYER_SIZES, Attention, GatedMlp, KeysValues, LayerShape, RmsNorm


class Eagle3Head(Head):
    """own_lm_head: whether it has its own output matrix for the tokens `config.frequent` (all, if empty), as released heads do;
    otherwise it shares the target's rows. norm_before_residual: whether the residual is the normed feature (heads of
    `speculators`).
    """

    sizes: ClassVar[Mapping[str, Any]] = {
        **LAYER_SIZES,
        "intermediate": 1024,
        "bias": False,
        "own_lm_head": False,
        "norm_before_residual": False,
        "target_hidden": None,  # width of the target's states; None: the head's own
    }

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config)
        width, eps = config.hidden, self.size("eps")
        self.fc = nn.Linear(len(config.taps) * (self.size("target_hidden") or width), width, bias=False)
        self.midlayer = _PairLayer(self._shape(), self.size("norm_before_residual"))
        self.norm = RmsNorm(width, eps)
        if self.size("own_lm_head"):
            self.lm_head = nn.Linear(width, len(config.frequent) or config.vocab, bias=False)

    def _shape(self) -> LayerShape:
        names = ("heads", "kv_heads", "head_dim", "intermediate", "rope_theta", "eps", "bias")
        return LayerShape(self.config.hidden, 2 * self.config.hidden, **{name: self.size(name) for name in names})

    def fused(self, hidden: Tensor) -> Tensor:
        """Features [rows, hidden] from tapped states [rows, taps, target_hidden]."""
        features: Tensor = self.fc(hidden.flatten(1))
        return features

    def keys_values(self, embedded: Tensor, features: Tensor, positions: Tensor) -> KeysValues:
        """The keys and values that later pairs see of these pairs."""
        return self.midlayer.self_attn.keys_values(self.midlayer.joined(embedded, features), positions)

    def forward(
        self,
        embedded: Tensor,
        features: Tensor,
        positions: Tensor,
        known: Sequence[KeysValues],
        visible: Tensor | None = None,
    ) -> tuple[Tensor, KeysValues]:
        """(states [pairs, hidden], the pairs' keys and values).

        embedded [pairs, hidden]: of tokens at `positions` [pairs]; features [pairs, hidden]: of the tokens before them. visible
        [pairs, known + pairs]: see `Attention`. A state is the feature of the pair's token and predicts the next one.
        """
        states: tuple[Tensor, KeysValues] = self.midlayer(embedded, features, positions, known, visible)
        return states

    def logits(self, states: Tensor, lm_head: Tensor) -> Tensor:
        """[..., size] from states [..., hidden]; lm_head: the target's rows, unless the head has its own."""
        weight = self.lm_head.weight if self.size("own_lm_head") else lm_head
        return functional.linear(self.norm(states), weight)


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
        self, embedded: Tensor, features: Tensor, positions: Tensor, known: Sequence[KeysValues], visible: Tensor | None
    ) -> tuple[Tensor, KeysValues]:
        residual = self.hidden_norm(features) if self._normed_residual else features
        mixed, own = self.self_attn(self.joined(embedded, features), positions, known, visible)
        x = residual + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), own
