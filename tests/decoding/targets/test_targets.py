"""Both targets, on tiny random checkpoints of each family: every method's text is plain decoding's, in fp32.

Also what the reference target itself must satisfy: tree logits equal those of each path fed alone, commits keep the
right rows, and a prefix from the cache gives the same rounds as a cold start.
"""

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch

from decoding.engine.draft import Draft
from decoding.engine.loop import Request, decode
from decoding.engine.method import Method
from decoding.engine.rounds import Round
from decoding.engine.sampler import Sampler
from decoding.engine.target import AnyTarget, ForwardInput
from decoding.methods.registry import METHODS, load_method
from decoding.targets.fast_target import FastTarget
from decoding.targets.hf_target import HfTarget
from tests.decoding.models.doubles import Fuzz
from tests.decoding.models.random_heads import ready_method
from tests.decoding.models.tiny_models import FAMILIES, Family, tiny_checkpoint

TARGETS: dict[str, Callable[[Path], AnyTarget]] = {
    "hf": lambda path: HfTarget.load(path),
    "fast": lambda path: FastTarget.load(path, dtype=torch.float32),
}
PROMPT = tuple(random.Random(1).choices(range(3, 300), k=20))
SAMPLERS = [Sampler(), *(Sampler(t, seed) for t in (0.7, 1.0) for seed in (1, 2))]


@cache
def checkpoint(family: Family) -> Path:
    return tiny_checkpoint(Path(mkdtemp()) / family, family, seed=3)


@cache
def target_of(kind: str, family: Family) -> AnyTarget:
    return TARGETS[kind](checkpoint(family))


def rounds_of(target: AnyTarget, method: Method, sampler: Sampler = Sampler(), **kw: object) -> list[Round]:
    options = {"prompt": PROMPT, "max_new_tokens": 32, **kw}
    return list(decode(target, [Request(method=method, sampler=sampler, **options)]))  # type: ignore[arg-type]


def text(rounds: list[Round]) -> list[int]:
    return [token for r in rounds for token in r.committed]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", TARGETS)
def test_every_method_gives_plain_text(kind: str, family: Family, sampler: Sampler) -> None:
    target = target_of(kind, family)
    want = text(rounds_of(target, load_method("plain"), sampler))
    assert len(set(want)) > 3, "a text of one token would prove nothing"
    for name in METHODS:
        assert text(rounds_of(target, ready_method(name, target), sampler)) == want, name
    for seed in range(3):
        assert text(rounds_of(target, Fuzz(seed, vocab=300), sampler)) == want


@pytest.mark.parametrize("family", FAMILIES)
def test_the_fast_target_writes_what_the_reference_writes(family: Family) -> None:
    for sampler in SAMPLERS:
        texts = [text(rounds_of(target_of(kind, family), load_method("plain"), sampler)) for kind in TARGETS]
        assert texts[0] == texts[1]


