"""Counts what a build made, and what it left out and why."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from decoding.training.data.groups import Group


@dataclass(slots=True)
class Tally:
    """Counts of `golds` by outcome, `pairs` by "source step", `tokens` by source, and `left_out` by reason.

    A second question counts as "source follow-up kind step", without "follow-up" if no history is shown.
    """

    golds: Counter[str] = field(default_factory=Counter)
    pairs: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)

    def count_tokens(self, groups: Iterable[Group], count: Callable[[str], int]) -> None:
        """Add the tokens that a trainer feeds: a schema once for its group, as "schemas", and what pairs of one id share once.

        A pair counts for its source, the first part of its id.
        """
        for group in groups:
            self.tokens["schemas"] += count(group.prefix)
            before = ("", "")  # the id of the former pair, and its text
            for pair in group.pairs:
                known = before[1] if before[0] == pair.id and pair.prompt.startswith(before[1]) else ""
                self.tokens[pair.id.split("/")[0]] += count(pair.prompt.removeprefix(known) + pair.answer)
                before = (pair.id, pair.prompt + pair.answer)
