"""Checks of the arguments of scoring, and the `ScoringProblem` and `Layout` that a call describes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .._base import arrays
from .._base.arrays import HOST, Place
from .._base.checks import choice, count, floats, integers, rows_in_order, shape_text, shown, whole
from ._namespace import namespace
from .problem import Layout, Partials, ScoringProblem

# The range of temperature, logit_scale and softcap: products and quotients of them stay in that of float32.
SCALE_MIN, SCALE_MAX = 1e-15, 1e15


def _matrix(op: str, name: str, x: Any, symbols: str, place: Place) -> tuple[Any, str]:
    """Return a stored matrix without copying it, and its element type."""
    array, dtype = place.view(op, name, x)
    if dtype not in arrays.STORAGE:
        raise TypeError(
            f"{op}: {name} must be float32, float16 or bfloat16, got {dtype}; convert it once with .astype('float32')"
        )
    if array.ndim != 2:
        hint = f"; use {name}.reshape(-1, {name}.shape[-1])" if array.ndim > 2 else ""
        raise ValueError(f"{op}: {name} must have shape {symbols}, got {shape_text(tuple(array.shape))}{hint}")
    if array.shape[1] == 0:
        raise ValueError(f"{op}: {name} must have at least one column, got shape {shape_text(tuple(array.shape))}")
    if not place.is_native(array):
        raise ValueError(f"{op}: {name} must be aligned and in native byte order; copy it once with np.array")
    rows_in_order(op, name, array, place)
    return array, dtype


def source(
    op: str, logits: Any, hidden: Any, weight: Any, bias: Any, place: Place = HOST
) -> tuple[dict[str, Any], int, int]:
    """Return the fields of a problem that say where logits come from, T and V."""
    if (logits is None) == (hidden is None):
        got = "neither" if logits is None else "both"
        raise ValueError(f"{op}: logits must be given, or hidden with weight, got {got}")
    if hidden is None:
        for name, x in (("weight", weight), ("bias", bias)):
            if x is not None:
                raise ValueError(f"{op}: {name} must come with hidden, got it with logits")
        array, dtype = _matrix(op, "logits", logits, "(T, V)", place)
        return {"logits": array, "logits_dtype": dtype}, *array.shape
    if weight is None:
        raise ValueError(f"{op}: weight must come with hidden, got None")
    array, dtype = _matrix(op, "hidden", hidden, "(T, D)", place)
    head, head_dtype = _matrix(op, "weight", weight, "(V, D)", place)
    (T, D), V = array.shape, len(head)
    if head.shape[1] != D:
        raise ValueError(f"{op}: weight must have the D = {D} dimensions of hidden, got {head.shape[1]}")
    if V == 0:
        raise ValueError(f"{op}: weight must have at least one row, got shape {shape_text(head.shape)}")
    if bias is not None:
        bias = floats(op, "bias", bias, place)
        if tuple(bias.shape) != (V,):
            raise ValueError(f"{op}: bias must have shape (V,) = ({V},), got {shape_text(tuple(bias.shape))}")
    fields = {"hidden": array, "hidden_dtype": dtype, "weight": head, "weight_dtype": head_dtype, "head_bias": bias}
    return fields, T, V


def is_number(x: Any) -> bool:
    return isinstance(x, (float, int, np.floating, np.integer))


def positive(op: str, name: str, x: Any) -> float:
    """Check a number above 0 that is neither too large nor too small for float32 products."""
    if isinstance(x, bool) or not is_number(x):
        raise TypeError(f"{op}: {name} must be a number, got {type(x).__name__}")
    try:
        number = float(x)
    except OverflowError:
        number = math.inf
    if not 0 < number < math.inf:
        raise ValueError(f"{op}: {name} must be positive and finite, got {shown(x)}")
    if not SCALE_MIN <= number <= SCALE_MAX:
        raise ValueError(f"{op}: {name} must be within [{SCALE_MIN:g}, {SCALE_MAX:g}], got {x}")
    return number


def _temperature(op: str, x: Any, answer: np.ndarray | None, size: int, symbol: str) -> Any:
    """Check temperatures; return a number, or one for each pair in float64."""
    if isinstance(x, (float, int)):
        return positive(op, "temperature", x)
    array, dtype = arrays.host_view(op, "temperature", x)
    array = arrays.widen(array, dtype) if dtype == "bfloat16" else array
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{op}: temperature must be a number or floats, got {dtype}")
    if array.shape not in ((), (size,)):
        raise ValueError(
            f"{op}: temperature must be a number or have shape ({symbol},) = ({size},), got {shape_text(array.shape)}"
        )
    bad = ~((array > 0) & (array < np.inf))
    if bad.any():
        raise ValueError(f"{op}: temperature must be positive and finite, got {array[bad].flat[0]:g}")
    bad = (array < SCALE_MIN) | (array > SCALE_MAX)
    if bad.any():
        raise ValueError(f"{op}: temperature must be within [{SCALE_MIN:g}, {SCALE_MAX:g}], got {array[bad].flat[0]:g}")
    array = array.astype(np.float64)
    return array if answer is None or array.shape == () else array[answer]


def vocabulary(op: str, vocab_size: Any, num_columns: int) -> int:
    """Check the size of the vocabulary, by default the number of columns."""
    if vocab_size is None:
        return num_columns
    size = count(op, "vocab_size", vocab_size)
    if size > num_columns:
        raise ValueError(f"{op}: vocab_size must be at most V = {num_columns}, got {size}")
    return size


def allowed_ids(op: str, allowed: Any, vocab_size: int) -> np.ndarray | None:
    """Check the ids that may enter the sums."""
    if allowed is None:
        return None
    ids = _vector(op, "allowed", allowed, "(n,)")
    if len(ids) == 0:
        raise ValueError(f"{op}: allowed must have at least one id, got none")
    if (np.diff(ids) <= 0).any():
        at = int(np.argmax(np.diff(ids) <= 0))
        raise ValueError(f"{op}: allowed must be sorted without repeats, got {ids[at + 1]} after {ids[at]}")
    if ids[0] < 0 or ids[-1] >= vocab_size:
        bad = ids[0] if ids[0] < 0 else ids[-1]
        raise ValueError(f"{op}: allowed must be within [0, {vocab_size}), got {bad}")
    return ids


def _vector(op: str, name: str, x: Any, symbols: str, size: int | None = None) -> np.ndarray:
    """Return a vector of integers as a copy: what kernels index by must not change after the check."""
    array = integers(op, name, x) if not isinstance(x, (list, tuple)) or len(x) else np.zeros(0, np.int64)
    if array.ndim != 1 or (size is not None and len(array) != size):
        want = symbols if size is None else f"{symbols} = ({size},)"
        raise ValueError(f"{op}: {name} must have shape {want}, got {shape_text(array.shape)}")
    return np.array(array)


def row_ids(op: str, rows: Any, num_rows: int | None, M: int | None = None) -> np.ndarray:
    row = _vector(op, "rows", rows, "(M,)" if M is not None else "(R,)", M)
    outside = row < 0 if num_rows is None else row.view(np.uint64) >= num_rows
    if outside.any():
        below = "" if num_rows is None else f" and below T = {num_rows}"
        raise ValueError(f"{op}: rows must be at least 0{below}, got {row[np.argmax(outside)]}")
    return row


def _answers(
    op: str, cu_answers: Any, answer_ids: Any, num_answers: int | None, M: int
) -> tuple[np.ndarray | None, int]:
    """Return the answer of each pair (None: there is one answer), and the number of answers."""
    if cu_answers is not None:
        if answer_ids is not None:
            raise ValueError(f"{op}: cu_answers or answer_ids must be given, got both")
        sizes = bounds(op, "cu_answers", cu_answers, M, "the number of targets")[1]
        return np.arange(len(sizes)).repeat(sizes), len(sizes)
    if answer_ids is None:
        return None, 1
    ids = _vector(op, "answer_ids", answer_ids, "(M,)", M)
    if M and ids.min() < 0:
        raise ValueError(f"{op}: answer_ids must be at least 0, got {ids.min()}")
    size = int(ids.max()) + 1 if M else 0
    if num_answers is None:
        return ids, size
    if size > num_answers:
        raise ValueError(f"{op}: answer_ids must be below num_answers = {num_answers}, got {size - 1}")
    return ids, num_answers


def bounds(op: str, name: str, x: Any, end: int, of: str) -> tuple[np.ndarray, np.ndarray]:
    """Check where ragged parts begin and end: (n + 1,), ascending from 0 to ``end``. Return that and the sizes (n,)."""
    cu = _vector(op, name, x, "(n + 1,)")
    if len(cu) == 0:
        raise ValueError(f"{op}: {name} must have at least one element, got none")
    if cu[0] != 0:
        raise ValueError(f"{op}: {name} must start at 0, got {cu[0]}")
    sizes = cu[1:] - cu[:-1]
    if (sizes < 0).any():
        at = int(np.argmax(sizes < 0))
        raise ValueError(f"{op}: {name} must not decrease, got {cu[at + 1]} after {cu[at]} at position {at + 1}")
    if cu[-1] != end:
        raise ValueError(f"{op}: {name} must end at {of}, {end}, got {cu[-1]}")
    return cu, sizes


def names(op: str, name: str, x: Any, allowed: tuple[str, ...]) -> tuple[str, ...]:
    """Check a tuple of allowed names."""
    if isinstance(x, str) or not isinstance(x, Sequence):
        raise TypeError(f"{op}: {name} must be a tuple of names, got {shown(x)}")
    return tuple(choice(op, name, item, allowed) for item in x)


def layout(
    op: str,
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
) -> tuple[Layout, dict[str, Any]]:
    """Return the layout of the pairs, and the fields of a problem that say what is read, slots ascending by row."""
    ids = _vector(op, "targets", targets, "(M,)")
    M = len(ids)
    if rows is None:
        if num_rows is not None and num_rows != M:
            raise ValueError(
                f"{op}: targets must have shape (T,) = ({num_rows},) unless rows is given, got {shape_text(ids.shape)}"
            )
        row, num_rows = np.arange(M), M
    else:
        row = row_ids(op, rows, num_rows, M)
        if num_rows is None:
            num_rows = int(row.max()) + 1 if M else 0
    answer, num_answers = _answers(op, cu_answers, answer_ids, num_answers, M)
    inverse = np.empty(M, np.float32)
    inverse[:] = 1 / _temperature(op, temperature, answer, num_answers if per == "A" else M, per)
    choice(op, "out_of_range", out_of_range, ("raise", "nan"))
    if ignore_index is not None:
        ignore_index = whole(op, "ignore_index", ignore_index, "an integer or None")

    ignored, outside, scored = None, ids.view(np.uint64) >= vocab_size, None
    if outside.any() or (ignore_index is not None and 0 <= ignore_index < vocab_size):
        if ignore_index is not None:
            ignored = ids == ignore_index
            outside &= ~ignored
        if out_of_range == "raise" and outside.any():
            at = int(np.argmax(outside))
            raise ValueError(f"{op}: targets must be within [0, {vocab_size}), got {ids[at]} at position {at}")
        scored = np.flatnonzero(~outside if ignored is None else ~(outside | ignored))
        ids, row, inverse = ids[scored], row[scored], inverse[scored]

    slot, pair_begin = None, np.arange(len(ids) + 1)
    if rows is not None and (row[1:] <= row[:-1]).any():
        order = np.lexsort((inverse, row))
        scored = order if scored is None else scored[order]
        ids, row, inverse = ids[order], row[order], inverse[order]
        starts = (row[1:] != row[:-1]) | (inverse[1:] != inverse[:-1])
        first = np.concatenate([[0], np.flatnonzero(starts) + 1])
        pair_begin = np.append(first, len(ids))
        slot = np.concatenate([[0], np.cumsum(starts)])
        row, inverse = row[first], inverse[first]
    fields = {"rows": row, "inverse_temperature": inverse, "pair_begin": pair_begin, "columns": ids}
    bad = None if out_of_range == "raise" else outside
    return Layout(M, num_rows, scored, slot, ignored, bad, answer, num_answers), fields


def problem(
    op: str,
    form: dict[str, Any],
    fields: dict[str, Any],
    num_columns: int,
    *,
    first_column: int = 0,
    vocab_size: int | None = None,
    allowed: Any = None,
    logit_scale: Any = 1.0,
    softcap: Any = None,
    target_logits: Any = None,
    entropy: bool = False,
    rank: bool = False,
) -> ScoringProblem:
    """Return the problem of ``num_columns`` columns, from ``first_column`` on, of a vocabulary of ``vocab_size``."""
    columns = fields["columns"]
    if allowed is not None or first_column or vocab_size is not None:
        if isinstance(columns, np.ndarray):
            needed = rank and target_logits is None
            columns, allowed = _shard(op, columns, allowed, first_column, num_columns, needed)
        else:
            columns, allowed = _device_shard(columns, allowed, first_column, num_columns, vocab_size)
    return ScoringProblem(
        **form,
        **{**fields, "columns": columns},
        num_columns=num_columns,
        logit_scale=positive(op, "logit_scale", logit_scale),
        softcap=None if softcap is None else positive(op, "softcap", softcap),
        allowed=allowed,
        target_logits=target_logits,
        entropy=entropy,
        rank=rank,
    )


def _shard(
    op: str, columns: np.ndarray, allowed: np.ndarray | None, first_column: int, num_columns: int, needed: bool
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return targets and allowed ids as columns of a shard; ``needed``: the shard must have every target."""
    if allowed is not None:
        at = np.minimum(np.searchsorted(allowed, columns), len(allowed) - 1)
        columns = np.where(allowed[at] == columns, columns, -1)
        begin, end = np.searchsorted(allowed, (first_column, first_column + num_columns))
        allowed = allowed[begin:end] - first_column
    if first_column or (columns.size and columns.max() >= num_columns):
        elsewhere = (columns >= 0) & ((columns < first_column) | (columns >= first_column + num_columns))
        if needed and elsewhere.any():
            raise ValueError(
                f"{op}: target_logits must be given where rank is wanted and targets are in other shards, "
                f"got None and target {columns[np.argmax(elsewhere)]}"
            )
        columns = np.where(elsewhere | (columns < 0), -1, columns - first_column)
    return columns, allowed


