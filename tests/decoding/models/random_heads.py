"""Heads for tests: random ones, and adversarial ones that are certain of wrong guesses; the text is the same with all."""

from functools import cache
from typing import Any, Literal

import numpy as np
import torch

from decoding.checkpoints.bigrams import TokenPairs
from decoding.checkpoints.mask_adapter import MaskAdapter
from decoding.checkpoints.model_config import ModelConfig
from decoding.engine.method import Method
from decoding.engine.target import AnyTarget
from decoding.heads.head import Head, HeadConfig, new_head
from decoding.heads.kinds import KINDS
from decoding.methods.baselines import Plain
from decoding.methods.registry import load_method, method_class, method_options

Temper = Literal["random", "loud", "broken"]
TAPS = (1, 2)
OPTIONAL = {"adaptive": "path_tree"}  # heads of methods that can do without


@cache
def small_head(kind: str, hidden: int, vocab: int, temper: Temper = "random") -> Head:
    """A small head for a target of two layers. loud: its guesses are certain. broken: its weights are no numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(hidden)
        head = new_head(HeadConfig(kind, hidden, vocab, TAPS, KINDS[kind].small)).eval().requires_grad_(False)
    for parameter in head.parameters():
        parameter.mul_({"random": 1.0, "loud": 50.0, "broken": float("nan")}[temper])
    return head


def head_options(name: str, target: AnyTarget, temper: Temper = "random") -> dict[str, Any]:
    """What `load_method` must be given besides the name of a method so that it runs on a small target and drafts whole trees:
    random weights are sure of nothing.
    """
    kind = method_class(name).kind or OPTIONAL.get(name)
    if kind is None:
        return {}
    vocab, hidden = target.embedding.shape
    whole = {"least": 0.0, "draft_cost": 1e-6, "row_cost": 1e-6}
    every = {option: value for option, value in whole.items() if option in method_options(name)}
    return {"head": small_head(kind, hidden, vocab, temper)} | every


def ready_method(name: str, target: AnyTarget, temper: Temper = "random") -> Method:
    """A registered method, with a small head where it needs one."""
    return load_method(name, **head_options(name, target, temper))


class Tapping(Plain):
    """Plain decoding that wants hidden states, as methods with a head do."""

    taps = (1,)


TAPPING = f"{__name__}:Tapping"  # as `decoding.methods.registry.METHODS` names it


def random_masks(config: ModelConfig, depths: int, rank: int = 4) -> MaskAdapter:
    """A mask adapter with scores for the pairs of the tokens from 100 to 159, and for what follows what in a prompt."""
    chance = np.random.default_rng(0)
    shapes = [(depths, config.hidden_size), *[(config.layers, rank, config.hidden_size)] * 2]
    embeddings, down, up = (chance.standard_normal(shape, dtype=np.float32) for shape in shapes)
    before, after = chance.standard_normal((2, 60, 6), dtype=np.float32)
    followers = chance.standard_normal(9, dtype=np.float32)
    return MaskAdapter(embeddings, down, up, TokenPairs(np.arange(100, 160), before, after, followers))
