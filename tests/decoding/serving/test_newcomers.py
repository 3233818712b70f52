"""Long newcomers among other texts: prompts are read in parts, drafts shrink, and every text is what it is alone."""

import math
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import quantiles
from time import sleep
from typing import Any

import pytest

import decoding.engine.loop as engine
import decoding.serving.model_queue as batching
from decoding.engine.draft import Draft
from decoding.engine.loop import Decoding, Request, advance, decode
from decoding.engine.rounds import Round
from decoding.engine.sampler import Sampler
from decoding.engine.target import AnyTarget, ForwardInput, ForwardOutput
from decoding.methods.registry import load_method
from decoding.serving.load import load_text_decoder
from decoding.serving.model_queue import Batcher
from tests.decoding.models.doubles import Fuzz, TappedHead
from tests.decoding.models.random_heads import ready_method
from tests.decoding.models.tiny_models import tiny_checkpoint
from tests.decoding.models.toy import ToySequence, ToyTarget


def text(rounds: Iterable[Round]) -> list[int]:
    return [token for r in rounds for token in r.text_tokens]


class Wide(ToyTarget):
    """Notes the rows of each forward, by the length of what each sequence feeds."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[int]] = []

    def score(self, work: Sequence[ForwardInput[ToySequence]]) -> list[ForwardOutput]:
        self.rows.append([len(one.pending) + len(one.draft) for one in work])
        return super().score(work)


def long_request(length: int, seed: int, new: int = 30, **more: Any) -> Request:
    dice = Random(seed)
    return Request(tuple(dice.randrange(1, 12) for _ in range(length)), Fuzz(seed), new, Sampler(0.7, seed), **more)


def together(target: AnyTarget, first: Request, newcomers: Sequence[Request], **options: int) -> list[list[Round]]:
    """The rounds of texts of which all but the first come after its first round, each with its turn as the index."""
    with ExitStack() as opened:
        live = [Decoding(0, target, first, opened)]
        list(advance(target, live))
        live += [Decoding(i, target, one, opened) for i, one in enumerate(newcomers, 1)]
        found: list[list[Round]] = [[] for _ in live]
        for turn in range(300):
            if not (live := [one for one in live if one.room > 0]):
                break
            for outcome in advance(target, live, **options):
                assert not isinstance(outcome, Exception)
                if outcome is not None:
                    found[outcome.sequence].append(replace(outcome, index=turn))
    return found


def test_a_long_newcomer_does_not_stop_the_others() -> None:
    """A text under way gets its tokens between the parts of a newcomer's prompt; all texts are those that they are alone."""
    newcomers = [long_request(1000, 1), long_request(700, 2), long_request(40, 3)]
    target = Wide()
    found = together(target, long_request(3, 0, new=200), newcomers)
    assert [text(rounds) for rounds in found[1:]] == [text(decode(ToyTarget(), [one])) for one in newcomers]
    assert [rounds[0].pending for rounds in found[1:]] == [1000, 700, 40]
    prompts = [sum(rows) for rows in target.rows[1:7]]
    assert max(prompts) <= 256 + 4 * (1 + 64), prompts
    firsts = [rounds[0].index for rounds in found]
    assert firsts == [0, 6, 5, 0], "a short prompt waits for no long one, and the one that came first goes on"


@pytest.mark.parametrize(("rows", "most", "first"), [(0, 1740, 0), (64, 64, 27), (256, 256, 6), (10**6, 1740, 0)])
def test_the_rows_of_prompts_that_a_token_waits_for_are_an_option(rows: int, most: int, first: int) -> None:
    """Counted with a text under way that drafts nothing, as the newcomers do; 0 is what was before prompts had parts."""
    newcomers = [replace(long_request(n, n), method=load_method("plain")) for n in (1000, 700, 40)]
    target = Wide()
    plain = replace(long_request(3, 0, new=200), method=load_method("plain"))
    found = together(target, plain, newcomers, prompt_rows=rows)
    assert max(sum(fed) - 1 for fed in target.rows[1:]) in range(
        most, most + 4
    )  # what else is fed: a token for each text
    assert [text(each) for each in found[1:]] == [text(decode(ToyTarget(), [one])) for one in newcomers]
    assert found[1][0].index == first


SEATS, TURNS = 16, 400


class Served:
    """A full service, counted in rows: twelve clients ask short questions one after the other, four ask long ones."""

    def __init__(self, prompt_rows: int) -> None:
        self.target, self.now = Wide(), 0
        self.waits: dict[bool, list[int]] = {
            False: [],
            True: [],
        }  # rows until the first token, of short and of long ones
        self.pauses: list[int] = []  # rows between two tokens of a short one
        with ExitStack() as opened:
            places = [self._new(seat, seat % 4 == 0, opened) for seat in range(SEATS)]
            for turn in range(TURNS):
                outcomes = list(advance(self.target, [one for one, _, _ in places], prompt_rows))
                self.now += sum(self.target.rows[-1])
                places = [self._next(seat, turn, *places[seat], outcomes[seat], opened) for seat in range(SEATS)]

    def _new(self, seed: int, is_long: bool, opened: ExitStack) -> tuple[Decoding, bool, int]:
        answer = Random(seed).randrange(3, 16)
        request = replace(long_request(1000 if is_long else 40, seed, answer), method=load_method("plain"))
        return Decoding(0, self.target, request, opened), is_long, self.now

    def _next(
        self, seat: int, turn: int, one: Decoding, is_long: bool, since: int, outcome: Any, opened: ExitStack
    ) -> tuple[Decoding, bool, int]:
        if outcome is None:
            return one, is_long, since
        if outcome.index == 0:
            self.waits[is_long].append(self.now - since)
        elif not is_long:
            self.pauses.append(self.now - since)
        return self._new(SEATS * turn + seat, is_long, opened) if outcome.finish else (one, is_long, self.now)


