"""What draft heads learn to guess: the frozen target's own answers to the prompts of training data.

A file of responses is JSON Lines (`decoding.json_log`): its first line names the target, and every other line is a prompt with
its answers, first the greedy one, then sampled ones (a head drafts for sampled text, too), each with its stop token:

    {"id": "...", "step": "plan", "prompt": "...", "prompt_ids": [...], "prefix": 120, "answers": [[...], [...]]}
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from decoding.checkpoints.identity import TargetIdentity
from decoding.engine.loop import Request
from decoding.engine.method import LookupCorpus
from decoding.engine.rounds import Round
from decoding.engine.sampler import Sampler
from decoding.methods.registry import load_method
from decoding.serving.text_decoder import TextDecoder
from decoding.tokenizer import Tokenizer
from training.packs.collect import Asked, Prompted, RecordLog, Share, answer_of, collect_answers, fault, read_records
from training.packs.groups import Group, TokenPair, TrainingDataError, validated

FILE = "responses.jsonl"
_PROMPT_END = 8  # tokens: the longest match that lookups try


@dataclass(frozen=True, slots=True, kw_only=True)
class Collecting(Share):
    """How to collect. `samples`: sampled answers besides the greedy one."""

    samples: int = 0
    temperature: float = 1.0  # of the sampled answers
    decoder: str = "plain"  # any method gives the same text


@dataclass(frozen=True, slots=True)
class Response(Prompted):
    """A prompt and the target's answers. The module's docstring describes the fields."""

    answers: tuple[tuple[int, ...], ...]

    def pairs(self) -> list[TokenPair]:
        """Its answers as pairs to be packed."""
        prompt = np.array(self.prompt_ids, dtype=np.int32)
        found = []
        for answer in self.answers:
            targets = np.array(answer, dtype=np.int32)
            found.append(TokenPair(np.concatenate([prompt, targets[:-1]]), targets, self.step, self.id, 1.0))
        return found


def collect(
    decoder: TextDecoder,
    groups: Iterable[Group],
    log: RecordLog,
    how: Collecting,
    report: Callable[[str], None] = lambda line: None,
    stopped: Callable[[], bool] = lambda: False,
) -> dict[str, int]:
    """Let the target answer the prompts that `log` does not hold yet; returns counts as `collect_answers` does.

    Answers with a `collect.collect.fault` are left out; if it is the greedy answer, so is its prompt.
    """
    return collect_answers(decoder, groups, log, how, _Responses(decoder.tokenizer, how), "responses", report, stopped)


@dataclass(frozen=True, slots=True)
class _Responses:
    tokenizer: Tokenizer
    how: Collecting

    def requests(self, asked: Asked) -> list[Request]:
        seeded = Sampler(self.how.temperature, self.how.seed)
        samplers = [Sampler(), *(seeded.derive(asked.prompt, i) for i in range(self.how.samples))]
        limit, stop = self.how.max_new_tokens(asked.pair.step), self.tokenizer.stop_ids
        recall = self._recall(asked)
        return [
            Request(asked.ids, load_method(self.how.decoder), limit, each, stop, recall=recall) for each in samplers
        ]

    def _recall(self, asked: Asked) -> LookupCorpus:
        """The prompt's end and the data's answer: the target writes most of that, too, so drafts copy it."""
        recall = LookupCorpus()
        recall.add([*asked.ids[-_PROMPT_END:], *self.tokenizer.encode(asked.pair.answer), *self.tokenizer.stop_ids])
        return recall

    def record(self, asked: Asked, requests: Sequence[Request], rounds: Sequence[Sequence[Round]]) -> Response | str:
        if why := fault(self.tokenizer, rounds[0], self.how.free_text):
            return why
        answers = dict.fromkeys(
            answer_of(each) for each in rounds if not fault(self.tokenizer, each, self.how.free_text)
        )
        return Response(asked.pair.id, asked.pair.step, asked.prompt, asked.ids, asked.prefix, tuple(answers))


def read_responses(paths: Iterable[Path]) -> tuple[TargetIdentity, Iterator[Response]]:
    """The target that answered, and its responses, file after file.

    Raises TrainingDataError, which names the line, for a damaged file, or if the files are of several targets.
    """
    listed = [(path, read_records(path, "response")) for path in paths]
    targets = {_target(path, next(records, ("", {}))[1]) for path, records in listed}
    if len(targets) != 1:
        raise TrainingDataError(
            "the responses are not all of one target: collect them again with one model and adapter"
        )
    return targets.pop(), (
        validated(Response, record, f"{where}: no response")
        for _, records in listed
        for where, record in records
        if "id" in record
    )


def _target(path: Path, origin: Mapping[str, Any]) -> TargetIdentity:
    try:
        return TargetIdentity(**origin["target"])
    except (KeyError, TypeError) as error:
        raise TrainingDataError(f"{path} holds no responses: make them with `sqlagent train head collect`") from error
