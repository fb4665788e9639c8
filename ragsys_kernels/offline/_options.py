"""The options of a selection job in three groups: what it reads, what it picks, how it runs.

They are the parameters of `offline.select`, whose signature repeats names and defaults for editors and for the manual.
The command line takes its options from there; the manifest, the workers of a job and Ray have them as `_spec.JobSpec`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import ragsys_kernels as rk

from .._base import checks
from .._base.types import PathLike
from ..selection.relevance import SCALES

# Options of one rule each, as `Corpus.select` takes them.
OF_ONE_RULE = ("scale", "gamma", "window", "noise", "min_gain", "kind", "density", "eps")
# What says how a corpus is held and what belongs to its rows: a saved one says it itself.
OF_CORPUS = ("vector_column", "id_column", "bias", "bias_column", "groups", "group_column", "costs", "cost_column",
             "metric", "dtype")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What a job reads: files and their columns, and what rows and ids do that cannot be used."""

    corpus: PathLike | None = None
    queries: PathLike
    candidates: PathLike | None = None
    index: PathLike | None = None
    bias: PathLike | None = None
    groups: PathLike | None = None
    costs: PathLike | None = None
    query_groups: PathLike | None = None
    vector_column: str | None = None
    id_column: str | None = None
    bias_column: str | None = None
    group_column: str | None = None
    cost_column: str | None = None
    query_vector_column: str | None = None
    query_id_column: str | None = None
    query_group_column: str | None = None
    candidate_column: str | None = None
    candidate_vector_column: str | None = None
    relevance_column: str | None = None
    candidate_ids: bool = False
    unknown_ids: str = "error"
    bad_rows: str = "raise"
    on_duplicate: str = "error"

    def check_reading(self) -> None:
        """Refuse options that are wrong whatever the files hold; files that cannot be read come first."""
        checks.choice("select", "unknown_ids", self.unknown_ids, ("error", "skip"))
        if self.unknown_ids == "skip" and not self.candidate_ids:
            raise ValueError("select: unknown_ids must come with candidate_ids, got 'skip' alone")

    @property
    def skips(self) -> tuple[str, str]:
        """What rows of the corpus do that cannot be used, and those with an id that others have."""
        return self.bad_rows, self.on_duplicate

    def unusual(self) -> dict[str, Any]:
        """Return what else than usual is made of ids and of rows that cannot be used."""
        usual = {field.name: field.default for field in fields(ReadOptions)}
        names = ("candidate_ids", "unknown_ids", "bad_rows", "on_duplicate")
        return {name: value for name in names if (value := getattr(self, name)) != usual[name]}

    def files(self) -> dict[str, PathLike]:
        """Return the files that are given."""
        return self._given(FILES)

    def columns(self) -> dict[str, str]:
        """Return the columns that are named."""
        return self._given(field.name for field in fields(ReadOptions) if field.name.endswith("_column"))

    def _given(self, names: Iterable[str]) -> dict[str, Any]:
        return {name: value for name in names if (value := getattr(self, name)) is not None}


FILES = tuple(field.name for field in fields(ReadOptions) if str(field.type).startswith("PathLike"))


@dataclass(frozen=True, kw_only=True)
class PickOptions:
    """What a job picks: the rule with its options, out of how many rows, and how many."""

    relevance_scale: str = "as-is"
    method: str = "mmr"
    k: int = 6
    pool: int | str | None = None
    lambda_d: float | None = None
    lambda_b: float | None = None
    max_per_group: int | None = None
    budget: float | None = None
    max_similarity: float | None = None
    scale: float | None = None
    gamma: float | None = None
    window: int | None = None
    noise: float | None = None
    min_gain: float | None = None
    kind: str | None = None
    density: bool = False
    eps: float | None = None
    metric: str | None = None

    def check_picking(self) -> None:
        """Refuse options that have no effect with the others; the library checks their values."""
        checks.choice("select", "relevance_scale", self.relevance_scale, SCALES)
        checks.choice("select", "method", self.method, rk.METHODS)
        if isinstance(self.pool, str) and self.pool not in ("all", "certified"):
            raise ValueError(f"select: pool must be a number, 'all' or 'certified', got {self.pool!r}")
        parameters = rk.METHODS[self.method].parameters
        for name, value in self.of_one_rule().items():
            if name not in parameters:
                raise ValueError(f"select: {name} must be left out with method {self.method!r}, got {value!r}")
        for name in ("lambda_d", "lambda_b") if "lambda_d" not in parameters else ():
            if (value := getattr(self, name)) is not None:
                raise ValueError(f"select: {name} must be left out with method {self.method!r}, got {value}")

    def of_one_rule(self) -> dict[str, Any]:
        """Return the options that are given of those that only some rules have."""
        given = {name: getattr(self, name) for name in OF_ONE_RULE}
        return {name: value for name, value in given.items() if value is not None and value is not False}


OF_SELECTION = tuple(
    field.name for field in fields(PickOptions) if field.name not in ("relevance_scale", "k", "metric")
)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a job runs: memory, device and threads, how much at a time, where, and what it makes of an earlier run.

    ``instruction_set`` is the one that the job's shards are made with: scores of another differ in their last bits.
    """

    dtype: str | None = None
    device: str | None = None
    backend: str = "auto"
    num_threads: int | None = None
    chunk_size: int = 4096
    shard_size: int = 100_000
    on_error: str = "raise"
    memory: int | None = None
    fingerprint: str | None = None
    verify: bool = True
    overwrite: bool = False
    engine: str = "local"
    workers: int | None = None
    cpus_per_worker: float | None = None
    gpus_per_worker: float | None = None
    ray_address: str | None = None
    instruction_set: str | None = None

    def check_running(self) -> None:
        """Refuse values that cannot be."""
        for name in ("chunk_size", "shard_size"):
            checks.count("select", name, getattr(self, name))
        checks.choice("select", "on_error", self.on_error, ("raise", "skip"))
        if self.fingerprint is not None:
            checks.choice("select", "fingerprint", self.fingerprint, ("sampled", "full"))
        checks.flag("select", "verify", self.verify)

    def shard(self, index: int, rows: int) -> range:
        """Return the rows of a shard, of `rows` in all."""
        return range(index * self.shard_size, min((index + 1) * self.shard_size, rows))
