"""A small drafter of the target's own kind: a few of its layers and a norm, between its embedding and its LM head.

It reads only text, no hidden states. The shipped `draft_model` is one, cut from the target's first layers and distilled. This
module is for training; drafts are made with `decoding.targets.fast_model`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from decoding.checkpoints.model_config import ModelConfig, Rope
from decoding.heads.head import Head, HeadConfig
from decoding.heads.modules.layer import LAYER_SIZES, DecoderLayer, LayerShape, RmsNorm

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
        names = ("heads", "kv_heads", "head_dim", "intermediate", "rope_theta", "eps", "bias", "qk_norm")
        shape = LayerShape(config.hidden, config.hidden, **{name: self.size(name) for name in names})
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
            rope=Rope(self.size("rope_theta")),
            rms_norm_eps=self.size("eps"),
            tie_embeddings=True,
            qkv_bias=self.size("bias"),
            output_bias=False,
            mlp_bias=False,
            qk_norm=self.size("qk_norm"),
            max_positions=MAX_POSITIONS,
            sliding_windows=(None,) * int(self.size("layers")),
            bos_id=None,
            eos_ids=(),
        )
