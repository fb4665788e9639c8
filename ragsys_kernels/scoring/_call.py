"""What every scoring operation does beside its own checks: backend, threads, place and the caller's library."""

from __future__ import annotations

from typing import Any

from .. import _dispatch
from .._base import arrays as _arrays
from .._base import checks
from .._base.arrays import HOST
from . import _device, validate
from ._namespace import namespace
from .problem import GivenPairs, Layout, Pairs, Partials, ScoringProblem


class Call:
    """Backend, threads, the place of the arrays and the caller's library of one call."""

    def __init__(
        self,
        op: str,
        arrays: dict[str, Any],
        backend: str,
        num_threads: int | None,
        check_values: bool | None,
    ) -> None:
        self.op, self.check_values = op, checks.check_values(op, check_values)
        self.checked: dict[str, Any] | None = None  # fields of a layout whose values were checked on the host
        if validate.is_number(arrays.get("temperature")):  # a number is on no device
            arrays["temperature"] = None
        self.library, device = checks.library_and_device(op, arrays)
        name, self.backend = _dispatch.choose(op, "scoring", device, backend)
        self.place = _arrays.place_of(device, name, self.library)
        # To count the processors takes time, and kernels of a device ask for none.
        self.threads = 1 if num_threads is None and self.place is not HOST else checks.threads(op, num_threads)
        self.interpreted = name == "triton" and self.place is HOST
        self.current = _arrays.NOTHING  # makes the device and the stream of the arrays the current ones
        if self.place is not HOST:
            self.current = _arrays.on_stream(self.place, self.library)
            if self.current is _arrays.NOTHING:
                self.current = _arrays.on_device(next(x for x in arrays.values() if x is not None))

    def layout(self, given: GivenPairs, num_slots: int | None = None) -> tuple[Layout, dict[str, Any]]:
        """Return the layout of `validate`, or that of `_device`."""
        if self.place is HOST:
            return validate.layout(self.op, given)
        if self.check_values:
            self.check(given)
        layout, fields = _device.layout(self.op, self.place, given, num_slots)
        layout.sums = getattr(self.backend, "answer_sums", _device.answer_sums)
        return layout, fields

    def slots(self, rows: Any, num_rows: int, temperature: Any, like: Any) -> dict[str, Any]:
        """Return the fields of a problem without targets, of `validate` or of `_device`."""
        if self.place is HOST:
            return validate.slots(self.op, rows, num_rows, temperature)
        if self.check_values:
            validate.slots(self.op, _arrays.to_host(rows), num_rows, _arrays.to_host(temperature))
        return _device.slots(self.op, self.place, rows, num_rows, temperature, like)

    def pairs(self, given: GivenPairs) -> Pairs | None:
        """Return the pairs for `results`; None where the layout has to be made first, or values are on the host."""
        pairs = None if self.place is HOST else _device.pairs(self.op, self.place, given)
        if pairs is not None and self.check_values:
            self.check(given)
        return pairs

    def results(
        self, form: dict[str, Any], pairs: Pairs, V: int, wanted: frozenset[str], allowed: Any, **scales: Any
    ) -> dict[str, Any]:
        """Return what is wanted of pairs, their rows and answers."""
        fields: dict[str, Any] = {"rows": None, "inverse_temperature": None, "pair_begin": None}
        options = {"entropy": "entropy" in wanted, "rank": "rank" in wanted}
        problem = validate.problem(self.op, form, {**fields, "columns": pairs.targets}, V, **scales, **options)
        problem.allowed = allowed
        found: dict[str, Any] = self.backend.results(problem, pairs, wanted)
        return found

    def check(self, given: GivenPairs) -> None:
        """Run the checks of `validate.layout` on copies on the host, which waits for the device."""
        self.checked = validate.layout(self.op, _arrays.hosted(given))[1]

    def allowed_ids(self, allowed: Any, vocab_size: int) -> Any:
        if self.check_values and self.place is not HOST:
            validate.allowed_ids(self.op, _arrays.to_host(allowed), vocab_size)
        return validate.allowed_ids(self.op, allowed, vocab_size, self.place)

    def run(self, problem: ScoringProblem) -> Partials:
        """Return the partials of the problem; the backend is not called without a slot, a row or a column.

        On a device targets without rows have a slot all the same: kernels may read row 0 where a slot has none.
        """
        stored: Any = problem.hidden if problem.logits is None else problem.logits
        if len(problem.rows) == 0 or len(stored) == 0 or problem.num_entering == 0:
            return Partials.nothing(problem)
        k = problem.top
        problem.top = min(k, problem.num_entering)
        result: Partials = self.backend.partials(problem, self.threads)
        if self.interpreted:
            result = Partials(*(x if x is None else x.numpy() for x in result))
        return result if k == problem.top else _widened(result, k)

    def result(self, x: Any) -> Any:
        """Return an array, or a named tuple of arrays and None, in the caller's library."""
        if self.library == "numpy" or x is None:
            return x
        if isinstance(x, tuple):
            return type(x)(*map(self.result, x))
        return _arrays.to_library(x, self.library)


def _widened(partials: Partials, k: int) -> Partials:
    """Return partials with as many of the largest z as were asked for, where there are not so many columns."""
    R, n = partials.top.shape
    concatenate = namespace(partials.top).concatenate
    top, ids = (
        concatenate([x, _arrays.full(x, (R, k - n), none, dtype)], 1)
        for x, none, dtype in ((partials.top, float("-inf"), "float32"), (partials.top_ids, -1, "int64"))
    )
    return partials._replace(top=top, top_ids=ids)
