"""transformers' `generate` as a peer on our weights: plain, with prompt lookup, and assisted by our own drafter."""

from collections.abc import Mapping
from copy import deepcopy
from functools import partial
from time import perf_counter
from typing import Any

import torch

from decoding.checkpoints.adapter import merged_weights
from decoding.checkpoints.weight_files import read_weights
from decoding.heads.head import Head, HeadMismatch, HeadUnavailable, find_head
from decoding.heads.modules.drafters import SmallLm
from eval.speed.side_by_side.peer_process import Ask, Peer, PeerModel

WAYS: Mapping[str, Mapping[str, Any]] = {
    "transformers": {},
    "transformers_prompt_lookup": {"prompt_lookup_num_tokens": 10},
}


def load(peer: PeerModel) -> dict[str, Peer]:
    """The peers by name; assisted generation is among them if one of our drafters fits the model."""
    model, ways = load_model(peer), dict(WAYS)
    if (assistant := load_assistant(model)) is not None:
        ways["transformers_assisted"] = {"assistant_model": assistant}
    return {name: partial(generate, model, peer.stop_ids, options) for name, options in ways.items()}


def load_model(peer: PeerModel) -> Any:
    """The checkpoint as a transformers model, with the adapter merged in."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(peer.checkpoint, dtype=peer.dtype)
    if peer.adapter is not None:
        changed = {f"{name}.weight" for name in peer.adapter.factors}
        tensors = merged_weights(read_weights(peer.checkpoint), peer.adapter)
        model.load_state_dict({name: tensor for name, tensor in tensors if name in changed}, strict=False)
    return model.to(peer.device).eval()


def load_assistant(model: Any, head: Head | str = "auto") -> Any | None:
    """The drafter of our `draft_model` as a transformers model that assists `model`; None if none fits."""
    try:
        drafter = find_head("draft_model", head)
        drafter.check_fits(model.get_input_embeddings().weight)
    except (HeadUnavailable, HeadMismatch):
        return None
    assert isinstance(drafter, SmallLm)
    sizes, config = drafter.model_config(), deepcopy(model.config)
    config.num_hidden_layers, config.intermediate_size = sizes.layers, sizes.intermediate_size
    config.num_attention_heads, config.num_key_value_heads = sizes.heads, sizes.kv_heads
    config.head_dim = sizes.head_dim
    assistant = type(model)(config).to(model.device, model.dtype).eval()
    weights = drafter.weights(model.get_input_embeddings().weight)
    missing = assistant.load_state_dict(dict(weights), strict=False).missing_keys
    assert set(missing) <= {"lm_head.weight"}, missing  # tied to the embedding
    return assistant


@torch.inference_mode()
def generate(model: Any, stop_ids: frozenset[int], options: Mapping[str, Any], ask: Ask) -> tuple[list[int], float]:
    """Generate as a `Peer` does; returns the new tokens, and milliseconds to the first of them."""
    ids, stop, clock = torch.tensor([ask.prompt], device=model.device), sorted(stop_ids), _FirstToken()
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=ask.limit,
        min_new_tokens=ask.limit if ask.exact else None,
        do_sample=False,
        eos_token_id=stop or None,
        pad_token_id=stop[0] if stop else 0,
        streamer=clock,
        **options,
    )
    return [token for token in out[0, ids.shape[1] :].tolist() if token not in stop_ids], clock.first_ms


class _FirstToken:
    """A streamer that notes when the first token arrives. It is given the prompt before that."""

    def __init__(self) -> None:
        self.first_ms, self._calls, self._start = 0.0, 0, perf_counter()

    def put(self, tokens: Any) -> None:
        self._calls += 1
        if self._calls == 2:
            self.first_ms = 1e3 * (perf_counter() - self._start)

    def end(self) -> None:
        """Do nothing; streamers must have this method."""
