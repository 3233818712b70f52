"""Draft-model speculation (arXiv 2211.17192, 2302.01318): a smaller language model with the same tokenizer drafts a chain.

It ranks its guesses with the target's own keyed noise, so that at T > 0 two equal models write the same chain. A guess is
accepted if it equals the target's choice, as for every method here; there is no rejection sampling.
"""

from collections.abc import Sequence
from math import exp
from pathlib import Path
from typing import ClassVar

from decoding.engine.draft import Draft
from decoding.engine.method import Context, Method
from decoding.engine.target import Array, Scores
from decoding.engine.verify import Verdict
from decoding.heads.head import Head, HeadMismatch, HeadUnavailable, find_head
from decoding.heads.modules.small_lm import SmallLm
from decoding.methods.drafting.head_runtimes import Reader, States, reader
from decoding.methods.drafting.trees import Level, admitted, levels, offered


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
        self._source = Path(str(head)).expanduser() if checkpoint else self._small_lm(head)

    def _small_lm(self, head: Head | str) -> SmallLm:
        found = find_head(self.kind, head)
        if not isinstance(found, SmallLm):
            raise HeadUnavailable(f"{self.kind} cannot draft with a head of kind {found.config.kind}")
        return found

    def begin(self, prompt: Sequence[int], hidden: Array | None, context: Context) -> None:
        self._reader, self._cursor = reader(self._source, context, prompt), context.cursor
        _check_vocabulary(self._reader, context)

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

    def _level(self, state: States, position: int, count: int) -> Level:
        """The best `count` guesses for `position` from the state before it."""
        return levels(self._reader.best(state, position, count))[0]

    def observe(self, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        """Nothing to learn: it reads only the text."""


def _is_checkpoint(folder: Path) -> bool:
    """Whether a folder holds a language model rather than a head."""
    return (folder / "config.json").exists() and not (folder / "head.safetensors").exists()


def _check_vocabulary(drafter: Reader, context: Context) -> None:
    """Raise HeadMismatch if the drafter lacks tokens. Models of one family pad their matrices differently, but agree on what
    every token means.
    """
    mine, theirs = drafter.vocab_size, len(context.lm_head)
    if mine < theirs:
        raise HeadMismatch(
            f"the draft model has {mine} tokens and the model {theirs}: choose one with the same tokenizer"
        )
