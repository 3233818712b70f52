"""Block heads: one pass guesses a whole block of tokens (DFlash, arXiv 2602.06036; JetSpec, arXiv 2606.18394).

A block is the last committed token followed by masks. Queries come from the block alone; keys and values are projections of the
context's fused hidden states and of the block, so the context goes through no layer and its keys and values are computed
once per committed token. Attention inside the block is full (DFlash) or causal (JetSpec). A shortcut around the layers guesses
from the target's last state alone, as Medusa's heads do. Weights have the published names.

Domino (arXiv 2605.29707) adds a causal correction: a GRU reads the anchor and the guessed tokens; its state and a position's
state give a low-rank correction of that position's logits. For a small target, the paper's second factor [vocab, rank] would be
larger than the rest of the head, so by default it is the LM head times a [hidden, rank] matrix.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from decoding.heads.head import Head, HeadConfig
from decoding.heads.modules.layer import LAYER_SIZES, DecoderLayer, KeysValues, LayerShape, RmsNorm, TextRows
from kernels.gpu.ragged import Ragged


class LastState(nn.Module):
    """For each position after it, a multiple of the state and a correction: gain * h + up(silu(down(h))).

    This is a low-rank head of Medusa (arXiv 2401.10774, 2.2.1), from which the LM head can read tokens from the first step on;
    a block's attention takes very long to learn the same. Positions beyond the last one share its weights.
    """

    def __init__(self, width: int, places: int, rank: int) -> None:
        super().__init__()
        self._places, self._rank = places, rank
        self.gain = nn.Parameter(torch.full((places, 1), 0.5))
        self.down = nn.Parameter(torch.randn(places * rank, width) / width**0.5)
        self.up = nn.Parameter(torch.zeros(places * width, rank))

    def forward(self, last: Tensor, first: int, count: int) -> Tensor:
        """[blocks, count, width] for positions from `first` on after states `last` [blocks, width]; 0 is the second token."""
        wanted = torch.arange(first, first + count, device=last.device).clamp_max(self._places - 1)
        inner = functional.silu(functional.linear(last, self.down)).view(-1, self._places, self._rank)
        outer = self.up.view(self._places, -1, self._rank)[wanted]
        corrections = torch.einsum("bpr,pwr->bpw", inner[:, wanted], outer)
        out: Tensor = self.gain[wanted] * last[:, None] + corrections
        return out


@dataclass(frozen=True, slots=True)
class TextBlock:
    """A block behind a text of its own, all of whose tokens are in its context.

    known [count], masks, context: as in `BlockHead.forward`. last [1, taps, hidden]: tapped states of the text's last token, or
    zeros.
    """

    known: Tensor
    masks: int
    context: Sequence[KeysValues]
    last: Tensor

    def __len__(self) -> int:
        return len(self.known) + self.masks

    @property
    def positions(self) -> Tensor:
        """[rows]."""
        first = self.context[0][0].shape[1]
        return torch.arange(first, first + len(self), device=self.known.device)


class BlockHead(Head):
    """One or two transformer layers at the target's width.

    block_size: the anchor and the masks after it, in training. causal: whether a position of the block sees only those before
    it. shift: whether a position guesses the next token, so that the anchor's counts too (Domino); otherwise it guesses its
    own. mask_token: the token whose embedding a mask has; None: a vector of the head's own. carry: whether the features of the
    last context token are added to every position of the block, as in Medusa's heads; attention alone takes long to learn
    that. attention_bias: of all four projections. skip_places: positions of `LastState`, which reads the last tap, the output
    of the target's final norm; 0: none.
    """

    sizes: ClassVar[Mapping[str, Any]] = {
        **LAYER_SIZES,
        "layers": 1,
        "block_size": 8,
        "causal": False,
        "shift": False,
        "mask_token": None,
        "carry": False,
        "qk_norm": True,
        "attention_bias": False,
        "skip_places": 0,
        "skip_rank": 32,
    }

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config)
        self.causal, self.shift = bool(self.size("causal")), bool(self.size("shift"))
        width, eps = config.hidden, self.size("eps")
        biased = self.size("attention_bias")
        flags = {"bias": biased, "output_bias": biased, "qk_norm": self.size("qk_norm")}
        shape = LayerShape.of(width, width, self.all_sizes, **flags)
        self.fc = nn.Linear(len(config.taps) * width, width, bias=False)
        self.hidden_norm = RmsNorm(width, eps)
        self.layers = nn.ModuleList(DecoderLayer(shape) for _ in range(self.size("layers")))
        self.norm = RmsNorm(width, eps)
        if self.size("mask_token") is None:
            self.mask = nn.Parameter(0.02 * torch.randn(width))
        places = self.size("skip_places")
        self.skip = LastState(width, places, self.size("skip_rank")) if places else None
        self.carry = nn.Linear(width, width, bias=False) if self.size("carry") else None

    @property
    def needs_torch(self) -> bool:
        return bool(self.size("attention_bias"))

    def features(self, hidden: Tensor) -> Tensor:
        """Fused features [tokens, hidden] of tapped states [tokens, taps, hidden]."""
        fused: Tensor = self.hidden_norm(self.fc(hidden.flatten(1)))
        return fused

    def context(self, hidden: Tensor, positions: Tensor) -> list[KeysValues]:
        """Each layer's keys and values of tokens with tapped states `hidden` [tokens, taps, hidden] at `positions` [tokens]."""
        features = self.features(hidden)
        return [layer.self_attn.keys_values(features, positions) for layer in self._layers]

    def forward(
        self,
        known: Tensor,
        positions: Tensor,
        masks: int,
        embedding: Tensor,
        context: Sequence[KeysValues],
        seen: Tensor | None = None,
        last: Tensor | None = None,
    ) -> Tensor:
        """States [blocks, guesses, hidden]; `state @ lm_head.T` guesses the 1st, 2nd, ... token after a block's known ones.

        known [blocks, count]: the tokens with which the blocks begin, the first at `positions` [blocks]; the last of them is
        the anchor, and in decoding those before it, if any, are forced tokens without hidden states. `masks` masks follow,
        which give as many guesses; one more with `shift`. context: from `context`, of the same sequence or forest. seen
        [blocks, tokens]: which of its tokens come before each block; None: all. last [blocks, taps, hidden]: tapped states of
        the token before each block; None if there is none.
        """
        count = known.shape[1]
        x = self._embedded(known, masks, embedding)
        if self.carry is not None and last is not None:
            x = x + self.carry(self.features(last))[:, None]
        block_positions = positions[:, None] + torch.arange(count + masks, device=known.device)
        visible = self._visible(len(known), count + masks, context[0][0].shape[1], seen, known.device)
        for layer, before in zip(self._layers, context, strict=True):
            x, _ = layer(x, block_positions, [before], visible)
        states: Tensor = self.norm(x)[:, count - self.shift :]
        if self.skip is not None and last is not None:
            states = states + self.skip(last[:, -1], count - 1, states.shape[1])
        return states

    def of_texts(self, blocks: Sequence[TextBlock], embedding: Tensor) -> list[Tensor]:
        """`forward` for blocks behind different texts, in one pass over all their rows: states [guesses, hidden] of each."""
        x = torch.cat([self._embedded(block.known[None], block.masks, embedding)[0] for block in blocks])
        lasts, sizes = torch.cat([block.last for block in blocks]), [len(block) for block in blocks]
        if self.carry is not None:
            carried = self.carry(self.features(lasts))
            x = x + torch.cat([adds.expand(size, -1) for adds, size in zip(carried, sizes, strict=True)])
        positions = torch.cat([block.positions for block in blocks])
        seen = [self._visible(1, len(block), block.context[0][0].shape[1], None, x.device) for block in blocks]
        visible = [None if each is None else each[0] for each in seen]
        for index, layer in enumerate(self._layers):
            texts = TextRows(sizes, [[block.context[index]] for block in blocks], visible)
            x, _ = layer(x, positions, texts, None)
        firsts = [len(block.known) - 1 for block in blocks]
        return self.guesses(torch.split(self.norm(x), sizes), firsts, lasts)

    def guesses(self, rows: Sequence[Tensor], firsts: Sequence[int], lasts: Tensor) -> list[Tensor]:
        """States [guesses, hidden] from the normed ones of whole blocks.

        firsts: known tokens before each anchor. lasts [blocks, taps, hidden]: tapped states of the token before each block.
        """
        states = [each[first + 1 - self.shift :] for each, first in zip(rows, firsts, strict=True)]
        if self.skip is not None:
            parts = zip(states, lasts.unbind(), firsts, strict=True)
            states = [each + self.skip(last[None, -1], first, len(each))[0] for each, last, first in parts]
        return states

    @property
    def read_shape(self) -> tuple[int, ...]:
        """Of what a row of `in_tables` reads: tapped states."""
        return len(self.config.taps), self.config.hidden

    def in_tables(self, hidden: Tensor, rows: Ragged, embedding: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        """Normed states [rows, hidden] of a pass over tables, as one graph can hold it.

        Of each text first come the newest committed tokens, whose token is below 0 and whose tapped states are in `hidden`
        [rows, taps, hidden]; then its block, in which a token beyond the vocabulary is a mask. turn: see `Attention.in_tables`.
        """
        token = self.size("mask_token")
        features, is_text = self.features(hidden), (rows.token < 0)[:, None]
        known = functional.embedding(rows.token.clamp(0, len(embedding) - 1), embedding)
        mask = self.mask if token is None else embedding[token]
        x = torch.where((rows.token >= len(embedding))[:, None], mask, known)
        if self.carry is not None:
            numbers = torch.arange(len(x), device=x.device)
            last = torch.where(is_text[:, 0], numbers, 0).cummax(0).values  # the text's newest token
            x = x + self.carry(features)[last]
        for index, layer in enumerate(self._layers):
            normed = torch.where(is_text, features, layer.normed(x))
            x = layer.after_attention(x + layer.self_attn.in_tables(normed, rows, index, turn))
        states: Tensor = self.norm(x)
        return states

    def _embedded(self, known: Tensor, masks: int, embedding: Tensor) -> Tensor:
        """[blocks, known + masks, hidden]."""
        token = self.size("mask_token")
        mask = self.mask if token is None else embedding[token]
        return torch.cat([functional.embedding(known, embedding), mask.expand(len(known), masks, -1)], 1)

    @property
    def _layers(self) -> list[DecoderLayer]:
        return list(self.layers)  # type: ignore[arg-type]

    def _visible(self, blocks: int, size: int, tokens: int, seen: Tensor | None, device: torch.device) -> Tensor | None:
        """Boolean mask [blocks, size, tokens + size]; None where everything is seen."""
        if seen is None and not self.causal:
            return None
        before = torch.ones(blocks, tokens, dtype=torch.bool, device=device) if seen is None else seen
        inside = torch.ones(size, size, dtype=torch.bool, device=device)
        inside = inside.tril() if self.causal else inside
        parts = [before[:, None].expand(-1, size, -1), inside.expand(blocks, -1, -1)]
        return torch.cat(parts, 2)


class DominoHead(BlockHead):
    """gru: width of the causal encoder. rank: of the correction. own_output: whether it has its own factor [vocab, rank]."""

    sizes: ClassVar[Mapping[str, Any]] = {**BlockHead.sizes, "shift": True, "gru": 256, "rank": 64, "own_output": False}

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config)
        gru, rank = self.size("gru"), self.size("rank")
        outputs = config.vocab if self.size("own_output") else config.hidden
        self.prefix_gru = nn.GRU(config.hidden, gru, bias=False, batch_first=True)
        self.embed_proj = nn.Sequential(
            nn.Linear(config.hidden + gru, rank, bias=False), nn.SiLU(), nn.Linear(rank, outputs, bias=False)
        )

    def start(self, count: int) -> Tensor:
        """The encoder's state [count, gru] before any token."""
        return self.fc.weight.new_zeros(count, self.size("gru"))

    def read(self, state: Tensor, embedded: Tensor) -> Tensor:
        """The state [paths, gru] after one more token each, embedded [paths, hidden]."""
        inputs, recurrent = self.prefix_gru.all_weights[0]
        return torch.gru_cell(embedded, state, inputs, recurrent)

    def read_all(self, embedded: Tensor) -> Tensor:
        """States [paths, tokens, gru] after every token of embedded [paths, tokens, hidden]."""
        states: Tensor = self.prefix_gru(embedded)[0]
        return states

    def factor(self, states: Tensor, prefix: Tensor) -> Tensor:
        """The correction's left factor [..., rank] for positions with states [..., hidden] after prefixes [..., gru]."""
        out: Tensor = self.embed_proj[:2](torch.cat([states, prefix], -1))
        return out

    def factor_rows(self, lm_head_rows: Tensor, ids: Tensor) -> Tensor:
        """The right factor [tokens, rank] for some tokens: the correction of their logits is factor @ factor_rows.T."""
        weight = cast(nn.Linear, self.embed_proj[2]).weight
        return weight[ids] if self.size("own_output") else lm_head_rows @ weight
