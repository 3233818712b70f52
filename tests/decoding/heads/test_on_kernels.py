"""Heads on our kernels compute what their modules do, up to eight bits, also in widths that must be padded.

Guards against rows, positions, masks and gates in another order; what a rounded weight changes is a few per cent.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from decoding.engine.method import Context, LookupCorpus
from decoding.engine.sampler import Sampler
from decoding.heads.head import Head, HeadConfig, new_head
from decoding.heads.kinds import KINDS
from decoding.methods import head_runtimes
from kernels.cpu.processor import variant

pytestmark = [
    pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better"),
    pytest.mark.usefixtures("one_thread"),
]
VOCAB, TAPS = 90, (1, 2)
TEXT = list(np.random.default_rng(9).integers(0, VOCAB, 200))
LENGTHS = pytest.mark.parametrize("length", [4, 140])  # short, where every row counts, and over several pages
WIDTHS = pytest.mark.parametrize("hidden", [16, 64, 192])


def head_of(kind: str, hidden: int, **sizes: Any) -> Head:
    """With random weights everywhere, also where training begins with zeros and ones."""
    torch.manual_seed(hidden)
    small = {**KINDS[kind].small, "heads": 4, **({"head_dim": 16} if "head_dim" in KINDS[kind].small else {}), **sizes}
    head = new_head(HeadConfig(kind, hidden, VOCAB, TAPS, small)).eval().requires_grad_(False)
    for name, parameter in head.named_parameters():
        scale = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.2
        parameter.copy_(torch.randn_like(parameter) * scale + (1.0 if "norm" in name else 0.0))
    return head


def contexts(hidden: int, sampler: Sampler = Sampler(), seed: int = 1) -> list[Context]:
    """For torch's operators, and for our kernels."""
    matrix = np.random.default_rng(seed).standard_normal((VOCAB, hidden), dtype=np.float32) * np.float32(
        2 * hidden**-0.5
    )
    context = Context(sampler, matrix, matrix, LookupCorpus())
    return [context, replace(context, runtime="kernels")]


def states_of(tokens: int, hidden: int) -> Any:
    """Tapped states, one tap much larger than the other, with an outlier column."""
    states = np.random.default_rng(tokens).standard_normal((tokens, len(TAPS), hidden), dtype=np.float32)
    states[:, 0] *= 40
    states[:, :, 3] *= 4
    return states


def near(found: Any, want: Any, hidden: int, most: float = 0.07) -> None:
    """Each row, without padding, by the length of its error."""
    found, want = (np.asarray(each, np.float64) for each in (found, want))
    found = found[..., :hidden].reshape(-1, hidden)
    want = want[..., :hidden].reshape(-1, hidden)
    error = np.linalg.norm(found - want, axis=1) / np.linalg.norm(want, axis=1)
    assert error.max() < most, error


def near_guesses(found: Any, want: Any) -> None:
    """The log-probabilities of all tokens, best first on both sides, compared token by token."""
    rows = []
    for tokens, scores in ([np.asarray(each) for each in both] for both in (found, want)):
        assert (np.sort(tokens, 1) == np.arange(VOCAB)).all() and (np.diff(scores, axis=1) <= 0).all()
        rows.append(np.take_along_axis(scores, np.argsort(tokens, 1), 1))
        np.testing.assert_allclose(np.exp(rows[-1]).sum(1), 1, atol=1e-4)
    near(*(row - row.mean(1, keepdims=True) for row in rows), VOCAB)


@pytest.mark.parametrize("known", [1, 3])
@pytest.mark.parametrize("sizes", [{}, {"layers": 2, "qk_norm": False}, {"mask_token": 7}], ids=str)
@pytest.mark.parametrize("kind", ["dflash", "jetspec", "domino", "path_tree"])
@LENGTHS
@WIDTHS
def test_block_heads(hidden: int, length: int, kind: str, sizes: dict[str, Any], known: int) -> None:
    head, hiddens, states = head_of(kind, hidden, **sizes), states_of(150, hidden), []
    runtimes = [head_runtimes.block_runtime(head, context, TEXT) for context in contexts(hidden)]
    for runtime in runtimes:
        for first, last in ((0, length), (length, length), (length, length + 3)):
            runtime.append(hiddens[first:last])
        assert runtime.count == length + 3
        states.append(runtime.states(TEXT[length + 3 : length + 3 + known], 5))
        again = runtime.states(TEXT[length + 3 : length + 3 + known], 5)
        np.testing.assert_array_equal(np.asarray(again), np.asarray(states[-1]), "a pass leaves nothing behind")
    near(states[1], states[0], hidden)
    guesses = [
        runtime.best_of([(runtime, each, 151, VOCAB)])[0] for runtime, each in zip(runtimes, states, strict=True)
    ]
    near_guesses(guesses[1], guesses[0])


