"""Trajectories that a Ray cluster decodes are those of one process, in its order. Real Ray where it is installed."""

import builtins
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from decoding.serving.load import load_text_decoder
from decoding.serving.parts import ClusterError
from decoding.tokenizer import Tokenizer
from tests.decoding.models.jacobi_data import ORIGIN, N, decoder_of, ending_checkpoint
from tests.decoding.models.training_data import agent_groups
from training.jacobi.trajectory import Collecting, Trajectories, TrajectoryLog, collect
from training.packs.collect import Asked, gather
from training.packs.prompts import ray_decoded

GROUPS = agent_groups(3, 3)
HOW = Collecting(N, lambda step: 30, batch=2)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ending_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def alone(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of one process."""
    log = TrajectoryLog(tmp_path_factory.mktemp("alone"), ORIGIN)
    collect(decoder_of(folder), GROUPS, log, HOW)
    log.close()
    return log.path.read_bytes()


def test_a_cluster_writes_the_file_of_one_process(folder: Path, alone: bytes, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    load = partial(load_text_decoder, str(folder), dtype="fp32", device="cpu", adapter="none")
    decoded = partial(ray_decoded, "local", 2, load, partial(Trajectories, how=HOW))
    log, tokenizer = TrajectoryLog(tmp_path, ORIGIN), Tokenizer(folder)
    counts = gather(tokenizer, GROUPS, log, HOW, decoded, "them")
    log.close()
    assert counts["prompts"] == 18 and log.path.read_bytes() == alone


def test_batches_may_be_decoded_anywhere(folder: Path, alone: bytes, tmp_path: Path) -> None:
    """Two models that know nothing of each other take the batches in turn, as a cluster's workers do."""
    from training.packs.collect import Batches

    def decoded(batches: Sequence[Sequence[Asked]]) -> Iterator[list[Any]]:
        workers = [Batches(one := decoder_of(folder), Trajectories(one.tokenizer, HOW)) for _ in range(2)]
        results = {i: workers[i % 2](batch) for i, batch in reversed(list(enumerate(batches)))}
        yield from (results[i] for i in range(len(batches)))

    log = TrajectoryLog(tmp_path, ORIGIN)
    gather(Tokenizer(folder), GROUPS, log, HOW, decoded, "them")
    log.close()
    assert log.path.read_bytes() == alone


def test_without_ray_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    known = builtins.__import__

    def missing(name: str, *args: Any, **more: Any) -> Any:
        if name.startswith("ray"):
            raise ImportError(name)
        return known(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ClusterError, match=r"pip install 'sqlagent-local\[ray\]'"):
        list(ray_decoded("auto", None, lambda: decoder_of(Path()), lambda tokenizer: None, []))  # type: ignore[arg-type, return-value]
