"""What a user would otherwise pick, on the same weights and prompts in the same run: transformers' `generate`, llama.cpp.

Each peer decodes greedily, with the same stop tokens and length limit. Counted as here: wall time, prefill included.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from decoding.adapter import merged_weights
from decoding.checkpoint import read_weights, resolve
from decoding.engine import Request, decode
from decoding.heads.head import Head, HeadMismatch, HeadUnavailable, find_head
from decoding.heads.small_lm import SmallLm
from decoding.method import load_method
from decoding.metrics import measure
from decoding.target import AnyTarget
from decoding.text import TextDecoder
from eval import llama_cpp
from eval.bench import Prompt, Run

Peer = Callable[[Sequence[int], int], tuple[list[int], float]]  # prompt, limit -> new tokens, milliseconds to the first
PEERS: dict[str, dict[str, Any]] = {
    "transformers": {},
    "transformers_prompt_lookup": {"prompt_lookup_num_tokens": 10},
}
_LONGEST_PROMPT = 4096  # tokens that llama.cpp reserves room for


@dataclass(frozen=True, slots=True)
class PlainStep:
    """A plain decoding step, median milliseconds, ours beside transformers' `generate`, in one run in turns."""

    context: int
    ours_ms: float
    transformers_ms: float

    @property
    def ratio(self) -> float:
        """How many of our steps fit into one of transformers'."""
        return self.transformers_ms / self.ours_ms


def load_peer(decoder: TextDecoder) -> Any:
    """The same checkpoint as a transformers model, in the target's dtype and on its device."""
    from transformers import AutoModelForCausalLM

    weight = _weight(decoder.target)
    model: Any = AutoModelForCausalLM.from_pretrained(resolve(decoder.name), dtype=weight.dtype)
    if decoder.adapter is not None:  # the peer decodes the very weights that we do
        changed = {f"{name}.weight" for name in decoder.adapter.factors}
        tensors = merged_weights(read_weights(resolve(decoder.name)), decoder.adapter)
        model.load_state_dict({name: tensor for name, tensor in tensors if name in changed}, strict=False)
    return model.to(weight.device).eval()


def load_assistant(model: Any, head: Head | str = "auto") -> Any | None:
    """The drafter of our `draft_model` as a transformers model that assists `model`; None where there is none that fits."""
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


def load_peers(decoder: TextDecoder, model: Any, folder: Path, limit: int) -> dict[str, Peer]:
    """By name. `model` is from `load_peer`; assisted generation is there where a drafter of ours fits the model, llama.cpp
    where it is installed and the model came as a GGUF file.

    folder: where that file is written with our weights. limit: most new tokens that will be asked for.
    """
    peers: dict[str, Peer] = {
        name: partial(generate, model, decoder.tokenizer.stop_ids, options) for name, options in PEERS.items()
    }
    if (assistant := load_assistant(model)) is not None:
        peers["transformers_assisted"] = partial(
            generate, model, decoder.tokenizer.stop_ids, {"assistant_model": assistant}
        )
    source = llama_cpp.gguf_of(decoder.name)
    if llama_cpp.is_installed() and source is not None:
        path = llama_cpp.write_merged(decoder, source, folder / f"merged-{source.name}")
        context = min(decoder.target.max_length, _LONGEST_PROMPT + limit)
        peers["llama.cpp"] = llama_cpp.LlamaCpp(path, decoder.tokenizer.stop_ids, context)
    return peers


def run_peers(
    peers: Mapping[str, Peer],
    decoder: TextDecoder,
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    on_run: Callable[[Run], None] = lambda run: None,
) -> list[Run]:
    """Every peer on every prompt, in turns; a peer's `Run` has no rounds."""
    runs: list[Run] = []
    for index, prompt in enumerate([prompts[0], *prompts]):  # the first is a warm-up
        for name, peer in peers.items():
            start = perf_counter()
            tokens, prefill_ms = peer(decoder.tokenizer.encode(prompt.text), max_new_tokens)
            run = Run(max(index - 1, 0), name, tuple(tokens), (), 1e3 * (perf_counter() - start), prefill_ms)
            if index:
                runs.append(run)
                on_run(run)
    return runs


def time_plain_step(
    model: Any, decoder: TextDecoder, context: int = 400, steps: int = 24, repeats: int = 7
) -> PlainStep:
    """Steps at `context` to `context + steps` tokens. transformers' share is the time of `steps` more tokens in `generate`."""
    prompt = tuple(random.Random(0).choices(range(decoder.target.vocab_size), k=context))
    ours, theirs = [], []
    for _ in range(repeats + 1):
        rounds = list(decode(decoder.target, [Request(prompt, load_method("plain"), steps + 1)]))[1:]
        ours.append(measure(rounds).wall_ms / steps)
        short, long = (_generate_ms(model, prompt, count) for count in (1, steps + 1))
        theirs.append((long - short) / steps)
    return PlainStep(context, median(ours[1:]), median(theirs[1:]))


@torch.inference_mode()
def _generate_ms(model: Any, prompt: Sequence[int], count: int) -> float:
    ids = torch.tensor([prompt], device=model.device)
    start = perf_counter()
    model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        min_new_tokens=count,
        max_new_tokens=count,
        do_sample=False,
        pad_token_id=0,
    )
    return 1e3 * (perf_counter() - start)


@torch.inference_mode()
def generate(
    model: Any, stop_ids: frozenset[int], options: dict[str, Any], prompt: Sequence[int], limit: int
) -> tuple[list[int], float]:
    """transformers' `generate` as a `Peer`."""
    ids, stop, clock = torch.tensor([prompt], device=model.device), sorted(stop_ids), _FirstToken()
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=limit,
        do_sample=False,
        eos_token_id=stop or None,
        pad_token_id=stop[0] if stop else 0,
        streamer=clock,
        **options,
    )
    return [token for token in out[0, ids.shape[1] :].tolist() if token not in stop_ids], clock.first_ms


class _FirstToken:
    """A streamer that notes when the first token came. The prompt comes before it."""

    def __init__(self) -> None:
        self.first_ms, self._calls, self._start = 0.0, 0, perf_counter()

    def put(self, tokens: Any) -> None:
        self._calls += 1
        if self._calls == 2:
            self.first_ms = 1e3 * (perf_counter() - self._start)

    def end(self) -> None:
        """A streamer must have one."""


def _weight(target: AnyTarget) -> torch.Tensor:
    return target.lm_head
