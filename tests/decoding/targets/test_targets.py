"""Both targets, on tiny random checkpoints of each family: every method's text is plain decoding's, in fp32.

Also what the reference target itself must satisfy: tree logits equal those of each path fed alone, commits keep the
right rows, and a prefix from the cache gives the same rounds as a cold start.

The fast target outside its walk: the embedded model in both types, loading, and misuse.

Loading leaves no thread behind that computes in parallel: its sleeping workers would slow every later step by half.

A turned model is the same model, and no number of a row stands out of it as much as before.
"""

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from decoding.checkpoints.arrays import bfloat16, floats
from decoding.checkpoints.cache_folder import silent
from decoding.checkpoints.catalog import resolve
from decoding.checkpoints.model_config import HEAD, load_config
from decoding.checkpoints.weight_files import read_weights
from decoding.engine.draft import Draft
from decoding.engine.loop import Request, decode
from decoding.engine.method import Method
from decoding.engine.rounds import Round
from decoding.engine.sampler import Sampler
from decoding.engine.target import AnyTarget, ForwardInput
from decoding.errors import UnsupportedModel
from decoding.methods.registry import METHODS, load_method
from decoding.targets.fast_target import FastModel, FastTarget
from decoding.targets.hf_target import HfTarget
from decoding.targets.int8.packing import (
    KernelRotation,
    cosines,
    rotated,
    rotated_layers,
    rounded,
    stream_rotation,
)
from decoding.targets.own_thread import in_own_thread
from kernels.cpu.processor import variant
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


@pytest.mark.parametrize(
    ("family", "sampler"),
    [(family, sampler) for n, family in enumerate(FAMILIES) for sampler in (SAMPLERS[0], *SAMPLERS[1 + n :: 3])],
    ids=str,
)
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


@pytest.fixture(scope="module")
def checkpoint_fast_loading(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("qwen3"), "qwen3", seed=2)


@pytest.fixture(scope="module")
def embedded() -> Path:
    return resolve("embedded", silent)


@pytest.fixture(scope="module")
def embedded_text(embedded: Path) -> tuple[list[int], Tensor]:
    """Tokens, and transformers' fp32 logits after the 60th and each later one."""
    tokens = random.Random(3).choices(range(1000, 20000), k=120)
    model = AutoModelForCausalLM.from_pretrained(embedded, dtype=torch.float32)
    with torch.inference_mode():
        return tokens, model(torch.tensor([tokens])).logits[0, 59:]


def test_the_embedded_model_in_fp32(embedded: Path, embedded_text: tuple[list[int], Tensor]) -> None:
    """Logits reach 40 there: 3e-4 is 30 layers of fp32 rounding, and a thousandth of the gaps that decide."""
    tokens, want = embedded_text
    target = FastTarget.load(embedded)
    sequence = target.open(tokens, Sampler())
    (scores,) = target.score([ForwardInput(sequence, tokens[:60], Draft.chain(tokens[60:]))])
    torch.testing.assert_close(torch.as_tensor(scores.logits), want, atol=3e-4, rtol=0)


def test_bf16_is_as_near_to_fp32_as_transformers_bf16(embedded: Path, embedded_text: tuple[list[int], Tensor]) -> None:
    tokens, want = embedded_text
    model = AutoModelForCausalLM.from_pretrained(embedded, dtype=torch.bfloat16)
    with torch.inference_mode():
        theirs = (model(torch.tensor([tokens])).logits[0, 59:].float() - want).abs()
    target = FastTarget.load(embedded, torch.bfloat16)
    sequence = target.open(tokens, Sampler())
    (scores,) = target.score([ForwardInput(sequence, tokens[:60], Draft.chain(tokens[60:]))])
    ours = (torch.as_tensor(scores.logits) - want).abs()
    assert torch.as_tensor(scores.logits).dtype == torch.float32
    assert ours.mean() < 1.1 * theirs.mean()
    assert ours.max() < 1.5 * theirs.max()


def test_loading_imports_no_transformers(checkpoint_fast_loading: Path) -> None:
    """Its import alone takes seconds of the ten in which a second `sqlagent ask` must begin to answer."""
    code = (
        "import sys; from pathlib import Path; from decoding.targets.fast_target import FastTarget; "
        f"FastTarget.load(Path({str(checkpoint_fast_loading)!r})); print('transformers' in sys.modules)"
    )
    root = Path(__file__).parents[3]
    out = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert out.stdout == "False\n"


