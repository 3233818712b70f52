"""Prompts that a chat model invents, and its answers to them, which may have several lines.

Prompts with something to read, made of a model's own answers.

Trajectories that a Ray cluster decodes are those of one process, in its order. Real Ray where it is installed.
"""

import builtins
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from decoding.serving.load import load_text_decoder
from decoding.serving.parts import ClusterError
from decoding.serving.text_decoder import TextDecoder
from decoding.tokenizer import Tokenizer
from tests.decoding.models.jacobi_data import ORIGIN, N, decoder_of, ending_checkpoint
from tests.decoding.models.training_data import agent_groups
from training.heads.responses import Collecting, collect, read_responses
from training.jacobi.trajectory import FILE as TRAJECTORIES
from training.jacobi.trajectory import Collecting as CollectingOfRayBatches
from training.jacobi.trajectory import Trajectories
from training.jacobi.trajectory import collect as collect_ray_batches
from training.packs.collect import Asked, RecordLog, gather
from training.packs.groups import Group, Pair, TrainingDataError, group_line, read_groups
from training.packs.prompts import (
    LEAST_TOKENS,
    STEP,
    Answered,
    Inventing,
    chat_parts,
    invent,
    prompts_to_read,
    ray_decoded,
)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> TextDecoder:
    folder = ending_checkpoint(tmp_path_factory.mktemp("model") / "tiny")
    return load_text_decoder(str(folder), dtype="fp32", device="cpu", adapter="none")


@pytest.mark.usefixtures("one_thread")
def test_prompts_are_messages_in_the_chat_template(decoder: TextDecoder, tmp_path: Path) -> None:
    assert invent(decoder, tmp_path / "p.jsonl", Inventing(12, max_tokens=40)) == 12
    groups = list(read_groups(tmp_path / "p.jsonl"))
    assert len({group.pairs[0].prompt for group in groups}) == len(groups) == 12
    for group in groups:
        (pair,) = group.pairs
        message = pair.prompt.removesuffix("<|im_end|>\n<|im_start|>assistant\n")
        whole = decoder.tokenizer.chat([{"role": "user", "content": message}], add_generation_prompt=True)
        assert group.prefix + pair.prompt == whole and group.prefix == chat_parts(decoder.tokenizer)[0]
        assert message == message.strip() and pair.step == STEP and not pair.answer


@pytest.mark.usefixtures("one_thread")
def test_messages_begin_with_the_opening(decoder: TextDecoder, tmp_path: Path) -> None:
    invent(decoder, tmp_path / "p.jsonl", Inventing(6, max_tokens=40, opening="How many"))
    prompts = [group.pairs[0].prompt for group in read_groups(tmp_path / "p.jsonl")]
    assert len(prompts) == 6 and all(prompt.startswith("How many") for prompt in prompts)


