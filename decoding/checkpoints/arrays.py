"""A checkpoint's tensors in numpy: with it alone the embedded model is converted and packed; torch is for other models.

numpy has no bfloat16. An array of `BFLOAT16` holds the bits of such numbers, and `floats` reads them.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import safe_open

Floats = npt.NDArray[np.float32]
Array = npt.NDArray[Any]

BFLOAT16 = np.dtype([("bfloat16", "<u2")])
_TYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": BFLOAT16,
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}


def bfloat16(x: Floats) -> Array:
    """x rounded to the nearest bfloat16, ties to even, as torch rounds."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    kept = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2")
    kept[np.isnan(x)] = 0x7FC0
    return kept.view(BFLOAT16)


def floats(x: Any) -> Floats:
    """An array, or a tensor of torch's, in fp32."""
    if not isinstance(x, np.ndarray):
        x = x.detach().float().cpu().numpy()
    if x.dtype == BFLOAT16:
        return (np.ascontiguousarray(x).view("<u2").astype(np.uint32) << 16).view(np.float32)
    return np.asarray(x, np.float32)


def type_name(x: Any) -> str:
    """The type of an array's or a tensor's numbers, as torch calls it: `bfloat16`."""
    return "bfloat16" if x.dtype == BFLOAT16 else str(x.dtype).removeprefix("torch.")


def read_arrays(file: Path) -> Iterator[tuple[str, Array]] | None:
    """Names and arrays of a safetensors file, as stored; None where it holds a type that numpy lacks.

    Raises SafetensorError or OSError where it is damaged.
    """
    with safe_open(file, framework="numpy"):  # checks the header against the file
        pass
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(length))
    header.pop("__metadata__", None)
    if any(entry["dtype"] not in _TYPES for entry in header.values()):
        return None
    return _arrays(file, 8 + length, header)


def _arrays(file: Path, start: int, header: dict[str, Any]) -> Iterator[tuple[str, Array]]:
    data = np.memmap(file, np.uint8, "r", start)
    for name, entry in header.items():
        first, end = entry["data_offsets"]
        yield name, np.array(data[first:end]).view(_TYPES[entry["dtype"]]).reshape(entry["shape"])


def write_arrays(arrays: Mapping[str, Array], file: Path) -> None:
    """A safetensors file of arrays, to the byte as the library writes torch's tensors. Raises OSError."""
    names = {dtype: name for name, dtype in _TYPES.items()}
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in order:
        array, start = arrays[name], end
        end += array.nbytes
        header[name] = {"dtype": names[array.dtype], "shape": array.shape, "data_offsets": [start, end]}
    described = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    described += b" " * (-len(described) % 8)
    with file.open("wb") as opened:
        opened.write(len(described).to_bytes(8, "little") + described)
        for name in order:
            opened.write(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)