def _device_shard(
    columns: Any, allowed: Any, first_column: int, num_columns: int, vocab_size: int | None
) -> tuple[Any, Any]:
    """Do what `_shard` does without reading values: ``allowed`` keeps its length, kernels skip what is no column."""
    xp = namespace(columns)
    if allowed is not None:
        at = xp.minimum(xp.searchsorted(allowed, columns), len(allowed) - 1)
        columns = xp.where(allowed[at] == columns, columns, -1)
    if first_column or vocab_size not in (None, num_columns):
        inside = (columns >= first_column) & (columns < first_column + num_columns)
        columns = xp.where(inside, columns - first_column, -1)
        allowed = None if allowed is None else allowed - first_column
    return columns, allowed


def for_partials(op: str, partials: Any, source: dict[str, Any], vocab_size: Any) -> int:
    """Check a call that has partials instead of what logits are made of; return the size of its vocabulary."""
    if not isinstance(partials, Partials):
        raise TypeError(f"{op}: partials must be Partials, got {type(partials).__name__}")
    for name, x in source.items():
        if x is not None:
            raise ValueError(f"{op}: partials must be given instead of {name}, got both")
    if vocab_size is None:
        raise ValueError(f"{op}: vocab_size must be given with partials, got None")
    if (shape := np.shape(partials.ref)) == () or len(shape) > 1:
        raise ValueError(f"{op}: partials must have ref of shape (R,), got {shape_text(shape)}")
    return count(op, "vocab_size", vocab_size)


