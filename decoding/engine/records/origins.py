"""How each token of a text came about, from the records of its decode. Plain data, no tensors."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from decoding.engine.draft import ROOT
from decoding.engine.records.rounds import Round

Origin = Literal["accepted", "recycled", "bonus", "forced"]


@dataclass(frozen=True, slots=True)
class Placed:
    """One token of the text. "accepted": a draft's guess that the target agreed with. "recycled": the same, but an
    earlier round had guessed this token after the same token and been rejected. "bonus": the target's own, one per forward.
    "forced": the only token that the constraint allowed, so no forward was spent on it.
    """

    token: int
    origin: Origin
    round_index: int


def origins(rounds: Iterable[Round], first_before: int | None = None) -> list[Placed]:
    """The tokens of one sequence in text order. first_before: the prompt's last token, if known."""
    placed: list[Placed] = []
    rejected: set[tuple[int | None, int]] = set()
    last = first_before
    for r in rounds:
        pairs = _pairs(r, last)
        count = len(r.committed) - 1
        for node, token in zip(r.accepted, r.committed[:count], strict=False):
            origin: Origin = "recycled" if pairs[node] in rejected else "accepted"
            placed.append(Placed(token, origin, r.index))
        placed.append(Placed(r.committed[-1], "bonus", r.index))
        placed += (Placed(token, "forced", r.index) for token in r.forced)
        rejected |= {pair for node, pair in enumerate(pairs) if node not in r.accepted}
        last = r.text_tokens[-1]
    return placed


def _pairs(r: Round, root: int | None) -> Sequence[tuple[int | None, int]]:
    """Each draft node as (token before it, its token)."""
    before = [root if parent == ROOT else r.draft_tokens[parent] for parent in r.draft_parents]
    return list(zip(before, r.draft_tokens, strict=True))
