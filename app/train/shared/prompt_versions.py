"""Which version of the compact prompts training data are written in, and whether the weights know it.

Data carry it in the manifest beside them, weights in their adapter.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from agent.prompts.profiles.compact import PROMPT_VERSION

if TYPE_CHECKING:
    from decoding.checkpoints.adapters.adapter import Adapter


def version_of_weights(adapter: "Adapter | None") -> int:
    """The version that weights with this adapter know; the newest if they name none."""
    named = adapter.about.prompt_version if adapter else None
    return PROMPT_VERSION if named is None else named


def version_of_data(files: Iterable[Path]) -> int | None:
    """The version of the prompts in these files; None if no manifest tells. Raises TrainingDataError if they differ."""
    from decoding.training.data.groups import TrainingDataError

    found = {file: _manifest_version(file.parent / "manifest.json") for file in files}
    versions = {file: version for file, version in found.items() if version is not None}
    if len(set(versions.values())) > 1:
        named = ", ".join(f"{file} has version {version}" for file, version in versions.items())
        raise TrainingDataError(f"one run takes prompts of one version, and {named}: build the data anew")
    return next(iter(versions.values()), None)


def _manifest_version(manifest: Path) -> int | None:
    from decoding.training.data.groups import TrainingDataError

    if not manifest.is_file():
        return None
    try:
        version = json.loads(manifest.read_text(encoding="utf-8")).get("prompt_version")
    except (ValueError, AttributeError) as error:
        raise TrainingDataError(f"{manifest} is damaged ({error}): build the data anew") from error
    return version if isinstance(version, int) else None


def check_versions(adapter: "Adapter | None", files: Iterable[Path]) -> int:
    """The version that weights and data share. Raises TrainingDataError if they disagree."""
    from decoding.training.data.groups import TrainingDataError

    known, written = version_of_weights(adapter), version_of_data(files)
    if written not in (None, known):
        raise TrainingDataError(
            f"the data are prompts of version {written}, and the weights know version {known}: build the data with "
            f"--prompt-version {known}, or train the weights on the data first (sqlagent train sft)"
        )
    return known
