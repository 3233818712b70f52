"""What the fast target remembers, where it copies, and what it forgets: `kv_cache`, `prefix_cache`, and both in use."""

from pathlib import Path

import pytest
import torch

from decoding.engine.draft import Draft
from decoding.engine.sampler import Sampler
from decoding.engine.target import ForwardInput
from decoding.targets.fast_target import FastSequence, FastTarget
from decoding.targets.prefix_cache import Entry, PrefixCache, common_length, longest_prefix
from decoding.targets.tensor_tables import TensorTable
from tests.decoding.models.tiny_models import tiny_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("llama"))


def rows(*values: int) -> TensorTable:
    table = TensorTable(2, (1,), torch.float32, torch.device("cpu"))
    table.copy_from(torch.tensor([values, values], dtype=torch.float32)[..., None])
    return table


def feed(target: FastTarget, *tokens: int, taps: tuple[int, ...] = ()) -> FastSequence:
    """An open sequence with all but the last of `tokens` cached."""
    sequence = target.open(tokens, Sampler(), taps)
    if pending := tokens[sequence.cached : -1]:
        target.score([ForwardInput(sequence, pending, Draft())])
        target.commit(sequence, [])
    return sequence


@pytest.mark.parametrize(
    ("path", "want"),
    [
        ([], [0, 1, 2, 3, 4, 5, 6]),
        ([0, 1, 2], [0, 1, 2, 3, 4, 5, 6]),
        ([0, 2], [0, 1, 2, 4, 4, 5, 6]),
        ([1, 2, 4], [0, 1, 3, 4, 6, 5, 6]),
        ([4], [0, 1, 6, 3, 4, 5, 6]),
    ],
)
def test_only_accepted_rows_that_lie_out_of_place_move(path: list[int], want: list[int]) -> None:
    table = rows(0, 1, 2, 3, 4, 5, 6)
    table.compact(2, path)
    assert table.data[1, :7, 0].tolist() == want