@pytest.mark.parametrize("sizes", [{}, {"layers": 2}, {"carry": True, "skip_places": 3}, {"causal": True}], ids=str)
@WIDTHS
def test_texts_that_share_a_pass_get_what_they_get_alone(hidden: int, sizes: dict[str, Any]) -> None:
    """To the bit on our kernels. Guards against texts that see another's rows, and against states taken in twice or late."""
    head, hiddens = head_of("domino", hidden, **sizes), states_of(200, hidden)
    for context, most in zip(contexts(hidden), (1e-4, 0), strict=True):
        alone, together = ([head_runtimes.path_runtime(head, context, TEXT) for _ in range(4)] for _ in range(2))
        for counts in ((0, 3, 130, 100), (1, 0, 2, 4), (70, 3, 0, 1)):  # new tokens of each text in three rounds
            found, blocks = [], []
            for index, (mine, shared, new) in enumerate(zip(alone, together, counts, strict=True)):
                states = hiddens[mine.count : mine.count + new]
                mine.append(states)
                shared.append(states)
                known, masks = TEXT[mine.count :][: 1 + index % 2], 3 + index
                found.append(mine.states(known, masks))
                blocks.append((shared, known, masks))
            for got, want in zip(together[2].together(blocks), found, strict=True):
                np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=0, atol=most)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("sampler", [Sampler(), Sampler(0.7, 5)], ids=str)
@WIDTHS
def test_dominos_corrections_along_paths(hidden: int, sampler: Sampler, own: bool) -> None:
    head, hiddens, found = head_of("domino", hidden, own_output=own), states_of(40, hidden), []
    for context in contexts(hidden, sampler):
        runtime = head_runtimes.path_runtime(head, context, TEXT)
        runtime.append(hiddens)
        expand = runtime.expansion(runtime.states(TEXT[40:41], 5), TEXT[:41], VOCAB)
        frontiers: Sequence[tuple[int, tuple[int, ...], tuple[int, ...]]] = (
            (0, (), (0,)),
            (1, (3, 9, 4), (0, 0, 0)),
            (2, (8, 8), (2, 0)),
        )
        found.append([expand(*frontier) for frontier in frontiers])
    for mine, want in zip(found[1], found[0], strict=True):
        near_guesses(mine, want)


@pytest.mark.parametrize("sizes", [{}, {"layers": 2}, {"own_lm_head": True}], ids=str)
@WIDTHS
def test_medusa(hidden: int, sizes: dict[str, Any]) -> None:
    head, state = head_of("medusa", hidden, **sizes), states_of(1, hidden)[0, -1]
    runtimes = [head_runtimes.medusa_runtime(head, context, TEXT) for context in contexts(hidden, Sampler(0.7, 3))]
    for heads in (range(4), range(1, 3)):
        want, found = (runtime.best_of([(runtime, state, heads, 12, VOCAB)])[0] for runtime in runtimes)
        near_guesses(found, want)


@pytest.mark.parametrize("sizes", [{}, {"norm_before_residual": True, "bias": True}, {"own_lm_head": True}], ids=str)
@LENGTHS
@WIDTHS
def test_eagle3(hidden: int, length: int, sizes: dict[str, Any]) -> None:
    head, hiddens, rounds = head_of("eagle3", hidden, **sizes), states_of(150, hidden), []
    for context in contexts(hidden):
        drafter, seen = head_runtimes.eagle3_runtime(head, context, TEXT), []
        for first, last in ((0, length), (length, length), (length, length + 3)):
            drafter.read(hiddens[first:last])
            ((level, _),) = drafter.paired([(drafter, TEXT[: last + 1], 0)])
            seen.append(level)
            for tokens, parents in (((5,), [0]), ((6, 7, 8), [0, 0, 0]), ((9, 1), [2, 0]), ((2,), [1])):
                ((level, guesses),) = drafter.grown([(drafter, tokens, level, parents, last + len(seen), VOCAB)])
                seen.append(level)
        assert drafter.pairs == length + 3
        rounds.append((seen, guesses))
    for want, found in zip(rounds[0][0], rounds[1][0], strict=True):
        near(found, want, hidden)
    near_guesses(rounds[1][1], rounds[0][1])


