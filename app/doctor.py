"""`sqlagent doctor` and `sqlagent models`.

`doctor` shows what this machine has, what will be used, and what is missing. `models list|show|pull` shows which models can be
used and which are in the cache, and fetches them.
"""

import os
import platform
import re
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from app.shared import exit_codes, options, output
from app.shared.process import extensions
from decoding.checkpoints.adapter import read_adapter
from decoding.checkpoints.cache_folder import cache_root
from decoding.checkpoints.catalog import SHIPPED_ADAPTER, show_model
from decoding.checkpoints.catalog import list_models as listed
from decoding.checkpoints.catalog import pull as pulled
from decoding.checkpoints.identity import target_identity
from decoding.errors import DISTRIBUTION, MissingPackage, pip_install
from kernels.available import has_gpu, has_gpu_driver, runs_cpu_kernels
from kernels.cpu.processor import variant

app = typer.Typer(help="List, show and download models.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="'embedded', a folder, a .gguf file or a hub id.")]


@app.command("list")
def list_models(as_json: options.Json = False) -> None:
    """List the embedded model and the models in the caches."""
    entries = listed()
    if as_json:
        output.print_json([asdict(entry) for entry in entries])
    else:
        rows = [
            [e.name, e.kind, f"{e.size_bytes / 1e6:,.0f}" if e.folder else "not fetched", e.folder] for e in entries
        ]
        output.print_table(["name", "kind", "MB", "folder"], rows)


@app.command("show")
def show(name: Name = "embedded", as_json: options.Json = False) -> None:
    """Show a model's architecture, size and identity; fetches it first if necessary."""
    with exit_codes.plain_errors():
        facts = show_model(name)
    if as_json:
        output.print_json(facts)
    else:
        output.print_table(["fact", "value"], list(facts.items()))


@app.command("pull")
def pull(name: Name = "embedded") -> None:
    """Fetch (and convert) a model into the cache."""
    with exit_codes.plain_errors():
        print(pulled(name).folder)


_PACKAGES = (
    "torch",
    "transformers",
    "triton",
    "numba",
    "duckdb",
    "sqlglot",
    "sqlalchemy",
    "langgraph",
    "langchain-core",
)


def doctor(as_json: options.Json = False) -> None:
    """Show what is installed here and what will be used."""
    with exit_codes.plain_errors():
        found = facts()
    if as_json:
        output.print_json(found)
    else:
        output.print_table(["what", "found"], [[key, _text(value)] for key, value in found.items()])
        if not found["embedded_model_ready"]:
            output.stdout.print("The embedded model is not here yet: `sqlagent models pull` fetches it (93 MB).")


def facts() -> dict[str, Any]:
    """All facts about this machine and installation, by name."""
    return {**_machine(), **_decoding(), **_packages()}


def _machine() -> dict[str, Any]:
    return {
        "extensions": extensions(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "int8_kernels": _int8_kernels(),
        "gpu": _gpu(),
    } | _torch()


def _torch() -> dict[str, Any]:
    """What torch would compute with on the processor."""
    if find_spec("torch") is None:
        return {"cpu_capability": None, "threads": None}
    import torch

    return {"cpu_capability": torch.backends.cpu.get_cpu_capability(), "threads": torch.get_num_threads()}


def _gpu() -> str | None:
    if has_gpu():
        import torch

        return f"{torch.cuda.get_device_name()}; `sqlagent bench gpu --out gpu.json` measures it"
    if has_gpu_driver() and find_spec("torch") is None:
        return f"there is a driver, and no torch; to use it: {pip_install('gpu')}"
    return None


def _int8_kernels() -> str:
    """Of `kernels.cpu`, or what is used instead and why."""
    if runs_cpu_kernels():
        return str(variant())
    if platform.machine().lower() in ("aarch64", "arm64"):
        return "none, but fp32 or bf16 on torch; those for ARM, which have run on Linux alone, need SQLAGENT_ARM_KERNELS=on"
    return "none: numba does not run here, or the processor has no AVX2; models run in bf16 or fp32 on torch"


def _decoding() -> dict[str, Any]:
    from agent.assemble import DEFAULT_DECODER
    from decoding.methods.registry import METHODS

    device = "cuda" if has_gpu() else "cpu"
    return {
        "device": device,
        "dtype": _dtype(device),
        "default_decoder": DEFAULT_DECODER,
        "target": _target(),
        "decoders": {name: _options(name) for name in METHODS},
        "cache": str(cache_root()),
        "damaged_models": _damaged_models(),
        "kept_values": _kept_values(cache_root() / "values"),
        "expected_speed": _expected_speed(),
        "embedded_model_ready": any(entry.kind == "embedded" and entry.folder for entry in listed()),
    }


def _options(method: str) -> dict[str, Any] | str:
    """Of a decoding method, or what is missing to run it."""
    from decoding.methods.registry import method_options

    try:
        return method_options(method)
    except MissingPackage as error:
        return str(error).partition(";")[0]


def _dtype(device: str) -> str:
    """Of the embedded model, or what is missing to run it."""
    from decoding.serving.load import auto_dtype

    try:
        return auto_dtype(device, "embedded")
    except MissingPackage as error:
        return str(error)


_PARAMETERS = {"the embedded model": 134_000_000, "7B": 7_070_000_000}


def _expected_speed() -> str:
    """By the measured bandwidth of memory: what plain decoding can reach at most, in int8."""
    from decoding.timing import measured_bytes_per_s, most_tokens_per_s

    speed = measured_bytes_per_s()
    tokens = {name: most_tokens_per_s(count, 1, speed) for name, count in _PARAMETERS.items()}
    told = ", ".join(f"{most:.3g} with {name}" for name, most in tokens.items())
    return f"memory is read at {speed / 1e9:.1f} GB/s: without drafts and in int8 at most {told} tokens a second"


def _target() -> str:
    """The frozen name of the shipped model, because draft heads belong to one target."""
    from decoding.heads.kinds import frozen_name

    adapter = read_adapter(SHIPPED_ADAPTER)
    return (
        frozen_name(target_identity(adapter.about.base_sha256, adapter, adapter.about.prompt_version)) or "not frozen"
    )


def _kept_values(folder: Path) -> str:
    """Values of databases on the disk."""
    files = list(folder.glob("*.values"))
    size_mb = sum(file.stat().st_size for file in files) / 2**20
    switch = (
        "off (SQLAGENT_VALUES)" if os.environ.get("SQLAGENT_VALUES") == "off" else "on; SQLAGENT_VALUES=off ends it"
    )
    return f"{size_mb:.1f} MB of values of columns in {folder}; {switch}"


def _damaged_models() -> list[str]:
    """Packed models on the disk that are not as they were written; they are mapped without being read through."""
    from decoding.targets.int8.packed_model import damaged_models

    return [f"{folder}: remove it, and it is made again" for folder in damaged_models()]


def _packages() -> dict[str, Any]:
    return {name: _version(name) for name in _PACKAGES} | {"extras": _extras()}


def _extras() -> list[str]:
    """The distribution's extras: those whose packages are here, and how to install the others."""
    try:
        wanted = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return []
    found: dict[str, bool] = {}
    for package, extra in re.findall(r"^([\w-]+).*extra == .(\w+)", "\n".join(wanted), re.MULTILINE):
        if package != DISTRIBUTION:
            found[extra] = found.get(extra, True) and _version(package) is not None
    return [extra if is_here else f"{extra} is not here: {pip_install(extra)}" for extra, is_here in found.items()]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{name}{_in_brackets(given)}" for name, given in value.items())
    if isinstance(value, list):
        return "\n".join(value) or "none"
    return "none" if value is None else str(value)


def _in_brackets(given: Any) -> str:
    told = ", ".join(f"{name}={value}" for name, value in given.items()) if isinstance(given, dict) else str(given)
    return f" ({told})" if told else ""
