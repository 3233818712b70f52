"""The most important invariant: every method's text equals plain decoding's, token for token, at any temperature."""

from collections.abc import Sequence

import pytest
import torch

import decoding.engine.loop as engine
from decoding.engine.draft import ROOT, Draft
from decoding.engine.loop import Request, decode
from decoding.engine.method import LookupCorpus, Method
from decoding.engine.rounds import Round, measure, text_tokens
from decoding.engine.sampler import Sampler
from decoding.engine.target import PromptTooLong
from decoding.engine.verify import Verdict, verify
from decoding.methods.registry import METHODS, load_method
from tests.decoding.models.doubles import AlwaysWrong, Blank, Fuzz, NoAscent, Oracle, TappedHead
from tests.decoding.models.random_heads import ready_method
from tests.decoding.models.toy import ToySequence, ToyTarget

PROMPT = (1, 2, 3, 1, 2)
SAMPLERS = [Sampler(), *(Sampler(t, seed) for t in (0.7, 1.0, 1.3) for seed in range(2))]


def rounds_of(method: Method, sampler: Sampler, target: ToyTarget | None = None, **kw: object) -> list[Round]:
    options = {"prompt": PROMPT, "max_new_tokens": 60, **kw}
    return list(decode(target or ToyTarget(), [Request(method=method, sampler=sampler, **options)]))  # type: ignore[arg-type]


def text_of(method: Method, sampler: Sampler, **kw: object) -> list[int]:
    return [token for r in rounds_of(method, sampler, **kw) for token in r.text_tokens]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
@pytest.mark.parametrize("name", METHODS)
def test_same_text_as_plain(name: str, sampler: Sampler) -> None:
    want = text_of(load_method("plain"), sampler)
    target = ToyTarget()
    rounds = rounds_of(ready_method(name, target), sampler, target)
    assert [t for r in rounds for t in r.text_tokens] == want
    assert len(want) == 60
    assert target.forwards == len(rounds) <= 60
    assert all(r.committed for r in rounds), "every round makes progress"
    if sampler.seed:
        return
    for stop in ({want[7]}, {want[31], want[40]}):
        assert text_of(ready_method(name, target), sampler, stop=frozenset(stop)) == text_of(
            load_method("plain"), sampler, stop=frozenset(stop)
        )
    for limit in (1, 2, 17):
        assert text_of(ready_method(name, target), sampler, max_new_tokens=limit) == want[:limit]


@pytest.mark.parametrize("seed", range(40))
def test_any_draft_is_safe(seed: int) -> None:
    sampler = Sampler(seed % 3 * 0.6, seed)
    assert text_of(Fuzz(seed), sampler) == text_of(load_method("plain"), sampler)


@pytest.mark.parametrize("seed", range(40))
def test_any_draft_is_safe_under_a_constraint(seed: int) -> None:
    """Guards against pruning that renumbers nodes wrongly, and against forced tokens that shift a method's positions."""
    sampler = Sampler(seed % 3 * 0.6, seed)
    kw = {"stop": frozenset({NoAscent.STOP}), "constraint": NoAscent()}
    want = text_of(load_method("plain"), sampler, **kw)
    assert text_of(Fuzz(seed), sampler, **kw) == want
    for name in METHODS if seed < 6 else ("jacobi", "jacobi_forcing", "path_tree"):
        assert text_of(ready_method(name, ToyTarget()), sampler, **kw) == want, name


@pytest.mark.parametrize("seed", range(40))
def test_plain_forwards_are_those_that_plain_decoding_takes(seed: int) -> None:
    """A method that guesses tokens which the constraint forces saves no forward by that."""
    sampler = Sampler(seed % 3 * 0.6, seed)
    kw = {"stop": frozenset({NoAscent.STOP}), "constraint": NoAscent()}
    plain = rounds_of(load_method("plain"), sampler, **kw)
    text = [token for r in plain for token in r.text_tokens]
    for method in (Fuzz(seed), Oracle([*PROMPT, *text]), load_method("plain")):
        metrics = measure(rounds_of(method, sampler, **kw))
        assert metrics.plain_forwards == len(plain)
        assert metrics.fewer_forwards == len(plain) / metrics.target_forwards


