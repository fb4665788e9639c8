"""Tensors of ``.safetensors`` files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._base.checks import line
from ..._base.extras import needed
from ..._base.types import NDArray as Array
from ._place import Place
from ._raw import RawColumn

_TYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8",
}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """Type and shape of a tensor; as text, both."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"

    __repr__ = __str__


class Tensors:
    """The tensors of a file. The library checks the file and its header; the rows are read as those of ``.npy`` files
    are, since its NumPy side does not know bfloat16."""

    def __init__(self, place: Place, argument: str) -> None:
        with needed(f"select: {argument} {place}", "safetensors"):
            from safetensors import SafetensorError, safe_open
        self.place, self._file = place, place.mapped()
        try:
            with safe_open(self._file.path, framework="numpy") as file:
                slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
                self.kinds = {
                    name: Tensor(_TYPES.get(each.get_dtype(), each.get_dtype()), tuple(each.get_shape()))
                    for name, each in slices.items()
                }
        except (SafetensorError, OSError) as error:
            raise ValueError(
                f"select: {argument} must be a readable safetensors file, got {place}: {line(error)}"
            ) from error
        with open(self._file.path, "rb") as content:
            length = int.from_bytes(content.read(8), "little")
            self._header: dict[str, Any] = json.loads(content.read(length))
        self._begin = 8 + length

    def column(self, name: str, **options: Any) -> RawColumn:
        kind = self.kinds[name]
        stored, offset = kind.dtype, self._begin + int(self._header[name]["data_offsets"][0])
        if stored == "bfloat16":
            stored, options = "uint16", {"convert": _widened, "finish": _bfloat16, **options}
        return RawColumn(self.place, stored, kind.shape, offset, name=name, copied=self._file, **options)


def _widened(bits: Array) -> Array:
    """Return bfloat16 as float32, exactly."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _bfloat16(bits: Array) -> Any:
    with needed("select: bfloat16", "safetensors"):
        import ml_dtypes
    return bits.view(ml_dtypes.bfloat16)
