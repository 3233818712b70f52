"""Several threads on one target: the same texts as alone, shared forwards, and no caller suffers from another's error."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from random import Random
from time import sleep
from typing import Any

import pytest
import torch

from decoding.engine.draft import Draft
from decoding.engine.loop import Decoding, Request, advance, decode
from decoding.engine.records.rounds import Round
from decoding.engine.sampling.sampler import Sampler
from decoding.engine.target import PromptTooLong, Scores
from decoding.methods.registry import load_method
from decoding.serving.batcher import Batcher
from decoding.serving.load import load_text_decoder
from tests.decoding.models.doubles import Blank, Fuzz
from tests.decoding.models.tiny_models import tiny_checkpoint
from tests.decoding.models.toy import ToySequence, ToyTarget

PROMPTS = [tuple(range(1, 4 + index)) for index in range(6)]


def request(index: int, method: Any = None, **options: Any) -> Request:
    method = method or Fuzz(index)
    return Request(PROMPTS[index], method, 30, Sampler(0.7, index), **options)


class OnKernels(ToyTarget):
    runtime = "kernels"


class Noting(Fuzz):
    """Notes how many threads torch has while it drafts."""

    def __init__(self) -> None:
        super().__init__(0)
        self.threads: set[int] = set()

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        self.threads.add(torch.get_num_threads())
        return super().propose(tokens, room)


@pytest.mark.parametrize(("target", "wanted"), [(OnKernels, {1}), (ToyTarget, {2})])
def test_torch_has_one_thread_beside_our_kernels_and_elsewhere_as_many_as_before(
    target: type[ToyTarget], wanted: set[int]
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        method = Noting()
        list(Batcher(target()).decode([request(0, method)]))
        assert method.threads == wanted
        assert torch.get_num_threads() == 2
        with ThreadPoolExecutor(1) as another:
            assert another.submit(torch.get_num_threads).result() == 2
    finally:
        torch.set_num_threads(before)


def test_torchs_threads_are_counted_once_for_all_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each count starts threads anew, which look for work while the next forwards run."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    set_to: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    try:
        batcher = Batcher(OnKernels())
        assert sum(1 for _ in batcher.decode([request(0)])) > 1
        list(batcher.decode([request(1)]))
        assert set_to == [1, 2]
    finally:
        monkeypatch.undo()
        torch.set_num_threads(before)


def text(rounds: Iterator[Round] | Sequence[Round]) -> list[int]:
    return [token for r in rounds for token in r.text_tokens]


class Counting(ToyTarget):
    """Counts forwards, and fails where two threads are in it at once."""

    def __init__(self, pause_s: float = 0.0) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.pause_s, self._inside = pause_s, threading.Lock()

    def score(self, work: Sequence[tuple[ToySequence, Sequence[int], Draft]]) -> list[Scores]:
        assert self._inside.acquire(blocking=False), "two threads are in the target"
        try:
            sleep(self.pause_s)
            self.sizes.append(len(work))
            return super().score(work)
        finally:
            self._inside.release()


def in_threads(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return [one.result(timeout=30) for one in [pool.submit(call) for call in calls]]


def test_texts_are_those_of_lone_decoding_and_forwards_are_shared() -> None:
    target = Counting(pause_s=0.002)
    batcher = Batcher(target)
    together = in_threads([lambda i=i: text(batcher.decode([request(i)])) for i in range(6)])  # type: ignore[misc]
    alone = [text(decode(ToyTarget(), [request(i)])) for i in range(6)]
    assert together == alone
    rounds = sum(len(list(decode(ToyTarget(), [request(i)]))) for i in range(6))
    assert sum(target.sizes) == rounds and len(target.sizes) < rounds / 2


def test_a_round_names_its_sequence_within_its_own_call() -> None:
    rounds = list(Batcher(ToyTarget()).decode([request(0), request(1)]))
    assert {r.sequence for r in rounds} == {0, 1}
    assert text([r for r in rounds if r.sequence == 1]) == text(decode(ToyTarget(), [request(1)]))


class Broken(Blank):
    """Drafts well for a while."""

    rounds = 0

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        self.rounds += 1
        if self.rounds == 3:
            raise RuntimeError("the draft head is gone")
        return Draft()


def test_a_failing_method_ends_its_own_text_alone() -> None:
    batcher = Batcher(Counting(pause_s=0.002))
    fine, broken = (lambda: text(batcher.decode([request(0)]))), (lambda: text(batcher.decode([request(1, Broken())])))
    with ThreadPoolExecutor(2) as pool:
        good, bad = pool.submit(fine), pool.submit(broken)
        with pytest.raises(RuntimeError, match="head is gone"):
            bad.result(timeout=30)
        assert good.result(timeout=30) == text(decode(ToyTarget(), [request(0)]))
    assert text(batcher.decode([request(1)])) == text(decode(ToyTarget(), [request(1)]))


def test_a_prompt_that_is_too_long_is_refused_and_leaves_nothing_open() -> None:
    target = ToyTarget()
    batcher = Batcher(target)
    with pytest.raises(PromptTooLong):
        list(batcher.decode([request(0), Request((), load_method("plain"), 5)]))
    assert len(target.closed) == 1
    assert text(batcher.decode([request(0)])) == text(decode(ToyTarget(), [request(0)]))


def test_an_idle_reader_does_not_stop_the_others() -> None:
    batcher = Batcher(ToyTarget())
    idle = batcher.decode([request(0)])
    first = next(idle)
    assert in_threads([lambda: text(batcher.decode([request(1)]))]) == [text(decode(ToyTarget(), [request(1)]))]
    assert text([first, *idle]) == text(decode(ToyTarget(), [request(0)]))


def test_a_forward_that_fails_fails_everybodys_round_and_the_next_call_works() -> None:
    class Failing(ToyTarget):
        fails = True

        def score(self, work: Sequence[tuple[ToySequence, Sequence[int], Draft]]) -> list[Scores]:
            if self.fails:
                raise MemoryError("no room")
            return super().score(work)

    target = Failing()
    batcher = Batcher(target)
    with pytest.raises(MemoryError, match="no room"):
        list(batcher.decode([request(0)]))
    target.fails = False
    assert text(batcher.decode([request(0)])) == text(decode(ToyTarget(), [request(0)]))


class Wide(ToyTarget):
    """Notes the rows of each forward, by the length of what each sequence feeds."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[int]] = []

    def score(self, work: Sequence[tuple[ToySequence, Sequence[int], Draft]]) -> list[Scores]:
        self.rows.append([len(pending) + len(draft) for _, pending, draft in work])
        return super().score(work)


