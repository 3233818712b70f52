"""The fast target against transformers itself: logits and hidden states of prompts, trees, commits, hits, forks, batches.

One random walk does what an engine may do, and compares every row with transformers' recomputation of that row's path
alone. Seeded bugs show that the walk fails when it should.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from decoding.engine.draft import Draft
from decoding.engine.sampler import Sampler
from decoding.engine.target import ForwardInput, ForwardOutput
from decoding.targets import cached_target, fast_target, llama_model
from decoding.targets import fast_target as fast_model
from decoding.targets import prefix_cache as kv_cache
from decoding.targets.fast_target import FastModel, FastSequence, FastTarget
from decoding.targets.llama_model import rotate
from decoding.targets.prefix_cache import TokenTable, longest_prefix
from tests.decoding.models.tiny_models import Family, tiny_checkpoint

VOCAB = 300
TAPS = (0, 2)  # of two layers: embeddings and final norm
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
VARIANTS: dict[str, tuple[Family, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-untied-biased": ("llama", {"tie": False, "attention_bias": True, "mlp_bias": True}),
    "llama-wide-heads": ("llama", {"head_dim": 16, "num_key_value_heads": 1}),
    "llama-rope-llama3": ("llama", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, **LLAMA3}}),
    "llama-rope-linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "llama-sharded-bf16": ("llama", {"sharded": True, "dtype": torch.bfloat16}),
    "qwen2": ("qwen2", {}),
    "qwen2-no-shared-heads": ("qwen2", {"num_key_value_heads": 4, "tie": False}),
    "qwen3": ("qwen3", {}),
    "qwen3-wide-heads-biased": ("qwen3", {"head_dim": 16, "attention_bias": True, "tie": False}),
}
Reference = Callable[[Sequence[int]], tuple[Tensor, Tensor]]


@pytest.fixture(scope="module", params=VARIANTS)
def variant(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    family, options = VARIANTS[request.param]
    return tiny_checkpoint(tmp_path_factory.mktemp(request.param), family, seed=1, **options)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("qwen3"), "qwen3", seed=2, num_hidden_layers=2)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers grow, prompts go in chunks and chunks in several forwards: also in tests of few tokens."""
    monkeypatch.setattr(kv_cache, "_SMALLEST", 8)
    monkeypatch.setattr(fast_target, "CHUNK_ROWS", 16)
    monkeypatch.setattr(cached_target, "FORWARD_ROWS", 40)
    monkeypatch.setattr(llama_model, "WORTH_SHARING", 3)


def transformers_says(path: Path) -> Reference:
    """Logits [tokens, vocab] and tapped hidden states [tokens, taps, hidden] of a text, from nothing, in fp32."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)

    @torch.inference_mode()
    def says(tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        out = model(torch.tensor([list(tokens)]), output_hidden_states=True)
        return out.logits[0], torch.stack([out.hidden_states[tap][0] for tap in TAPS], 1)

    return says


def tree(rng: random.Random, nodes: int) -> Draft:
    parents = [rng.choice((i - 1, rng.randrange(-1, i))) if i else -1 for i in range(nodes)]
    return Draft(tuple(rng.randrange(VOCAB) for _ in parents), tuple(parents))


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-5)


def compare(says: Reference, tokens: Sequence[int], fed: int, draft: Draft, scores: ForwardOutput) -> None:
    """Scores of `tokens`, of which the last `fed` were pending, against each node's path alone."""
    logits, hidden = says(tokens)
    close(torch.as_tensor(scores.logits)[0], logits[-1])
    assert scores.hidden is not None
    close(scores.hidden[:fed], hidden[-fed:])
    for node in range(len(draft)):
        logits, hidden = says([*tokens, *(draft.tokens[i] for i in draft.path(node))])
        close(torch.as_tensor(scores.logits)[1 + node], logits[-1])
        close(scores.hidden[fed + node], hidden[-1])
        assert scores.choice(node) == int(logits[-1].argmax())


class Walk:
    """One sequence that is decoded at random: random trees, random accepted paths, random bonus and forced tokens."""

    def __init__(self, target: FastTarget, says: Reference, rng: random.Random, tokens: Sequence[int]) -> None:
        self.target, self.says, self.rng, self.tokens = target, says, rng, list(tokens)
        self.sequence = target.open(self.tokens, Sampler(), TAPS)
        self.draft = Draft()

    def work(self) -> ForwardInput[FastSequence]:
        self.draft = tree(self.rng, self.rng.randrange(10))
        return ForwardInput(self.sequence, self.tokens[self.sequence.cached :], self.draft)

    def settle(self, scores: ForwardOutput) -> None:
        cached = self.sequence.cached
        compare(self.says, self.tokens, len(self.tokens) - cached, self.draft, scores)
        path = self.draft.path(self.rng.randrange(-1, len(self.draft)))
        self.target.commit(self.sequence, path)
        self.tokens += [self.draft.tokens[node] for node in path]
        assert self.sequence.cached == len(self.tokens)
        close(self.sequence.hidden, self.says(self.tokens)[1])  # type: ignore[arg-type]
        self.tokens += [self.rng.randrange(VOCAB) for _ in range(self.rng.choice((1, 1, 1, 3)))]

    def step(self) -> None:
        (scores,) = self.target.score([self.work()])
        self.settle(scores)


def wander(path: Path, says: Reference, *seeds: int) -> None:
    """All that an engine may do with a target, checked row by row."""
    for seed in seeds:
        _wander(FastTarget.load(path), says, random.Random(seed))


