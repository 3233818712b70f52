"""Reads a head from a published folder: recognises its layout and calls the layout's reader."""

from collections.abc import Callable, Sequence
from pathlib import Path

from decoding.checkpoints.model_config import ModelConfig
from decoding.errors import UnsupportedModel
from decoding.heads.head import Head
from decoding.heads.published.block import is_block, read_block
from decoding.heads.published.eagle3 import is_eagle3, read_eagle3
from decoding.heads.published.falcon import is_falcon, read_falcon
from decoding.heads.published.layout import Published, Reader, open_published
from decoding.heads.published.medusa import FILES, is_medusa, read_medusa

LAYOUTS: Sequence[tuple[Callable[[Published], bool], Reader]] = (
    (is_medusa, read_medusa),
    (is_eagle3, read_eagle3),
    (is_block, read_block),
    (is_falcon, read_falcon),
)


def read_published(folder: Path, target: ModelConfig) -> Head:
    """The head in a published folder, for a target with the configuration `target`.

    Raises ModelUnavailable if the folder is incomplete, UnsupportedModel if its layout is not known, and HeadMismatch if it is
    for another target.
    """
    found = open_published(folder, *FILES)
    for matches, read in LAYOUTS:
        if matches(found):
            return read(found, target)
    raise UnsupportedModel(
        f"{folder} holds no head of a known layout: Medusa, EAGLE-3, DFlash and its relatives, Falcon"
    )
