"""The guesses that Jacobi Forcing's decoder has in flight: blocks that settle and are begun, and what masks said.

The window of Jacobi decoding, and what one sweep answers.

What copies say, and what is counted of it: only what the constraint let them say, where the text came to be asked.

Published Jacobi Forcing checkpoints are ordinary Qwen2 causal language models: one of their shape loads and decodes.
"""

import json
from collections.abc import Sequence
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from decoding.checkpoints.mask_adapter import DEFAULT_PRIORS
from decoding.engine.constraint import ConstraintCursor
from decoding.engine.draft import Draft
from decoding.engine.experience import AcceptanceStats
from decoding.engine.loop import Request, decode
from decoding.engine.rounds import Round, text_tokens
from decoding.engine.target import ForwardOutput
from decoding.engine.verify import Verdict
from decoding.methods.jacobi import JacobiForcing
from decoding.methods.jacobi_window import answers, block_range, next_state
from decoding.methods.mask_guesses import first_guesses
from decoding.methods.ngram_pool import CopiedGuesses
from decoding.methods.registry import load_method
from decoding.serving.load import load_text_decoder
from decoding.targets.fast_target import FastTarget
from tests.decoding.methods.test_jacobi_forcing import PROMPT, OneOfTwo, counting, cycling, knows, rounds_of
from tests.decoding.models.one_of import OneOf
from tests.decoding.models.tiny_models import tiny_checkpoint
from tests.decoding.models.toy import VOCAB, ToyTarget


def test_converging_at_once_commits_a_block_per_forward() -> None:
    size = 8
    always = rounds_of(JacobiForcing(size, 2, spawn_ratio=0, candidates=0), counting(), max_new_tokens=160)
    assert len(always) <= 160 / size + 1
    alone = rounds_of(JacobiForcing(size, 1, candidates=0), counting(), max_new_tokens=160)
    assert len(alone) >= 1.8 * len(always), "a lone block needs a sweep before it can be accepted"


def slow_then_fast(size: int) -> ToyTarget:
    """In the first block every token follows from the last one; afterwards it depends on its position alone."""
    end = len(PROMPT) + size
    return knows(lambda tokens: (tokens[-1] + 5 if len(tokens) < end else len(tokens)) % VOCAB)


def test_promotion_continues_the_promoted_block() -> None:
    """Guards against a pseudo-active block that is begun and then thrown away, as in the released code."""
    size = 8
    kept = rounds_of(
        JacobiForcing(size, 2, spawn_ratio=0.5, candidates=0), slow_then_fast(size), max_new_tokens=2 * size
    )
    assert [len(r.committed) for r in kept] == [1] * size + [size], "the second block is accepted whole, at once"
    alone = rounds_of(JacobiForcing(size, 1, candidates=0), slow_then_fast(size), max_new_tokens=2 * size)
    assert text_tokens(alone) == text_tokens(kept)
    assert len(alone) > len(kept), "a new block needs a sweep of its own"


