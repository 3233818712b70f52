"""Mask tokens: the target's answers at them are the next draft."""

from collections.abc import Sequence
from itertools import product

import pytest
import torch

from decoding.engine.method import LookupCorpus
from decoding.engine.rounds import text_tokens
from decoding.engine.sampler import Sampler
from decoding.methods.jacobi import MaskTokens
from decoding.methods.registry import load_method
from tests.decoding.methods.test_jacobi_forcing import PROMPT, Alternating, OneOfTwo, counting, knows, rounds_of
from tests.decoding.models.doubles import NoAscent
from tests.decoding.models.toy import VOCAB, ToyTarget

MASK = PROMPT[-1]


def trained() -> ToyTarget:
    """Knows every token by its position, and surely: nothing but masks could tell it more."""
    return ToyTarget(lambda tokens: 20.0 * torch.eye(VOCAB)[len(tokens) % VOCAB])


@pytest.mark.parametrize("masks", [1, 2, 3, 5])
def test_every_place_that_is_looked_ahead_is_committed_where_the_target_is_sure(masks: int) -> None:
    count = (MASK - len(PROMPT)) % VOCAB  # tokens before the text says what the mask says
    rounds = rounds_of(MaskTokens(masks=masks, masked=8, budget=8, copies=0), trained(), max_new_tokens=count)
    want = [1, *[masks + 1] * count]  # the first round only looks
    assert [len(r.committed) for r in rounds[:-1]] == want[: len(rounds) - 1] and len(rounds) > 1
    assert text_tokens(rounds) == [(len(PROMPT) + i) % VOCAB for i in range(count)]


def test_masks_stand_behind_the_root_and_the_most_probable_guesses() -> None:
    first, second, *_ = rounds_of(MaskTokens(masks=2, masked=1, budget=2, copies=0), trained())
    assert (first.draft_tokens, first.draft_parents) == ((MASK, MASK), (-1, 0))
    text = [*PROMPT, *first.committed]
    one, two = len(text) % VOCAB, (len(text) + 1) % VOCAB
    guesses, behind_root, behind_first = (one, two), (MASK, MASK), (MASK, MASK)
    assert second.draft_tokens == guesses + behind_root + behind_first
    assert second.draft_parents == (-1, 0, -1, 2, 0, 4)


def test_no_guess_is_left_where_the_accepted_end_had_no_masks() -> None:
    """Guards against marginals of an older place."""
    rounds = rounds_of(MaskTokens(masks=2, masked=0, budget=2, copies=0), trained(), max_new_tokens=40)
    assert [len(r.committed) for r in rounds[:6]] == [1, 3, 1, 3, 1, 3]


@pytest.mark.parametrize("masked", [0, 2, 6])
def test_lossless_at_all_temperatures_under_a_constraint_and_beside_other_drafts(masked: int) -> None:
    for (temperature, seed), bound in product(((0.0, 0), (0.8, 0), (0.8, 1)), (False, True)):
        sampler = Sampler(temperature, seed)
        bounds = {"constraint": NoAscent(), "stop": frozenset({NoAscent.STOP})} if bound else {}
        want = text_tokens(rounds_of(load_method("plain"), sampler=sampler, max_new_tokens=30, **bounds))
        for method in (MaskTokens(masked=masked, least=0.0), Alternating(MaskTokens(masked=masked), seed)):
            assert text_tokens(rounds_of(method, sampler=sampler, max_new_tokens=30, **bounds)) == want


def test_guesses_keep_their_position_when_tokens_are_forced() -> None:
    free = rounds_of(MaskTokens(copies=0), counting())
    forced = rounds_of(MaskTokens(copies=0), counting(), constraint=OneOfTwo(forces=True))
    assert text_tokens(forced) == text_tokens(free)
    assert any(r.forced for r in forced) and len(forced) <= len(free)


def test_what_a_grammar_forbids_leaves_its_place_to_the_next_guess() -> None:
    """The target is surest of what it may not say; the draft says what it may, and is right."""

    def logits(tokens: Sequence[int]) -> int:
        return (len(tokens) + 1) % VOCAB

    rounds = rounds_of(
        MaskTokens(masks=2, masked=4, copies=0, least=0.0, top_k=12), knows(logits), constraint=OneOfTwo()
    )
    plain = rounds_of(load_method("plain"), knows(logits), constraint=OneOfTwo())
    assert text_tokens(rounds) == text_tokens(plain)
    assert len(rounds) < 0.7 * len(plain)


def test_copies_share_the_tree_and_have_masks_behind_them() -> None:
    text = [(len(PROMPT) + i) % VOCAB for i in range(60)]
    recall = LookupCorpus()
    recall.add(text)
    alone = rounds_of(MaskTokens(copies=0), trained(), recall=recall)
    both = rounds_of(MaskTokens(copies=1), trained(), recall=recall)
    assert text_tokens(both) == text_tokens(alone) == text
    assert len(both) < len(alone)
    drafted = both[1]
    end = max(range(len(drafted.draft_tokens)), key=lambda node: node if drafted.draft_tokens[node] != MASK else -1)
    assert end in drafted.draft_parents, "masks behind the last copied token"


@pytest.mark.parametrize("name", ["mask_tokens", "adaptive"])
def test_a_target_without_masks_is_asked_about_none(name: str) -> None:
    """The prompt's last token stood in for masks on every model, and its rows were ranked over the whole vocabulary."""
    recall = LookupCorpus()
    recall.add([*PROMPT[-3:], *(len(PROMPT) + i for i in range(8))])
    for options in ({"copies": 0}, {}):
        drafted: list[int] = []
        for knows_masks in (True, False):
            target = trained()
            target.prompt_mask = knows_masks
            rounds = rounds_of(load_method(name, **options), target, max_new_tokens=20, recall=recall)
            drafted.append(sum(len(each.draft_tokens) for each in rounds))
            assert text_tokens(rounds) == [(len(PROMPT) + i) % VOCAB for i in range(20)]
            assert knows_masks or not any(MASK in each.draft_tokens for each in rounds[:2])
        assert drafted[0] > drafted[1] and (drafted[1] > 0) == (not options)


def test_wrong_options_are_named() -> None:
    for options in ({"masks": 0}, {"masked": -1}, {"copies": -1}, {"top_k": 0}):
        with pytest.raises(ValueError, match="masks and top_k must be 1 or more"):
            MaskTokens(**options)
