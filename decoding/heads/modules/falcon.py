"""Falcon's drafter (arXiv 2412.12639): k tokens per pass, from an LSTM and attention that is causal between glances but not
inside one.

It reads pairs of a token and the target's feature of the token before it. The last k pairs are a glance: they see each other
and everything before them, and give the features of the next k positions, from which the target's LM head reads the tokens.

The paper's LSTM runs over the text. Here it runs over the last `memory` pairs of each position, from a state of zeros, so that
all positions of a text, and all nodes of a tree, are computed at once. The released code has in effect memory 1 (it feeds the
text along the batch axis, so that each position is a sequence of its own), and its weights need that.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from decoding.heads.head import Head, HeadConfig
from decoding.heads.modules.layer import LAYER_SIZES, DecoderLayer, KeysValues, LayerShape


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
        names = ("heads", "kv_heads", "head_dim", "intermediate", "rope_theta", "eps")
        shape = LayerShape(width, width, **{name: self.size(name) for name in names}, bias=self.size("attention_bias"))
        self.k, self.memory = int(self.size("k")), int(self.size("memory"))
        self.lstm = nn.LSTM(2 * width, inner, 2, bias=self.size("bias"), batch_first=True)
        self.out = nn.Identity() if inner == width else nn.Linear(inner, width, bias=False)
        self.layers = nn.ModuleList(DecoderLayer(shape, first_norm=index > 0) for index in range(self.size("layers")))

    def read(self, windows: Tensor) -> Tensor:
        """The LSTM's output [rows, hidden] after windows [rows, memory, 2 * hidden] of pairs, the row's own pair last."""
        states: Tensor = self.out(self.lstm(windows)[0][:, -1])
        return states

    def forward(
        self, x: Tensor, positions: Tensor, known: Sequence[Sequence[KeysValues]], visible: Tensor
    ) -> tuple[Tensor, list[KeysValues]]:
        """(features [rows, hidden], each layer's keys and values of the rows).

        x [rows, hidden]: from `read`. known: by layer, the keys and values before them; visible [rows, known + rows].
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