def test_a_table_doubles_and_keeps_what_it_is_told_to() -> None:
    table = rows(0, 1, 2)
    first = table.data
    assert first.shape == (2, 512, 1), "a copied prefix leaves room"
    table.reserve(512, 3)
    assert table.data is first, "no copy while there is room"
    table.reserve(513, 3)
    assert table.data.shape == (2, 1024, 1)
    assert table.data[0, :3, 0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("length", [0, 1, 2, 7, 100])
def test_common_length_of_any_two_texts(length: int) -> None:
    text = list(range(100))
    assert common_length(text, [*text[:length], -1, *text[length + 1 :]]) == length
    assert common_length(text, tuple(text[:length])) == length


def entry(*tokens: int, taps: tuple[int, ...] = (), size: int = 10) -> Entry[str]:
    return Entry(tokens, taps, "", size)


def test_the_least_recently_used_entry_goes_first() -> None:
    cache = PrefixCache[str](30)
    one, two, three, four = (entry(i, i + 1) for i in range(4))
    for each in (one, two, three):
        cache.add(each)
    cache.used(one)
    cache.add(four)
    assert list(cache.entries) == [three, one, four]
    cache.add(entry(9, size=31))
    assert list(cache.entries) == [three, one, four], "what does not fit pushes nobody out"
    cache.add(entry(8, size=25))
    assert cache.size_bytes == 25


def test_an_entry_replaces_those_that_it_covers() -> None:
    cache = PrefixCache[str](100)
    for each in (entry(1, 2), entry(1, 2, taps=(3,)), entry(1, 5)):
        cache.add(each)
    cache.add(entry(1, 2, 4))
    assert [e.tokens for e in cache.entries] == [(1, 2), (1, 5), (1, 2, 4)], "the one with a tap stays: it has more"
    assert cache.covers([1, 2], (3,), {})
    assert not cache.covers([1, 2, 4], (3,), {})
    cache.add(entry(1, 2, 4, 4, taps=(3, 4)))
    assert [e.tokens for e in cache.entries] == [(1, 5), (1, 2, 4, 4)]


def test_the_longest_prefix_with_the_taps_wins() -> None:
    entries = [entry(1, 2, 3), entry(1, 2, taps=(0, 5)), entry(7)]
    assert longest_prefix(entries, [1, 2, 3, 4], ()) == (entries[0], 3)
    assert longest_prefix(entries, [1, 2, 3, 4], (5,)) == (entries[1], 2)
    assert longest_prefix(entries, [1, 2, 3, 4], (6,)) is None
    assert longest_prefix(entries, [], ()) is None


def test_never_the_whole_prompt(checkpoint: Path) -> None:
    """The last token's logits are what the next round needs: a hit on all of it would leave nothing to feed."""
    target = FastTarget.load(checkpoint)
    target.close(feed(target, 1, 2, 3, 4))
    assert target.open([1, 2, 3], Sampler()).cached == 2
    assert target.open([1], Sampler()).cached == 0


def test_prefixes_of_open_sequences_are_reused_and_stay_their_own(checkpoint: Path) -> None:
    target = FastTarget.load(checkpoint)
    first = feed(target, 1, 2, 3, 4, 5)
    second = target.open([1, 2, 3, 9, 9], Sampler())
    assert (first.cached, second.cached) == (4, 3)
    before = first.cache.own.data[:, :4].clone()
    target.score([ForwardInput(second, [9, 9], Draft((1,), (-1,)))])
    target.commit(second, [0])
    assert torch.equal(first.cache.own.data[:, :4], before)


def test_a_chain_is_committed_and_a_draft_dropped_without_copying(checkpoint: Path) -> None:
    target = FastTarget.load(checkpoint)
    sequence = feed(target, 1, 2, 3)
    target.score([ForwardInput(sequence, [3], Draft.chain([4, 5, 6]))])
    staged, buffer = sequence.cache.own.data[:, :6].clone(), sequence.cache.own.data
    target.commit(sequence, [0, 1])
    assert sequence.cached == 5
    assert sequence.cache.own.data is buffer
    assert torch.equal(buffer[:, :6], staged)


def test_buffers_of_closed_sequences_serve_new_ones(checkpoint: Path) -> None:
    target = FastTarget.load(checkpoint)
    first = feed(target, 1, 2, 3)
    buffer = first.cache.own.data
    target.close(first)
    target.close(first)  # a second time does nothing
    second, third = target.open([8, 8], Sampler()), target.open([8, 8], Sampler())
    assert second.cache.own.data is buffer
    assert third.cache.own.data is not buffer


def test_a_cached_prefix_does_not_change_when_its_buffer_is_used_again(checkpoint: Path) -> None:
    target = FastTarget.load(checkpoint)
    first = feed(target, 1, 2, 3, 4)
    want = first.cache.own.data[:, :3].clone()
    target.close(first)
    feed(target, 9, 9, 9, 9, 9)
    assert torch.equal(target.open([1, 2, 3, 7], Sampler()).cache.own.data[:, :3], want)


def test_the_cache_is_bounded_and_can_be_off(checkpoint: Path) -> None:
    off = FastTarget.load(checkpoint, cache_bytes=0)
    off.close(feed(off, 1, 2, 3))
    assert off.open([1, 2, 3], Sampler()).cached == 0
    per_token = 2 * 2 * 2 * 8 * 4  # layers, keys and values, heads, head_dim, bytes
    small = FastTarget.load(checkpoint, cache_bytes=per_token * 5)
    small.close(feed(small, 1, 2, 3))
    small.close(feed(small, 4, 5, 6, 7))
    assert small.open([1, 2, 3], Sampler()).cached == 2
    small.close(feed(small, 8, 9))
    assert small.open([4, 5, 6, 7], Sampler()).cached == 0, "the least recently used went"


def test_taps_decide_what_is_a_hit(checkpoint: Path) -> None:
    target = FastTarget.load(checkpoint)
    target.close(feed(target, 1, 2, 3, 4, taps=(0, 2)))
    one = target.open([1, 2, 3, 4], Sampler(), taps=(2,))
    assert one.cached == 3
    assert one.hidden is not None
    assert one.hidden.shape == (3, 1, 32)
    assert target.open([1, 2, 3, 4], Sampler(), taps=(1,)).cached == 0
    assert target.open([1, 2, 3, 4], Sampler()).hidden is None
