"""The options of a selection job, and what they must be whatever the files hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import ragsys_kernels as rk

from .. import _info
from .._base import checks, times
from .._base.files import is_url
from .._base.types import PathLike
from ..corpus import retrieve
from ..selection import quotas
from ..selection.capabilities import Needs
from ..selection.parameters import BY_GROUP, OF_RULES, SCALARS, SCALES
from ..selection.problem import COLUMNS
from ..selection.request import Request

# Names of files and columns of what belongs to the rows of a corpus.
OF_ROWS = (
    "ids", *COLUMNS, "vector_column", "id_column", "bias_column", "group_column", "cost_column", "time_column",
)  # fmt: skip
# These, but for a file of ids, and how a corpus is held: a saved one says it itself.
OF_CORPUS = (*(name for name in OF_ROWS if name != "ids"), "metric", "dtype")
# How this process runs the job: no option of what it is.
_OF_THE_CALL = ("fingerprint", "verify", "overwrite", "engine", "workers", "cpus_per_worker", "gpus_per_worker",
                "cpus_per_holder", "ray_address", "ray_timeout")  # fmt: skip


UNMET = pa.map_(pa.string(), pa.int64())  # a column of the result


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """The files and options of a job, plain values that go to another process as they are.

    They are the parameters of `offline.select`, whose signature repeats names and defaults for editors and for the
    manual, and of which the command line takes its options. ``request`` says what is picked: the rule, k and all that
    one number or word says (`SCALARS`), with the backend and the threads, but without arrays; None stands for a default
    of the rule. ``instruction_set`` is the one that the job's shards are made with: scores of another differ in their
    last bits.
    """

    # What it reads: files and their columns, and what rows and ids do that cannot be used.
    corpus: PathLike | None = None
    queries: PathLike
    candidates: PathLike | Sequence[PathLike] | None = None
    index: PathLike | None = None
    search_parameters: str | None = None
    exact: bool = False
    bias: PathLike | None = None
    groups: PathLike | None = None
    costs: PathLike | None = None
    time: PathLike | None = None
    query_groups: PathLike | None = None
    vector_column: str | None = None
    id_column: str | None = None
    bias_column: str | None = None
    group_column: str | None = None
    cost_column: str | None = None
    time_column: str | None = None
    query_vector_column: str | None = None
    query_id_column: str | None = None
    query_group_column: str | None = None
    candidate_column: str | None = None
    candidate_vector_column: str | None = None
    relevance_column: str | None = None
    candidate_ids: bool = False
    fusion: str = "rrf"
    fusion_weights: Sequence[float] | None = None
    unknown_ids: str = "error"
    bad_rows: str = "raise"
    on_duplicate: str = "error"

    # What it picks, and out of how many rows.
    request: Request
    pool: int | str | None = None
    metric: str | None = None

    # How it runs: memory and device, how much at a time, where, and what it makes of an earlier run.
    dtype: str | None = None
    device: str | None = None
    chunk_size: int = 4096
    shard_size: int = 100_000
    on_error: str = "raise"
    memory: Any = None  # bytes, once `plain`
    fingerprint: str | None = None
    verify: bool = True
    overwrite: bool = False
    engine: str = "local"
    workers: int | None = None
    cpus_per_worker: float | None = None
    gpus_per_worker: float | None = None
    cpus_per_holder: float | None = None
    ray_address: str | None = None
    ray_timeout: float | None = None
    instruction_set: str | None = None

    def plain(self) -> JobSpec:
        """Return the same job with Python's own values, which is what the manifest and other processes take."""
        names = (field.name for field in fields(self) if field.name not in (*FILES, "request"))
        given = {name: getattr(self, name) for name in names}
        given.update({name: checks.flag("select", name, given[name]) for name in ("candidate_ids", "exact")})
        weights = given.pop("fusion_weights")
        several = self.candidates if isinstance(self.candidates, (list, tuple)) else [self.candidates]
        if not several:
            raise ValueError("select: candidates must be at least one file, got none")
        candidates: Any = tuple(several) if len(several) > 1 else several[0]
        given["memory"] = None if self.memory is None else checks.size("select", "memory", self.memory)
        plainly = {
            name: value if name in _OF_THE_CALL else _plain("select", name, value) for name, value in given.items()
        }
        return replace(
            self,
            request=plain_request("select", self.request),
            candidates=candidates,
            fusion_weights=None if weights is None else checks.doubles("select", "fusion_weights", weights).tolist(),
            **plainly,
        )

    def absolute(self) -> JobSpec:
        """Return the same job with paths that hold in any working folder; URLs stay."""
        paths: dict[str, Any] = {
            name: tuple(map(absolute, path)) if isinstance(path, tuple) else absolute(path)
            for name, path in self._given(FILES).items()
        }
        return replace(self, **paths)

    def settled(self) -> JobSpec:
        """Return the same job with the backend and the instruction set that "auto" means in this process."""
        request = self.request
        name, instruction_set = _info.active(self.device)
        if request.backend not in ("auto", name):
            name, instruction_set = request.backend, ""
        elif self.device is None and Needs.of(retrieve.completed(request)).lacking(name) is not None:
            name, instruction_set = "reference", ""
        return replace(self, request=request.changed(backend=name), instruction_set=instruction_set)

    def check_reading(self) -> None:
        """Refuse options that are wrong whatever the files hold; files that cannot be read come first."""
        checks.choice("select", "unknown_ids", self.unknown_ids, ("error", "skip"))
        if self.unknown_ids == "skip" and not self.candidate_ids:
            raise ValueError("select: unknown_ids must come with candidate_ids, got 'skip' alone")

    def check_picking(self) -> None:
        """Refuse options that have no effect with the others; the library checks their values."""
        checks.choice("select", "relevance_scale", self.request.relevance_scale, SCALES)
        method = checks.choice("select", "method", self.request.op, rk.METHODS)
        if isinstance(self.pool, str) and self.pool not in ("all", "certified"):
            raise ValueError(f"select: pool must be a number, 'all' or 'certified', got {self.pool!r}")
        given = self.given()
        for parameter in OF_RULES:
            if parameter.name in given and method not in parameter.rules:
                got = repr(given[parameter.name])
                raise ValueError(f"select: {parameter.name} must be left out with method {method!r}, got {got}")

    def given(self) -> dict[str, Any]:
        """Return what is asked for of all that one number, word or flag says, as JSON has it."""
        found = {}
        for parameter in SCALARS:
            value = getattr(self.request, parameter.name)
            # One that only some rules have is None where it is not given.
            if value is not None and (parameter in OF_RULES or value != parameter.default):
                found[parameter.name] = value
        by_group = {name: value for name in BY_GROUP if isinstance(value := found.get(name), dict)}
        return found | {name: {str(group): x for group, x in value.items()} for name, value in by_group.items()}

    def check_running(self) -> None:
        """Refuse values that cannot be."""
        for name in ("chunk_size", "shard_size"):
            checks.count("select", name, getattr(self, name))
        checks.choice("select", "on_error", self.on_error, ("raise", "skip"))
        if self.fingerprint is not None:
            checks.choice("select", "fingerprint", self.fingerprint, ("sampled", "full"))
        checks.flag("select", "verify", self.verify)

    @property
    def skips(self) -> tuple[str, str]:
        """How to treat rows of the corpus that cannot be used, and rows with the same id."""
        return self.bad_rows, self.on_duplicate

    def unusual(self) -> dict[str, Any]:
        """Return what else than usual is made of ids and of rows that cannot be used."""
        names = ("candidate_ids", "fusion", "fusion_weights", "unknown_ids", "bad_rows", "on_duplicate",
                 "search_parameters", "exact")  # fmt: skip
        return {name: value for name in names if (value := getattr(self, name)) != getattr(JobSpec, name)}

    def files(self) -> dict[str, PathLike]:
        """Return the files that are given."""
        found = self._given(FILES)
        several = found.pop("candidates", ())
        several = several if isinstance(several, tuple) else (several,)
        return {**found, **{f"candidates {i}" if i else "candidates": path for i, path in enumerate(several)}}

    def columns(self) -> dict[str, str]:
        """Return the columns that are named."""
        return self._given(field.name for field in fields(JobSpec) if field.name.endswith("_column"))

    def _given(self, names: Iterable[str]) -> dict[str, Any]:
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def shard(self, index: int, rows: int) -> range:
        """Return the rows of a shard, of `rows` in all."""
        return range(index * self.shard_size, min((index + 1) * self.shard_size, rows))