def in_order_of_coming(unread: Sequence[int], most: int) -> list[int | None]:
    """How prompts were read before."""
    left, found = float(most) if 0 in unread else math.inf, list[int | None]()
    for rows in unread:
        found.append(None if rows <= left else int(left))
        left -= min(rows, left)
    return found


def p95(rows: Sequence[int]) -> int:
    return round(quantiles(rows, n=20)[-1])


def test_under_load_others_wait_for_fewer_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """95th percentiles of rows: until a short question's first token, until each further one, and until a long one's first.

    The figures are in log/serving-and-load.md.
    """
    whole, parts = Served(0), Served(256)
    monkeypatch.setattr(engine, "parts_of_prompts", in_order_of_coming)
    found = [(p95(each.waits[False]), p95(each.pauses), p95(each.waits[True])) for each in (whole, Served(256), parts)]
    assert found == [(2092, 2014, 3013), (8871, 270, 8637), (271, 271, 6743)]


def test_fewer_rows_than_none_are_refused() -> None:
    with pytest.raises(ValueError, match=r"prompt_rows must be 0 .* or more, not -1"):
        Batcher(ToyTarget(), -1)


class Unhurried(Wide):
    """Takes its time, so that a text is not over before another one has come on a busy machine."""

    def score(self, work: Sequence[ForwardInput[ToySequence]]) -> list[ForwardOutput]:
        sleep(0.002)
        return super().score(work)


def test_the_batcher_reads_prompts_by_its_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is alone in a round reads all, so nobody may be late for one here."""
    monkeypatch.setattr(batching, "_PATIENCE", 1e6)
    for rows, most in ((0, 900), (100, 100)):
        target = Unhurried()
        batcher = Batcher(target, rows)
        under_way = batcher.decode([long_request(3, 0, new=5000)])
        next(under_way)
        newcomer = batcher.decode([long_request(900, 1, new=1)])
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(list, newcomer)
            while not done.done():
                next(under_way)
        under_way.close()
        assert max(max(fed) for fed in target.rows) in range(most, most + 65)


def test_who_comes_alone_reads_the_whole_prompt_at_once() -> None:
    target = Wide()
    list(decode(target, [long_request(1000, 1, new=1)]))
    assert [len(rows) for rows in target.rows] == [1]


def test_who_come_together_get_their_tokens_one_after_the_other() -> None:
    newcomers = [replace(long_request(n, n, new=20), method=load_method("plain")) for n in (1000, 40)]
    rounds = list(decode(ToyTarget(), newcomers))
    assert [r.sequence for r in rounds[:5]] == [1, 1, 1, 1, 0], "the short one first"
    for i, one in enumerate(newcomers):
        assert text(r for r in rounds if r.sequence == i) == text(decode(ToyTarget(), [one]))


def test_methods_that_want_states_get_each_once_where_the_prompt_is_read_in_parts() -> None:
    """Those of the parts when they begin, the rest with the first round that they see."""
    head = TappedHead()
    newcomer = replace(long_request(600, 1), method=head)
    found = together(ToyTarget(), long_request(3, 0, new=60), [newcomer])
    written = [*newcomer.prompt, *text(found[1])]
    assert found[1][0].index == 2 and found[1][0].pending == 600
    assert head.features[..., 0].tolist() == [[10.0 * token, 10.0 * token + 1] for token in written[:-1]]


class Broad(Fuzz):
    """Drafts a hundred nodes."""

    def propose(self, tokens: Sequence[int], room: int) -> Draft:
        return Draft.chain([index % 12 for index in range(min(room, 100))])


def test_drafts_shrink_as_the_batch_grows() -> None:
    """256 nodes are for all; the texts stay what they are."""
    for count, widest, tokens in ((1, 100, 150), (4, 64, 90), (16, 16, 40), (100, 4, 20)):
        requests = [Request((1, 2, 3), Broad(0), tokens, Sampler(0.7, i)) for i in range(count)]
        target = Wide()
        rounds = list(decode(target, requests))
        assert all(sum(rows) - len(rows) <= max(256, 4 * len(rows)) for rows in target.rows[1:])
        assert max(target.rows[1]) == 1 + widest
        assert text(r for r in rounds if r.sequence == 0) == text(decode(ToyTarget(), requests[:1]))


@pytest.mark.parametrize("name", ["prompt_lookup", "path_tree"])
@pytest.mark.parametrize(("dtype", "kind"), [("fp32", "fast"), ("fp32", "hf"), ("int8", "auto")])
def test_real_targets_read_prompts_in_parts(dtype: str, kind: Any, name: str, tmp_path: Path) -> None:
    """Also for a head, which begins with the states of the parts."""
    path = tiny_checkpoint(tmp_path / "tiny", max_position_embeddings=2048)
    target = load_text_decoder(str(path), dtype=dtype, device="cpu", target=kind, prefix_cache_mb=0).target
    newcomer = replace(long_request(700, 1), method=load_method("plain"))
    alone = text(decode(target, [newcomer]))
    drafting = replace(newcomer, method=ready_method(name, target))
    found = together(target, long_request(3, 0, new=60), [drafting])
    assert found[1][0].index == 2 and text(found[1]) == alone and len(alone) == 30
