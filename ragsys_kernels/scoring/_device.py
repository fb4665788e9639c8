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
from .._base.arrays import Place
from . import validate
from ._namespace import arange, cast, namespace, segmented, stable_order
from .problem import GivenPairs, Layout, Pairs

_LAST = 2**63 - 1


# Pairs with rows that a kernel groups in one launch: more are sorted.
GROUPED_PAIRS = 16384


def _inverse(temperature: Any) -> Any:
    """Return 1 / temperature: a number, or float32."""
    if isinstance(temperature, float):
        return 1 / temperature
    xp = namespace(temperature)
    return cast(1 / cast(temperature, xp.float64), xp.float32)


def _temperature(op: str, given: GivenPairs, num_answers: int, place: Place) -> Any:
    size = num_answers if given.per == "A" else len(given.targets)
    return validate.temperature(op, given.temperature, given.per, size, place)


def slots(op: str, place: Place, rows: Any, num_rows: int, temperature: Any, like: Any) -> dict[str, Any]:
    """Return what `validate.slots` does, for arrays on a device; ``like`` is one of them."""
    row = arange(num_rows, like) if rows is None else validate.vector(op, "rows", rows, "(R,)", place)
    R = len(row)
    inverse = _inverse(validate.temperature(op, temperature, "R", R, place))
    return {
        "rows": row if rows is None else namespace(row).where((row < 0) | (row >= num_rows), -1, row),
        "inverse_temperature": inverse if np.ndim(inverse) else _filled(like, R, inverse),
        "pair_begin": arrays.full(like, (R + 1,), 0, "int64"),
        "columns": arrays.full(like, (0,), 0, "int64"),
    }


def pairs(op: str, place: Place, given: GivenPairs) -> Pairs | None:
    """Return pairs for kernels that apply the rules to them, or None for those that `layout` has to sort."""
    M, T = len(given.targets), given.num_rows
    sorts = M > GROUPED_PAIRS or math.prod(np.shape(given.temperature)) != 1
    if M == 0 or not T or (given.rows is not None and sorts):
        return None
    ids, row, ignore_index = validate.pairs(op, given, place)
    answers = _answers(op, place, given, ids)
    temperature = _temperature(op, given, answers.num_answers, place)
    if 0 in np.shape(temperature):  # without answers there are no temperatures
        temperature = 1.0
    if not isinstance(temperature, float):
        temperature = place.packed(temperature)
    return Pairs(
        ids,
        row,
        T,
        ignore_index,
        temperature,
        given.per == "A",
        answers.begin,
        answers.order,
        answers.ids,
        answers.num_answers,
    )


def layout(op: str, place: Place, given: GivenPairs, num_slots: int | None = None) -> tuple[Layout, dict[str, Any]]:
    """Return what `validate.layout` does, for arrays on a device; ``num_slots`` is that of given partials."""
    ids, row, ignore_index = validate.pairs(op, given, place)
    xp, M, num_rows = namespace(ids), len(ids), given.num_rows
    answers = _answers(op, place, given, ids)
    if answers.begin is None:
        answers.begin = arange(2, ids) * M
    inverse = _inverse(_temperature(op, given, answers.num_answers, place))
    one_temperature = isinstance(inverse, float) or inverse.ndim == 0
    if not one_temperature and given.per == "A":
        inverse = inverse[xp.minimum(_answer_of_pairs(answers, ids), len(inverse) - 1)] if len(inverse) else None
    if inverse is None:  # without answers there are neither temperatures nor pairs
        inverse, one_temperature = 1.0, True

    ignored = ids != ids
    if ignore_index is not None:
        ignored = ids == ignore_index
    outside = (ids < 0) | (ids >= given.vocab_size)
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


def _answers(op: str, place: Place, given: GivenPairs, pairs: Any) -> _Answers:
    if given.cu_answers is not None:
        begin = validate.starts(op, "cu_answers", given.cu_answers, place)
        return _Answers(begin, None, None, len(begin) - 1)
    if given.answer_ids is None:
        return _Answers(None, None, None, 1)
    ids = validate.vector(op, "answer_ids", given.answer_ids, "(M,)", place, len(pairs))
    size = given.num_answers
    if size is None:
        shape = tuple(getattr(given.temperature, "shape", ()))
        if len(shape) != 1 or given.per != "A":
            raise ValueError(f"{op}: num_answers must be given with answer_ids on a device, got None")
        size = shape[0]
    order = stable_order(ids)
    begin = namespace(ids).searchsorted(ids[order], arange(size + 1, ids))
    return _Answers(begin, order, ids, size)


def _answer_of_pairs(answers: _Answers, pairs: Any) -> Any:
    """Return the answer of each pair, at least 0."""
    xp = namespace(pairs)
    if answers.ids is not None:
        return xp.maximum(answers.ids, 0)
    return xp.searchsorted(answers.begin[1:], arange(len(pairs), pairs), side="right")


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
