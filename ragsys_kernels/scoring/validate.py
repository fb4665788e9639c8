"""Checks of the arguments of scoring, and the `ScoringProblem` and `Layout` that a call describes.

Types and shapes are checked everywhere, values only on the host: to read those of a device would wait for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .._base import arrays
from .._base.arrays import HOST, Place
from .._base.checks import choice, count, expect_shape, floats, integers, rows_in_order, shape_text, shown, whole
from ._namespace import arange, cast, namespace
from .problem import GivenPairs, Layout, Partials, ScoringProblem

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
        raise ValueError(f"{op}: {name} must have shape {symbols}, got {shape_text(array.shape)}{hint}")
    if array.shape[1] == 0:
        raise ValueError(f"{op}: {name} must have at least one column, got shape {shape_text(array.shape)}")
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
        expect_shape(op, "bias", bias, ((V,), "(V,)"))
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


def temperature(op: str, given: Any, per: str, size: int, place: Place = HOST) -> Any:
    """Return a number, or an array without an axis or with ``size`` numbers, as many as there are ``per``."""
    if is_number(given):
        return positive(op, "temperature", given)
    array, dtype = place.view(op, "temperature", given)
    if "float" not in dtype and "int" not in dtype:
        raise TypeError(f"{op}: temperature must be a number or floats, got {dtype}")
    shape = tuple(array.shape)
    if shape not in ((), (size,)):
        raise ValueError(
            f"{op}: temperature must be a number or have shape ({per},) = ({size},), got {shape_text(shape)}"
        )
    array = place.float32(array, dtype) if dtype == "bfloat16" else array
    if place is HOST:
        wide = array.astype(np.float64)  # the limits are beyond float16
        for good, rule in (
            ((wide > 0) & (wide < np.inf), "positive and finite"),
            ((wide >= SCALE_MIN) & (wide <= SCALE_MAX), f"within [{SCALE_MIN:g}, {SCALE_MAX:g}]"),
        ):
            if not good.all():
                raise ValueError(f"{op}: temperature must be {rule}, got {array[~good].flat[0]:g}")
    return array


def vocabulary(op: str, vocab_size: Any, num_columns: int) -> int:
    """Check the size of the vocabulary, by default the number of columns."""
    if vocab_size is None:
        return num_columns
    size = count(op, "vocab_size", vocab_size)
    if size > num_columns:
        raise ValueError(f"{op}: vocab_size must be at most V = {num_columns}, got {size}")
    return size


def vector(op: str, name: str, x: Any, symbols: str, place: Place = HOST, size: int | None = None) -> Any:
    """Return a vector of integers; on the host a copy: what kernels index by must not change after the check."""
    if isinstance(x, (list, tuple)) and not x:
        x = np.zeros(0, np.int64)
    array = integers(op, name, x, place)
    if array.ndim != 1 or (size is not None and len(array) != size):
        want = symbols if size is None else f"{symbols} = ({size},)"
        raise ValueError(f"{op}: {name} must have shape {want}, got {shape_text(array.shape)}")
    return np.array(array) if place is HOST else array


def _some_ids(op: str, name: str, x: Any, place: Place) -> Any:
    ids = vector(op, name, x, "(n,)", place)
    if len(ids) == 0:
        raise ValueError(f"{op}: {name} must have at least one id, got none")
    return ids


def allowed_ids(op: str, allowed: Any, vocab_size: int, place: Place = HOST) -> Any:
    """Check the ids that may enter the sums."""
    if allowed is None:
        return None
    ids = _some_ids(op, "allowed", allowed, place)
    if place is HOST:
        if (np.diff(ids) <= 0).any():
            at = int(np.argmax(np.diff(ids) <= 0))
            raise ValueError(f"{op}: allowed must be sorted without repeats, got {ids[at + 1]} after {ids[at]}")
        if ids[0] < 0 or ids[-1] >= vocab_size:
            bad = ids[0] if ids[0] < 0 else ids[-1]
            raise ValueError(f"{op}: allowed must be within [0, {vocab_size}), got {bad}")
    return ids


def pairs(op: str, given: GivenPairs, place: Place = HOST) -> tuple[Any, Any, int | None]:
    """Return targets, rows (None: pair i has row i) and ``ignore_index``."""
    ids = vector(op, "targets", given.targets, "(M,)", place)
    M, row = len(ids), None
    if given.rows is not None:
        row = vector(op, "rows", given.rows, "(M,)", place, M)
    elif given.num_rows not in (None, M):
        raise ValueError(
            f"{op}: targets must have shape (T,) = ({given.num_rows},) unless rows is given, got {shape_text((M,))}"
        )
    if given.cu_answers is not None and given.answer_ids is not None:
        raise ValueError(f"{op}: cu_answers or answer_ids must be given, got both")
    choice(op, "out_of_range", given.out_of_range, ("raise", "nan"))
    ignored = given.ignore_index
    return ids, row, None if ignored is None else whole(op, "ignore_index", ignored, "an integer or None")


def _answers(op: str, given: GivenPairs, M: int) -> tuple[np.ndarray | None, int]:
    """Return the answer of each pair (None: there is one answer), and the number of answers."""
    if given.cu_answers is not None:
        sizes = bounds(op, "cu_answers", given.cu_answers, M, "the number of targets")[1]
        return np.arange(len(sizes)).repeat(sizes), len(sizes)
    if given.answer_ids is None:
        return None, 1
    ids = vector(op, "answer_ids", given.answer_ids, "(M,)", size=M)
    if M and ids.min() < 0:
        raise ValueError(f"{op}: answer_ids must be at least 0, got {ids.min()}")
    size = int(ids.max()) + 1 if M else 0
    if given.num_answers is None:
        return ids, size
    if size > given.num_answers:
        raise ValueError(f"{op}: answer_ids must be below num_answers = {given.num_answers}, got {size - 1}")
    return ids, given.num_answers


def starts(op: str, name: str, x: Any, place: Place = HOST) -> Any:
    """Return where ragged parts begin and end (n + 1,)."""
    cu = vector(op, name, x, "(n + 1,)", place)
    if len(cu) == 0:
        raise ValueError(f"{op}: {name} must have at least one element, got none")
    return cu


def bounds(op: str, name: str, x: Any, end: int, of: str) -> tuple[np.ndarray, np.ndarray]:
    """Check where ragged parts begin and end: (n + 1,), ascending from 0 to ``end``. Return that and the sizes (n,)."""
    cu = starts(op, name, x)
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


def _check_rows(op: str, row: np.ndarray, num_rows: int | None) -> None:
    outside = row < 0 if num_rows is None else row.view(np.uint64) >= num_rows
    if outside.any():
        below = "" if num_rows is None else f" and below T = {num_rows}"
        raise ValueError(f"{op}: rows must be at least 0{below}, got {row[np.argmax(outside)]}")


def slots(op: str, rows: Any, num_rows: int, given_temperature: Any) -> dict[str, Any]:
    """Return the fields of a problem on the host without targets, whose slot i is row ``rows[i]``, or row i."""
    row = np.arange(num_rows) if rows is None else vector(op, "rows", rows, "(R,)")
    _check_rows(op, row, num_rows)
    R = len(row)
    inverse = np.empty(R, np.float32)
    inverse[:] = 1 / np.asarray(temperature(op, given_temperature, "R", R), np.float64)
    none: dict[str, Any] = {"pair_begin": np.zeros(R + 1, np.int64), "columns": np.zeros(0, np.int64)}
    return {"rows": row, "inverse_temperature": inverse, **none}


def layout(op: str, given: GivenPairs) -> tuple[Layout, dict[str, Any]]:
    """Return the layout of pairs on the host, and the fields of a problem that say what is read, slots by row."""
    ids, row, ignore_index = pairs(op, given)
    M, vocab_size, num_rows, named = len(ids), given.vocab_size, given.num_rows, row is not None
    if row is None:
        row, num_rows = np.arange(M), M
    else:
        _check_rows(op, row, num_rows)
        if num_rows is None:
            num_rows = int(row.max()) + 1 if M else 0
    answer, num_answers = _answers(op, given, M)
    warmth = temperature(op, given.temperature, given.per, num_answers if given.per == "A" else M)
    if answer is not None and given.per == "A" and np.ndim(warmth):
        warmth = warmth[answer]
    inverse = np.empty(M, np.float32)
    inverse[:] = 1 / np.asarray(warmth, np.float64)

    ignored, outside, scored = None, ids.view(np.uint64) >= vocab_size, None
    if outside.any() or (ignore_index is not None and 0 <= ignore_index < vocab_size):
        if ignore_index is not None:
            ignored = ids == ignore_index
            outside &= ~ignored
        if given.out_of_range == "raise" and outside.any():
            at = int(np.argmax(outside))
            raise ValueError(f"{op}: targets must be within [0, {vocab_size}), got {ids[at]} at position {at}")
        scored = np.flatnonzero(~outside if ignored is None else ~(outside | ignored))
        ids, row, inverse = ids[scored], row[scored], inverse[scored]

    slot, pair_begin = None, np.arange(len(ids) + 1)
    if named and (row[1:] <= row[:-1]).any():
        order = np.lexsort((inverse, row))
        scored = order if scored is None else scored[order]
        ids, row, inverse = ids[order], row[order], inverse[order]
        starts = (row[1:] != row[:-1]) | (inverse[1:] != inverse[:-1])
        first = np.concatenate([[0], np.flatnonzero(starts) + 1])
        pair_begin = np.append(first, len(ids))
        slot = np.concatenate([[0], np.cumsum(starts)])
        row, inverse = row[first], inverse[first]
    fields = {"rows": row, "inverse_temperature": inverse, "pair_begin": pair_begin, "columns": ids}
    bad = None if given.out_of_range == "raise" else outside
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
    top: int = 0,
) -> ScoringProblem:
    """Return the problem of ``num_columns`` columns, from ``first_column`` on, of a vocabulary of ``vocab_size``."""
    needed = rank and target_logits is None
    columns, allowed = _shard(op, fields["columns"], allowed, first_column, num_columns, vocab_size, needed)
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
        top=top,
    )


def _shard(
    op: str, columns: Any, allowed: Any, first_column: int, num_columns: int, vocab_size: int | None, needed: bool
) -> tuple[Any, Any]:
    """Return targets and allowed ids as columns of a shard; ``needed``: the shard must have every target.

    On a device ``allowed`` keeps its length: kernels skip what is no column.
    """
    xp = namespace(columns)
    end = first_column + num_columns
    if allowed is not None:
        at = xp.minimum(xp.searchsorted(allowed, columns), len(allowed) - 1)
        columns = xp.where(allowed[at] == columns, columns, -1)
        if xp is np:
            allowed = allowed[slice(*np.searchsorted(allowed, (first_column, end)))]
    if first_column or vocab_size not in (None, num_columns):
        here = (columns >= first_column) & (columns < end)
        if xp is np and needed and (elsewhere := (columns >= 0) & ~here).any():
            raise ValueError(
                f"{op}: target_logits must be given where rank is wanted and targets are in other shards, "
                f"got None and target {columns[np.argmax(elsewhere)]}"
            )
        columns = xp.where(here, columns - first_column, -1)
        allowed = None if allowed is None else allowed - first_column
    return columns, allowed


def for_partials(op: str, partials: Any, source: dict[str, Any]) -> None:
    """Check a call that has partials instead of what logits are made of."""
    if not isinstance(partials, Partials):
        raise TypeError(f"{op}: partials must be Partials, got {type(partials).__name__}")
    for name, x in source.items():
        if x is not None:
            raise ValueError(f"{op}: partials must be given instead of {name}, got both")
    if (shape := np.shape(partials.ref)) == () or len(shape) > 1:
        raise ValueError(f"{op}: partials must have ref of shape (R,), got {shape_text(shape)}")


def viewed(op: str, name: str, part: Partials, place: Place) -> Partials:
    """Return partials of the caller as arrays of ``place``."""
    fields: dict[str, Any] = {}
    for field, x in part._asdict().items():
        fields[field], dtype = (None, "") if x is None else place.view(op, f"{name}.{field}", x)
        kinds = ("int64", "int32") if field in ("rank", "top_ids") else ("float32", "float64")
        if x is not None and dtype not in kinds:
            raise TypeError(f"{op}: {name}.{field} must be {' or '.join(kinds)}, got {dtype}")
    return Partials(**fields)


def misfits(part: Partials, slots: int, targets: int) -> Iterator[tuple[str, str, str]]:
    """Yield each field that is not of so many slots or targets, with the shape it has and the one it must have."""
    for name, x in zip(Partials._fields, part, strict=True):
        want: tuple[Any, ...] = (targets if name in ("target", "rank") else slots,)
        if name in ("top", "top_ids"):
            other = part.top_ids if part.top is None else part.top
            want = (slots, other.shape[1] if other is not None and other.ndim == 2 else "k")
            if x is None and other is None:
                continue
        if x is None and name not in ("weighted", "rank"):
            yield name, "None", shape_text(want)
        elif x is not None and tuple(x.shape) != want:
            yield name, shape_text(x.shape), shape_text(want)


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
    op: str, label_ids: Any, cu_labels: Any, prior: Any, vocab_size: int, place: Place = HOST
) -> tuple[Any, Any, Any]:
    """Check labels; return their tokens, where those of each label begin and end, and the prior or None."""
    ids = _some_ids(op, "label_ids", label_ids, place)
    if place is HOST:
        outside = ids.view(np.uint64) >= vocab_size
        if outside.any():
            raise ValueError(f"{op}: label_ids must be within [0, {vocab_size}), got {ids[np.argmax(outside)]}")
        unique, counts = np.unique(ids, return_counts=True)
        if len(unique) < len(ids):
            raise ValueError(f"{op}: label_ids must not repeat an id, got {unique[counts > 1][0]} twice")
    if cu_labels is None:
        cu = arange(len(ids) + 1, ids)
    elif place is HOST:
        cu, sizes = bounds(op, "cu_labels", cu_labels, len(ids), "the number of label_ids")
        if (sizes == 0).any():
            raise ValueError(f"{op}: cu_labels must give every label a token, got none for label {np.argmin(sizes)}")
    else:
        cu = starts(op, "cu_labels", cu_labels, place)
    if prior is None:
        return ids, cu, None
    weights = cast(floats(op, "prior", prior, place), namespace(ids).float64)
    expect_shape(op, "prior", weights, ((len(cu) - 1,), "(L,)"))
    if place is HOST and (bad := ~((weights > 0) & (weights < np.inf))).any():
        raise ValueError(f"{op}: prior must be positive and finite, got {weights[bad][0]:g}")
    return ids, cu, weights


def target_logits(op: str, x: Any, size: int, place: Place = HOST) -> Any:
    if x is None:
        return None
    array = floats(op, "target_logits", x, place)
    expect_shape(op, "target_logits", array, ((size,), "(M',)"))
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
