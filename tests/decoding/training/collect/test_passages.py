"""Prompts with something to read, made of a model's own answers."""

from collections.abc import Callable

import pytest

from decoding.tokenizer import Tokenizer
from tests.decoding.models.jacobi_data import ending_checkpoint
from training.packs.prompts import LEAST_TOKENS, Answered, chat_parts, prompts_to_read

_ANSWER = "The tower was built in 1078. It was the castle's strongest point. A king lived there for a time. " * 4


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(ending_checkpoint(tmp_path_factory.mktemp("model") / "tiny"))


@pytest.fixture
def answered(tokenizer: Tokenizer) -> Callable[[int, str], Answered]:
    """A prompt and its answer by number and text."""

    def made(number: int, text: str) -> Answered:
        before, after = chat_parts(tokenizer)
        answer = (*tokenizer.encode(f"{number}: {text}"), min(tokenizer.stop_ids))
        return f"{before}Question {number}?{after}", answer

    return made


def test_a_third_each_sums_up_translates_and_asks(
    tokenizer: Tokenizer, answered: Callable[[int, str], Answered]
) -> None:
    answers = [answered(number, _ANSWER) for number in range(36)]
    groups = list(prompts_to_read(tokenizer, answers, 100, seed=3))
    assert len(groups) == 12, "three answers for each prompt"
    before, after = chat_parts(tokenizer)
    messages = [group.pairs[0].prompt.removesuffix(after) for group in groups]
    assert all(group.prefix == before and after not in message for group, message in zip(groups, messages, strict=True))
    summed, translated, asked = messages[::3], messages[1::3], messages[2::3]
    assert all("ummar" in each or "Sum it up" in each for each in summed)
    assert all(any(f" {name}" in each for name in ("German", "French", "Spanish", "Italian")) for each in translated)
    assert all("Question " in each for each in asked) and not any("Question " in each for each in summed)
    assert all(_ANSWER.strip() in each for each in (*summed, *asked)), "passages are whole"
    assert all(_ANSWER.strip() not in each and "1078." in each for each in translated), "sentences are a few"


def test_the_seed_draws(tokenizer: Tokenizer, answered: Callable[[int, str], Answered]) -> None:
    answers = [answered(number, _ANSWER) for number in range(9)]
    first, again, other = (list(prompts_to_read(tokenizer, answers, 3, seed)) for seed in (1, 1, 2))
    assert first == again != other


def test_short_answers_are_no_passages(tokenizer: Tokenizer, answered: Callable[[int, str], Answered]) -> None:
    short = tokenizer.decode(tokenizer.encode(_ANSWER)[: LEAST_TOKENS // 3])
    assert not list(prompts_to_read(tokenizer, [answered(number, short) for number in range(9)], 3, seed=0))
