"""The draft vocabulary in training: frequent tokens and the batch's, as in `decoding.heads.draft_tokens.draft_ids`."""

import torch
from torch import Tensor
from torch.nn import functional

from decoding.heads.head import HeadConfig
from decoding.training.heads.objective import HeadBatch


def frequent_tokens(counts: Tensor, size: int) -> tuple[int, ...]:
    """The `size` most frequent tokens that occur in the answers, ascending; none if `size` is 0, for the whole vocabulary."""
    if not size:
        return ()
    best = counts.topk(min(size, len(counts)))
    return tuple(
        sorted(token for token, count in zip(best.indices.tolist(), best.values.tolist(), strict=True) if count)
    )


def batch_vocabulary(config: HeadConfig, batch: HeadBatch) -> Tensor:
    """Ids [size], ascending; all of them if the head names no frequent ones."""
    device = batch.tokens.device
    if not config.frequent:
        return torch.arange(config.vocab, device=device)
    ids: Tensor = torch.unique(torch.cat([torch.tensor(config.frequent, device=device), batch.tokens]))
    return ids


def places(ids: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """(the index in `ids` of each token, whether it is there); the index is 0 if it is not."""
    found = torch.searchsorted(ids, tokens).clamp_max(len(ids) - 1)
    inside = ids[found] == tokens
    return found.where(inside, 0), inside


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Losses [...] from logits [..., size] and `labels` [...], which are indices into the vocabulary."""
    return functional.cross_entropy(logits.flatten(0, -2).float(), labels.flatten(), reduction="none").view_as(labels)


def soft_cross_entropy(logits: Tensor, teacher: Tensor) -> Tensor:
    """Losses [...] from logits [..., size] to the distribution of `teacher` [..., size], which gets no gradient."""
    return -(teacher.detach().float().softmax(-1) * logits.float().log_softmax(-1)).sum(-1)
