"""What the tests of block heads share: random states, and a method's inputs."""

import torch
from torch import Tensor

from decoding.engine.loop import Request, decode
from decoding.engine.method import LookupCorpus
from decoding.engine.sampler import Sampler
from decoding.heads.modules.block import BlockHead
from decoding.heads.on_torch.context import TensorContext
from tests.decoding.models.random_heads import TAPS, small_head
from tests.decoding.models.toy import ToyTarget

HIDDEN = 16


def states_of(tokens: int, seed: int = 0) -> Tensor:
    """Tapped hidden states [tokens, taps, hidden]."""
    return torch.randn(tokens, len(TAPS), HIDDEN, generator=torch.Generator().manual_seed(seed))


def context_of(sampler: Sampler = Sampler(), recall: LookupCorpus | None = None) -> TensorContext:
    matrix = torch.randn(20, HIDDEN, generator=torch.Generator().manual_seed(1))
    return TensorContext(sampler, matrix, matrix, recall or LookupCorpus())


def block_head(kind: str = "dflash") -> BlockHead:
    head = small_head(kind, HIDDEN, 20)
    assert isinstance(head, BlockHead)
    return head


def text_of(method: object, sampler: Sampler, **kw: object) -> list[int]:
    options = {"prompt": (1, 2, 3, 1, 2), "max_new_tokens": 24, **kw}
    request = Request(method=method, sampler=sampler, **options)  # type: ignore[arg-type]
    return [token for r in decode(ToyTarget(), [request]) for token in r.text_tokens]
