"""What the fuzzers of selections share: how a case is run, parts of it, and its arguments in words."""

import os
import warnings
from contextlib import contextmanager
from typing import Any

import numpy as np
from fuzz_runs import WrongError

import ragsys_kernels as rk
from ragsys_kernels import _dispatch

ISA = "RAGSYS_KERNELS_ISA"
OF_QUERIES = (
    "queries", "k", "candidates", "relevance", "initial", "query_groups", "lambda_d", "lambda_b", "budget",
    "max_similarity", "min_relevance", "aspects", "weights",
)  # fmt: skip
OF_BOTH = ("bias", "costs", "quality", "allowed", "exclude")  # of the rows, or of each query's


@contextmanager
def strict():
    """Let warnings be errors, but for those of pools and of relevance, the instruction set that of the machine, and
    what a check finds what the case found."""
    os.environ.pop(ISA, None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for usual in (rk.PoolSizeWarning, rk.RelevanceRangeWarning):
            warnings.simplefilter("ignore", usual)
        warnings.filterwarnings("ignore", ".* names groups that no row of the corpus has")
        try:
            yield
        except AssertionError as error:
            raise WrongError(str(error)) from None


def draw_isa(rng: np.random.Generator, but: str | None = None) -> None:
    """Set another instruction set, if the machine has one."""
    sets = _dispatch.extension().SUPPORTED_ISAS
    os.environ[ISA] = str(rng.choice([name for name in sets if name != but] or sets))


def of_queries(arguments: dict[str, Any], queries: Any, dense: bool = False) -> dict[str, Any]:
    """The arguments of a call for some of its queries; groups of rows may have two axes too, those of levels."""
    part = dict(arguments)
    for name, value in arguments.items():
        dims = getattr(value, "ndim", 0)
        own = (name in OF_QUERIES and dims) or (name in OF_BOTH and dims == 2) or (name == "embeddings" and dims == 3)
        if own or (name == "groups" and dense):
            part[name] = value[queries]
    return part


# What a selection may have beside its tuple, as far as it is compared.
BESIDE = ("cost", "nearest")


def same(first: list[np.ndarray], second: list[np.ndarray], what: str) -> None:
    """Refuse fields that differ by a bit."""
    for name, one, other in zip((*rk.Selection._fields, *BESIDE), first, second, strict=False):
        if other.ndim == 2:
            one = one[:, : other.shape[1]]  # k of the queries at hand may be less
        if one.dtype != other.dtype or not np.array_equal(one, other, equal_nan=one.dtype.kind == "f"):
            raise WrongError(f"{name} differs {what}")


def in_words(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={short(value)}" for name, value in arguments.items())


def short(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.size <= 8:
        return str(value.tolist())
    return f"{value.dtype}{list(value.shape)}" if getattr(value, "ndim", 0) else repr(value)
