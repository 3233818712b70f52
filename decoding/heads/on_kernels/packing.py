"""Makes a head's `HeadWeights` from its module.

Each matrix is stored as NAME.weight, int8, as `kernels.cpu.head_linear.Matrix` describes it, with NAME.scales, NAME.offsets,
NAME.biases where it has any, and NAME.turns. Widths are padded to multiples of 64, heads with their halves apart, and each
gate of a recurrent cell by itself. A layer's are qkv, output, gates (all gates, then all ups) and down, with the vectors
post_norm and qk_norms.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from decoding.checkpoints.arrays import Floats, floats
from decoding.heads.head import Head
from decoding.heads.modules.block import BlockHead, DominoHead
from decoding.heads.modules.drafters import Eagle3Head, FalconHead, MedusaHead
from decoding.heads.modules.layer import Attention, GatedMlp
from decoding.heads.on_kernels.weights import HeadWeights
from decoding.targets.int8.packed_model import Arrays, padded
from decoding.targets.int8.packing import halves_apart, padded_to, rounded, whole_heads
from kernels.cpu.job import aligned_copy, pack
from kernels.cpu.quantize import hadamard_reference

_PACKED: WeakKeyDictionary[Head, HeadWeights] = WeakKeyDictionary()


def packed_head(head: Head) -> HeadWeights:
    """The head's weights for the kernels, made once for each module."""
    if head not in _PACKED:
        packer = _Packer(head)
        with torch.no_grad():
            _PARTS[type(head)](packer, cast(Any, head))
        _PACKED[head] = HeadWeights.of(head.config.hidden, head.all_sizes, packer.arrays)
    return _PACKED[head]


def is_packable(head: Head) -> bool:
    """Whether there are kernels for heads of this kind and these sizes."""
    return type(head) in _PARTS and not head.needs_torch