def _wander(target: FastTarget, says: Reference, rng: random.Random) -> None:
    prompt = rng.choices(range(VOCAB), k=rng.choice((1, 5, 16, 17, 37)))
    first = Walk(target, says, rng, prompt)
    for _ in range(4):
        first.step()
    relative = Walk(target, says, rng, [*first.tokens[:-3], 7, 8])
    assert relative.sequence.cached >= len(first.tokens) - 6, "an open sequence's prefix is reused"
    other = Walk(target, says, rng, rng.choices(range(VOCAB), k=30))
    together = [first, relative, other]
    for _ in range(2):
        for walk, scores in zip(together, target.score([walk.work() for walk in together]), strict=True):
            walk.settle(scores)
    twin = Walk(target, says, rng, first.tokens)
    target.close(twin.sequence)
    twin.sequence = target.fork(first.sequence, Sampler())
    for walk in (first, twin, first, twin):
        walk.step()
    for walk in (first, twin, relative, other):
        target.close(walk.sequence)
    again = Walk(target, says, rng, [*first.tokens[:-2], 1])
    assert again.sequence.cached >= len(first.tokens) - 4, "a closed sequence's prefix is reused"
    again.step()
    again.step()


def test_logits_and_hidden_states_are_those_of_transformers(variant: Path) -> None:
    """Guards against every wrong weight, norm, bias, head or frequency: all rows of a text longer than 64 positions."""
    tokens = random.Random(0).choices(range(VOCAB), k=200)
    logits, hidden = transformers_says(variant)(tokens)
    target = FastTarget.load(variant)
    sequence = target.open(tokens, Sampler(), TAPS)
    (scores,) = target.score([ForwardInput(sequence, tokens[:150], Draft.chain(tokens[150:]))])
    close(torch.as_tensor(scores.logits), logits[149:])
    close(scores.hidden, hidden)  # type: ignore[arg-type]


def test_whatever_an_engine_does_rows_are_those_of_their_paths_alone(variant: Path) -> None:
    wander(variant, transformers_says(variant), 0)


@pytest.mark.parametrize("seed", range(1, 5))
def test_many_walks(checkpoint: Path, seed: int) -> None:
    wander(checkpoint, transformers_says(checkpoint), seed)


def test_a_node_knows_nothing_of_its_siblings(checkpoint: Path) -> None:
    """Independent text: the same node, alone and among many siblings, cousins and later nodes."""
    target, tokens = FastTarget.load(checkpoint), [5, 6, 7, 8]
    alone, crowd = target.open(tokens, Sampler()), target.open(tokens, Sampler())
    crowded = Draft((1, 2, 3, 4, 5, 6, 7, 8), (-1, -1, 0, 1, 1, 3, 2, 5))
    path = crowded.path(5)
    chain = Draft.chain(crowded.tokens[node] for node in path)
    want, got = target.score([ForwardInput(alone, tokens, chain), ForwardInput(crowd, tokens, crowded)])
    torch.testing.assert_close(
        torch.as_tensor(got.logits)[[0, *(1 + node for node in path)]], torch.as_tensor(want.logits), atol=1e-5, rtol=0
    )


# --- seeded bugs: each must make the walk fail ---------------------------------------------------------------------------


def _loses_last_row(rows: TokenTable, prefix: Tensor) -> None:
    copy_from(rows, prefix)
    rows.data[:, prefix.shape[1] - 1] = 0


copy_from, compact, reserve, span, chunk = (
    TokenTable.copy_from,
    TokenTable.compact,
    TokenTable.reserve,
    FastModel._span,
    cached_target.Chunk,
)
head_rows = chunk.head_rows
BUGS: dict[str, tuple[object, str, Callable[..., Any]]] = {
    "siblings see one another": (fast_target, "seen_rows", lambda draft, pending: None),
    "siblings stand one after another": (
        fast_target,
        "row_positions",
        lambda self: [*range(self.before, self.before + len(self))],
    ),
    "nodes stand one too early": (
        fast_target,
        "row_positions",
        lambda self: (
            [*range(self.before, self.before + len(self.pending))]
            + [self.before + len(self.pending) + depth - 2 for depth in self.draft.depths]
        ),
    ),
    "logits of the row before": (chunk, "head_rows", lambda self: [row - 1 for row in head_rows(self)]),
    "accepted rows stay where they were": (TokenTable, "compact", lambda self, start, rows: None),
    "accepted rows land one too late": (
        TokenTable,
        "compact",
        lambda self, start, rows: compact(self, start + 1, rows),
    ),
    "hidden states stay where they were": (
        TokenTable,
        "compact",
        lambda self, start, rows: compact(self, start, rows) if len(self.data) != len(TAPS) else None,
    ),
    "growing drops the last row": (
        TokenTable,
        "reserve",
        lambda self, needed, keep: reserve(self, needed, max(0, keep - 1)),
    ),
    "a copied prefix lacks its last row": (TokenTable, "copy_from", _loses_last_row),
    "keys of the last cached row are overwritten": (
        FastModel,
        "_span",
        lambda self, place, rows: span(self, place, replace(rows, before=max(0, rows.before - 1))),
    ),
    "a hit reaches too far": (
        cached_target,
        "longest_prefix",
        lambda *args: (found := longest_prefix(*args)) and (found[0], min(found[1] + 1, len(found[0].tokens))),
    ),
    "rotation the wrong way round": (
        fast_model,
        "rotate",
        lambda heads, cos, sin: rotate(heads, cos, sin) if len(heads) > 1 else rotate(heads, cos, -sin),
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_seeded_bugs_are_caught(bug: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, broken = BUGS[bug]
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(AssertionError):
        wander(checkpoint, transformers_says(checkpoint), 0, 1, 2)
