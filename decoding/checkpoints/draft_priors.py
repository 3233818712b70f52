"""Fitted priors of the method `adaptive`: what guesses and masks are worth before a text has taught it.

They belong to weights: `train masks` writes them into the metadata of a mask adapter, from which they are read again, and
targets without one have the defaults, which were fitted on answers of the shipped adapter.
"""

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

Floats = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class DraftPriors:
    """Raises ValueError for values of another form.

    >>> DraftPriors.read(DraftPriors(asking=0.1).text()).asking
    0.1
    """

    # What a mask is worth, in committed tokens, for each position that it speaks for: those that no copy had, less the price of
    # the rows that guessed them. Then the same where the round that hung them had copies, which have most of what masks say.
    masks: Floats = (0.65, 0.55, 0.48, 0.42, 0.38, 0.34, 0.3, 0.26, 0.23, 0.2, 0.17, 0.15)
    masks_with_copies: Floats = (0.24, 0.24, 0.22, 0.2, 0.2, 0.18, 0.16, 0.15, 0.14, 0.13, 0.12, 0.1)
    text_row: float = 0.3  # what the guesses of the last row of text are worth after such a round, all of them

    # How often a copied token is right, by the length of the match before it; at the beginning of a text, where it was
    # predicted as a whole, by match 1, 2, 3 and more, of the first token and of later ones; and a further copy where those
    # before it are wrong: later, and at the beginning.
    copies: Floats = (0.0, 0.6, 0.7, 0.83, 0.79, 0.87, 0.84, 0.85, 0.88, 0.9, 0.91, 0.91, 0.92, 0.93, 0.955)
    first_copies: Floats = (0.6, 0.7, 0.62, 0.78, 0.98, 0.98)
    second_copies: Floats = (0.6, 0.9)

    # Weights of proposers' log-probabilities where one of the two guesses and where both do, and what these are multiplied by
    # where something is copied.
    head_weight: float = 0.8
    mask_weight: float = 0.88
    head_weight_with_masks: float = 0.26
    mask_weight_with_head: float = 0.65
    weight_with_copy: float = 0.63

    # What a copied token gets: a constant, and a share of the log-odds that it is right. Then the score of all tokens that
    # nobody guessed, before what proposers leave for them is counted, with this share of their weights.
    copy_score: float = 1.34
    copy_slope: float = 0.3
    other_score: float = -2.0
    other_score_with_copy: float = -1.83
    rest_share: float = 0.59
    unlisted: float = 0.002  # what a proposer says of a token that it did not list
    least_rest: float = 1e-5  # the least that it leaves for all of those

    # What a round commits where a head drafts and where it does not, by the length of the longest match of a copy, and what
    # one without the head, its draft, and asking the LM head about masks take, in plain steps. Without a match `without_head`
    # is not what was measured where texts are predicted, but closer to what it is where none are.
    with_head: Floats = (3.5, 3.6, 4.2, 4.6, 4.4, 5.0, 5.6, 5.9, 6.4)
    without_head: Floats = (2.0, 2.9, 2.9, 3.6, 3.3, 3.6, 4.9, 5.4, 6.4)
    round_steps: float = 1.45
    draft_steps: float = 0.4
    asking: float = 0.06

    def __post_init__(self) -> None:
        for each in fields(self):
            value, default = getattr(self, each.name), each.default
            if isinstance(default, tuple) and len(value) != len(default):
                raise ValueError(f"{each.name} has {len(value)} values, not {len(default)}")

    @classmethod
    def read(cls, text: str) -> "DraftPriors":
        """From metadata; the defaults where there is nothing. Raises TypeError and ValueError for damaged ones."""
        values = json.loads(text) if text else {}
        found: dict[str, Any] = {n: tuple(each) if isinstance(each, list) else each for n, each in values.items()}
        return cls(**found)

    def text(self) -> str:
        """For metadata."""
        return json.dumps(asdict(self))


DEFAULT_PRIORS = DraftPriors()
