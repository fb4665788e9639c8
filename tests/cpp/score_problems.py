"""The problems that score_tool is asked, and how its answers are judged: by the definition in float64."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np

from ragsys_kernels._base import arrays as _arrays

from .tool import Writer, memory_of, stride_of, strided

DTYPES = ("float32", "float16", "bfloat16")
LOGITS, HIDDEN = range(2)
COLUMNS = (1, 2, 5, 17, 33, 130, 1000, 4097, 50_257)
DIMS = (1, 3, 7, 8, 16, 33, 64, 100, 576, 1025, 2050)


def stored(values: np.ndarray, dtype: str, gap: int = 0) -> np.ndarray:
    """Rows `gap` elements apart, with NaNs between them."""
    with np.errstate(over="ignore"):
        elements = _arrays.narrow(np.asarray(values, np.float32), dtype)
    return strided(elements, gap, _arrays.narrow(np.full(1, np.nan, np.float32), dtype)[0])


def wide(rows: np.ndarray, dtype: str) -> np.ndarray:
    return np.asarray(_arrays.widen(np.ascontiguousarray(rows), dtype), np.float64)


@dataclasses.dataclass
class Score:
    rows: np.ndarray
    columns: list[np.ndarray]  # targets of each slot
    num_columns: int
    logits: np.ndarray | None = None
    dtype: str = "float32"
    hidden: np.ndarray | None = None
    weight: np.ndarray | None = None
    weight_dtype: str = "float32"
    head_bias: np.ndarray | None = None
    inverse_temperature: np.ndarray | None = None
    logit_scale: float = 1.0
    softcap: float = 0.0
    allowed: np.ndarray | None = None
    target_logits: np.ndarray | None = None
    entropy: bool = True
    rank: bool = True
    top: int = 0

    def __post_init__(self) -> None:
        if self.inverse_temperature is None:
            self.inverse_temperature = np.ones(len(self.rows), np.float32)
        self.pair_begin = np.concatenate([[0], np.cumsum([len(c) for c in self.columns])]).astype(np.int64)
        self.targets = np.concatenate([*self.columns, np.zeros(0)]).astype(np.int64)

    def slot(self, j: int) -> Score:
        """Return the problem of one slot."""
        pairs = slice(*self.pair_begin[j : j + 2])
        assert self.inverse_temperature is not None
        return dataclasses.replace(
            self,
            rows=self.rows[j : j + 1],
            columns=self.columns[j : j + 1],
            inverse_temperature=self.inverse_temperature[j : j + 1],
            target_logits=None if self.target_logits is None else self.target_logits[pairs],
        )

    def write(self, out: Writer) -> None:
        out.words(
            LOGITS if self.logits is not None else HIDDEN,
            len(self.rows),
            self.num_columns,
            0 if self.allowed is None else len(self.allowed),
            0 if self.hidden is None else self.hidden.shape[1],
            *(DTYPES.index(self.dtype), stride_of(self.logits)),
            *(DTYPES.index(self.dtype), stride_of(self.hidden)),
            *(DTYPES.index(self.weight_dtype), stride_of(self.weight)),
            *(self.entropy, self.rank, len(self.targets), self.top),
        )
        out.arrays(np.array([self.logit_scale, self.softcap], np.float32), self.rows.astype(np.int64))
        out.arrays(self.inverse_temperature, *map(memory_of, (self.logits, self.hidden, self.weight)), self.head_bias)
        out.arrays(self.allowed, self.pair_begin, self.targets, self.target_logits)

    def z(self) -> np.ndarray:
        """(R, num_columns) in float64; where a step leaves float32's range, infinite as there."""
        if self.logits is not None:
            x = wide(self.logits, self.dtype)[self.rows]
        else:
            assert self.hidden is not None
            assert self.weight is not None
            x = wide(self.hidden, self.dtype)[self.rows] @ wide(self.weight, self.weight_dtype).T
            if self.head_bias is not None:
                x = x + self.head_bias
        x = x[:, : self.num_columns] * np.float32(self.logit_scale)
        if self.softcap:
            x = np.where(np.isfinite(x), self.softcap * np.tanh(x / self.softcap), x)
        assert self.inverse_temperature is not None
        return np.asarray(x * self.inverse_temperature[:, None].astype(np.float64))

    def judge(self, *fields: bytes) -> None:
        kinds = (np.float32, np.float32, np.float64, np.float64, np.float32, np.int64, np.float32, np.int64)
        ref, top, total, weighted, target, rank, best, best_ids = map(np.frombuffer, fields, kinds)
        best, best_ids = (x.reshape(len(self.rows), self.top) for x in (best, best_ids))
        z = self.z()
        exact = self.logits is not None and self.logit_scale == 1 and not self.softcap
        assert self.inverse_temperature is not None
        exact = exact and bool((self.inverse_temperature == 1).all())
        for j in range(len(self.rows)):
            pairs = slice(*self.pair_begin[j : j + 2])
            entering = z[j] if self.allowed is None else z[j, self.allowed]
            ids = self.columns[j]
            aims = np.where(ids < 0, -np.inf, z[j, np.maximum(ids, 0)]) if z.shape[1] else np.full(len(ids), -np.inf)
            scale = np.abs(entering[np.isfinite(entering)]).max(initial=1)
            error = 0 if exact else (3e-7 if self.logits is not None else 2e-6) * scale
            np.testing.assert_allclose(target[pairs], aims, rtol=0, atol=error, err_msg=f"slot {j}: target")
            if np.isnan(entering).any() or np.isposinf(entering).any():
                assert np.isnan([total[j], top[j]]).all(), f"slot {j}: sum {total[j]}, max {top[j]}"
                assert not self.entropy or np.isnan(weighted[j])
                continue
            if self.top:
                self.judge_top(j, np.where(np.isneginf(entering), np.nan, entering), best[j], best_ids[j], error)
            largest = entering.max(initial=-np.inf)
            if largest == -np.inf:
                assert (ref[j], top[j], total[j]) == (-np.inf, -np.inf, 0), f"slot {j}: nothing enters"
                continue
            np.testing.assert_allclose(top[j], largest, rtol=0, atol=error, err_msg=f"slot {j}: max")
            terms = np.exp(entering - largest)
            log_sum = ref[j].astype(np.float64) - largest + np.log(total[j])
            assert abs(log_sum - np.log(terms.sum())) <= 2e-6 + 2 * error, f"slot {j}: sum off by {log_sum}"
            for z_target in target[pairs].astype(np.float64):
                logp = z_target - ref[j] - np.log(total[j])
                assert not logp > 0 or self.target_logits is not None or self.allowed is not None, f"slot {j}: {logp}"
            if self.entropy:
                live = entering > -np.inf
                mean = (terms[live] * (entering[live] - largest)).sum() / terms.sum()
                got = weighted[j] / total[j] + ref[j] - largest
                assert abs(got - mean) <= 2e-5 + 4 * error, f"slot {j}: entropy {got}, not {mean}"
            if self.rank:
                aims = aims if self.target_logits is None else self.target_logits[pairs].astype(np.float64)
                most, least = ([(entering > aim + off).sum() for aim in aims] for off in (-2 * error, 2 * error))
                assert ((least <= rank[pairs]) & (rank[pairs] <= most)).all(), f"slot {j}: rank {rank[pairs]}, {least}"

    def judge_top(self, j: int, live: np.ndarray, best: np.ndarray, ids: np.ndarray, error: float) -> None:
        """Judge the largest z of a slot, ``live`` being NaN where nothing enters: in order, and none left out."""
        count = min(self.top, int(np.isfinite(live).sum()))
        assert (ids[count:] == -1).all(), f"slot {j}: {ids}"
        assert np.isneginf(best[count:]).all(), f"slot {j}: {best}"
        ids, best = ids[:count], best[:count]
        at = ids if self.allowed is None else np.searchsorted(self.allowed, ids)
        np.testing.assert_allclose(best, live[at], rtol=0, atol=error, err_msg=f"slot {j}: top")
        order = np.lexsort((ids, -best))
        assert (order == np.arange(count)).all(), f"slot {j}: top is not in order: {best}, {ids}"
        rest = np.delete(live, at)
        assert not count or not (rest > best[-1] + 2 * error).any(), f"slot {j}: a larger z than {best[-1]} is left out"
        if error == 0:
            exact = np.argsort(-np.where(np.isnan(live), -np.inf, live), kind="stable")[:count]
            assert (at == exact).all(), f"slot {j}: top {at}, not {exact}"