def viewed(op: str, name: str, part: Partials, place: Place) -> Partials:
    """Return partials of the caller as arrays of ``place``."""
    fields: dict[str, Any] = {}
    for field, x in part._asdict().items():
        fields[field], dtype = (None, "") if x is None else place.view(op, f"{name}.{field}", x)
        kinds = ("int64", "int32") if field == "rank" else ("float32", "float64")
        if x is not None and dtype not in kinds:
            raise TypeError(f"{op}: {name}.{field} must be {' or '.join(kinds)}, got {dtype}")
    return Partials(**fields)


def misfits(part: Partials, slots: int, targets: int) -> Iterator[tuple[str, str, str]]:
    """Yield each field that is not of so many slots or targets, with the shape it has and the one it must have."""
    for name, x in zip(Partials._fields, part, strict=True):
        want = (targets if name in ("target", "rank") else slots,)
        if x is None and name not in ("weighted", "rank"):
            yield name, "None", shape_text(want)
        elif x is not None and tuple(x.shape) != want:
            yield name, shape_text(tuple(x.shape)), shape_text(want)


def given_partials(
    op: str, partials: Any, fields: dict[str, Any], *, entropy: bool, rank: bool, place: Place = HOST
) -> Partials:
    """Return partials of the caller as arrays of ``place``; they must be of the slots and targets of this call."""
    here = viewed(op, "partials", partials, place)
    slots, targets = len(fields["rows"]), len(fields["columns"])
    for name, shape, _ in misfits(here, slots, targets):
        raise ValueError(
            f"{op}: partials must be of the same rows and targets, {slots} slots and {targets} targets, "
            f"got {name} of shape {shape}"
        )
    for name, wanted in (("weighted", entropy), ("rank", rank)):
        if wanted and getattr(here, name) is None:
            raise ValueError(f"{op}: partials must have {name} for what is wanted, got None")
    return here