FILES = tuple(field.name for field in fields(JobSpec) if str(field.type).startswith("PathLike"))


def plain_request(op: str, request: Request) -> Request:
    """Return a request with Python's own values; a flag of one rule that is not set is not given."""
    names = ("op", "k", *(parameter.name for parameter in SCALARS), "backend", "num_threads")
    values = {name: _plain(op, "method" if name == "op" else name, getattr(request, name)) for name in names}
    unset = (parameter.name for parameter in OF_RULES if values.get(parameter.name) is False)
    return request.changed(**{**values, **dict.fromkeys(unset)})


def of_groups(op: str, request: Request, named: bool) -> Request:
    """Return a request whose mappings name groups as the corpus does: by strings if ``named``, else by integers."""
    if named:
        return request
    given = {name: getattr(request, name) for name in BY_GROUP}
    return request.changed(**{name: quotas.with_integers(op, name, x) for name, x in given.items()})


def as_map(unmet: Mapping[Any, int]) -> list[tuple[str, int]]:
    """Return what the groups of a query lack as Arrow has a map, by their names or the digits of their integers."""
    return [(str(group), lacking) for group, lacking in unmet.items()]


_WORDS = {"number": "a number", "count": "an integer", "flag": "True or False", "choice": "a str"}
# What an option may be, where it is not a number or a str.
_KINDS = {"k": "an integer", **{parameter.name: _WORDS[parameter.kind] for parameter in SCALARS}}
_KINDS |= dict.fromkeys(BY_GROUP, "an integer or a mapping of groups to integers")


def _plain(op: str, name: str, value: Any) -> Any:
    """Return an option as a value of Python; the library checks which values it takes."""
    value = times.scalar(op, name, value)
    if getattr(value, "shape", None) == () and hasattr(value, "item"):  # a number of NumPy's or torch's
        value = value.item()
    if name in BY_GROUP and isinstance(value, Mapping):
        return {_plain(op, name, key): _plain(op, name, number) for key, number in value.items()}
    if not (value is None or isinstance(value, (str, int, float))):
        got = repr(value) if isinstance(value, (type, np.dtype)) else type(value).__name__
        raise TypeError(
            f"{op}: {name} must be one value for all queries, {_KINDS.get(name, 'a number or a str')}, got {got}"
        )
    return value


def absolute(path: PathLike) -> PathLike:
    """Return a path that holds in any working folder; a URL as it is."""
    return path if is_url(path) else Path(path).resolve()
