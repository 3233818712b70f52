"""Sequences that begin alike share the rows of keys and values: nothing is copied, and nobody's rows change.

Hidden states of a shared beginning are read where they are, and nobody writes into another's rows.

Hidden states of one forward alone, of every target: those of the whole text, behind whatever prefix is cached.

In int8 they are equal to the bit. In fp32 a number may differ by 1e-4, which is rounding: they reach 34. Any two rows of a
layer have a number in which they differ by more than 0.05, so that a wrong row fails.
"""

import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from random import Random
from tempfile import mkdtemp

import numpy as np
import numpy.typing as npt
import pytest
import torch

from decoding.engine.draft import Draft
from decoding.engine.loop import Request, decode
from decoding.engine.sampler import Sampler
from decoding.engine.target import AnyTarget, Array, ForwardInput
from decoding.methods.registry import load_method
from decoding.targets.fast_target import FastSequence, FastTarget
from decoding.targets.hf_target import HfTarget
from decoding.targets.int8.cpu_target import CpuTarget
from decoding.targets.llama_model import WORTH_SHARING, SharedTable, TensorTable
from decoding.targets.prefix_cache import StateTable, TokenTable
from kernels.cpu.processor import variant
from tests.decoding.engine.reading import read
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


PLANES, WIDTH = 2, 3


def empty_state_table() -> TokenTable[np.ndarray]:  # type: ignore[type-arg]
    return TokenTable(PLANES, (WIDTH,), lambda shape: np.full(shape, np.nan, np.float32))


def rows(*values: int) -> np.ndarray:  # type: ignore[type-arg]
    """[planes, rows, width]: each row holds its value, in the second plane its negative."""
    one = np.repeat(np.array(values, np.float32)[:, None], WIDTH, 1)
    return np.stack([one, -one])


def write(table: StateTable, first: int, *values: int) -> None:  # type: ignore[type-arg]
    table.reserve(first + len(values), first)
    for plane, states in enumerate(rows(*values)):
        table.write(plane, first, states)


@pytest.fixture
def whole() -> StateTable:  # type: ignore[type-arg]
    table: StateTable[np.ndarray] = StateTable(empty_state_table())  # type: ignore[type-arg]
    write(table, 0, 1, 2, 3, 4)
    return table


def test_a_beginning_is_shared(whole: StateTable) -> None:  # type: ignore[type-arg]
    one, other = (StateTable(empty_state_table(), whole.rows(3)) for _ in range(2))
    assert np.shares_memory(one.rows(3), whole.rows(4))
    write(one, 3, 8, 9)
    write(other, 3, 6)
    np.testing.assert_array_equal(whole.rows(4), rows(1, 2, 3, 4))
    np.testing.assert_array_equal(one.rows(5), rows(1, 2, 3, 8, 9))
    np.testing.assert_array_equal(other.rows(4), rows(1, 2, 3, 6))
    np.testing.assert_array_equal(one.rows(2), rows(1, 2))


def test_a_beginning_in_two_places_is_joined(whole: StateTable) -> None:  # type: ignore[type-arg]
    one = StateTable(empty_state_table(), whole.rows(2))
    write(one, 2, 7, 8)
    last = StateTable(empty_state_table(), one.rows(3))
    write(last, 3, 9)
    np.testing.assert_array_equal(last.rows(4), rows(1, 2, 7, 9))
    assert one.nbytes > whole.rows(2).nbytes


def test_own_rows_grow_and_move(whole: StateTable) -> None:  # type: ignore[type-arg]
    one = StateTable(empty_state_table(), whole.rows(4))
    write(one, 4, *range(10, 300))  # more than there was room for
    one.compact(6, [1, 3])
    np.testing.assert_array_equal(one.rows(8), rows(1, 2, 3, 4, 10, 11, 13, 15))
    np.testing.assert_array_equal(one.copied(6, 8), rows(13, 15).swapaxes(0, 1))


def test_rows_of_one_forward_begin_where_the_sequence_stands() -> None:
    table: StateTable[np.ndarray] = StateTable(empty_state_table(), first=5)  # type: ignore[type-arg]
    write(table, 5, 1, 2)
    np.testing.assert_array_equal(table.copied(6, 7), rows(2).swapaxes(0, 1))


INT8 = pytest.param(
    "int8", marks=pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
)
TARGETS: dict[str, Callable[[Path], AnyTarget]] = {"hf": HfTarget.load, "fast": FastTarget.load, "int8": CpuTarget.load}
KINDS = pytest.mark.parametrize("kind", ["hf", "fast", INT8])
TEXT = tuple(random.Random(1).choices(range(3, 300), k=400))
PROMPT_TAPPED_ROWS = TEXT[:90]
TREE = Draft((5, 6, 7, 8, 9, 6, 11), (-1, 0, 1, -1, 3, 3, 5))
TAPS = (0, 2)


