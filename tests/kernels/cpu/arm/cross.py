"""Compiles for the ARM processor that numba's variables name, on another machine, what `digests` calls, into the cache folder.

The code is the one that an ARM machine would compile: numba and LLVM are told its name and triple. In an emulator the
compiler takes ten minutes.
"""

import platform
from importlib import import_module

from llvmlite import binding

_TRIPLE = "aarch64-unknown-linux-gnu"
_PLACES = (
    "forward:forward",
    "forward:ahead_rows",
    "weighted_sums:rows_times",
    "weighted_sums:parts_times",
    "text_guesses:best_in_text",
    "head_linear:linear_of",
    "head_linear:pack_rows",
    "head_layer:layer_rows",
    "head_layer:context_rows",
    "draft_tokens:best",
    "draft_tokens:ranked",
    "draft_tokens:corrected",
)


def main() -> None:
    platform.machine = lambda: "aarch64"  # type: ignore[assignment]
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    binding.get_process_triple = binding.get_default_triple = binding.targets.get_process_triple = lambda: _TRIPLE
    compiled = import_module("decoding.targets.int8.compiled")  # reads the machine's name
    for place in _PLACES:
        file = compiled._file(place)
        if not file.is_file():
            module, name = place.split(":")
            function = getattr(import_module(f"kernels.cpu.{module}"), name)
            compiled._keep(file, compiled._compiled_now(function))


if __name__ == "__main__":
    main()
