"""Drafts are canonical trees, no matter how they were built.

`OneOf`: the texts that it allows are the ones given, and it forces what leaves no choice. `Begun`: a text begins as told.

A text behind several prompts: the mean of their logits decides, and every method still writes plain decoding's text.
"""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from decoding.engine.constraint import Begun, Constraint
from decoding.engine.draft import ROOT, Draft
from decoding.engine.loop import Request, decode
from decoding.engine.method import Method
from decoding.engine.rounds import Round, measure
from decoding.engine.sampler import Sampler
from decoding.engine.target import PromptTooLong
from decoding.engine.verify import Verdict, verify
from decoding.methods.registry import METHODS, load_method
from tests.decoding.models.doubles import Fuzz, NoAscent
from tests.decoding.models.one_of import OneOf
from tests.decoding.models.random_heads import ready_method
from tests.decoding.models.toy import VOCAB, ToyTarget, toy_logits


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    tokens = draw(st.lists(st.integers(0, 3), max_size=14))
    return tokens, [draw(st.integers(-1, i - 1)) for i in range(len(tokens))]


def paths(tokens: list[int], parents: list[int]) -> set[tuple[int, ...]]:
    def up(node: int) -> tuple[int, ...]:
        return () if node == ROOT else (*up(parents[node]), tokens[node])

    return {up(node) for node in range(len(tokens))}


@given(trees())
def test_merging_siblings_keeps_exactly_the_same_guesses(tree: tuple[list[int], list[int]]) -> None:
    draft = Draft(tuple(tree[0]), tuple(tree[1]))
    assert paths(list(draft.tokens), list(draft.parents)) == paths(*tree)
    assert len(set(draft.children)) == len(draft)
    assert all(parent < node for node, parent in enumerate(draft.parents))
    assert [draft.depth(node) for node in range(len(draft))] == [len(draft.path(node)) for node in range(len(draft))]


@given(trees(), st.sets(st.integers(0, 13)))
def test_pruning_drops_whole_branches(tree: tuple[list[int], list[int]], dropped: set[int]) -> None:
    draft = Draft(tuple(tree[0]), tuple(tree[1]))
    kept = {
        tuple(draft.tokens[i] for i in draft.path(node))
        for node in range(len(draft))
        if not dropped & set(draft.path(node))
    }
    pruned = draft.only(draft.kept(lambda node: node not in dropped))
    assert paths(list(pruned.tokens), list(pruned.parents)) == kept


def test_trie_and_chain() -> None:
    trie = Draft.trie([(1, 2, 3), (1, 4), (1, 2, 5)])
    assert trie == Draft((1, 2, 3, 4, 5), (-1, 0, 1, 0, 1))
    assert Draft.chain((7, 8)) == Draft((7, 8), (-1, 0))
    assert Draft.chain((7, 8)).is_chain
    assert not trie.is_chain


def test_verify_follows_the_targets_choices() -> None:
    trie = Draft.trie([(1, 2, 3), (4, 5)])
    answers = {ROOT: 4, 3: 5, 4: 9}
    assert verify(trie, answers.__getitem__) == Verdict((3, 4), 9)


def test_malformed_drafts_are_refused() -> None:
    with pytest.raises(ValueError, match="parent 1"):
        Draft((1, 2), (1, -1))
    with pytest.raises(ValueError, match="one parent per token"):
        Draft((1, 2), (-1,))


STOP = frozenset({7, 9})
TEXTS = ([1, 2], [1, 3, 4], [1, 3, 4, 5])


def test_it_is_a_constraint_of_the_texts_alone() -> None:
    one_of = OneOf(TEXTS, STOP, 10)
    assert isinstance(one_of, Constraint)
    state = one_of.start()
    for token, allowed in ((1, {1}), (3, {2, 3}), (4, {4}), (5, {5, 7, 9}), (9, {7, 9})):
        assert set(one_of.allowed(state).nonzero()[0]) == allowed
        assert {each for each in range(10) if one_of.admits(state, each)} == allowed
        state = one_of.step(state, token)


