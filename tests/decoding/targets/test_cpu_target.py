"""The int8 target in our own kernels: every text equal to the bit, whatever drafts, is cached, or is in the same batch."""

import hashlib
import os
import random
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from decoding.engine.draft import Draft
from decoding.engine.loop import Request, decode
from decoding.engine.method import Method
from decoding.engine.rounds import Round
from decoding.engine.sampler import Sampler
from decoding.engine.target import ForwardInput, ForwardOutput
from decoding.engine.tensor_choice import chooser
from decoding.methods.registry import METHODS, load_method
from decoding.targets.fast_target import FastTarget
from decoding.targets.int8.cpu_target import CpuModel, CpuSequence, CpuTarget
from kernels.cpu.processor import variant
from tests.decoding.models.doubles import Fuzz
from tests.decoding.models.random_heads import ready_method
from tests.decoding.models.tiny_models import FAMILIES, Family, tiny_checkpoint

pytestmark = pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
PROMPT = tuple(random.Random(1).choices(range(3, 300), k=20))
LONG = tuple(random.Random(2).choices(range(3, 300), k=90))
SAMPLERS = [Sampler(), *(Sampler(t, seed) for t in (0.7, 1.0, 1.3) for seed in (1, 2))]
EMPTY = Draft()
TREE = Draft((5, 6, 7, 8, 9, 6, 11), (-1, 0, 1, -1, 3, 3, 5))


@cache
def checkpoint(family: Family) -> Path:
    biases = {"attention_bias": True, "mlp_bias": True} if family == "llama" else {}
    return tiny_checkpoint(Path(mkdtemp()) / family, family, seed=3, **biases)


@cache
def target_of(family: Family) -> CpuTarget:
    return CpuTarget.load(checkpoint(family))


def fresh(family: Family = "llama", **kw: int) -> CpuTarget:
    return CpuTarget(target_of(family).model, **kw)


def rounds_of(target: CpuTarget, method: Method, sampler: Sampler = Sampler(), **kw: object) -> list[Round]:
    options = {"prompt": PROMPT, "max_new_tokens": 32, **kw}
    return list(decode(target, [Request(method=method, sampler=sampler, **options)]))  # type: ignore[arg-type]


def text(rounds: list[Round]) -> list[int]:
    return [token for r in rounds for token in r.committed]