def test_models_and_heads_run_without_triton(checkpoint_fast_loading: Path) -> None:
    """The module that heads and models share imported it at its head: no model loaded on a processor without it."""
    code = f"""
import sys
sys.modules["triton"] = None
from pathlib import Path
from decoding.engine.loop import Request, decode
from decoding.targets.fast_target import FastTarget
from tests.decoding.models.random_heads import ready_method
target = FastTarget.load(Path({str(checkpoint_fast_loading)!r}))
names = ("path_tree", "domino", "eagle3", "falcon", "medusa", "draft_model")
methods = [ready_method(name, target, "loud") for name in names]
print(len(list(decode(target, [Request((3, 4, 5), method, 1) for method in methods]))))"""
    root = Path(__file__).parents[3]
    out = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert out.stdout == "6\n", out.stderr


def test_weights_that_do_not_match_the_configuration_are_refused(checkpoint_fast_loading: Path) -> None:
    config, weights = load_config(checkpoint_fast_loading), dict(read_weights(checkpoint_fast_loading))
    lacking = {name: tensor for name, tensor in weights.items() if "layers.1.mlp.up_proj" not in name}
    with pytest.raises(UnsupportedModel, match=r"lacks the tensor model\.layers\.1\.mlp\.up_proj\.weight"):
        FastModel(config, lacking.items())
    with pytest.raises(UnsupportedModel, match=r"model\.norm\.weight has shape \[31\]"):
        FastModel(config, {**weights, "model.norm.weight": torch.ones(31)}.items())


def test_misuse_is_an_error_and_not_a_wrong_text(checkpoint_fast_loading: Path) -> None:
    target = FastTarget.load(checkpoint_fast_loading)
    with pytest.raises(ValueError, match="between 0 and 2"):
        target.open([1], Sampler(), taps=(3,))
    sequence = target.open([1, 2], Sampler())
    with pytest.raises(RuntimeError, match="without score"):
        target.commit(sequence, [])
    with pytest.raises(ValueError, match="nothing is pending"):
        target.score([ForwardInput(sequence, [], Draft((1,), (-1,)))])
    with pytest.raises(ValueError, match="513 tokens"):
        target.score([ForwardInput(sequence, [1] * 512, Draft((1,), (-1,)))])
    target.score([ForwardInput(sequence, [1, 2], Draft())])
    with pytest.raises(RuntimeError, match="between"):
        target.fork(sequence, Sampler())
    target.close(sequence)
    with pytest.raises(ValueError, match="closed"):
        target.score([ForwardInput(sequence, [1], Draft())])


COUNT = """
import os, sys, time, torch
from decoding.serving.load import load_text_decoder
from decoding.heads.head import find_head
threads = lambda: len(os.listdir("/proc/self/task"))
before = threads()
load_text_decoder(sys.argv[1], dtype="fp32", target="fast")
find_head("jetspec")
ends = time.monotonic() + 10
while threads() > before and time.monotonic() < ends:  # workers take a moment to end
    time.sleep(0.01)
after = threads()
torch.ones(1 << 20).mul_(2)  # the test can fail: this thread's own workers stay
print(before, after, threads())
"""


def test_it_gives_what_comes_or_raises_and_its_thread_ends() -> None:
    names = in_own_thread(lambda: [thread.name for thread in threading.enumerate()])
    assert any("apart" in name for name in names)
    assert not any("apart" in thread.name for thread in threading.enumerate())
    with pytest.raises(ZeroDivisionError):
        in_own_thread(lambda: 1 // 0)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc counts the threads")
def test_loading_leaves_no_workers_of_the_main_thread(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path, hidden_size=256, intermediate_size=512, vocab=2900)
    command = [sys.executable, "-c", COUNT, str(folder)]
    out = subprocess.run(
        command, env=os.environ | {"OMP_NUM_THREADS": "2"}, capture_output=True, text=True, check=True, timeout=120
    ).stdout
    before, after, with_workers = map(int, out.split())
    assert before == after < with_workers


PROMPT_ROTATION = list(range(10, 30))
FAMILIESOfRotation = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "qwen2": {},
    "qwen3": {"tie_word_embeddings": False},
}