def test_what_leaves_no_choice_is_forced_up_to_the_end() -> None:
    one_of = OneOf(TEXTS, STOP, 10)
    assert one_of.forced(()) == (1,)
    assert one_of.forced((1,)) == ()
    assert one_of.forced((1, 2)) == (7,)
    assert one_of.forced((1, 3)) == (4,)
    assert OneOf(TEXTS, frozenset({9}), 10).forced((1, 2)) == (9,)


def test_a_model_writes_one_of_them_in_a_forward_for_each_choice() -> None:
    target = ToyTarget()
    one_of, written = OneOf(TEXTS, STOP, target.vocab_size), set()
    for seed in range(20):
        asked = Request((1, 2), load_method("plain"), 9, Sampler(1.0, seed), STOP, one_of)
        rounds = list(decode(target, [asked]))
        *text, last = [token for r in rounds for token in r.text_tokens]
        assert last in STOP and text in map(list, TEXTS) and rounds[-1].finish == "stop"
        assert len(rounds) == {2: 2, 3: 3, 4: 3}[len(text)]
        written.add(tuple(text))
    assert len(written) == len(TEXTS)


def test_what_is_begun_goes_on_under_the_inner_constraint() -> None:
    begun = Begun([1, 3], OneOf(TEXTS, STOP, 10))
    assert isinstance(begun, Constraint)
    state = begun.start()
    assert begun.forced(state) == (1, 3)
    for token, allowed in ((1, {1}), (3, {3}), (4, {4}), (5, {5, 7, 9}), (9, {7, 9})):
        assert set(begun.allowed(state).nonzero()[0]) == allowed
        assert {each for each in range(10) if begun.admits(state, each)} == allowed
        state = begun.step(state, token)


def test_without_tokens_it_is_the_inner_constraint() -> None:
    inner = OneOf(TEXTS, STOP, 10)
    begun = Begun((), inner)
    assert begun.forced(begun.start()) == inner.forced(inner.start()) == (1,)
    assert set(begun.allowed(begun.start()).nonzero()[0]) == {1}


def test_constraints_that_begin_otherwise_are_told_apart() -> None:
    """Guards replies that are kept by their constraint's key."""
    inner = OneOf(TEXTS, STOP, 10)
    assert Begun([1], inner).key == Begun((1,), inner).key != Begun([1, 3], inner).key
    assert Begun([1], inner).key != Begun([1], OneOf(TEXTS, STOP, 10)).key  # another constraint, which has no key


