"""What follows what in a prompt: scores by hand, and the same in training as in decoding.

What answers begin with: found by the end of a prompt, and fitted on answers.
"""

import random
from dataclasses import replace
from math import log
from pathlib import Path
from random import Random

import numpy as np
import pytest

from decoding.checkpoints.bigrams import FITTED, Beginnings, Followers, TokenPairs
from decoding.checkpoints.mask_adapter import MaskAdapter, read_mask_adapter, write_mask_adapter
from decoding.engine.sampler import Sampler
from decoding.errors import ModelUnavailable
from decoding.methods.registry import load_method
from kernels.cpu.job import MOST_FOLLOWERS
from tests.decoding.checkpoints.adapters.test_mask_adapter import random_adapter, rounds_of, target_of
from training.packs.bigrams import LEAST, POSITIONS, Text, fitted, follower_rows, foreseen
from training.packs.groups import TokenPair
from training.packs.packing import pack

WEIGHTS = np.array([1.0, 0.5, 4.0, 2.0, 8.0, 0.25, -16.0, 32.0, 64.0], np.float32)
PROMPT = (7, 8, 9, 7, 8, 5, 3, 8, 9, 8)  # 8 is followed by 9, 5 and 9; after 7 by 9 and 5


def test_scores_are_those_of_the_weights() -> None:
    ids, scores = Followers(PROMPT, WEIGHTS, {8, 9}).after(7, 8)
    both = 1.0 + 8.0 + 0.25 * log(1 / 2)  # 8 has scores of pairs, and both follow it after 7
    assert ids.tolist() == [5, 9]
    assert scores == pytest.approx([both + 0.5 * log(1 / 3), both + 0.5 * log(2 / 3) + 32.0 + 64.0])
    ids, scores = Followers(PROMPT, WEIGHTS, {9}).after(3, 8)  # here it has none, and after 3 only 9 follows
    assert scores == pytest.approx([4.0 + 2.0 * log(1 / 3) - 16.0, 4.0 + 2.0 * log(2 / 3) + 8.0 + 32.0])
    ids, scores = Followers(PROMPT, WEIGHTS, ()).after(6, 8)  # 6 is nowhere
    assert scores == pytest.approx([4.0 + 2.0 * log(1 / 3), 4.0 + 2.0 * log(2 / 3)])


def test_a_text_that_grows_scores_as_if_it_had_been_there_at_once() -> None:
    followers = Followers(PROMPT[:1], WEIGHTS, {8, 9})
    for length in (1, 2, 5, 9, 10):
        followers.grow(PROMPT[:length])
        whole = Followers(PROMPT[:length], WEIGHTS, {8, 9})
        for before in (3, 7, 9):
            for last in (5, 7, 8, 9):
                for found, want in zip(followers.after(before, last), whole.after(before, last), strict=True):
                    np.testing.assert_array_equal(found, want)


def test_nothing_follows_what_is_not_there_or_has_too_many_followers() -> None:
    assert [len(each) for each in Followers(PROMPT, WEIGHTS, ()).after(8, 2)] == [0, 0]
    many = [token for follower in range(10, 10 + MOST_FOLLOWERS) for token in (2, follower)]
    assert len(Followers([*many, 2], WEIGHTS, ()).after(9, 2)[0]) == MOST_FOLLOWERS
    assert len(Followers([*many, 2, 3, 2], WEIGHTS, ()).after(9, 2)[0]) == 0


