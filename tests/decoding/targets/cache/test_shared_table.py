"""Sequences that begin alike share the rows of keys and values: nothing is copied, and nobody's rows change."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
import torch

from decoding.engine.draft import Draft
from decoding.engine.loop import Request, decode
from decoding.engine.sampler import Sampler
from decoding.engine.target import ForwardInput
from decoding.methods.registry import load_method
from decoding.targets.fast_target import FastSequence, FastTarget
from decoding.targets.tensor_tables import WORTH_SHARING, SharedTable, TensorTable
from tests.decoding.models.doubles import Fuzz
from tests.decoding.models.tiny_models import tiny_checkpoint

PROMPT = tuple(Random(1).choices(range(3, 300), k=150))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("llama"), seed=3, max_position_embeddings=512)


def empty() -> TensorTable:
    return TensorTable(1, (1,), torch.float32, torch.device("cpu"))


def table(*rows: int) -> SharedTable:
    own = empty()
    own.copy_from(torch.tensor([rows], dtype=torch.float32)[..., None])
    return SharedTable(own)


def rows_of(shared: SharedTable, count: int) -> list[int]:
    parts = [] if shared.prefix is None else [shared.prefix]
    return torch.cat([*parts, shared.own.data], 1)[0, :count, 0].int().tolist()  # type: ignore[no-any-return]


def storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def test_an_open_sequences_rows_are_shared_and_what_follows_a_prefix_is_copied() -> None:
    first = table(*range(200))
    second = first.begin(150, empty())
    third = second.begin(140, empty())
    assert [rows_of(each, 140) for each in (second, third)] == [list(range(140))] * 2
    assert len(second.own.data[0]) == len(third.own.data[0]) == 0 and first.is_lent and not second.is_lent
    assert second.prefix is not None and storage(second.prefix) == storage(first.own.data)
    second.reserve(153, 150)
    second.own.data[0, :3, 0] = torch.tensor([7.0, 8.0, 9.0])
    second.compact(150, [0, 2])
    assert rows_of(second, 152) == [*range(150), 7, 9]
    fourth = second.begin(152, empty())
    assert rows_of(fourth, 152) == [*range(150), 7, 9] and fourth.shared == 150
    second.own.data[0, :1, 0] = 0.0
    assert rows_of(fourth, 152) == [*range(150), 7, 9]
    assert rows_of(first, 200) == list(range(200))


def test_few_rows_and_those_of_a_lone_closed_sequence_are_copied() -> None:
    first = table(*range(200))
    assert first.begin(WORTH_SHARING - 1, empty()).shared == 0 and not first.is_lent
    kept = first.kept(180)
    alone = kept.begin(170, empty())
    assert alone.shared == 0 and rows_of(alone, 170) == list(range(170))
    borrower = first.begin(120, empty())
    few = borrower.begin(WORTH_SHARING - 1, empty())
    assert few.shared == 0 and rows_of(few, WORTH_SHARING - 1) == list(range(WORTH_SHARING - 1))


def test_what_was_shared_stays_shared_when_its_sequence_is_closed() -> None:
    borrower = table(*range(200)).begin(120, empty())
    borrower.reserve(122, 120)
    borrower.own.data[0, :2, 0] = torch.tensor([7.0, 8.0])
    kept = borrower.kept(121)
    assert kept.prefix is not None and borrower.prefix is not None and storage(kept.prefix) == storage(borrower.prefix)
    assert kept.own.data.shape[1] == 1 and kept.nbytes == 4 * 121
    again = kept.begin(121, empty())
    assert again.shared == 120 and rows_of(again, 121) == [*range(120), 7]
    shorter = borrower.kept(100)
    assert rows_of(shorter, 100) == list(range(100)) and shorter.own.data.shape[1] == 0


def feed(target: FastTarget, tokens: Sequence[int]) -> FastSequence:
    """An open sequence with all of `tokens` cached."""
    sequence = target.open((*tokens, 1), Sampler())
    if pending := tokens[sequence.cached :]:
        target.score([ForwardInput(sequence, pending, Draft())])
        target.commit(sequence, [])
    return sequence


def bytes_of(sequences: Sequence[FastSequence]) -> int:
    """What the tables of sequences hold, shared memory counted once."""
    tensors = [t for each in sequences for t in (each.cache.own.data, each.cache.prefix) if t is not None]
    return sum({storage(t): t.untyped_storage().nbytes() for t in tensors if t.numel()}.values())


def test_sixteen_votes_take_the_memory_of_one_prompt(checkpoint: Path) -> None:
    target = FastTarget.load(checkpoint)
    first = feed(target, PROMPT)
    one = bytes_of([first])
    votes = [first, *(target.open((*PROMPT, 9), Sampler(1.0, seed)) for seed in range(15))]
    assert [vote.cached for vote in votes] == [150] * 16
    assert bytes_of(votes) == one
    users = [feed(target, (*PROMPT[:100], *(n, n, n))) for n in (4, 5)]
    assert all(user.cache.shared == 100 for user in users)


def test_shared_rows_outlive_their_sequence_and_no_other_one_writes_there(checkpoint: Path) -> None:
    """A closed sequence's buffer serves the next one, unless somebody reads it."""
    target = FastTarget.load(checkpoint)
    first = feed(target, PROMPT)
    second = target.open((*PROMPT, 9), Sampler())
    assert second.cache.prefix is not None
    before = second.cache.prefix.clone()
    target.close(first)
    other = feed(target, tuple(reversed(PROMPT)))
    assert storage(other.cache.own.data) != storage(second.cache.prefix)
    assert torch.equal(second.cache.prefix, before)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_votes_and_users_write_what_they_write_alone(checkpoint: Path, temperature: float) -> None:
    """Texts that begin alike, together and one after the other, drafting trees, while the one they share with ends first."""
    target, alone = FastTarget.load(checkpoint), FastTarget.load(checkpoint, cache_bytes=0)
    prompts = [PROMPT, PROMPT, PROMPT, (*PROMPT[:120], 5, 6, 7), PROMPT]
    lengths = [4, 30, 25, 40, 30]

    def requests(method: bool) -> list[Request]:
        made = [Fuzz(i, vocab=300) if method else load_method("plain") for i in range(5)]
        samplers = [Sampler(temperature, i) for i in range(5)]
        return [Request(*each) for each in zip(prompts, made, lengths, samplers, strict=True)]

    want = [[t for r in decode(alone, [one]) for t in r.text_tokens] for one in requests(method=False)]
    list(decode(target, [Request(PROMPT[:-1], load_method("plain"), 1)]))  # as `TextDecoder` does before votes
    for _ in range(2):
        rounds = list(decode(target, requests(method=True)))
        assert [[t for r in rounds if r.sequence == i for t in r.text_tokens] for i in range(5)] == want
