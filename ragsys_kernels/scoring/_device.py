"""The `ScoringProblem` and `Layout` that a call describes, made on a device without waiting for it.

The slots are those of `validate.layout`, in the same order. But values are not read, so shapes depend on shapes alone:
slots without a pair (row -1) may come after the last, and pairs that no slot reads keep their place (column -1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._base import arrays
from .._base.arrays import Cupy, Torch
from .._base.checks import choice, integers, shape_text, whole
from . import validate
from ._namespace import arange, cast, namespace, segmented, stable_order
from .problem import Layout, Pairs

_LAST = 2**63 - 1


# Pairs with rows that a kernel groups in one launch: more are sorted.
GROUPED_PAIRS = 16384


def vector(op: str, name: str, x: Any, symbols: str, place: Torch | Cupy, size: int | None = None) -> Any:
    array = integers(op, name, x, place)
    if array.ndim != 1 or (size is not None and len(array) != size):
        want = symbols if size is None else f"{symbols} = ({size},)"
        raise ValueError(f"{op}: {name} must have shape {want}, got {shape_text(tuple(array.shape))}")
    return array


def _bounds(op: str, name: str, x: Any, place: Torch | Cupy) -> Any:
    array = vector(op, name, x, "(n + 1,)", place)
    if len(array) == 0:
        raise ValueError(f"{op}: {name} must have at least one element, got none")
    return array


def _temperature(op: str, x: Any, size: int, symbol: str, place: Torch | Cupy) -> Any:
    """Return a number, or an array () or (size,)."""
    if validate.is_number(x):
        return validate.positive(op, "temperature", x)
    array, dtype = place.view(op, "temperature", x)
    if "float" not in dtype and "int" not in dtype:
        raise TypeError(f"{op}: temperature must be a number or floats, got {dtype}")
    if tuple(array.shape) not in ((), (size,)):
        raise ValueError(
            f"{op}: temperature must be a number or have shape ({symbol},) = ({size},), "
            f"got {shape_text(tuple(array.shape))}"
        )
    return place.float32(array, dtype) if dtype == "bfloat16" else array


def _inverse(temperature: Any) -> Any:
    """Return 1 / temperature: a number, or float32."""
    if isinstance(temperature, float):
        return 1 / temperature
    xp = namespace(temperature)
    return cast(1 / cast(temperature, xp.float64), xp.float32)


def _targets_and_rows(
    op: str, place: Torch | Cupy, targets: Any, rows: Any, num_rows: int | None, out_of_range: str
) -> tuple[Any, Any]:
    ids = vector(op, "targets", targets, "(M,)", place)
    M = len(ids)
    choice(op, "out_of_range", out_of_range, ("raise", "nan"))
    if rows is not None:
        return ids, vector(op, "rows", rows, "(M,)", place, M)
    if num_rows not in (None, M):
        raise ValueError(
            f"{op}: targets must have shape (T,) = ({num_rows},) unless rows is given, got {shape_text((M,))}"
        )
    return ids, None


def pairs(
    op: str,
    place: Torch | Cupy,
    targets: Any,
    rows: Any,
    *,
    num_rows: int,
    vocab_size: int,
    cu_answers: Any = None,
    answer_ids: Any = None,
    num_answers: int | None = None,
    temperature: Any = 1.0,
    ignore_index: int | None = -100,
    out_of_range: str = "raise",
    per: str = "A",
) -> Pairs | None:
    """Return pairs for kernels that apply the rules to them, or None for those that `layout` has to sort."""
    M, T = len(targets), num_rows
    if M == 0 or T == 0 or (rows is not None and (M > GROUPED_PAIRS or math.prod(np.shape(temperature)) != 1)):
        return None
    ids, row = _targets_and_rows(op, place, targets, rows, num_rows, out_of_range)
    answers = _answers(op, place, ids, cu_answers, answer_ids, num_answers, temperature if per == "A" else None)
    size = answers.num_answers if per == "A" else M
    its_temperature = _temperature(op, temperature, size, per, place)
    if 0 in np.shape(its_temperature):  # without answers there are no temperatures
        its_temperature = 1.0
    if not isinstance(its_temperature, float):
        its_temperature = place.packed(its_temperature)
    if ignore_index is not None:
        ignore_index = whole(op, "ignore_index", ignore_index, "an integer or None")
    return Pairs(
        ids,
        row,
        T,
        ignore_index,
        its_temperature,
        per == "A",
        answers.begin,
        answers.order,
        answers.ids,
        answers.num_answers,
    )


def layout(
    op: str,
    place: Torch | Cupy,
    targets: Any,
    rows: Any,
    *,
    num_rows: int | None,
    vocab_size: int,
    cu_answers: Any = None,
    answer_ids: Any = None,
    num_answers: int | None = None,
    temperature: Any = 1.0,
    ignore_index: int | None = -100,
    out_of_range: str = "raise",
    per: str = "A",
    num_slots: int | None = None,
) -> tuple[Layout, dict[str, Any]]:
    """Return what `validate.layout` does, for arrays on a device; ``num_slots`` is that of given partials."""
    ids, row = _targets_and_rows(op, place, targets, rows, num_rows, out_of_range)
    xp, M = namespace(ids), len(ids)
    answers = _answers(op, place, ids, cu_answers, answer_ids, num_answers, temperature if per == "A" else None)
    if answers.begin is None:
        answers.begin = arange(2, ids) * M
    inverse = _inverse(_temperature(op, temperature, answers.num_answers if per == "A" else M, per, place))
    one_temperature = isinstance(inverse, float) or inverse.ndim == 0
    if not one_temperature and per == "A":
        inverse = inverse[xp.minimum(_answer_of_pairs(answers, ids), len(inverse) - 1)] if len(inverse) else None
    if inverse is None:  # without answers there are neither temperatures nor pairs
        inverse, one_temperature = 1.0, True

    ignored = ids != ids
    if ignore_index is not None:
        ignored = ids == whole(op, "ignore_index", ignore_index, "an integer or None")
    outside = (ids < 0) | (ids >= vocab_size)
    if row is not None:
        outside |= (row < 0) | (row >= (_LAST if num_rows is None else num_rows))
    outside &= ~ignored
    absent = ignored | outside
    columns = xp.where(absent, -1, ids)
    made = Layout(
        M, num_rows or 0, None, None, ignored, outside, None, answers.num_answers, answers.begin, answers.order
    )
    if row is None:
        made.num_rows = M
        if one_temperature:
            inverse = _filled(ids, M, inverse)
        index = arange(M + 1, ids)
        fields = {"rows": xp.where(absent, -1, index[:M]), "inverse_temperature": inverse, "pair_begin": index}
        return made, {**fields, "columns": columns}

    # Slots ascend by row and temperature; pairs without a slot come last.
    key = xp.where(absent, _LAST, row)
    if one_temperature:
        order = stable_order(key)
        R = M if num_slots is None and num_rows is None else max(min(M, num_slots or num_rows or 0), min(M, 1))
    else:
        order = stable_order(inverse)
        order = order[stable_order(key[order])]
        R = M if num_slots is None else num_slots
    key = key[order]
    starts = key[1:] != key[:-1]
    if not one_temperature:
        inverse = inverse[order]
        starts |= inverse[1:] != inverse[:-1]
    zero = arrays.full(ids, (min(M, 1),), 0, "int64")
    slot = xp.concatenate([zero, cast(starts, xp.int64)]).cumsum(0)
    slot = xp.where(key == _LAST, R, slot)
    begin = xp.searchsorted(slot, arange(R + 1, ids))
    first = xp.minimum(begin[:R], M - 1)
    used = begin[1:] > begin[:R]
    made.scored, made.slot = order, xp.minimum(slot, R - 1)
    return made, {
        "rows": xp.where(used, key[first], -1),
        "inverse_temperature": _filled(ids, R, inverse) if one_temperature else inverse[first],
        "pair_begin": begin,
        "columns": columns[order],
    }


def _filled(like: Any, size: int, value: Any) -> Any:
    """Return a number, or an array without an axis, ``size`` times in float32."""
    if isinstance(value, float):
        return arrays.full(like, (size,), value, "float32")
    return arrays.full(like, (size,), 1.0, "float32") * value


@dataclass(slots=True)
class _Answers:
    """The places of the pairs of each answer; without ``begin`` there is one, which has all."""

    begin: Any
    order: Any
    ids: Any
    num_answers: int


def _answers(
    op: str,
    place: Torch | Cupy,
    pairs: Any,
    cu_answers: Any,
    answer_ids: Any,
    num_answers: int | None,
    temperature: Any,
) -> _Answers:
    M, xp = len(pairs), namespace(pairs)
    if cu_answers is not None:
        if answer_ids is not None:
            raise ValueError(f"{op}: cu_answers or answer_ids must be given, got both")
        begin = _bounds(op, "cu_answers", cu_answers, place)
        return _Answers(begin, None, None, len(begin) - 1)
    if answer_ids is None:
        return _Answers(None, None, None, 1)
    ids = vector(op, "answer_ids", answer_ids, "(M,)", place, M)
    if num_answers is None:
        shape = tuple(getattr(temperature, "shape", ()))
        if len(shape) != 1:
            raise ValueError(f"{op}: num_answers must be given with answer_ids on a device, got None")
        num_answers = shape[0]
    order = stable_order(ids)
    return _Answers(xp.searchsorted(ids[order], arange(num_answers + 1, ids)), order, ids, num_answers)


def _answer_of_pairs(answers: _Answers, pairs: Any) -> Any:
    """Return the answer of each pair, at least 0."""
    xp = namespace(pairs)
    if answers.ids is not None:
        return xp.maximum(answers.ids, 0)
    return xp.searchsorted(answers.begin[1:], arange(len(pairs), pairs), side="right")


def allowed_ids(op: str, allowed: Any, place: Torch | Cupy) -> Any:
    if allowed is None:
        return None
    ids = vector(op, "allowed", allowed, "(n,)", place)
    if len(ids) == 0:
        raise ValueError(f"{op}: allowed must have at least one id, got none")
    return ids


def labels(op: str, label_ids: Any, cu_labels: Any, prior: Any, place: Torch | Cupy) -> tuple[Any, Any, Any]:
    """Return what `validate.labels` does, for arrays on a device."""
    ids = vector(op, "label_ids", label_ids, "(n,)", place)
    if len(ids) == 0:
        raise ValueError(f"{op}: label_ids must have at least one id, got none")
    cu = arange(len(ids) + 1, ids) if cu_labels is None else _bounds(op, "cu_labels", cu_labels, place)
    if prior is None:
        return ids, cu, None
    array, dtype = place.view(op, "prior", prior)
    if "float" not in dtype:
        raise TypeError(f"{op}: prior must be floating point, got {dtype}")
    if tuple(array.shape) != (len(cu) - 1,):
        raise ValueError(f"{op}: prior must have shape (L,) = ({len(cu) - 1},), got {shape_text(tuple(array.shape))}")
    return ids, cu, cast(place.float32(array, dtype), namespace(ids).float64)


def answer_sums(values: Any, begin: Any, order: Any) -> Any:
    """Return sums (A,) float64 of values (M,) over answers; answer a has ``order[begin[a] : begin[a + 1]]``."""
    xp, M, A = namespace(values), len(values), len(begin) - 1
    values = cast(values, xp.float64)
    if M == 0:
        return arrays.full(values, (A,), 0.0, "float64")
    if order is not None:
        values = values[order]
    index = arange(M, begin)
    answer = xp.searchsorted(begin, index, side="right") - 1
    running = segmented(xp.add, values, index - begin[xp.maximum(answer, 0)])
    last = xp.minimum(xp.maximum(begin[1:] - 1, 0), M - 1)
    return xp.where(begin[1:] > begin[:-1], running[last], 0.0)