def test_training_scores_what_decoding_scores() -> None:
    chance, frequent = Random(4), np.arange(12) < 6
    shared, groups = chance.choices(range(12), k=30), []
    for index in range(9):
        prompt = [*shared, *chance.choices(range(12), k=chance.randrange(1, 20))]
        groups.append([_pair(f"{index} {n}", prompt, chance.choices(range(12), k=7)) for n in range(1 + index % 2)])
    texts = {pair.id: pair for group in groups for pair in group}
    (packed,), _ = pack(groups, 4096, 0)
    rows = follower_rows(packed, frequent)
    known = set(np.flatnonzero(frequent).tolist())
    for number, (_, name) in enumerate(packed.pairs):
        sources, pair = np.flatnonzero(packed.owners == number), texts[name]
        prompt = pair.tokens[: pair.prompt_tokens].tolist()
        places, tokens, features = rows.of(sources)
        text = [*prompt, *packed.targets[sources].tolist()]
        for index in range(len(sources)):
            here, end = places == index, len(prompt) + index
            ids, scores = Followers(prompt, WEIGHTS, known).after(text[end - 2], text[end - 1])
            assert tokens[here].tolist() == ids.tolist()
            np.testing.assert_allclose(features[here] @ WEIGHTS, scores, rtol=1e-5, atol=1e-5)


def _pair(name: str, prompt: list[int], answer: list[int]) -> TokenPair:
    tokens, targets = (np.array(each, np.int32) for each in ([*prompt, *answer[:-1]], answer))
    return TokenPair(tokens, targets, "plan", name, 1.0)


def test_they_are_added_to_the_scores_of_pairs() -> None:
    before, after = np.random.default_rng(0).standard_normal((2, 3, 2), dtype=np.float32)
    pairs, ids = TokenPairs(np.array([4, 8, 9]), before, after, WEIGHTS), np.array([4, 5, 6, 8])  # 9 is not asked about
    none = np.zeros(4, np.float32)
    found = pairs.in_text(PROMPT).corrected(none, (7, 8), ids)
    _, scores = Followers(PROMPT, WEIGHTS, {4, 8, 9}).after(7, 8)
    np.testing.assert_allclose(found - pairs.scores(8, ids), [0.0, scores[0], 0.0, 0.0], atol=1e-5)
    alone = TokenPairs(pairs.ids, before, after).in_text(PROMPT).corrected(none, (7, 8), ids)
    np.testing.assert_array_equal(alone, pairs.scores(8, ids))
    assert not none.any(), "the logits that were given stay"


def test_scores_among_tokens_follow_the_text_and_what_is_asked() -> None:
    """They are kept for one array of tokens until the text goes on after the token before."""
    ids, others = np.array([4, 5, 8, 9]), np.array([8, 9])
    followers = Followers([7, 8, 9, 7], WEIGHTS, {8, 9})
    for text in ([7, 8, 9, 7], [7, 8, 9, 7, 8, 4]):
        followers.grow(text)
        for tokens in (ids, ids, others, ids):
            known, scores = Followers(text, WEIGHTS, {8, 9}).after(7, 8)
            places, added = followers.among(7, 8, tokens)
            want = {
                token: score for token, score in zip(known.tolist(), scores.tolist(), strict=True) if token in tokens
            }
            assert dict(zip(tokens[places].tolist(), added.tolist(), strict=True)) == want


def test_a_file_keeps_them_and_a_file_without_has_none(tmp_path: Path) -> None:
    layers, pairs = np.ones((2, 3, 4), np.float32), TokenPairs(np.array([4]), *np.ones((2, 1, 2), np.float32))
    adapter = MaskAdapter(np.ones((2, 4), np.float32), layers, layers, pairs)
    for each, want in ((adapter, None), (adapter.with_followers(), FITTED)):
        write_mask_adapter(each, tmp_path)
        found = read_mask_adapter(tmp_path)
        assert found is not None and found.pairs is not None
        assert (want is None and found.pairs.followers is None) or (found.pairs.followers == want).all()
    assert replace(adapter, pairs=None).with_followers().pairs is None


def test_a_file_with_another_number_of_weights_is_damaged(tmp_path: Path) -> None:
    layers, pairs = np.ones((2, 3, 4), np.float32), TokenPairs(np.array([4]), *np.ones((2, 1, 2), np.float32))
    pairs.followers = WEIGHTS[:8]
    write_mask_adapter(MaskAdapter(np.ones((2, 4), np.float32), layers, layers, pairs), tmp_path)
    with pytest.raises(ModelUnavailable, match=r"is damaged \(followers has shape \[8\], not \[9\]\)"):
        read_mask_adapter(tmp_path)


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