def test_constraint_binds_forces_and_counts() -> None:
    kw = {"constraint": NoAscent(), "stop": frozenset({NoAscent.STOP})}
    rounds = [r for seed in range(40) for r in rounds_of(load_method("plain"), Sampler(1.0, seed), **kw)]
    texts = [t for r in rounds for t in r.text_tokens]
    assert any(r.forced == (2, 3) for r in rounds)
    assert all(
        after == (2, 3) for i in range(len(texts) - 2) if texts[i] == 9 for after in [tuple(texts[i + 1 : i + 3])]
    )
    assert measure(rounds).tokens_per_forward == 1.0, "forced tokens are not counted as decoded"
    assert measure(rounds).forced_tokens > 0


def test_perfect_drafts_are_accepted_whole_and_wrong_ones_never() -> None:
    sampler = Sampler(0.9, 3)
    want = text_of(load_method("plain"), sampler)
    perfect = rounds_of(Oracle([*PROMPT, *want]), sampler)
    assert [t for r in perfect for t in r.committed] == want
    assert len(perfect) == 10
    wrong = rounds_of(AlwaysWrong([*PROMPT, *want]), sampler)
    assert [t for r in wrong for t in r.committed] == want
    assert len(wrong) == 60
    assert measure(wrong).drafted_tokens > 0 and measure(wrong).accepted_tokens == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_batch_decodes_as_each_alone(temperature: float) -> None:
    prompts = [(1, 2, 3), (4, 4), (5, 6, 7, 8, 9), (1,)]
    methods = ["jacobi", "plain", "prompt_lookup", "lookahead"]
    requests = [
        Request(p, load_method(m), 20 + 7 * i, Sampler(temperature, i), frozenset({i}))
        for i, (p, m) in enumerate(zip(prompts, methods, strict=True))
    ]
    target = ToyTarget()
    together = list(decode(target, requests))
    assert target.forwards == max(sum(r.sequence == i for r in together) for i in range(4))
    for i, request in enumerate(requests):
        alone = [t for r in decode(ToyTarget(), [request]) for t in r.text_tokens]
        assert [t for r in together if r.sequence == i for t in r.text_tokens] == alone
    assert {r.batch for r in together} >= {4}
    assert len(target.closed) == 4


def test_head_gets_every_hidden_state_once_and_cache_hits_change_nothing() -> None:
    """Guards against tapped states that are lost, doubled or misplaced, and against a hit that saves or costs rounds."""
    target, results = ToyTarget(), []
    for _ in range(2):
        head = TappedHead()
        rounds = rounds_of(head, Sampler(), target)
        text = [*PROMPT, *(t for r in rounds for t in r.text_tokens)]
        expected = [[10.0 * t, 10.0 * t + 1] for t in text[:-1]]
        assert head.features[..., 0].tolist() == expected
        assert head.drafted_rounds == len(rounds) - 1
        results.append((text, len(rounds), [r.committed for r in rounds]))
    cold, hit = results
    assert cold[0] == hit[0]
    assert rounds[0].pending == 1, "the second decode found the prompt in the cache"
    plain = rounds_of(load_method("plain"), Sampler(), target)
    assert plain[0].pending == 1, "a cached prefix with more taps than needed is a hit"


@pytest.mark.parametrize("name", METHODS)
def test_tokens_per_forward_is_equal_after_a_cache_hit(name: str) -> None:
    target = ToyTarget()
    cold, hit = (rounds_of(ready_method(name, target), Sampler(), target) for _ in range(2))
    assert (cold[0].pending, hit[0].pending) == (len(PROMPT), 1)
    assert [r.committed for r in cold] == [r.committed for r in hit]


def test_missing_taps_are_a_cache_miss() -> None:
    target = ToyTarget()
    rounds_of(load_method("plain"), Sampler(), target)
    assert rounds_of(TappedHead(), Sampler(), target)[0].pending == len(PROMPT)


def test_recall_carries_an_earlier_text_into_a_later_decode() -> None:
    """Recycling across steps: the second time the same text is wanted, it is drafted from the first."""
    recall = LookupCorpus()
    first = rounds_of(load_method("prompt_lookup"), Sampler(0.8, 1), recall=recall)
    recall.add([*PROMPT, *text_tokens(first)])
    again = rounds_of(load_method("prompt_lookup"), Sampler(0.8, 1), recall=recall)
    assert text_tokens(again) == text_tokens(first)
    assert len(again) < 0.5 * len(first)


def test_jacobi_converges_where_the_text_does_not_depend_on_the_guess() -> None:
    """With a target that only counts, one sweep corrects the whole block: Jacobi must then commit block by block."""
    counting = ToyTarget(lambda tokens: torch.eye(12)[len(tokens) % 12])
    rounds = rounds_of(load_method("jacobi", block_size=7), Sampler(), counting)
    assert len(rounds) <= 60 / 4