def long_request(length: int, seed: int, new: int = 30, **more: Any) -> Request:
    dice = Random(seed)
    return Request(tuple(dice.randrange(1, 12) for _ in range(length)), Fuzz(seed), new, Sampler(0.7, seed), **more)


def test_a_long_newcomer_does_not_stop_the_others() -> None:
    """A text under way gets its tokens between the parts of a newcomer's prompt; all texts are those that they are alone."""
    newcomers = [long_request(1000, 1), long_request(700, 2), long_request(40, 3)]
    alone = [[t for r in decode(ToyTarget(), [one]) for t in r.text_tokens] for one in newcomers]
    target = Wide()
    with ExitStack() as opened:
        live = [Decoding(0, target, long_request(3, 0, new=200), opened)]
        list(advance(target, live))
        live += [Decoding(i, target, one, opened) for i, one in enumerate(newcomers, 1)]
        texts: dict[int, list[int]] = {i: [] for i in range(4)}
        firsts: dict[int, int] = {}
        for turn in range(300):
            live = [one for one in live if one.room > 0]
            if not live:
                break
            for outcome in advance(target, live):
                assert not isinstance(outcome, Exception)
                if outcome is not None:
                    firsts.setdefault(outcome.sequence, turn)
                    texts[outcome.sequence] += outcome.text_tokens
                    assert outcome.index or outcome.pending == len(
                        ([()] + [n.prompt for n in newcomers])[outcome.sequence]
                    )
    assert [texts[i] for i in (1, 2, 3)] == alone
    assert firsts == {0: 0, 1: 3, 2: 6, 3: 6}, "256 rows of prompts in each forward, in order of coming"
    prompts = [sum(rows) for rows in target.rows[1:7]]
    assert max(prompts) <= 256 + 4 * (1 + 64), prompts


def test_who_comes_alone_reads_the_whole_prompt_at_once() -> None:
    target = Wide()
    list(decode(target, [long_request(1000, 1, new=1), long_request(700, 2, new=1)]))
    assert len(target.rows) == 1 and min(target.rows[0]) >= 700


def test_methods_that_want_states_read_the_whole_prompt_at_once() -> None:
    """They are given the states of every token of the prompt with the first forward."""
    target = Wide()
    with ExitStack() as opened:
        live = [Decoding(0, target, long_request(3, 0), opened)]
        list(advance(target, live))
        tapping = replace(long_request(600, 1), method=Tapping(1))
        live.append(Decoding(1, target, tapping, opened))
        (_, second) = advance(target, live)
    assert isinstance(second, Round) and second.pending == 600


class Tapping(Fuzz):
    taps = (1,)


class Broad(Fuzz):
    """Drafts a hundred nodes."""

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        return Draft.chain([index % 12 for index in range(min(room, 100))])


def test_drafts_shrink_as_the_batch_grows() -> None:
    """256 nodes are for all; the texts stay what they are."""
    for count, widest in ((1, 100), (4, 64), (16, 16), (100, 4)):
        requests = [Request(PROMPTS[0], Broad(0), 150, Sampler(0.7, i)) for i in range(count)]
        target = Wide()
        texts: dict[int, list[int]] = {i: [] for i in range(count)}
        for r in decode(target, requests):
            texts[r.sequence] += r.text_tokens
            assert len(r.draft_tokens) <= max(4, 256 // r.batch)
        assert max(target.rows[1]) == 1 + widest
        assert texts[0] == [t for r in decode(ToyTarget(), requests[:1]) for t in r.text_tokens]


@pytest.mark.parametrize(("dtype", "kind"), [("fp32", "fast"), ("fp32", "hf"), ("int8", "auto")])
def test_real_targets_read_prompts_in_parts(dtype: str, kind: Any, tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path / "tiny", max_position_embeddings=2048)
    target = load_text_decoder(str(path), dtype=dtype, device="cpu", target=kind, prefix_cache_mb=0).target
    newcomer = replace(long_request(700, 1), method=load_method("prompt_lookup"))
    alone = [token for r in decode(target, [newcomer]) for token in r.text_tokens]
    with ExitStack() as opened:
        live = [Decoding(0, target, long_request(3, 0, new=60), opened)]
        list(advance(target, live))
        live.append(Decoding(1, target, newcomer, opened))
        parts, text = 0, list[int]()
        while live[-1].room > 0:
            *_, outcome = advance(target, [one for one in live if one.room > 0])
            parts += outcome is None
            text += outcome.text_tokens if isinstance(outcome, Round) else ()
    assert parts == 2 and text == alone and len(text) == 30