@pytest.mark.usefixtures("one_thread")
def test_a_file_goes_on_where_it_stopped(decoder: TextDecoder, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    invent(decoder, whole, Inventing(12, max_tokens=40, seed=3))
    assert invent(decoder, parts, Inventing(12, max_tokens=40, seed=3), stopped=after(5)) == 5
    begun = parts.read_text()
    assert invent(decoder, parts, Inventing(12, max_tokens=40, seed=3)) == 12
    assert parts.read_text() == whole.read_text() and parts.read_text().startswith(begun)
    assert invent(decoder, parts, Inventing(7, max_tokens=40, seed=3)) == 12, "nothing is taken away"


def after(times: int) -> Callable[[], bool]:
    """A function that says so from its call `times + 1` on."""
    asked = iter([False] * times)
    return lambda: next(asked, True)


@pytest.mark.usefixtures("one_thread")
def test_other_training_data_are_not_continued(decoder: TextDecoder, tmp_path: Path) -> None:
    path = tmp_path / "plans.jsonl"
    path.write_text(group_line(Group("", (Pair("plan:", " x", "plan", "spider/1"),))))
    with pytest.raises(TrainingDataError, match="other training data"):
        invent(decoder, path, Inventing(3))
    assert len(list(read_groups(path))) == 1


@pytest.mark.usefixtures("one_thread")
def test_a_model_that_invents_nothing_new_ends_with_a_word(decoder: TextDecoder, tmp_path: Path) -> None:
    with pytest.raises(TrainingDataError, match="raise --temperature"):
        invent(decoder, tmp_path / "p.jsonl", Inventing(9, temperature=0.0, max_tokens=40))


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("free_text", [True, False])
def test_free_text_may_be_cut_off_and_have_several_lines(free_text: bool, decoder: TextDecoder, tmp_path: Path) -> None:
    invent(decoder, tmp_path / "p.jsonl", Inventing(12, max_tokens=40))
    log = RecordLog(tmp_path / "r.jsonl", {"target": {"base_sha256": "x"}})
    how = Collecting(max_new_tokens=lambda step: 6, free_text=free_text)
    counts = collect(decoder, read_groups(tmp_path / "p.jsonl"), log, how)
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()[1:]]
    reasons = {line["left_out"] for line in lines if "left_out" in line}
    assert counts["prompts"] == 12 and not (free_text and reasons & {"unfinished", "newline"})
    kept = list(read_responses([log.path])[1])
    cut_off = [each for each in kept if each.answers[0][-1] not in decoder.tokenizer.stop_ids]
    assert bool(cut_off) == free_text and bool(reasons & {"unfinished", "newline"}) != free_text
    assert all(len(pair.targets) == len(each.answers[0]) for each in kept for pair in each.pairs())


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


GROUPS = agent_groups(3, 3)
HOW = CollectingOfRayBatches(block_size=N, max_new_tokens=lambda step: 30, batch=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ending_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def alone(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of one process."""
    log = RecordLog(tmp_path_factory.mktemp("alone") / TRAJECTORIES, ORIGIN)
    collect_ray_batches(decoder_of(folder), GROUPS, log, HOW)
    log.close()
    return log.path.read_bytes()


@pytest.mark.usefixtures("one_thread")
def test_a_cluster_writes_the_file_of_one_process(folder: Path, alone: bytes, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    load = partial(load_text_decoder, str(folder), dtype="fp32", device="cpu", adapter="none")
    decoded = partial(ray_decoded, "local", 2, load, partial(Trajectories, how=HOW))
    log, tokenizer = RecordLog(tmp_path / TRAJECTORIES, ORIGIN), Tokenizer(folder)
    counts = gather(tokenizer, GROUPS, log, HOW, decoded, "them")
    log.close()
    assert counts["prompts"] == 18 and log.path.read_bytes() == alone


@pytest.mark.usefixtures("one_thread")
def test_batches_may_be_decoded_anywhere(folder: Path, alone: bytes, tmp_path: Path) -> None:
    """Two models that know nothing of each other take the batches in turn, as a cluster's workers do."""
    from training.packs.collect import Batches

    def decoded(batches: Sequence[Sequence[Asked]]) -> Iterator[list[Any]]:
        workers = [Batches(one := decoder_of(folder), Trajectories(one.tokenizer, HOW)) for _ in range(2)]
        results = {i: workers[i % 2](batch) for i, batch in reversed(list(enumerate(batches)))}
        yield from (results[i] for i in range(len(batches)))

    log = RecordLog(tmp_path / TRAJECTORIES, ORIGIN)
    gather(Tokenizer(folder), GROUPS, log, HOW, decoded, "them")
    log.close()
    assert log.path.read_bytes() == alone


@pytest.mark.usefixtures("one_thread")
def test_without_ray_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    known = builtins.__import__

    def missing(name: str, *args: Any, **more: Any) -> Any:
        if name.startswith("ray"):
            raise ImportError(name)
        return known(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ClusterError, match=r"pip install 'sqlagent-local\[ray\]'"):
        list(ray_decoded("auto", None, lambda: decoder_of(Path()), lambda tokenizer: None, []))  # type: ignore[arg-type, return-value]
