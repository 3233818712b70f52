"""In the repository the packages lie next to `sqlagent`, not inside it; here they get their installed names as well.

`sqlagent.tools.result` and `tools.result` are then one module, so programs and extensions that import the former run with an
editable installation, too. The wheel holds the packages inside `sqlagent` and needs none of this.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

_PREFIX = "sqlagent."


class _Beside(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        root = Path(__file__).parents[1]
        file = root.joinpath(*fullname.removeprefix(_PREFIX).split("."))
        if not fullname.startswith(_PREFIX) or not (file.is_dir() or file.with_suffix(".py").is_file()):
            return None
        return ModuleSpec(fullname, self, is_package=file.is_dir())

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module by its own name, with its own spec, which the import system is about to replace."""
        module = import_module(spec.name.removeprefix(_PREFIX))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def give_installed_names() -> None:
    """Find `sqlagent.X` where X lies next to `sqlagent`."""
    sys.meta_path.insert(0, _Beside())  # before the finder of files, which would load a second copy
