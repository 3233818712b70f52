"""Tests leave nothing in the cache folder of whoever runs them."""

import tempfile
from pathlib import Path

from platformdirs import user_cache_path

from decoding.checkpoints.cache_folder import cache_root, models_folder
from tools.processes import PREFIX


def test_tests_have_a_cache_folder_of_their_own() -> None:
    home = cache_root()
    assert home != user_cache_path("sqlagent", appauthor=False) and home.is_relative_to(tempfile.gettempdir())
    assert not home.name.startswith(PREFIX)  # or it would be taken for one that a killed process left


def test_what_is_measured_stays_there_and_models_are_not_fetched_again() -> None:
    user = user_cache_path("sqlagent", appauthor=False)
    for name in ("costs", "values", "log.sqlite", "chats.sqlite"):
        assert not (cache_root() / name).resolve().is_relative_to(user.resolve()), name
    assert models_folder().is_symlink() and Path(models_folder()).is_dir()
