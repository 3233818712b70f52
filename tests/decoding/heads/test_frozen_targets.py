"""A frozen target's name never changes its meaning; the shipped target is frozen, and its heads were trained on it."""

from dataclasses import replace
from pathlib import Path

import pytest

from decoding.checkpoints.adapter import read_adapter
from decoding.checkpoints.catalog import SHIPPED_ADAPTER
from decoding.checkpoints.identity import TargetIdentity, target_identity
from decoding.heads.head import SHIPPED, load_head
from decoding.heads.kinds import KINDS, NameTaken, freeze, frozen_name, frozen_targets
from decoding.methods.registry import METHODS, ready_methods

ONE, OTHER = TargetIdentity("base", "adapter", "prompts"), TargetIdentity("base", "retrained", "prompts")


def test_a_name_is_given_once(tmp_path: Path) -> None:
    listed = tmp_path / "targets.json"
    assert frozen_name(ONE, listed) is None
    freeze("target-v1", ONE, listed)
    freeze("target-v1", ONE, listed)
    with pytest.raises(NameTaken, match=r"adapter adapter and not retrained.*target-v2"):
        freeze("target-v1", OTHER, listed)
    freeze("target-v2", OTHER, listed)
    assert [frozen_name(each, listed) for each in (ONE, OTHER)] == ["target-v1", "target-v2"]
    assert list(frozen_targets(listed)) == ["target-v1", "target-v2"]


@pytest.mark.parametrize("change", ["base_sha256", "adapter_sha256", "prompt_hash"])
def test_another_base_adapter_or_prompt_is_another_target(tmp_path: Path, change: str) -> None:
    freeze("target-v1", ONE, tmp_path / "targets.json")
    told = {name: getattr(ONE, name) for name in ("base_sha256", "adapter_sha256", "prompt_hash")}
    assert frozen_name(TargetIdentity(**told | {change: "another"}), tmp_path / "targets.json") is None


def test_what_ships_is_frozen_with_heads_of_its_own() -> None:
    adapter = read_adapter(SHIPPED_ADAPTER)
    shipped = target_identity(adapter.about.base_sha256, adapter, adapter.about.prompt_version)
    assert frozen_name(shipped) == list(frozen_targets())[-1]
    for kind in KINDS:
        assert load_head(SHIPPED / kind).identity == shipped, kind
    assert set(ready_methods(shipped)) == set(METHODS)
    another = ready_methods(replace(shipped, adapter_sha256="another"))
    assert {"plain", "jacobi_forcing"} <= set(another) and not {"path_tree", "ddtree"} & set(another)


def test_all_that_ships_is_small() -> None:
    """At most 35 MiB of weights, and 3.1 MB a head, 4.7 for one of two layers; what is in training stays in the repository."""
    files = [path for path in SHIPPED.parent.rglob("*") if path.is_file() and path.parent.name != "next"]
    sizes = {path: path.stat().st_size for path in files}
    assert sum(sizes.values()) < 35 << 20
    for folder in {path.parent for path in files if path.name == "head.safetensors"}:
        most = 4_700_000 if folder == SHIPPED / "path_tree" else 3_100_000
        assert sum(size for path, size in sizes.items() if path.parent == folder) <= most, folder