def test_a_settled_pseudo_active_block_begins_the_next() -> None:
    """Guards against progress that is counted for the real-active block only."""
    size, blocks = 8, 4
    rounds = rounds_of(JacobiForcing(size, blocks, spawn_ratio=0.5, candidates=0), slow_then_fast(size))
    assert [-(-(i + len(r.draft_tokens)) // size) for i, r in enumerate(rounds[:size])] == [1, 1, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("spawn_ratio", [0.0, 0.25, 0.75, 1.0])
def test_a_block_is_begun_when_the_newest_has_settled(spawn_ratio: float) -> None:
    size, blocks = 8, 3
    method = JacobiForcing(size, blocks, spawn_ratio=spawn_ratio, candidates=0)
    generated, begun = 0, None
    for r in rounds_of(method, cycling(), max_new_tokens=200)[:40]:
        end = generated + len(r.draft_tokens)
        assert end % size == 0, "blocks are aligned to generated positions"
        assert end - block_range(generated, size).start <= blocks * size
        if begun is None and end > block_range(generated, size).stop:
            begun = generated, end
        generated += len(r.committed)
    at = ceil(spawn_ratio * size)
    assert begun == {0: (0, blocks * size), size: None}.get(at, (at, 2 * size))


def with_masks(depths: int = 4) -> ToyTarget:
    """Every token follows from the last one, and masks know what follows from the token before them, but at each 6th place.

    What a sweep answers after a wrong token is wrong, too.
    """

    def next_token(tokens: Sequence[int]) -> int:
        text = [token for token in tokens if token < VOCAB]
        masks = len(tokens) - len(text)
        return (text[-1] + 5 * (masks + 1) + (masks > 0 and len(tokens) % 6 == 0)) % VOCAB

    target = knows(next_token)
    target.mask_tokens = range(VOCAB, VOCAB + depths)
    return target


def test_what_masks_said_outlives_a_wrong_guess() -> None:
    """Sweeps below a wrong guess, as the papers have them, are wrong for as long as the block lasts."""

    def rounds(**options: Any) -> list[Round]:
        method = JacobiForcing(4, candidates=0, pool_size=0, **options)
        return rounds_of(method, with_masks(), max_new_tokens=120)

    swept, masked = rounds(remask=False), rounds()
    plain = rounds_of(load_method("plain"), with_masks(), max_new_tokens=120)
    assert text_tokens(swept) == text_tokens(masked) == text_tokens(plain)
    assert len(masked) < 0.7 * len(swept)
    rejected = [
        following
        for r, following in pairwise(masked)
        if sum(token < VOCAB for token in r.draft_tokens) > len(r.accepted) + 1
    ]
    assert rejected and all(r.draft_tokens[0] < VOCAB for r in rejected), "guesses again, and no masks"


def test_more_blocks_look_further_where_masks_are_known() -> None:
    """The second block is in flight as soon as masks have answered for the first one."""
    counts = [
        len(rounds_of(JacobiForcing(4, blocks, candidates=0, pool_size=0), with_masks(8), max_new_tokens=120))
        for blocks in (1, 2)
    ]
    assert counts[1] < 0.8 * counts[0]


@pytest.mark.parametrize("name", ["jacobi", "jacobi_forcing"])
def test_masks_go_by_their_distance_from_the_last_guess(name: str) -> None:
    """Guards against masks that keep their depth while the text moves on."""
    for r in rounds_of(
        load_method(name, first_guess="mask", block_size=6), with_masks(6), constraint=OneOfTwo(forces=True)
    ):
        masks = [token - VOCAB for token in r.draft_tokens if token >= VOCAB]
        assert masks == list(range(len(masks)))


def test_answers_go_on_where_the_accepted_branch_ends() -> None:
    """Own guess 0 1 2 3 (nodes 0 to 3), candidate 7 8 (nodes 4 and 5), of which 7 is accepted: node 5, then 2 and 3."""
    draft = Draft.trie([(0, 1, 2, 3), (7, 8)])
    scores = ForwardOutput.of(np.empty(0, np.float32), None, lambda node: 100 + node)
    own = (0, 1, 2, 3)
    assert answers(draft, scores, Verdict((4,), 9), own) == [105, 102, 103]
    assert answers(draft, scores, Verdict((4, 5), 9), own) == [102, 103]
    assert answers(draft, scores, Verdict((0, 1), 9), own) == [102, 103]
    assert answers(draft, scores, Verdict((0, 1, 2, 3), 9), own) == answers(Draft(), scores, Verdict((), 9), own) == []


def test_answers_follow_the_own_guess_beside_anothers() -> None:
    """Another method's 0 5 (nodes 0 and 1) before the own guess 0 1 2 (nodes 0, 2 and 3), of which 0 is accepted."""
    draft = Draft.chain((0, 5)).joined(Draft.chain((0, 1, 2)))
    scores = ForwardOutput.of(np.empty(0, np.float32), None, lambda node: 100 + node)
    assert answers(draft, scores, Verdict((0,), 9), (0, 1, 2)) == [102, 103]
    assert answers(draft, scores, Verdict((0, 1), 9), (0, 1, 2)) == [103]


def test_the_window_and_the_sweep() -> None:
    assert [block_range(at, 4) for at in (0, 3, 4, 9)] == [range(4), range(4), range(4, 8), range(8, 12)]
    assert next_state([1, 2, 3], [7, 8]) == [7, 8, 3], "what was not scored keeps its guess"
    assert next_state([1], [7, 8]) == [7, 8]


COPIED, BEGINNING, SECOND = DEFAULT_PRIORS.copies, DEFAULT_PRIORS.first_copies, DEFAULT_PRIORS.second_copies
TEXT = [1, 2]
FOLLOWED = [(1, 2, 5, 6, 7), (1, 2, 5, 8, 9)]  # the first one is preferred


def copies() -> CopiedGuesses:
    found = CopiedGuesses(FOLLOWED, 3, 9, AcceptanceStats().of("plan"))
    found.find(TEXT, 9)
    return found


def test_another_copy_shares_what_the_first_leaves() -> None:
    said = copies()
    assert said.agreed == 2 and said.shares((), None) == pytest.approx({5: COPIED[2]})
    assert said.shares((5,), None) == pytest.approx({6: COPIED[3], 8: (1.0 - COPIED[3]) * SECOND[0]})
    assert said.shares((6,), None) == {}


@pytest.mark.parametrize(("agreed", "first", "later"), [(1, *BEGINNING[:2]), (2, *BEGINNING[2:4]), (5, *BEGINNING[4:])])
def test_where_nothing_is_written_yet_copies_have_cases_of_their_own(agreed: int, first: float, later: float) -> None:
    prompt, experience = [9, *range(20, 20 + agreed)], AcceptanceStats().of("plan")
    said = CopiedGuesses([(*prompt[1:], 5, 6, 7), (*prompt[1:], 5, 8)], 3, 9, experience, len(prompt))
    said.find(prompt, 9)
    assert said.agreed == agreed and said.shares((), None) == pytest.approx({5: first})
    assert said.shares((5,), None) == pytest.approx({6: later, 8: (1.0 - later) * SECOND[1]})
    assert said.shares((5, 6), None) == pytest.approx({7: later})
    said.count((5, 6, 7))
    said.find([*prompt, 5], 9)
    assert said.shares((), None)[6] == pytest.approx(COPIED[agreed + 1]), "what was counted is of the beginning"


def test_what_was_right_is_counted_at_each_place_that_was_asked() -> None:
    said = copies()
    for path in ((), (5,), (5, 6)):
        said.shares(path, None)
    said.count((5, 8, 9))  # right, then the second copy, and (5, 8) was not asked
    said.find(TEXT, 9)
    assert said.shares((), None)[5] > COPIED[2]
    shares = said.shares((5,), None)
    assert shares[6] < COPIED[3] and shares[8] / (1.0 - shares[6]) > SECOND[0]
    assert said.shares((5, 6), None) == pytest.approx({7: COPIED[4]})
    assert said.shares((5, 8), None) == pytest.approx({9: COPIED[4]})


def test_a_copy_that_the_constraint_forbids_is_not_counted_as_wrong() -> None:
    cursor = ConstraintCursor.start(OneOf([[5, 8, 9], [4, 3]], frozenset([0]), 10), frozenset([0]))
    said = copies()
    assert said.shares((5,), cursor.after(5)) == pytest.approx({8: COPIED[3]}), (
        "the second copy stands in for the first"
    )
    said.count((5, 8))
    said.find(TEXT, 9)
    assert said.shares((5,), None)[6] > COPIED[3] and said.shares((), None) == pytest.approx({5: COPIED[2]})


# What config.json of JacobiForcing/JacobiForcing_Coder_7B_v1 (from Qwen2.5-Coder-7B-Instruct) has besides its sizes.
PUBLISHED = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "use_sliding_window": False, "attention_dropout": 0.0}
# 28 query heads share 4 keys and values: seven to one, as here.
SHAPE = {"hidden_size": 56, "num_attention_heads": 14, "num_key_value_heads": 2, "head_dim": 4, "intermediate_size": 96}


def made(folder: Path, **layout: bool) -> Path:
    """Untied head; rotary base and token ids as the published files have them."""
    tiny_checkpoint(folder, "qwen2", seed=3, tie=False, num_hidden_layers=3, **SHAPE, **layout)  # type: ignore[arg-type]
    config = json.loads((folder / "config.json").read_text())
    config |= PUBLISHED | {"rope_theta": 1e6, "torch_dtype": "bfloat16"}
    config.pop("rope_parameters", None)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    "layout", [{}, {"sharded": True}, {"sharded": True, "bin": True}], ids=["one", "shards", "pickles"]
)
def test_the_published_layout_loads_and_decodes_without_loss(tmp_path: Path, layout: dict[str, bool]) -> None:
    """The coder's files are safetensors, the mathematician's pytorch_model*.bin."""
    folder = made(tmp_path / "coder", **layout)
    decoder = load_text_decoder(str(folder), dtype="fp32", device="cpu")
    assert isinstance(decoder.target, FastTarget) and decoder.adapter is None
    prompt = tuple(range(20, 60))
    begun = next(
        decode(decoder.target, [Request(prompt, load_method("jacobi_forcing", block_size=64), 65)])
    ).draft_tokens
    draws = first_guesses("prompt", prompt)
    assert begun == tuple(draws.take(64)), "draws from the prompt, on which it was trained, not its last token repeated"
    texts = {}
    for name, options in (
        ("plain", {}),
        ("jacobi", {"refill": False}),
        ("jacobi_forcing", {"block_size": 8, "blocks": 3}),
    ):
        request = Request(prompt, load_method(name, **options), max_new_tokens=40)
        texts[name] = [token for r in decode(decoder.target, [request]) for token in r.committed]
    assert texts["jacobi"] == texts["jacobi_forcing"] == texts["plain"]
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    greedy = theirs.generate(
        torch.tensor([prompt]), max_new_tokens=40, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert texts["plain"] == greedy[0, len(prompt) :].tolist()


def test_the_names_are_the_published_ones(tmp_path: Path) -> None:
    folder = made(tmp_path / "coder")
    with safe_open(folder / "model.safetensors", "pt") as file:
        names = set(file.keys())
    layer = {f"self_attn.{part}_proj.weight" for part in "qkvo"} | {f"self_attn.{part}_proj.bias" for part in "qkv"}
    layer |= {f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")}
    layer |= {"input_layernorm.weight", "post_attention_layernorm.weight"}
    assert names == {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"} | {
        f"model.layers.{index}.{name}" for index in range(3) for name in layer
    }