@pytest.mark.parametrize("sizes", [{}, {"k": 1}, {"k": 3, "layers": 2}, {"memory": 1, "lstm": 64}], ids=str)
@LENGTHS
@WIDTHS
def test_falcon(hidden: int, length: int, sizes: dict[str, Any]) -> None:
    head, hiddens, rounds = head_of("falcon", hidden, **sizes), states_of(150, hidden)[:, -1], []
    k = head.size("k")
    for context in contexts(hidden):
        drafter, seen = head_runtimes.falcon_runtime(head, context, TEXT), []
        for first, last in ((0, length), (length, length), (length, length + 3)):
            drafter.read(hiddens[first:last])
            (line,), parents = drafter.paired([(drafter, TEXT[: last + 1])]), [0]
            for step, rows in enumerate(([0, 0, 0], [2, 0], [1])):
                first = drafter.pairs - k + 1 + step * k
                ((features, guesses),) = drafter.glanced([(drafter, line, parents, first, VOCAB)])
                seen.append(features)
                paths = [tuple(range(10 * row + step, 10 * row + step + k)) for row in range(len(rows))]
                line, parents = drafter.following(line, seen[-1], rows, paths), rows
        rounds.append((seen, guesses))
    for want, found in zip(rounds[0][0], rounds[1][0], strict=True):
        near(found, want, hidden)
    near_guesses(rounds[1][1], rounds[0][1])


@pytest.mark.parametrize("sizes", [{}, {"layers": 2, "bias": True, "qk_norm": True}], ids=str)
@LENGTHS
@WIDTHS
def test_small_language_models(hidden: int, length: int, sizes: dict[str, Any]) -> None:
    head, found = head_of("draft_model", hidden, **sizes), []
    for context in contexts(hidden):
        reader = head_runtimes.reader(head, context, TEXT)  # type: ignore[arg-type]
        parts = (TEXT[:length], True), ([3, 4], False), ([5], False), (TEXT[length : length + 3], True)
        reads = [reader.after([(reader, tokens, keep, length + 3, VOCAB)])[0] for tokens, keep in parts]
        assert (reader.kept, reader.vocab_size) == (length + 3, VOCAB)
        found.append(([state for state, _ in reads], reads[-1][1]))
    for want, mine in zip(found[0][0], found[1][0], strict=True):
        near(mine, want, hidden)
    near_guesses(found[1][1], found[0][1])


@pytest.mark.parametrize("k", [1, 3])
def test_a_tree_leaves_nothing_behind(k: int) -> None:
    """Guards against nodes that overwrite what is kept of the text: to the bit, as if there had been no round before."""
    hiddens, context = states_of(9, 64), contexts(64)[1]
    eagle, falcon = head_of("eagle3", 64), head_of("falcon", 64, k=k, layers=2)
    last = []
    for ends in ((5, 9), (9,)):
        pairs, glances = (
            head_runtimes.eagle3_runtime(eagle, context, TEXT),
            head_runtimes.falcon_runtime(falcon, context, TEXT),
        )
        for first, end in zip((0, *ends), ends, strict=False):
            pairs.read(hiddens[first:end])
            glances.read(hiddens[first:end, -1])
            ((root, _),) = pairs.paired([(pairs, TEXT[: end + 1], 0)])
            (line,) = glances.paired([(glances, TEXT[: end + 1])])
            ((level, _),) = pairs.grown([(pairs, (3, 4), root, (0, 0), end + 1, 0)])
            ((features, _),) = glances.glanced([(glances, line, [0], end - k + 1, 1)])
            last = [*last, pairs.grown([(pairs, (5,), level, (1,), end + 2, 0)])[0][0], features]
    np.testing.assert_array_equal(last[2], last[4])
    np.testing.assert_array_equal(last[3], last[5])