def describe(case: Score) -> str:
    form = case.logits if case.logits is not None else case.hidden
    assert form is not None
    return f"{case.dtype} {form.shape}, {case.num_columns} columns, weight {case.weight_dtype}"


def random_targets(rng: np.random.Generator, slots: int, columns: int) -> list[np.ndarray]:
    return [rng.integers(-1, columns, rng.integers(0, 5)) for _ in range(slots)]


def values(rng: np.random.Generator, kind: str, T: int, V: int, dtype: str) -> np.ndarray:
    x = 4 * rng.standard_normal((T, V))
    largest = 3e4 if dtype == "float16" else 2e38
    if kind == "masked first":
        x[:, : min(V - 1, 5000)] = -np.inf
    elif kind == "negative":
        x -= 60
    elif kind == "rising":
        x = np.sort(10 * x, axis=1)
    elif kind == "far":
        x += rng.choice([-1e4, 1e4], (T, 1)) if dtype == "float16" else rng.choice([-1e4, 1e4, 1e6], (T, 1))
    elif kind == "strange":
        x[0] = -np.inf
        x[1 % T, V // 2] = np.nan
        x[2 % T, V - 1] = np.inf
        x[3 % T, : V - 1] = -np.inf
        x[4 % T, V // 3] = largest
        x[5 % T] = largest / 2
        x[6 % T, 0] = -largest
    return x


KINDS = ("plain", "masked first", "negative", "rising", "far", "strange")


def logits_cases(rng: np.random.Generator) -> Iterator[Score]:
    T = 7
    for V in COLUMNS:
        for dtype in DTYPES:
            for kind in KINDS if V < 10_000 else ("plain", "strange"):
                logits = stored(values(rng, kind, T, V + 3, dtype), dtype, int(rng.choice([0, 1])))
                rows = rng.permutation(np.concatenate([np.arange(T), [0, 1]]))
                common = {"rows": rows, "columns": random_targets(rng, len(rows), V), "logits": logits, "dtype": dtype}
                yield Score(**common, num_columns=V)
                yield Score(**common, num_columns=V, entropy=bool(rng.integers(2)), rank=False)
                if kind in ("far", "strange"):
                    continue
                changes = {"inverse_temperature": rng.uniform(0.3, 2, len(rows)).astype(np.float32)}
                yield Score(**common, **changes, num_columns=V, logit_scale=0.7)
                yield Score(**common, **changes, num_columns=V, softcap=30.0, logit_scale=1.5)
                allowed = np.unique(rng.integers(0, V, max(1, V // 3)))
                shard = rng.standard_normal(sum(map(len, common["columns"]))).astype(np.float32)
                yield Score(**common, num_columns=V, allowed=allowed)
                yield Score(**common, num_columns=V, allowed=allowed[:0], target_logits=shard)


def hidden_case(rng: np.random.Generator, T: int, V: int, D: int, dtype: str, weight_dtype: str) -> Score:
    slots = int(rng.integers(1, T + 3))
    some = {}
    if rng.random() < 0.4:
        some["head_bias"] = rng.standard_normal(V).astype(np.float32)
    if rng.random() < 0.4:
        some["inverse_temperature"] = rng.uniform(0.3, 2, slots).astype(np.float32)
    if rng.random() < 0.2:
        some["softcap"] = 30.0
    if rng.random() < 0.3:
        some["allowed"] = np.unique(rng.integers(0, V, max(1, V // 2)))
    return Score(
        rows=rng.integers(0, T, slots),
        columns=random_targets(rng, slots, V),
        num_columns=V,
        hidden=stored(rng.standard_normal((T, D)), dtype, int(rng.choice([0, 3]))),
        dtype=dtype,
        weight=stored(3 / np.sqrt(D) * rng.standard_normal((V, D)), weight_dtype, int(rng.choice([0, 1]))),
        weight_dtype=weight_dtype,
        **some,
    )


def hidden_cases(rng: np.random.Generator) -> Iterator[Score]:
    for D in DIMS:
        for dtype in DTYPES:
            for weight_dtype in DTYPES:
                V = int(rng.choice([1, 5, 16, 130, 513, 1000]))
                yield hidden_case(rng, int(rng.choice([1, 3, 6, 7, 13, 20])), V, D, dtype, weight_dtype)
    for dtype in DTYPES:
        yield hidden_case(rng, 120, 300, 40, dtype, dtype)
    for D in (7, 31, 32, 640, 1100):  # tiles of tokens and columns, whole and not, and runs of dimensions
        yield hidden_case(rng, 70, int(rng.choice([33, 300, 1000])), D, "bfloat16", "bfloat16")


def threaded_cases(rng: np.random.Generator) -> Iterator[Score]:
    """Work for threads, over rows and over columns, and more slots than are kept at a time."""
    for T, V in ((2, 70_000), (64, 5000)):
        logits = stored(values(rng, "plain", T, V, "bfloat16"), "bfloat16")
        rows = np.arange(T)
        yield Score(rows, random_targets(rng, T, V), V, logits=logits, dtype="bfloat16")
    for T, dtype in ((3, "float32"), (530, "bfloat16")):
        V, D = 3000, 500 if T == 3 else 16
        yield Score(
            np.arange(T),
            random_targets(rng, T, V),
            V,
            hidden=stored(rng.standard_normal((T, D)), dtype),
            dtype=dtype,
            weight=stored(rng.standard_normal((V, D)), dtype),
            weight_dtype=dtype,
        )


def with_tops(cases: Iterator[Score]) -> list[Score]:
    """Most of the cases with the largest z too, few of them or more than a block has."""
    return [dataclasses.replace(case, top=(0, 3, 50, 700)[number % 4]) for number, case in enumerate(cases, 1)]


def all_cases() -> list[Score]:
    rng = np.random.default_rng(0)
    return with_tops(itertools.chain(logits_cases(rng), hidden_cases(rng), threaded_cases(rng)))
