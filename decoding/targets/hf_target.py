"""The reference target: any transformers causal LM, with an additive tree mask. Slow and plain on purpose.

Sequences are scored one after another, not in one batch. `decoding.targets.fast_target` is the one that is fast; this one says
what it must compute, and serves architectures that the fast one does not know.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decoding.checkpoints.mask_adapter import DEFAULT_PRIORS, DraftPriors
from decoding.engine.draft import ROOT, Draft
from decoding.engine.sampler import Sampler
from decoding.engine.target import DraftCaches, ForwardInput, ForwardOutput
from decoding.engine.tensor_choice import dtype_name, tensor_scores

_PREFIXES = 4


@dataclass(slots=True)
class HfSequence:
    """One open sequence: its cached tokens, transformers' cache, tapped hidden states and what is staged."""

    sampler: Sampler
    taps: tuple[int, ...]
    tokens: list[int]
    cache: Any
    hidden: Tensor | None = None
    staged: tuple[list[int], Draft, Tensor | None] | None = None
    draft_caches: DraftCaches = field(default_factory=dict)

    @property
    def cached(self) -> int:
        return len(self.tokens)


class HfTarget:
    """A `decoding.engine.target.Target` over a transformers model. Keeps the caches of the last few closed sequences for
    reuse.
    """

    def __init__(self, model: Any, keep_prefixes: bool = True) -> None:
        self.model, self.prompt_mask = model.eval(), False
        self._kept: list[HfSequence] = []
        self._most_kept = _PREFIXES if keep_prefixes else 0

    @classmethod
    def load(
        cls, path: Path, dtype: torch.dtype = torch.float32, device: str = "cpu", keep_prefixes: bool = True
    ) -> "HfTarget":
        """From a checkpoint folder."""
        from transformers import AutoModelForCausalLM

        model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
        return cls(model.to(device), keep_prefixes)

    @property
    def vocab_size(self) -> int:
        return int(self.embedding.shape[0])

    @property
    def mask_tokens(self) -> range:
        return range(0)

    @property
    def mask_pairs(self) -> None:
        return None

    @property
    def ahead(self) -> int:
        return 0

    @property
    def draft_priors(self) -> DraftPriors:
        return DEFAULT_PRIORS

    @property
    def max_length(self) -> int:
        config = self.model.config
        return int(min(config.max_position_embeddings, getattr(config, "sliding_window", None) or 2**31))

    @property
    def embedding(self) -> Tensor:
        weight: Tensor = self.model.get_input_embeddings().weight.detach()
        return weight

    @property
    def lm_head(self) -> Tensor:
        weight: Tensor = self.model.get_output_embeddings().weight.detach()
        return weight

    @property
    def weight_dtype(self) -> str:
        return dtype_name(self.lm_head.dtype)

    @property
    def runtime(self) -> str:
        return self.lm_head.device.type

    def open(self, prompt: Sequence[int], sampler: Sampler, taps: tuple[int, ...] = ()) -> HfSequence:
        able = [kept for kept in self._kept if set(taps) <= set(kept.taps)]
        best = max(able, key=lambda kept: _common(kept.tokens, prompt[:-1]), default=None)
        if best is None:
            return HfSequence(sampler, taps, [], _copy_cache(None, 0), self._no_hidden(taps))
        count = _common(best.tokens, prompt[:-1])
        columns = [best.taps.index(tap) for tap in taps]
        hidden = best.hidden[:count, columns] if taps and best.hidden is not None else None
        return HfSequence(sampler, taps, best.tokens[:count], _copy_cache(best.cache, count), hidden)

    def score(self, work: Sequence[ForwardInput[HfSequence]]) -> list[ForwardOutput]:
        return [self._score(item) for item in work]

    @torch.inference_mode()
    def _score(self, work: ForwardInput[HfSequence]) -> ForwardOutput:
        sequence, pending, draft, _ = work
        taps, device = work.tapped(sequence.taps), self.model.device
        past, fed = sequence.cached, [*pending, *draft.tokens]
        offsets = [*range(len(pending)), *(len(pending) - 1 + depth for depth in draft.depths)]
        out = self.model(
            input_ids=torch.tensor([fed], device=device),
            position_ids=torch.tensor([offsets], device=device) + past,
            attention_mask=tree_mask(past, len(pending), draft, self.model.dtype).to(device),
            past_key_values=sequence.cache,
            use_cache=True,
            output_hidden_states=bool(taps),
            logits_to_keep=1 + len(draft),
        )
        logits = out.logits[0]
        hidden = torch.stack([out.hidden_states[tap][0] for tap in taps], 1) if taps else None
        sequence.staged = (list(pending), draft, hidden)
        root = past + len(pending)
        return tensor_scores(sequence.sampler, logits, hidden, lambda row: root + draft.depth(row - 1))

    def commit(self, sequence: HfSequence, path: Sequence[int]) -> None:
        if sequence.staged is None:
            raise RuntimeError("commit() without score()")
        pending, draft, hidden = sequence.staged
        rows = [*range(len(pending)), *(len(pending) + node for node in path)]
        keep = torch.tensor([*range(sequence.cached), *(sequence.cached + row for row in rows)])
        for layer in sequence.cache.layers:
            layer.keys, layer.values = layer.keys[:, :, keep], layer.values[:, :, keep]
        if hidden is not None and sequence.hidden is not None:
            sequence.hidden = torch.cat([sequence.hidden, hidden[rows]])
        sequence.tokens += [*pending, *(draft.tokens[node] for node in path)]
        sequence.staged = None

    def fork(self, sequence: HfSequence, sampler: Sampler) -> HfSequence:
        if sequence.staged is not None:
            raise RuntimeError("fork() between score() and commit()")
        cache = _copy_cache(sequence.cache, sequence.cached)
        return HfSequence(sampler, sequence.taps, list(sequence.tokens), cache, sequence.hidden)

    def close(self, sequence: HfSequence) -> None:
        if sequence.staged is not None:
            _crop(sequence.cache, sequence.cached)
            sequence.staged = None
        self._kept = [sequence, *self._kept][: self._most_kept]

    def _no_hidden(self, taps: tuple[int, ...]) -> Tensor | None:
        return self.embedding.new_empty(0, len(taps), self.embedding.shape[1]) if taps else None


def tree_mask(past: int, pending: int, draft: Draft, dtype: torch.dtype) -> Tensor:
    """Additive attention mask [1, 1, pending + nodes, past + pending + nodes].

    Pending tokens see everything before them; a draft node sees the prefix, the pending tokens and its own ancestors.
    """
    rows = pending + len(draft)
    seen = torch.ones(rows, rows, dtype=torch.bool).tril()
    seen[pending:, pending:] = False
    for node, parent in enumerate(draft.parents):
        if parent != ROOT:
            seen[pending + node, pending:] = seen[pending + parent, pending:]
        seen[pending + node, pending + node] = True
    seen = torch.cat([torch.ones(rows, past, dtype=torch.bool), seen], 1)
    return torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)[None, None]


def _copy_cache(cache: Any, count: int) -> Any:
    from transformers import DynamicCache

    copy = DynamicCache()
    for index, layer in enumerate(cache.layers if count else ()):
        copy.update(layer.keys[:, :, :count].clone(), layer.values[:, :, :count].clone(), index)
    return copy


def _crop(cache: Any, count: int) -> None:
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[:, :, :count], layer.values[:, :, :count]


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
