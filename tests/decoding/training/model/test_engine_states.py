"""States that a decoder's target has are those of the training forward, for texts that share beginnings."""

import pytest
import torch

from decoding.checkpoints.weight_files import read_weights
from tests.decoding.models.head_data import Taught, taught
from training.heads.features import EngineStates
from training.packs.packing import pack
from training.run.gpu_model import TrainModel

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def target() -> Taught:
    return taught()


def test_they_equal_those_of_training(target: Taught) -> None:
    """The second pack finds beginnings of the first in the target's prefix cache."""
    config, taps = target.base.config, (0, 2, target.base.config.layers)
    model = TrainModel(config, read_weights(target.base.folder), {}, None, torch.float32, torch.device("cpu"))
    packs, _ = pack([[pair for each in target.read() for pair in each.pairs()]], 192, seed=0)
    assert len(packs) > 1 and any((each.parents[1:] != range(each.rows - 1)).any() for each in packs), "trees"
    states = EngineStates(target.decoder)
    for each in packs[:2]:
        expected = model.states(model.rows(each), taps)
        found = states(each, taps)
        assert found.shape == (each.rows, len(taps), config.hidden_size)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