class _Packer:
    def __init__(self, head: Head) -> None:
        self.hidden, self.arrays = head.config.hidden, cast(Arrays, {})

    def vector(self, name: str, values: Tensor | Floats) -> None:
        """Numbers in fp32, with zeros behind, in every row."""
        array, columns = floats(values), padded(values.shape[-1])
        rows = padded_to(array.reshape(-1, array.shape[-1]), array.size // array.shape[-1], columns)
        self.arrays[name] = rows.reshape(*array.shape[:-1], columns)

    def matrix(
        self,
        name: str,
        weight: Tensor | Floats,
        bias: Tensor | Floats | None = None,
        parts: int = 1,
        turns: bool = False,
        gates: int = 1,
    ) -> None:
        """weight [gates * outputs, parts * inputs]; turns: its inputs get a Hadamard transform."""
        whole = _gates_padded(floats(weight), gates)
        split = np.unstack(whole.reshape(len(whole), parts, -1), axis=1)
        columns = padded(split[0].shape[1])
        wide = [padded_to(part, padded(len(part)), columns) for part in split]
        wide = [hadamard_reference(part) for part in wide] if turns else wide
        steps, scales = zip(*(rounded(part) for part in wide), strict=True)
        self.arrays[f"{name}.weight"] = aligned_copy(np.stack([pack(part) for part in steps]))
        self.arrays[f"{name}.scales"] = np.stack(scales)
        self.arrays[f"{name}.offsets"] = np.stack([128 * part.sum(1, dtype=np.int32) for part in steps])
        self.arrays[f"{name}.turns"] = np.array(int(turns))
        if bias is not None:
            biases = _gates_padded(floats(bias)[:, None], gates)
            self.arrays[f"{name}.biases"] = padded_to(biases, padded(len(biases)))[:, 0]

    def layer(self, index: int, attention: Attention, mlp: GatedMlp, post_norm: nn.RMSNorm, sizes: Any) -> None:
        """A decoder layer. sizes: the head's `size`."""
        name, dim = f"layers.{index}", sizes("head_dim")
        q, k, v = (_columns(each) for each in (attention.q_proj, attention.k_proj, attention.v_proj))
        both = np.concatenate([halves_apart(q, dim), halves_apart(k, dim), whole_heads(v, dim)])
        inputs = attention.q_proj.in_features
        self.matrix(f"{name}.qkv", both[:, :inputs], both[:, inputs], parts=inputs // self.hidden)
        self.matrix(f"{name}.output", whole_heads(floats(attention.o_proj.weight).T, dim).T)
        rows = [
            padded_to(floats(each.weight), padded(mlp.gate_proj.out_features)) for each in (mlp.gate_proj, mlp.up_proj)
        ]
        self.matrix(f"{name}.gates", np.concatenate(rows))
        self.matrix(f"{name}.down", mlp.down_proj.weight, turns=True)
        self.vector(f"{name}.post_norm", post_norm.weight)
        if hasattr(attention, "q_norm"):
            norms = [
                halves_apart(floats(norm.weight)[:, None], dim)[:, 0] for norm in (attention.q_norm, attention.k_norm)
            ]
            self.vector(f"{name}.qk_norms", np.stack(norms))


def _columns(linear: nn.Linear) -> Floats:
    """The weight with its bias as a last column; zeros where it has none."""
    bias = np.zeros(linear.out_features, np.float32) if linear.bias is None else floats(linear.bias)
    return np.concatenate([floats(linear.weight), bias[:, None]], 1)


def _gates_padded(weight: Floats, gates: int) -> Floats:
    """[gates * outputs, ...] with the outputs of each gate padded."""
    if gates == 1:
        return weight
    return np.concatenate([padded_to(part, padded(len(part))) for part in np.split(weight, gates)])


def _block(packer: _Packer, head: BlockHead) -> None:
    packer.matrix("fc", head.fc.weight, parts=len(head.config.taps), turns=True)
    packer.vector("hidden_norm", head.hidden_norm.weight)
    packer.vector("norm", head.norm.weight)
    if head.size("mask_token") is None:
        packer.vector("mask", head.mask)
    for index, layer in enumerate(cast(Sequence[Any], head.layers)):
        packer.layer(index, layer.self_attn, layer.mlp, layer.post_attention_layernorm, head.size)
        packer.vector(f"layers.{index}.input_norm", layer.input_layernorm.weight)
    if head.carry is not None:
        packer.matrix("carry", head.carry.weight)
    if head.skip is not None:
        places, rank = head.size("skip_places"), head.size("skip_rank")
        packer.matrix("skip_down", head.skip.down, turns=True)
        up = head.skip.up.float().view(places, -1, rank)  # stored as [places, rank, width]
        packer.vector("skip_up", up.transpose(1, 2))
        packer.arrays["skip_gain"] = head.skip.gain.float().numpy()


def _domino(packer: _Packer, head: DominoHead) -> None:
    _block(packer, head)
    inputs, recurrent = head.prefix_gru.all_weights[0]
    hidden, left, right = head.config.hidden, cast(Any, head.embed_proj[0]).weight, cast(Any, head.embed_proj[2]).weight
    packer.matrix("gru_inputs", inputs, gates=3)
    packer.matrix("gru_recurrent", recurrent, gates=3)
    packer.matrix("from_state", left[:, :hidden], turns=True)
    packer.matrix("from_prefix", left[:, hidden:])
    if head.size("own_output"):
        packer.vector("right_factor", right)
    else:
        packer.matrix("to_factor", right.float().T.contiguous())


def _medusa(packer: _Packer, head: MedusaHead) -> None:
    for index, block in enumerate(cast(Sequence[Any], head.blocks)):
        packer.matrix(f"blocks.{index}", block.linear.weight, block.linear.bias, turns=True)
    for index, own in enumerate(cast(Sequence[Any], head.lm_heads)):
        packer.arrays[f"lm_heads.{index}"] = own.weight.float().numpy()


def _eagle3(packer: _Packer, head: Eagle3Head) -> None:
    layer = head.midlayer
    packer.matrix("fc", head.fc.weight, parts=len(head.config.taps), turns=True)
    packer.layer(0, layer.self_attn, layer.mlp, layer.post_attention_layernorm, head.size)
    packer.vector("norm", head.norm.weight)
    packer.vector("token_norm", layer.input_layernorm.weight)
    packer.vector("feature_norm", layer.hidden_norm.weight)
    if head.size("own_lm_head"):
        packer.arrays["lm_head"] = head.lm_head.weight.float().numpy()


def _falcon(packer: _Packer, head: FalconHead) -> None:
    for index, weights in enumerate(head.lstm.all_weights):
        inputs, recurrent, *biases = weights
        bias = sum(biases) if biases else None
        packer.matrix(
            f"lstm_inputs.{index}", inputs, cast("Tensor | None", bias), 1 if index else 2, not index, gates=4
        )
        packer.matrix(f"lstm_recurrent.{index}", recurrent, gates=4)
    if isinstance(head.out, nn.Linear):
        packer.matrix("out", head.out.weight)
    for index, layer in enumerate(cast(Sequence[Any], head.layers)):
        packer.layer(index, layer.self_attn, layer.mlp, layer.post_attention_layernorm, head.size)
        if layer.input_layernorm is not None:
            packer.vector(f"layers.{index}.input_norm", layer.input_layernorm.weight)


_PARTS: Mapping[type[Head], Callable[[_Packer, Any], None]] = {
    BlockHead: _block,
    DominoHead: _domino,
    MedusaHead: _medusa,
    Eagle3Head: _eagle3,
    FalconHead: _falcon,
}
