"""A text behind several prompts: the mean of their logits decides, and every method still writes plain decoding's text."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from decoding.engine.loop import Request, decode
from decoding.engine.method import Method
from decoding.engine.rounds import Round, measure
from decoding.engine.sampler import Sampler
from decoding.engine.target import PromptTooLong
from decoding.methods.registry import METHODS, load_method
from tests.decoding.models.doubles import Fuzz, NoAscent
from tests.decoding.models.random_heads import ready_method
from tests.decoding.models.toy import VOCAB, ToyTarget, toy_logits

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