@pytest.mark.parametrize("method", ["plain", "jacobi_forcing", "prompt_lookup"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_method_writes_on_from_the_beginning_alike(method: str, temperature: float) -> None:
    target = ToyTarget()

    def text(name: str, seed: int) -> list[int]:
        begun = Begun([1, 3, 4], OneOf(TEXTS, STOP, target.vocab_size))
        asked = Request((1, 2), load_method(name), 9, Sampler(temperature, seed), STOP, begun)
        return [token for each in decode(target, [asked]) for token in each.text_tokens]

    for seed in range(5):
        assert text(method, seed)[:3] == [1, 3, 4]
        assert text(method, seed) == text("plain", seed)


PROMPTS = (1, 2, 3), (2, 5, 5, 2, 3), (3, 2, 3)
SAMPLERS = [Sampler(), Sampler(0.8, 0), Sampler(1.0, 1)]


def logits_by_prompt(tokens: Sequence[int]) -> Tensor:
    """Different behind each prompt, to the text's end."""
    return toy_logits(tokens) + torch.randn(VOCAB, generator=torch.Generator().manual_seed(7 + tokens[0]))


def rounds_of(
    method: Method,
    sampler: Sampler = Sampler(),
    target: ToyTarget | None = None,
    prompts: object = PROMPTS,
    **kw: object,
) -> list[Round]:
    prompt, *others = prompts  # type: ignore[misc]
    options = {"max_new_tokens": 60, "other_prompts": tuple(others), **kw}
    request = Request(prompt, method, sampler=sampler, **options)  # type: ignore[arg-type]
    return list(decode(target or ToyTarget(logits_by_prompt), [request]))


def text_of(method: Method, sampler: Sampler = Sampler(), **kw: object) -> list[int]:
    return [token for r in rounds_of(method, sampler, **kw) for token in r.text_tokens]  # type: ignore[arg-type]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
@pytest.mark.parametrize("name", METHODS)
def test_same_text_as_plain(name: str, sampler: Sampler) -> None:
    target = ToyTarget(logits_by_prompt)
    rounds = rounds_of(ready_method(name, target), sampler, target)
    assert [t for r in rounds for t in r.text_tokens] == text_of(load_method("plain"), sampler)
    assert target.forwards == len(rounds), "one forward for all prompts"
    kw = {"stop": frozenset({NoAscent.STOP}), "constraint": NoAscent()}
    assert text_of(ready_method(name, target), sampler, **kw) == text_of(load_method("plain"), sampler, **kw)


@pytest.mark.parametrize("seed", range(20))
def test_any_draft_is_safe(seed: int) -> None:
    sampler = Sampler(seed % 3 * 0.6, seed)
    assert text_of(Fuzz(seed), sampler) == text_of(load_method("plain"), sampler)


def test_the_mean_of_the_logits_decides() -> None:
    text = text_of(load_method("plain"))
    for count, token in enumerate(text):
        mean = torch.stack([logits_by_prompt([*prompt, *text[:count]]) for prompt in PROMPTS]).mean(0)
        assert token == int(mean.argmax())
    alone = [text_of(load_method("plain"), prompts=[prompt]) for prompt in PROMPTS]
    assert text not in alone, "no prompt alone gives this text"


def test_the_noise_of_sampling_is_that_of_the_first_prompts_positions() -> None:
    sampler = Sampler(0.9, 4)
    text = text_of(load_method("plain"), sampler)
    for count, token in enumerate(text):
        mean = torch.stack([logits_by_prompt([*prompt, *text[:count]]) for prompt in PROMPTS]).mean(0)
        assert token == sampler.pick(mean.numpy(), len(PROMPTS[0]) + count)


def test_equal_prompts_change_nothing_and_one_alone_needs_no_mean() -> None:
    alone = text_of(load_method("plain"), prompts=PROMPTS[:1])
    assert text_of(load_method("plain"), prompts=[PROMPTS[0]] * 3) == alone


def test_cached_prefixes_change_nothing_and_all_sequences_are_closed() -> None:
    target = ToyTarget(logits_by_prompt)
    first, again = (rounds_of(load_method("prompt_lookup"), target=target) for _ in range(2))
    assert [r.committed for r in first] == [r.committed for r in again]
    assert len(target.closed) == 2 * len(PROMPTS)
    assert {(r.prompts, r.batch) for r in again} == {(3, 3)}


def test_texts_behind_one_and_several_prompts_share_forwards() -> None:
    requests = [
        Request(PROMPTS[0], load_method("jacobi"), 20, other_prompts=PROMPTS[1:]),
        Request(PROMPTS[1], load_method("plain"), 12),
    ]
    target = ToyTarget(logits_by_prompt)
    together = list(decode(target, requests))
    for i, request in enumerate(requests):
        alone = [t for r in decode(ToyTarget(logits_by_prompt), [request]) for t in r.text_tokens]
        assert [t for r in together if r.sequence == i for t in r.text_tokens] == alone
    shared = [r for r in together if r.batch == 4]
    assert {(r.sequence, r.prompts) for r in shared} == {(0, 3), (1, 1)}
    assert shared[0].share_ms == 0.75 * shared[0].target_ms
    assert measure(shared[:1]).target_ms == shared[0].share_ms


def test_every_prompt_must_fit() -> None:
    target = ToyTarget(logits_by_prompt)
    target.max_length = 5
    with pytest.raises(PromptTooLong, match="5 tokens"):
        rounds_of(load_method("plain"), target=target)
    assert not target.closed
    target.max_length = 8
    assert len([t for r in rounds_of(load_method("plain"), target=target) for t in r.text_tokens]) == 3