@cache
def checkpoint_tapped_rows() -> Path:
    return tiny_checkpoint(Path(mkdtemp()) / "qwen3", "qwen3", seed=3)


def fresh(kind: str) -> AnyTarget:
    return TARGETS[kind](checkpoint_tapped_rows())


@cache
def whole_tapped_rows(kind: str, tokens: tuple[int, ...] = TEXT) -> npt.NDArray[np.float32]:
    """The states [tokens, all taps, hidden] of a text that is read at once."""
    return read(fresh(kind), tokens, (0, 1, 2))


def agree(kind: str, found: Array | None, want: npt.NDArray[np.float32]) -> None:
    assert found is not None
    np.testing.assert_allclose(torch.as_tensor(found).numpy(), want, rtol=0, atol=0 if kind == "int8" else 1e-4)


@KINDS
def test_other_rows_are_far_from_what_is_tolerated(kind: str) -> None:
    for tap in (1, 2):
        rows = whole_tapped_rows(kind)[:, tap]
        furthest = abs(rows[:, None] - rows[None]).max(-1) + np.eye(len(rows))
        assert furthest.min() > 0.05


@KINDS
@pytest.mark.parametrize(("cached", "taps"), [(0, ()), (90, ()), (90, (2,)), (90, (0, 1, 2))])
def test_states_are_those_of_the_whole_text(kind: str, cached: int, taps: tuple[int, ...]) -> None:
    """310 rows behind the prefix: a forward of several chunks. Guards against a miss, and against rows that are shifted."""
    target = fresh(kind)
    if cached:
        read(target, TEXT[:cached], taps)
    sequence = target.open(TEXT, Sampler())
    assert sequence.cached == cached
    (scores,) = target.score([ForwardInput(sequence, TEXT[cached:], Draft(), TAPS)])
    agree(kind, scores.hidden, whole_tapped_rows(kind)[cached:, TAPS])


@KINDS
def test_nobody_keeps_them(kind: str) -> None:
    """Keys and values are kept as without taps, accepted nodes of a tree too, and a request for states misses."""
    target = fresh(kind)
    sequence = target.open(PROMPT_TAPPED_ROWS, Sampler())
    (scores,) = target.score([ForwardInput(sequence, PROMPT_TAPPED_ROWS, TREE, TAPS)])
    path = TREE.path(5)
    text = (*PROMPT_TAPPED_ROWS, *(TREE.tokens[node] for node in path), 4)
    fed = [*range(len(PROMPT_TAPPED_ROWS)), *(len(PROMPT_TAPPED_ROWS) + node for node in path)]
    agree(kind, scores.hidden[fed], whole_tapped_rows(kind, text)[:-1, TAPS])
    target.commit(sequence, path)
    assert sequence.hidden is None
    (after,) = target.score([ForwardInput(sequence, text[-1:], Draft(), (1,))])
    agree(kind, after.hidden, whole_tapped_rows(kind, text)[-1:, 1:2])
    target.commit(sequence, ())
    target.close(sequence)
    assert target.open((*text, 1), Sampler()).cached == len(text)
    assert target.open((*text, 1), Sampler(), TAPS).cached == 0


@KINDS
def test_each_of_a_batch_gets_the_states_that_it_asked_for(kind: str) -> None:
    target = fresh(kind)
    read(target, PROMPT_TAPPED_ROWS)
    keeps, plain, asks, more = (target.open(TEXT, Sampler(), taps) for taps in ((1,), (), (), ()))
    scores = target.score(
        [
            ForwardInput(keeps, TEXT, Draft()),
            ForwardInput(plain, TEXT[90:], Draft()),
            ForwardInput(asks, TEXT[90:95], Draft(), (2,)),
            ForwardInput(more, TEXT[90:200], Draft(), (1, 0)),
        ]
    )
    agree(kind, scores[0].hidden, whole_tapped_rows(kind)[:, 1:2])
    assert scores[1].hidden is None
    agree(kind, scores[2].hidden, whole_tapped_rows(kind)[90:95, 2:])
    agree(kind, scores[3].hidden, whole_tapped_rows(kind)[90:200, [1, 0]])
    target.commit(keeps, ())
    agree(kind, keeps.hidden, whole_tapped_rows(kind)[:, 1:2])


@KINDS
def test_taps_are_named_once(kind: str) -> None:
    target = fresh(kind)
    with pytest.raises(ValueError, match="not in both"):
        target.score(
            [ForwardInput(target.open(PROMPT_TAPPED_ROWS, Sampler(), (1,)), PROMPT_TAPPED_ROWS, Draft(), (1,))]
        )


@pytest.mark.parametrize("kind", ["fast", INT8])
def test_taps_that_the_model_lacks_are_refused(kind: str) -> None:
    target = fresh(kind)
    with pytest.raises(ValueError, match="taps must lie between 0 and 2"):
        target.score([ForwardInput(target.open(PROMPT_TAPPED_ROWS, Sampler()), PROMPT_TAPPED_ROWS, Draft(), (3,))])
