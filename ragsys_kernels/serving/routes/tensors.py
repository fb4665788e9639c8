"""Tensors of the Open Inference Protocol: JSON lists, or bytes behind the JSON (its binary tensor extension)."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson

from ..limits import RefusedError, invalid, shown
from ..queries.rules import MOST_DIMS, wrong

DTYPES = {
    "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
    "INT8": "<i1", "INT16": "<i2", "INT32": "<i4", "INT64": "<i8",
    "UINT8": "<u1", "UINT16": "<u2", "UINT32": "<u4",
}  # fmt: skip
# NumPy multiplies the dimensions of an empty array too: with these their bytes stay within 64 bits.
_MOST_AXES = 3
OP = "infer"


def message_of(body: bytes, json_bytes: int | None) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return a request's JSON, and its input tensors by name; strings are arrays of objects.

    Parameters
    ----------
    json_bytes : int, optional
        The length of the JSON, which the bytes of binary tensors follow in the order of the inputs; None: it is all.

    Raises
    ------
    RefusedError
        422: it is not such a message.
    """
    if json_bytes is not None and json_bytes > len(body):
        raise invalid(OP, "inference-header-content-length", f"be at most {len(body)}, the body's bytes", json_bytes)
    try:
        content = orjson.loads(body[:json_bytes])
    except ValueError as error:
        raise RefusedError(422, f"{OP}: body must be JSON: {error}", "body") from None
    inputs = content.get("inputs") if type(content) is dict else content
    if type(content) is not dict or type(inputs) is not list or not inputs:
        raise invalid(OP, "inputs", "be a list of tensors", "none of them" if inputs == [] else shown(inputs))
    rest = memoryview(body)[len(body) if json_bytes is None else json_bytes :]
    tensors: dict[str, np.ndarray] = {}
    for tensor in inputs:
        if type(tensor) is not dict or type(name := tensor.get("name")) is not str or name in tensors:
            got = shown(tensor.get("name") if type(tensor) is dict else tensor)
            raise invalid(OP, "inputs", "be tensors with names of their own", got)
        tensors[name], rest = _tensor(name[:100], tensor, rest)
    if len(rest):
        raise invalid(OP, "body", "end with the last binary tensor", f"{len(rest)} bytes more")
    return content, tensors


def parameters_of(content: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a request, an input or an output."""
    found = content.get("parameters")
    if found is None:
        return {}
    if type(found) is not dict:
        raise invalid(OP, "parameters", "be an object", shown(found))
    return found


def _tensor(name: str, tensor: dict[str, Any], rest: memoryview) -> tuple[np.ndarray, memoryview]:
    """Return one input, and the bytes that follow its own."""
    shape, datatype = tensor.get("shape"), tensor.get("datatype")
    if type(shape) is not list or not shape or any(type(n) is not int or n < 0 for n in shape):
        raise invalid(OP, name, "have a shape, a list of integers", shown(shape))
    if len(shape) > _MOST_AXES:
        raise invalid(OP, name, f"have at most {_MOST_AXES} dimensions", len(shape))
    if max(shape) > MOST_DIMS:
        raise invalid(OP, name, f"have at most {MOST_DIMS} values along each dimension", shown(max(shape)))
    if type(datatype) is not str or (datatype != "BYTES" and datatype not in DTYPES):
        raise invalid(OP, name, f"have one of the datatypes {', '.join(DTYPES)}, BYTES", shown(datatype))
    count = 1
    for n in shape:
        count *= n
    size = parameters_of(tensor).get("binary_data_size")
    if size is None:
        return _listed(name, tensor.get("data"), datatype, count).reshape(shape), rest
    if type(size) is not int or not 0 <= size <= len(rest):
        raise invalid(OP, name, f"have a binary_data_size of at most {len(rest)}, the bytes that are left", shown(size))
    own = rest[:size]
    if datatype == "BYTES":
        flat = _strings(name, own, count)
    else:
        dtype = np.dtype(DTYPES[datatype])
        if size != count * dtype.itemsize:
            raise invalid(OP, name, f"have the {count * dtype.itemsize} bytes of its shape", size)
        flat = np.frombuffer(own, dtype)
    return flat.reshape(shape), rest[size:]


def _listed(name: str, data: Any, datatype: str, count: int) -> np.ndarray:
    """Return JSON data, flat or nested."""
    if type(data) is not list:
        raise invalid(OP, name, "have data, a list, or a binary_data_size", shown(data))
    for _ in range(_MOST_AXES):
        if not data or type(data[0]) is not list:
            break
        if any(type(part) is not list for part in data):
            raise invalid(OP, name, "have lists of one depth as its data", "others")
        data = [x for part in data for x in part]
    if len(data) != count:
        raise invalid(OP, name, f"have {count} values, as its shape says", len(data))
    kinds = set(map(type, data))
    if datatype == "BYTES":
        if not kinds <= {str}:
            raise invalid(OP, name, "have strings as its data", wrong(data, str))
        found: np.ndarray = np.empty(count, object)
        found[:] = data
        return found
    real = datatype.startswith("FP")
    if not kinds <= ({int, float} if real else {int}):
        got = wrong(data, int, *[float] * real)
        raise invalid(OP, name, f"have {'numbers' if real else 'integers'} as its data", got)
    try:
        with np.errstate(over="ignore"):  # seen as inf
            return np.array(data, DTYPES[datatype])
    except OverflowError:
        raise invalid(OP, name, f"have values of {datatype}", "larger ones") from None


def _strings(name: str, own: memoryview, count: int) -> np.ndarray:
    """Return strings that stand end to end, each after its length in four bytes."""
    if 4 * count > len(own):  # before there is room for so many: a shape costs nothing to send
        raise invalid(OP, name, f"have {count} strings, each after its length in 4 bytes", f"{len(own)} bytes")
    found: np.ndarray = np.empty(count, object)
    place = 0
    try:
        for i in range(count):
            size = int.from_bytes(own[place : place + 4], "little")
            place += 4
            if place + size > len(own):
                raise ValueError
            found[i] = str(own[place : place + size], "utf-8")
            place += size
    except ValueError:
        place = -1
    if place != len(own):
        raise invalid(OP, name, f"have {count} strings of UTF-8, each after its length", "other bytes")
    return found


def datatype_of(array: np.ndarray) -> str:
    if array.dtype == object:
        return "BYTES"
    return next(name for name, code in DTYPES.items() if np.dtype(code) == array.dtype)


def bytes_of(array: np.ndarray) -> bytes:
    """Return the bytes of an output tensor."""
    if array.dtype != object:
        return np.ascontiguousarray(array).tobytes()
    parts = []
    for text in array.ravel():
        part = text.encode()
        parts += [len(part).to_bytes(4, "little"), part]
    return b"".join(parts)