def labels(
    op: str, label_ids: Any, cu_labels: Any, prior: Any, vocab_size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Check labels; return their tokens, where those of each label begin and end, and the prior."""
    ids = _vector(op, "label_ids", label_ids, "(n,)")
    if len(ids) == 0:
        raise ValueError(f"{op}: label_ids must have at least one id, got none")
    outside = ids.view(np.uint64) >= vocab_size
    if outside.any():
        raise ValueError(f"{op}: label_ids must be within [0, {vocab_size}), got {ids[np.argmax(outside)]}")
    unique, counts = np.unique(ids, return_counts=True)
    if len(unique) < len(ids):
        raise ValueError(f"{op}: label_ids must not repeat an id, got {unique[counts > 1][0]} twice")
    cu = np.arange(len(ids) + 1)
    if cu_labels is not None:
        cu, sizes = bounds(op, "cu_labels", cu_labels, len(ids), "the number of label_ids")
        if (sizes == 0).any():
            raise ValueError(f"{op}: cu_labels must give every label a token, got none for label {np.argmin(sizes)}")
    if prior is None:
        return ids, cu, None
    weights = floats(op, "prior", prior).astype(np.float64)
    if weights.shape != (len(cu) - 1,):
        raise ValueError(f"{op}: prior must have shape (L,) = ({len(cu) - 1},), got {shape_text(weights.shape)}")
    bad = ~((weights > 0) & (weights < np.inf))
    if bad.any():
        raise ValueError(f"{op}: prior must be positive and finite, got {weights[bad][0]:g}")
    return ids, cu, weights


def target_logits(op: str, x: Any, size: int, place: Place = HOST) -> Any:
    if x is None:
        return None
    array = floats(op, "target_logits", x, place)
    if tuple(array.shape) != (size,):
        raise ValueError(f"{op}: target_logits must have shape (M',) = ({size},), got {shape_text(tuple(array.shape))}")
    return array


def offset(op: str, name: str, x: Any) -> int:
    number = whole(op, name, x)
    if number < 0:
        raise ValueError(f"{op}: {name} must be at least 0, got {x}")
    return number


def one_temperature(op: str, name: str, rows: np.ndarray) -> None:
    """Refuse a result per row where a row is scored at several temperatures."""
    again = rows[1:] == rows[:-1]
    if again.any():
        raise ValueError(
            f"{op}: want must not name {name!r} where a row has several temperatures, got row {rows[np.argmax(again)]}"
        )
