"""What answers begin with: found by the end of a prompt, and fitted on answers."""

import random
from dataclasses import replace

import numpy as np
import pytest

from decoding.checkpoints.bigrams import FITTED, Beginnings, TokenPairs
from decoding.engine.sampler import Sampler
from decoding.methods.registry import load_method
from tests.decoding.checkpoints.adapters.test_mask_adapter import random_adapter, rounds_of, target_of
from training.packs.bigrams import LEAST, POSITIONS, Text, fitted, foreseen

PLAN, SQL = (30, 31), (40, 31)
SELECT, STOP = 7, 2


def token_pairs(beginnings: Beginnings | None = None) -> TokenPairs:
    none = np.zeros((3, 2), np.float32)
    return TokenPairs(np.array([5, 7, 9]), none, none, FITTED, beginnings)


def texts(count: int) -> list[Text]:
    """Answers in SQL begin with SELECT; plans with what follows 31 in their prompt, and then 9."""
    chance, found = random.Random(0), []
    for _ in range(count):
        named = chance.randrange(50, 90)
        found.append(([11, 31, named, 12, *PLAN], [named, 9, STOP]))
        found.append(([11, 13, *SQL], [SELECT, chance.randrange(50, 90), STOP]))
    return found


def test_logits_are_those_of_prompts_with_the_same_end() -> None:
    logits = np.arange(16, dtype=np.float32).reshape(2, 2, 4)
    pairs = token_pairs(Beginnings(np.array([PLAN, SQL]), logits))
    found = pairs.beginning(SQL, np.array([5, 6, 9, 3000]))
    assert found is not None
    np.testing.assert_array_equal(found, logits[1][:, [0, 3, 2, 3]])
    assert pairs.beginning((31, 40), np.array([5])) is None
    assert token_pairs().beginning(SQL, np.array([5])) is None


def test_other_shapes_are_refused() -> None:
    logits = np.zeros((2, 2, 4), np.float32)
    with pytest.raises(ValueError, match="have shapes"):
        Beginnings(np.array([PLAN]), logits)
    with pytest.raises(ValueError, match="of 4 tokens, not of 3"):
        token_pairs(Beginnings(np.array([PLAN, SQL]), np.zeros((2, 2, 5), np.float32)))


def test_they_are_learnt_from_answers_and_from_what_stands_in_their_prompts() -> None:
    learnt = fitted(token_pairs(), texts(10 * LEAST))
    assert {tuple(end) for end in learnt.ends.tolist()} == {PLAN, SQL}
    assert learnt.logits.shape == (2, POSITIONS, 4)
    right = foreseen(token_pairs(learnt), texts(8))
    assert right[0] == 1.0, "SELECT, or what follows the prompt's last token in it"
    assert right[1] == 0.5, "9 after a plan's first token, and no one can know SQL's second token"
    known = learnt.behind(SQL)
    assert known is not None and known[0].argmax() == 1, "the place of SELECT"


def test_rare_ends_are_left_out() -> None:
    few = [([1, 2, 3], [4, STOP])] * (LEAST - 1)
    assert fitted(token_pairs(), [*texts(LEAST), *few]).behind((2, 3)) is None
    with pytest.raises(ValueError, match=f"no {LEAST} answers"):
        fitted(token_pairs(), few)


def test_a_texts_first_draft_says_what_answers_begin_with() -> None:
    adapter = random_adapter()
    assert adapter.pairs is not None and adapter.pairs.beginnings is not None
    firsts = []
    known = adapter.pairs
    for pairs in (known, TokenPairs(known.ids, known.before, known.after, known.followers)):
        target = target_of("fp32", replace(adapter, pairs=pairs))
        rounds = rounds_of(target, load_method("adaptive", copies=0, row_cost=0.01), Sampler())
        firsts.append([token for token in rounds[0].draft_tokens if token not in target.mask_tokens])
    begun, not_begun = firsts
    assert begun and not not_begun