def test_stop_closes_sequences_and_cancel_stops_between_rounds() -> None:
    target = ToyTarget()
    flags = iter([False, False, True])
    rounds = list(decode(target, [Request(PROMPT, load_method("plain"), 60)], cancelled=lambda sequence: next(flags)))
    assert len(rounds) == 2
    assert len(target.closed) == 1
    stream = decode(target, [Request(PROMPT, load_method("plain"), 60)])
    next(stream)
    stream.close()
    assert len(target.closed) == 2


def test_finish_says_why() -> None:
    want = text_of(load_method("plain"), Sampler())
    assert rounds_of(load_method("plain"), Sampler())[-1].finish == "length"
    assert rounds_of(load_method("plain"), Sampler(), stop=frozenset({want[5]}))[-1].finish == "stop"


def test_prompts_that_do_not_fit() -> None:
    target = ToyTarget()
    target.max_length = 8
    assert len(rounds_of(load_method("plain"), Sampler(), target)) == 3, "the model's length is a limit"
    with pytest.raises(PromptTooLong, match="8 tokens"):
        rounds_of(load_method("plain"), Sampler(), target, prompt=tuple(range(8)))
    with pytest.raises(PromptTooLong, match="0 tokens"):
        rounds_of(load_method("plain"), Sampler(), target, prompt=())


# --- seeded bugs: each must be caught by the invariant -------------------------------------------------------------------


def _accepts_any_first_child(draft: Draft, choice: object) -> Verdict:
    verdict = verify(draft, choice)  # type: ignore[arg-type]
    return Verdict((0,), choice(0)) if draft.tokens and not verdict.path else verdict  # type: ignore[operator]


def _repeats_the_bonus(draft: Draft, choice: object) -> Verdict:
    verdict = verify(draft, choice)  # type: ignore[arg-type]
    return Verdict(verdict.path, choice(ROOT)) if verdict.path else verdict  # type: ignore[operator]


def _ignores_parents(draft: Draft, choice: object) -> Verdict:
    return verify(Draft(draft.tokens, tuple(range(-1, len(draft) - 1))), choice)  # type: ignore[arg-type]


def _pick_without_position(self: Sampler, logits: object, position: int, _pick=Sampler.pick) -> int:
    _pick_without_position.calls += 1  # type: ignore[attr-defined]
    return _pick(self, logits, _pick_without_position.calls)  # type: ignore[arg-type, attr-defined]


_pick_without_position.calls = 0  # type: ignore[attr-defined]


def _keeps_a_wrong_row(self: ToyTarget, sequence: ToySequence, path: Sequence[int], _commit=ToyTarget.commit) -> None:
    _commit(self, sequence, path)
    if len(path) > 1:
        sequence.tokens[-1] = (sequence.tokens[-1] + 1) % 12


def _drafts_any_token(self: object, draft: Draft, node: int) -> bool:
    return draft.depths[node] < self.room  # type: ignore[attr-defined,no-any-return]


BUGS = {
    "verify accepts a wrong child": (engine, "verify", _accepts_any_first_child),
    "verify takes the bonus from the root": (engine, "verify", _repeats_the_bonus),
    "verify reads a tree as a chain": (engine, "verify", _ignores_parents),
    "noise comes from a running counter": (Sampler, "pick", _pick_without_position),
    "the cache keeps a wrong row": (ToyTarget, "commit", _keeps_a_wrong_row),
    "text runs on after a stop token": (engine.Decoding, "_possible", _drafts_any_token),
}


def _invariant_holds() -> bool:
    for seed in range(6):
        sampler = Sampler(seed % 2 * 0.8, seed)
        want = text_of(Blank(), sampler)
        right = [*PROMPT, *want]
        stop = frozenset({want[11]})
        for method in (Fuzz(seed), Oracle(right), load_method("jacobi"), load_method("lookahead")):
            if (
                text_of(method, sampler) != want
                or text_of(method, sampler, stop=stop) != want[: want.index(want[11]) + 1]
            ):
                return False
    return True


def test_the_invariant_holds_without_a_bug() -> None:
    assert _invariant_holds()


@pytest.mark.parametrize("bug", BUGS)
def test_the_invariant_catches(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, mutant = BUGS[bug]
    monkeypatch.setattr(owner, name, mutant)
    try:
        caught = not _invariant_holds()
    except AssertionError:  # the toy target's own checks of the cache contract
        caught = True
    assert caught