def fed(
    target: CpuTarget, tokens: tuple[int, ...], draft: Draft = EMPTY, **kw: tuple[int, ...]
) -> tuple[CpuSequence, ForwardOutput]:
    """A sequence of `tokens`, fed at once but for what the cache has."""
    sequence = target.open(tokens, Sampler(), **kw)
    (scores,) = target.score([ForwardInput(sequence, tokens[sequence.cached :], draft)])
    return sequence, scores


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_under_a_mask_are_those_of_the_whole_row(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit, of few tokens, which alone are computed, and of many."""
    target = fresh(family)
    _, scores = fed(target, PROMPT, TREE)
    whole, computed = scores.logits, list[int]()
    original = CpuModel.logits
    monkeypatch.setattr(
        CpuModel, "logits", lambda *given: (computed.append(original(*given).shape[1]), original(*given))[1]
    )
    for few, seed in ((1, 0), (8, 1), (100, 2), (2000, 3)):
        mask = np.zeros(target.vocab_size, np.bool_)
        mask[random.Random(seed).choices(range(target.vocab_size), k=few)] = True
        for node in (-1, 3, 6):
            want = np.where(mask, whole[1 + node], np.float32(-np.inf))
            np.testing.assert_array_equal(scores.masked(node, mask), want)
            assert computed.pop() == mask.sum()
    monkeypatch.setattr("decoding.engine.target.FEW_TOKENS", 5)
    np.testing.assert_array_equal(scores.masked(6, mask), want)
    assert computed.pop() == target.vocab_size, "all of them at once are sooner computed than many one by one"


@pytest.mark.parametrize(
    ("family", "sampler"),
    [(family, sampler) for n, family in enumerate(FAMILIES) for sampler in (SAMPLERS[0], *SAMPLERS[1 + n :: 3])],
    ids=str,
)
def test_every_method_gives_plain_text(family: Family, sampler: Sampler) -> None:
    target = target_of(family)
    want = text(rounds_of(target, load_method("plain"), sampler))
    assert len(set(want)) > 3, "a text of one token would prove nothing"
    for name in METHODS:
        assert text(rounds_of(target, ready_method(name, target), sampler)) == want, name
    for seed in range(3):
        assert text(rounds_of(target, Fuzz(seed, vocab=300), sampler)) == want


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_near_those_of_fp32(family: Family) -> None:
    exact = FastTarget.load(checkpoint(family), cache_bytes=0)
    (want,) = exact.score([ForwardInput(exact.open(LONG, Sampler()), LONG, TREE)])
    _, found = fed(fresh(family), LONG, TREE)
    similar = torch.nn.functional.cosine_similarity(torch.as_tensor(found.logits), torch.as_tensor(want.logits))
    assert similar.min() > 0.98
    assert not torch.equal(torch.as_tensor(found.logits), torch.as_tensor(want.logits))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_nodes_logits_are_the_same_to_the_bit_in_a_tree_and_alone(family: Family) -> None:
    target = fresh(family, cache_bytes=0)
    sequence, tree = fed(target, LONG, TREE)
    for node in range(len(TREE)):
        path = tuple(TREE.tokens[i] for i in TREE.path(node))
        alone, scores = fed(target, (*LONG, *path))
        assert torch.equal(torch.as_tensor(tree.after([node])[0]), torch.as_tensor(scores.logits)[0])
        target.close(alone)
    target.commit(sequence, [3, 5])
    (after,) = target.score([ForwardInput(sequence, (4, 2), Draft())])
    _, want = fed(fresh(family, cache_bytes=0), (*LONG, 8, 6, 4, 2))
    assert torch.equal(torch.as_tensor(after.logits), torch.as_tensor(want.logits))


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 89])
def test_a_cached_prefix_changes_no_bit(count: int) -> None:
    cold, warm = fresh(cache_bytes=0), fresh()
    first, _ = fed(warm, (*LONG[:count], 7))
    warm.commit(first, [])
    _, want = fed(cold, LONG, TREE)
    for close in (False, True):  # from a sequence that is open, and from a closed one
        if close:
            warm.close(first)
        second, scores = fed(warm, LONG, TREE)
        assert second.cached == count
        assert torch.equal(torch.as_tensor(scores.logits), torch.as_tensor(want.logits))
        warm.close(second)


def test_a_batch_changes_no_bit_and_a_long_prompt_goes_in_parts() -> None:
    target, long = fresh(cache_bytes=0), tuple(random.Random(5).choices(range(3, 300), k=505))
    sequences = [target.open(tokens, Sampler()) for tokens in (PROMPT, long, LONG)]
    together = target.score(
        [
            ForwardInput(one, tokens, draft)
            for one, tokens, draft in zip(sequences, (PROMPT, long, LONG), (TREE, Draft(), TREE), strict=True)
        ]
    )
    for tokens, draft, scores in zip((PROMPT, long, LONG), (TREE, Draft(), TREE), together, strict=True):
        assert torch.equal(
            torch.as_tensor(fed(fresh(cache_bytes=0), tokens, draft)[1].logits), torch.as_tensor(scores.logits)
        )


def test_the_number_of_threads_changes_no_bit() -> None:
    model = target_of("llama").model
    _, want = fed(fresh(cache_bytes=0), LONG, TREE)
    for threads in (2, 3):
        target = CpuTarget(CpuModel(model.config, model._arrays, threads))
        for seed in range(3):
            sequence = target.open((*LONG, 5), Sampler(1.0, seed))
            (scores,) = target.score([ForwardInput(sequence, LONG[sequence.cached :], TREE)])
            assert torch.equal(torch.as_tensor(scores.logits), torch.as_tensor(want.logits))
            same = chooser(sequence.sampler, torch.as_tensor(want.logits), lambda row: len(LONG) + TREE.depth(row - 1))
            assert [scores.choice(node) for node in range(-1, len(TREE))] == [same(row) for row in range(1 + len(TREE))]
            target.close(sequence)


DIGEST = """
import hashlib, sys
from pathlib import Path
from kernels.cpu.processor import variant
from tests.decoding.targets.test_cpu_target import LONG, TREE, CpuTarget, fed
_, scores = fed(CpuTarget.load(Path(sys.argv[1])), LONG, TREE)
print(variant(), hashlib.sha256(scores.logits.tobytes()).hexdigest())
"""


@pytest.mark.skipif(variant() == "avx2", reason="the processor has nothing newer than AVX2")
def test_older_processors_compute_the_same_bits() -> None:
    """Compiled for them once, and kept under their name where everybody's kernels are."""
    older = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma,+f16c,+sse4.2,+popcnt"}
    home = {"PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-c", DIGEST, str(checkpoint("llama"))]
    done = subprocess.run(
        command, env=os.environ | older | home, capture_output=True, text=True, check=True, timeout=300
    )
    kernels, found = done.stdout.split()
    _, scores = fed(fresh(cache_bytes=0), LONG, TREE)
    assert kernels == "avx2" != variant()
    assert found == hashlib.sha256(scores.logits.tobytes()).hexdigest()


def test_the_choice_is_the_samplers_choice_of_the_logits() -> None:
    target = fresh()
    for sampler in SAMPLERS:
        sequence = target.open(PROMPT, sampler)
        (scores,) = target.score([ForwardInput(sequence, PROMPT[sequence.cached :], TREE)])
        want = chooser(sampler, torch.as_tensor(scores.logits), lambda row: len(PROMPT) + TREE.depth(row - 1))
        assert [scores.choice(node) for node in range(-1, len(TREE))] == [want(row) for row in range(1 + len(TREE))]
        assert torch.equal(torch.as_tensor(scores.after([2, -1])), torch.as_tensor(scores.logits)[[3, 0]])
        target.close(sequence)


def test_the_likelihood_of_greedy_choices_comes_with_the_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of other tokens, and above temperature 0, logits are computed."""
    _, scores = fed(fresh(), PROMPT, TREE)
    logits = torch.from_numpy(scores.logits).log_softmax(1)
    chosen = {node: scores.choice(node) for node in (-1, 0, 3, 6)}
    found = scores.log_probs(chosen | {4: 17})
    want = [float(logits[node + 1, token]) for node, token in (chosen | {4: 17}).items()]
    assert found == pytest.approx(want, abs=1e-4)
    monkeypatch.setattr(CpuModel, "logits", None)
    assert scores.log_probs(chosen) == found[:-1]
    with pytest.raises(TypeError):
        scores.log_probs({4: 17})


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_masks_pass_the_lm_head_only_when_they_are_asked_for(sampler: Sampler, monkeypatch: pytest.MonkeyPatch) -> None:
    target, asked = fresh(), list[int]()
    forward = target.model.forward

    def counting(parts: Any, keys: Any, taps: Any) -> Any:
        found = forward(parts, keys, taps)
        asked.append(len(found[0]))
        return found

    monkeypatch.setattr(target.model, "forward", counting)
    plain = Draft((9, 4, 9, 7, 9, 9), (-1, 0, 1, -1, 3, 4))
    found = []
    for draft in (plain, replace(plain, masks=(9,))):
        sequence = target.open(PROMPT, sampler)
        (scores,) = target.score([ForwardInput(sequence, PROMPT[sequence.cached :], draft)])
        found.append(([scores.choice(node) for node in range(-1, 6)], scores.logits))
        target.close(sequence)
    assert found[0][0] == found[1][0] and (found[0][1] == found[1][1]).all()
    assert asked == [7, 3]


def test_hidden_states_are_near_those_of_fp32_and_survive_the_cache() -> None:
    def states(target: CpuTarget | FastTarget) -> Tensor:
        sequence = target.open(PROMPT, Sampler(), taps=(0, 1, 2))  # type: ignore[arg-type]
        (scores,) = target.score([ForwardInput(sequence, PROMPT, TREE)])  # type: ignore[list-item]
        assert scores.hidden is not None
        target.commit(sequence, [3, 5])  # type: ignore[arg-type]
        target.close(sequence)  # type: ignore[arg-type]
        return torch.as_tensor(scores.hidden)

    target = fresh("qwen3")
    found, want = states(target), states(FastTarget.load(checkpoint("qwen3")))
    assert found.shape == want.shape == (len(PROMPT) + len(TREE), 3, 32)
    assert torch.nn.functional.cosine_similarity(found, want, dim=2).min() > 0.98
    torch.testing.assert_close(found[:, 0], want[:, 0], atol=1e-5, rtol=1e-5)
    again = target.open((*PROMPT, 8, 6, 1), Sampler(), taps=(2,))
    assert again.hidden is not None
    assert torch.equal(torch.as_tensor(again.hidden), found[[*range(20), 23, 25], 2:])
    assert target.open((*PROMPT, 8, 6, 1), Sampler()).hidden is None


def test_misuse_is_refused() -> None:
    target = fresh()
    sequence = target.open(PROMPT, Sampler())
    with pytest.raises(RuntimeError, match="commit"):
        target.commit(sequence, [])
    with pytest.raises(ValueError, match="pending"):
        target.score([ForwardInput(sequence, (), Draft())])
    with pytest.raises(ValueError, match="do not fit"):
        target.score([ForwardInput(sequence, (5,) * 513, Draft())])
    with pytest.raises(ValueError, match="taps"):
        target.open(PROMPT, Sampler(), taps=(3,))
    target.score([ForwardInput(sequence, PROMPT, Draft())])
    with pytest.raises(RuntimeError, match="fork"):
        target.fork(sequence, Sampler())
    target.close(sequence)
    target.close(sequence)  # a second time does nothing
    with pytest.raises(ValueError, match="closed"):
        target.score([ForwardInput(sequence, PROMPT, Draft())])