@pytest.mark.parametrize("family", FAMILIES)
def test_plain_text_is_what_transformers_generates(family: Family) -> None:
    target = target_of("hf", family)
    assert isinstance(target, HfTarget)
    out = target.model.generate(
        torch.tensor([PROMPT]), max_new_tokens=32, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert out[0, len(PROMPT) :].tolist() == text(rounds_of(target, load_method("plain")))


@pytest.mark.parametrize("kind", TARGETS)
def test_tree_logits_equal_those_of_each_path_alone(kind: str) -> None:
    target = target_of(kind, "llama")
    draft = Draft((5, 6, 7, 8, 9, 6, 11), (-1, 0, 1, -1, 3, 3, 5))
    sequence = target.open(PROMPT, Sampler())
    (tree,) = target.score([ForwardInput(sequence, PROMPT[sequence.cached :], draft)])
    target.commit(sequence, [3, 5])
    for node in range(len(draft)):
        path = [draft.tokens[i] for i in draft.path(node)]
        alone = target.open((*PROMPT, *path), Sampler())
        (scores,) = target.score([ForwardInput(alone, (*PROMPT, *path)[alone.cached :], Draft())])
        torch.testing.assert_close(
            torch.as_tensor(tree.logits)[node + 1], torch.as_tensor(scores.logits)[0], atol=2e-5, rtol=1e-4
        )
    kept = (*PROMPT, 8, 6)
    assert sequence.cached == len(kept)
    (after,) = target.score([ForwardInput(sequence, (4, 2), Draft())])
    fresh = TARGETS[kind](checkpoint("llama"))
    cold = fresh.open((*kept, 4, 2), Sampler())
    (want,) = fresh.score([ForwardInput(cold, (*kept, 4, 2), Draft())])
    torch.testing.assert_close(torch.as_tensor(after.logits), torch.as_tensor(want.logits), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", TARGETS)
def test_hidden_states_come_from_the_tapped_layers_and_survive_the_cache(kind: str) -> None:
    fresh = TARGETS[kind](checkpoint("qwen3"))
    model = target_of("hf", "qwen3").model  # type: ignore[attr-defined]
    states = model(torch.tensor([[*PROMPT, 7, 8]]), output_hidden_states=True).hidden_states
    want = torch.stack([states[0][0], states[2][0]], 1)
    sequence = fresh.open(PROMPT, Sampler(), taps=(0, 2))
    assert sequence.hidden is not None
    assert len(sequence.hidden) == 0
    (scores,) = fresh.score([ForwardInput(sequence, PROMPT, Draft((9, 7, 8), (-1, -1, 1)))])
    assert scores.hidden is not None
    torch.testing.assert_close(scores.hidden[[*range(20), 21, 22]], want, atol=2e-5, rtol=1e-4)
    fresh.commit(sequence, [1, 2])
    fresh.close(sequence)
    again = fresh.open((*PROMPT, 7, 8, 1), Sampler(), taps=(2,))
    assert again.cached == len(PROMPT) + 2
    torch.testing.assert_close(again.hidden, want[:, 1:], atol=2e-5, rtol=1e-4)
    assert fresh.open((*PROMPT, 7, 8, 1), Sampler(), taps=(1,)).cached == 0


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("kind", TARGETS)
def test_a_cache_hit_gives_the_rounds_of_a_cold_start(kind: str, name: str) -> None:
    target = TARGETS[kind](checkpoint("llama"))
    cold, hit = (rounds_of(target, ready_method(name, target)) for _ in range(2))
    assert (cold[0].pending, hit[0].pending) == (len(PROMPT), 1)
    assert [r.committed for r in cold] == [r.committed for r in hit]


@pytest.mark.parametrize("kind", TARGETS)
def test_a_fork_goes_its_own_way(kind: str) -> None:
    target = TARGETS[kind](checkpoint("llama"))
    one = target.open(PROMPT, Sampler())
    target.score([ForwardInput(one, PROMPT, Draft())])
    target.commit(one, [])
    two = target.fork(one, Sampler(1.0, 5))
    target.score([ForwardInput(one, (7,), Draft())])
    target.commit(one, [])
    (scores,) = target.score([ForwardInput(two, (9,), Draft())])
    fresh = TARGETS[kind](checkpoint("llama"))
    (want,) = fresh.score([ForwardInput(fresh.open(PROMPT, Sampler()), (*PROMPT, 9), Draft())])
    torch.testing.assert_close(torch.as_tensor(scores.logits), torch.as_tensor(want.logits), atol=2e-5, rtol=1e-4)
    assert (one.cached, two.cached) == (len(PROMPT) + 1, len(PROMPT))


@pytest.mark.parametrize("kind", TARGETS)
def test_a_batch_of_sequences_writes_what_each_writes_alone(kind: str) -> None:
    target = TARGETS[kind](checkpoint("qwen2"))
    requests = [
        Request(PROMPT[i:], ready_method(name, target), 12 + 5 * i, Sampler(0.8 * (i % 2), i))
        for i, name in enumerate(METHODS)
    ]
    together = list(decode(target, requests))
    for i, request in enumerate(requests):
        alone = text(list(decode(TARGETS[kind](checkpoint("qwen2")), [request])))
        assert text([r for r in together if r.sequence == i]) == alone


@pytest.mark.parametrize("kind", TARGETS)
def test_a_wide_tree_fits_at_the_end_of_the_context(kind: str, tmp_path: Path) -> None:
    """The length limit is one of positions: siblings share theirs."""
    target = TARGETS[kind](tiny_checkpoint(tmp_path / "short", max_position_embeddings=24))
    want = text(rounds_of(target, load_method("plain")))
    assert len(want) == 24 - len(PROMPT)
    for seed in range(4):
        assert text(rounds_of(target, Fuzz(seed, vocab=300))) == want
