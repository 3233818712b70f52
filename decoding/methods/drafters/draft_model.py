"""Draft-model speculation (arXiv 2211.17192, 2302.01318): a smaller language model with the same tokenizer drafts a chain.

It ranks its guesses with the target's own keyed noise, so that at T > 0 two equal models write the same chain. A guess is
accepted if it equals the target's choice, as for every method here; there is no rejection sampling.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import exp
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from decoding.checkpoints.model_config import load_config
from decoding.checkpoints.weight_files import read_weights
from decoding.engine.draft import Draft
from decoding.engine.method import Context, Method
from decoding.engine.target import Array, Scores
from decoding.engine.verify import Verdict
from decoding.heads.head import Head, HeadMismatch, find_head, to_target
from decoding.heads.modules.small_lm import SmallLm
from decoding.heads.tensor_context import TensorContext
from decoding.methods.drafting.draft_vocabulary import DraftVocabulary
from decoding.methods.drafting.trees import Level, admitted, offered
from decoding.targets.fast_model import FastModel
from kernels.ragged import SequenceRows


class DraftModel(Method):
    """head: "auto" for the shipped drafter, or a folder: one that `sqlagent train head` wrote, or any small model's checkpoint.

    draft_tokens: maximum length of a chain. threshold: drafting stops after a guess that is less probable than this. The
    implementation released in transformers uses 20 and 0.4.
    """

    kind: ClassVar[str] = "draft_model"

    def __init__(self, head: Head | str = "auto", draft_tokens: int = 6, threshold: float = 0.3) -> None:
        if draft_tokens < 1 or not 0.0 <= threshold <= 1.0:
            raise ValueError("draft_tokens must be 1 or more, and threshold lie between 0 and 1")
        self._draft_tokens, self._threshold = draft_tokens, threshold
        checkpoint = isinstance(head, str) and head != "auto" and _is_checkpoint(Path(head).expanduser())
        self._source: Head | Path = Path(str(head)).expanduser() if checkpoint else find_head(self.kind, head)

    @torch.inference_mode()
    def begin(self, prompt: Sequence[int], hidden: Array | None, context: Context) -> None:
        tensors = TensorContext.of(context)
        if isinstance(self._source, SmallLm):
            model = _small_model(to_target(self._source, tensors), tensors.embedding)
            frequent, lm_head = self._source.config.frequent, tensors.lm_head
        else:
            model = _other_model(self._source, tensors.embedding.dtype, tensors.embedding.device)
            frequent, lm_head = (), model.lm_head
            _check_vocabulary(model, context)
        ranking = TensorContext(context.sampler, tensors.embedding, lm_head[: len(context.lm_head)], context.recall)
        self._vocabulary = DraftVocabulary.for_prompt(ranking, frequent, prompt)
        self._reader, self._cursor = _Reader(model), context.cursor

    @torch.inference_mode()
    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        guesses: list[int] = []
        state, unread = self._reader.read(tokens[self._reader.kept :], keep=True), 0
        cursor, most = self._cursor(), min(room, self._draft_tokens)
        while len(guesses) < most:
            forced = cursor is not None and cursor.run
            if unread and not forced:
                state, unread = self._reader.read(guesses[-unread:], keep=False), 0
            # a forced token needs no guess
            level = Level((), ()) if forced else self._level(state, len(tokens) + len(guesses), offered(1, cursor))
            token, score = next(admitted(level, cursor), (None, 0.0))
            if token is None:
                break
            guesses.append(token)
            unread += 1
            cursor = cursor and cursor.after(token)
            if exp(score) < self._threshold:
                break
        return Draft.chain(guesses)

    def _level(self, state: Tensor, position: int, count: int) -> Level:
        """The best `count` guesses for `position` from the state [1, hidden] before it."""
        positions = torch.tensor([position], device=state.device)
        return self._vocabulary.levels(self._vocabulary.ranked(self._vocabulary.logits(state), positions), count)[0]

    def observe(self, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        """Nothing to learn: it reads only the text."""


class _Reader:
    """The drafter's keys and values of one text. Rows of guesses come after those that are kept, and are overwritten."""

    def __init__(self, model: FastModel) -> None:
        self._model, self._table = model, model.new_table()
        self.kept = 0  # tokens of the text that were read
        self._rows = 0

    def read(self, tokens: Sequence[int], keep: bool) -> Tensor:
        """The normed state [1, hidden] after `tokens`, which follow what was read before; keep: whether they are text."""
        start = self.kept if keep else self._rows
        end = start + len(tokens)
        self._table.reserve(end, start)
        rows = SequenceRows(self._table.data, start, tokens, range(start, end))
        _, hidden = self._model.forward([rows], (self._model.config.layers,), ())
        assert hidden is not None
        self._rows = end
        self.kept = end if keep else self.kept
        return hidden[0, -1:]


def _is_checkpoint(folder: Path) -> bool:
    """Whether a folder holds a language model rather than a head."""
    return (folder / "config.json").exists() and not (folder / "head.safetensors").exists()


@lru_cache(maxsize=2)
def _small_model(head: SmallLm, embedding: Tensor) -> FastModel:
    return FastModel(head.model_config(), head.weights(embedding), embedding.dtype, embedding.device)


@lru_cache(maxsize=2)
def _other_model(folder: Path, dtype: torch.dtype, device: torch.device) -> FastModel:
    """Raises ModelUnavailable, UnsupportedModel."""
    return FastModel(load_config(folder), read_weights(folder), dtype, device)


def _check_vocabulary(model: FastModel, context: Context) -> None:
    """Raise HeadMismatch if the drafter lacks tokens. Models of one family pad their matrices differently, but agree on what
    every token means.
    """
    mine, theirs = model.config.vocab_size, len(context.lm_head)
    if mine < theirs:
        raise HeadMismatch(
            f"the draft model has {mine} tokens and the model {theirs}: choose one with the same tokenizer"
        )
