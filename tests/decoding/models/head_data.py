"""A tiny target that has learnt a toy language, its responses, and their features: what heads are trained on in tests."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from decoding.engine.loop import Request, decode
from decoding.engine.rounds import measure
from decoding.engine.sampler import Sampler
from decoding.heads.head import Head, load_head
from decoding.methods.registry import load_method
from decoding.serving.load import load_text_decoder
from decoding.serving.text_decoder import TextDecoder
from tests.decoding.models.tiny_models import tiny_checkpoint
from tests.decoding.models.training_data import agent_groups
from training.config import TrainConfig
from training.heads.features import Features, load_objective
from training.heads.responses import Collecting, Response, collect, read_responses
from training.heads.training import make_features, train_head
from training.loop import Outcome, train
from training.packs.collect import RecordLog
from training.packs.groups import Group
from training.run.base import Base, load_base

GROUPS = agent_groups(2, 5)
CONFIG = TrainConfig(
    lora=None, steps=50, learning_rate=3e-3, weight_decay=0.0, pack_tokens=384, accumulate=2, dtype="fp32", device="cpu"
)


@dataclass(frozen=True, slots=True)
class Taught:
    """A target and what it says."""

    base: Base
    decoder: TextDecoder
    responses: Path
    features: Features

    def tokens_per_forward(self, method: str, head: Head, **options: Any) -> float:
        """Over its greedy and sampled answers to the toy language's prompts."""
        rounds = []
        for index, response in enumerate(self.read()[:4]):
            request = Request(
                response.prompt_ids,
                load_method(method, head=head, **options),
                max_new_tokens=16,
                sampler=Sampler(0.7 * (index % 2), index),
                stop=self.decoder.tokenizer.stop_ids,
            )
            rounds += list(decode(self.decoder.target, [request]))
        return measure(rounds).tokens_per_forward

    def read(self) -> list[Response]:
        return list(read_responses([self.responses])[1])

    def train(self, kind: str, out: Path, steps: int = 40, **options: Any) -> Outcome:
        """The objective's `options`; a fifth of the packs held out."""
        config = replace(CONFIG, steps=steps, accumulate=1, learning_rate=6e-3)
        objective = load_objective(kind, **options)
        return train_head(config, self.base, self.features, objective, out, held_out_part=0.2)

    def head(self, out: Path) -> Head:
        return load_head(out / "head")


@cache
def taught() -> Taught:
    """Made once per process: two seconds."""
    folder = Path(mkdtemp())
    sizes = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "num_hidden_layers": 3}
    untaught = load_base(str(tiny_checkpoint(folder / "base", **sizes)))  # type: ignore[arg-type]
    train(CONFIG, untaught, GROUPS, folder / "sft")
    decoder = load_text_decoder(str(folder / "sft" / "model"), dtype="fp32", device="cpu", adapter="none")
    base = load_base(str(folder / "sft" / "model"))
    log = RecordLog(folder / "responses.jsonl", {"target": {"base_sha256": base.sha256}})
    collected(decoder, log)
    assert make_features(base, None, [log.path], folder / "features", pack_tokens=192, dtype="fp32")
    return Taught(base, decoder, log.path, Features(folder / "features"))


def collected(decoder: TextDecoder, log: RecordLog, groups: Sequence[Group] = GROUPS, **how: Any) -> dict[str, int]:
    """Answers of at most 40 tokens; one sampled besides the greedy one."""
    counts = collect(decoder, groups, log, Collecting(**{"max_new_tokens": lambda step: 40, "samples": 1} | how))
    log.close()
    return counts