@pytest.fixture(params=FAMILIESOfRotation)
def checkpoint_rotation(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tiny_checkpoint(tmp_path, request.param, seed=3, num_hidden_layers=2, **FAMILIESOfRotation[request.param])


def run(target: FastTarget) -> Iterator[Tensor]:
    sequence = target.open(PROMPT_ROTATION, Sampler(), (0, 1, 2))
    (scores,) = target.score([ForwardInput(sequence, PROMPT_ROTATION, Draft.chain([5, 6, 7]))])
    yield torch.as_tensor(scores.logits)
    assert scores.hidden is not None
    yield torch.as_tensor(scores.hidden)


def test_logits_and_hidden_states_are_those_of_the_model(checkpoint_rotation: Path) -> None:
    draw = torch.Generator().manual_seed(1)
    weights = {  # norms and biases are ones and zeros in a new model
        name: tensor + torch.randn(tensor.shape, generator=draw) if tensor.dim() == 1 else tensor
        for name, tensor in read_weights(checkpoint_rotation)
    }
    config = load_config(checkpoint_rotation)
    want = list(run(FastTarget(FastModel(config, weights.items()))))
    stream = stream_rotation(config.hidden_size).astype(np.float32)
    layers = dict(rotated_layers(config, weights.items()))
    head = layers.get(HEAD, layers["model.embed_tokens.weight"]) * layers["model.norm.weight"]
    layers["model.norm.weight"] = np.ones_like(layers["model.norm.weight"])
    layers[HEAD] = rotated(head, stream)
    layers["model.embed_tokens.weight"] = rotated(layers["model.embed_tokens.weight"], stream)
    stored = ((name, torch.from_numpy(array)) for name, array in layers.items())
    logits, hidden = run(FastTarget(FastModel(replace(config, tie_embeddings=False), stored)))
    back = rotated(hidden.numpy(), stream.T)
    back[:, 2] *= weights["model.norm.weight"].numpy()
    torch.testing.assert_close(logits, want[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.from_numpy(back), want[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [1, 2, 9, 64, 192])
def test_the_matrix_is_orthogonal_and_flat(size: int) -> None:
    matrix = torch.from_numpy(cosines(size))
    torch.testing.assert_close(matrix @ matrix.t(), torch.eye(size, dtype=torch.float64))
    assert matrix.abs().max() <= (2 / size) ** 0.5 + 1e-12


@pytest.mark.parametrize(("hidden", "block"), [(576, 192), (32, 32), (4096, 128), (7, 7), (1531, 1)])
def test_a_block_divides_the_width(hidden: int, block: int) -> None:
    assert stream_rotation(hidden).shape == (block, block)


def test_one_large_number_is_shared_out_and_comes_back() -> None:
    x, turn = np.zeros((1, 3, 576), np.float32), stream_rotation(576).astype(np.float32)
    x[..., 100] = 1000.0
    spread = rotated(x, turn)
    assert np.abs(spread).max() < 110
    np.testing.assert_allclose(rotated(spread, turn.T), x, rtol=1e-5, atol=1e-3)


def test_integers_use_their_range_and_are_chosen_for_the_scale_as_rounded() -> None:
    draw = np.random.default_rng(0).standard_normal((50, 64), dtype=np.float32)
    weight = np.concatenate([draw * np.logspace(-3, 3, 50, dtype=np.float32)[:, None], np.zeros((1, 64), np.float32)])
    steps, scale = rounded(weight)
    np.testing.assert_array_equal(scale, floats(bfloat16(scale)))
    assert np.abs(steps[:-1].astype(int)).max(1).min() >= 126, "every row uses the whole range: no scale is shared"
    error = np.abs(steps * scale[:, None] - weight)
    assert (error <= 1.01 * scale[:, None]).all()  # half a step, and one where the largest was clamped
    assert error.mean() < 0.3 * scale.mean()


@pytest.mark.skipif(variant() is None, reason="the processor has neither AVX2 nor better")
@pytest.mark.parametrize(("hidden", "shape"), [(576, (5, 576)), (576, (2, 3, 576)), (7, (4, 7)), (1531, (2, 1531))])
def test_the_kernel_turns_as_numpy_does_and_each_row_alike_in_any_company(hidden: int, shape: tuple[int, ...]) -> None:
    matrix = stream_rotation(hidden).astype(np.float32)
    x = np.random.default_rng(hidden).standard_normal(shape, dtype=np.float32)
    turn, back = KernelRotation(matrix), KernelRotation(matrix.T)
    found = turn(x)
    np.testing.assert_allclose(found, rotated(x, matrix), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(back(found), x, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(turn(x[:1]), found[:1])
    np.testing.assert_array_equal(turn(x[..., ::-1][..., ::-1]), found)
