"""Prompts that a chat model invents, and its answers to them, which may have several lines."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from decoding.serving.load import load_text_decoder
from decoding.serving.text_decoder import TextDecoder
from tests.decoding.models.jacobi_data import ending_checkpoint
from training.heads.responses import Collecting, collect, read_responses
from training.packs.collect import RecordLog
from training.packs.groups import Group, Pair, TrainingDataError, group_line, read_groups
from training.packs.prompts import STEP, Inventing, chat_parts, invent

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> TextDecoder:
    folder = ending_checkpoint(tmp_path_factory.mktemp("model") / "tiny")
    return load_text_decoder(str(folder), dtype="fp32", device="cpu", adapter="none")


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


def test_messages_begin_with_the_opening(decoder: TextDecoder, tmp_path: Path) -> None:
    invent(decoder, tmp_path / "p.jsonl", Inventing(6, max_tokens=40, opening="How many"))
    prompts = [group.pairs[0].prompt for group in read_groups(tmp_path / "p.jsonl")]
    assert len(prompts) == 6 and all(prompt.startswith("How many") for prompt in prompts)


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


def test_other_training_data_are_not_continued(decoder: TextDecoder, tmp_path: Path) -> None:
    path = tmp_path / "plans.jsonl"
    path.write_text(group_line(Group("", (Pair("plan:", " x", "plan", "spider/1"),))))
    with pytest.raises(TrainingDataError, match="other training data"):
        invent(decoder, path, Inventing(3))
    assert len(list(read_groups(path))) == 1


def test_a_model_that_invents_nothing_new_ends_with_a_word(decoder: TextDecoder, tmp_path: Path) -> None:
    with pytest.raises(TrainingDataError, match="raise --temperature"):
        invent(decoder, tmp_path / "p.jsonl", Inventing(9, temperature=0.0, max_tokens=40))


@pytest.mark.parametrize("free_text", [True, False])
def test_free_text_may_be_cut_off_and_have_several_lines(free_text: bool, decoder: TextDecoder, tmp_path: Path) -> None:
    invent(decoder, tmp_path / "p.jsonl", Inventing(12, max_tokens=40))
    log = RecordLog(tmp_path / "r.jsonl", {"target": {"base_sha256": "x"}})
    how = Collecting(lambda step: 6, free_text=free_text)
    counts = collect(decoder, read_groups(tmp_path / "p.jsonl"), log, how)
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()[1:]]
    reasons = {line["left_out"] for line in lines if "left_out" in line}
    assert counts["prompts"] == 12 and not (free_text and reasons & {"unfinished", "newline"})
    kept = list(read_responses([log.path])[1])
    cut_off = [each for each in kept if each.answers[0][-1] not in decoder.tokenizer.stop_ids]
    assert bool(cut_off) == free_text and bool(reasons & {"unfinished", "newline"}) != free_text
    assert all(len(pair.targets) == len(each.answers[0]) for each in kept for pair in each.pairs())
