"""The selection job: check all inputs, find what is done already, and have the rest made, shard by shard."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from .._base import checks, env
from .._base.types import BadRows, Decay, Method, Moment, OnDuplicate, PathLike, RelevanceScale, Seconds, Storage
from ..corpus import recency
from ..selection.request import Request
from ._manifest import JobFolder, Manifest, describe, described, fallen_short, input_differences, proven, totals
from ._options import JobSpec
from ._recall import Recall
from ._resume import begun, check_folder, continued, owned
from ._spec import Inputs, check_options
from ._worker import Worker, result_schema
from .ray import engine as ray_engine
from .ray.engine import Records
from .ray.options import RayOptions
from .sinks import Folder, folder_at, skipped_list, write_skipped
from .sources import check_apart

_log = logging.getLogger(__name__)
_QUERIES = "query", "queries"


@dataclass(frozen=True)
class Summary:
    """What a job did; as text, one line.

    Numbers of queries: ``queries``, all; ``done``, with a result; ``selected``, with a result that this run made;
    ``skipped``, that could not be used; ``short``, of the others, with fewer than k picks; ``certified``, with picks
    that are proven to be those of the whole corpus (None: not known); ``unmet``, that lack picks of a group's minimum
    (None without ``min_per_group``). ``unknown`` is the number of candidate ids that
    were left out because they are not in the corpus. With an index, ``recall`` describes a sample of about 100 queries,
    evenly spaced: which share of their exact pools the index found (``mean``, with the 95 % ``interval``), and how many
    of their picks differ from those out of exact pools. ``seconds`` is the time from the first query read to the last
    shard in place; ``corpus_seconds`` is the time to read and normalise the corpus, and to start Ray.
    """

    queries: int
    done: int
    selected: int
    skipped: int
    seconds: float
    corpus_seconds: float
    method: str
    k: int
    pool: str
    backend: str
    instruction_set: str
    num_threads: int
    out: Path | str
    shards: int
    engine: str = "local"
    short: int = 0
    certified: int | None = None
    unmet: int | None = None
    recall: Recall | None = None
    unknown: int = 0

    @property
    def complete(self) -> bool:
        """Whether the result has all queries."""
        return self.done == self.queries

    @property
    def rate(self) -> float:
        """Queries per second of this run."""
        return self.selected / self.seconds if self.selected else 0.0

    def __str__(self) -> str:
        counted = checks.counted
        place = f"-> {self.out} ({counted(self.shards, 'shard')})"
        skipped = f", {counted(self.skipped, *_QUERIES)} skipped" if self.skipped else ""
        skipped += fallen_short(self.short, self.k, self.unmet)
        skipped += f", {counted(self.unknown, 'unknown id')} of candidates left out" if self.unknown else ""
        skipped += proven(self.certified, self.done - self.skipped)
        skipped += f", {self.recall}" if self.recall else ""
        if not self.selected and self.complete:
            are, their = ("the query is", "its") if self.queries == 1 else (f"all {self.queries} queries are", "their")
            done = f"{are} done, and {their} files as they were written"
            return f"nothing to do: {done}{skipped} {place}"
        backend = f"{self.backend} ({self.instruction_set})" if self.instruction_set else self.backend
        earlier = self.done - self.selected
        before = f", {earlier} of {self.queries} done before" if earlier else ""
        stopped = "" if self.complete else f", stopped with {self.queries - self.done} left"
        threads = counted(self.num_threads, "thread") if self.engine == "local" else "on Ray"
        return (
            f"{counted(self.selected, *_QUERIES)} in {self.seconds:.2f} s ({self.rate:.0f} queries/s, corpus read in "
            f"{self.corpus_seconds:.2f} s){before}{stopped}{skipped}, {self.method}, k={self.k}, pool={self.pool}, "
            f"backend {backend}, {threads} {place}"
        )


def select(
    *,
    queries: PathLike,
    out: PathLike,
    corpus: PathLike | None = None,
    candidates: PathLike | Sequence[PathLike] | None = None,
    index: PathLike | None = None,
    search_parameters: str | None = None,
    exact: bool = False,
    bias: PathLike | None = None,
    groups: PathLike | None = None,
    costs: PathLike | None = None,
    time: PathLike | None = None,
    query_groups: PathLike | None = None,
    vector_column: str | None = None,
    id_column: str | None = None,
    bias_column: str | None = None,
    group_column: str | None = None,
    cost_column: str | None = None,
    time_column: str | None = None,
    query_vector_column: str | None = None,
    query_id_column: str | None = None,
    query_group_column: str | None = None,
    candidate_column: str | None = None,
    candidate_vector_column: str | None = None,
    relevance_column: str | None = None,
    relevance_scale: RelevanceScale = "as-is",
    candidate_ids: bool = False,
    fusion: Literal["rrf", "minmax", "zscore"] = "rrf",
    fusion_weights: Sequence[float] | None = None,
    unknown_ids: Literal["error", "skip"] = "error",
    method: Method = "mmr",
    k: int = 6,
    pool: int | Literal["all", "certified"] | None = None,
    lambda_d: float | None = None,
    lambda_b: float | None = None,
    max_per_group: int | Mapping[Any, int] | None = None,
    min_per_group: int | Mapping[Any, int] | None = None,
    budget: float | None = None,
    max_similarity: float | None = None,
    min_relevance: float | None = None,
    nearest: bool = False,
    scale: float | None = None,
    gamma: float | None = None,
    window: int | None = None,
    noise: float | None = None,
    min_gain: float | None = None,
    kind: Literal["facility", "cover", "xquad"] | None = None,
    density: bool = False,
    eps: float | None = None,
    half_life: Seconds | None = None,
    now: Moment | None = None,
    decay: Decay = "exp",
    decay_floor: float = 0.0,
    metric: Literal["cosine", "dot"] | None = None,
    dtype: Storage | None = None,
    device: str | None = None,
    backend: str = "auto",
    num_threads: int | None = None,
    chunk_size: int = 4096,
    shard_size: int = 100_000,
    on_error: Literal["raise", "skip"] = "raise",
    memory: int | str | None = None,
    bad_rows: BadRows = "raise",
    on_duplicate: OnDuplicate = "error",
    fingerprint: Literal["sampled", "full"] | None = None,
    verify: bool = True,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
    stop: Callable[[], bool] | None = None,
    engine: Literal["local", "ray"] = "local",
    workers: int | None = None,
    cpus_per_worker: float | None = None,
    gpus_per_worker: float | None = None,
    cpus_per_holder: float | None = None,
    ray_address: str | None = None,
    ray_timeout: float | None = None,
) -> Summary:
    """Pick `k` corpus rows for every query of a file and write the picks as Parquet shards.

    The corpus is held in memory; queries and candidates are read `chunk_size` rows at a time, so memory does not grow
    with their number. Reading, selecting and writing run at the same time.

    `out` is the job. Each shard is put in its place whole, so that a job that was killed at any moment, or stopped by
    an error, resumes with what is missing when it is run again with the same inputs, options and version; the result
    is the same to the byte. Files that were damaged since are found by their checksums and made again, with a warning.
    A job that is complete is checked and left as it is. A job that ends before its first shard leaves nothing.

    Parameters
    ----------
    corpus, queries : path
        Vectors, (N, D) and (Q, D), all of length D; a file, a folder or a URL of one of these, as are the others below:
        ``.npy``; a column of float lists of ``.parquet`` or of a folder of such files, in the order of their names, of
        an Arrow file (``.arrow``, ``.feather``, ``.ipc``), of a data set that the package datasets saved to disk; a
        tensor of ``.safetensors``. float32, float16, bfloat16 in tensors, and float64, which is read as float32. See
        `offline.sources`. The corpus may also be a folder that `Corpus.save` or ``corpus build`` wrote, or its URL: it
        is mapped into memory, with its ids, bias, groups, costs and times, which are then no options.
    out : path
        Folder to write: ``part-00000.parquet``, ..., and nothing else, so that polars, DuckDB, Spark and pyarrow read
        it by its name. What describes the job is in ``OUT.job`` beside it (`sinks`). Must be new, empty or of the same
        job. Or its URL; there other processes are not kept out. No input may be in it, nor it in an input.
        Columns: ``query_id``; ``ids``, the picks, best first; ``scores``, ``relevance`` and ``redundancy`` as in
        `Selection` (with "vrsd" the redundancy is NaN: the rule looks at the sum of the picks, not at pairs). Ids are
        those of the id columns, or row numbers in files without one. MMR with cosines out of pools that the job's own
        search finds on the host has ``certified`` too: whether the picks are proven to be those of the whole corpus;
        with `nearest` a job has that column, integers. With `min_per_group` there is ``unmet``, a map from groups, as
        text, to how many picks they lack: null for a query that is skipped.
        Shard i has the queries from row i * `shard_size` on, in their order.
    candidates : path, or several, optional
        Rows of the corpus to choose from, by row number: an array or tensor (Q, P) int32 or int64, padded with -1,
        or a column of integer lists of any length. Default: the `pool` most relevant rows. With `candidate_ids` they
        are ids of the corpus, also lists of strings, as the picks of an earlier job are: ``candidates="picks",
        candidate_column="ids", candidate_ids=True``. Several files, one for each retriever, are fused as by `fuse`; all
        have the same columns.
    candidate_vector_column : str, optional
        Column of the candidates' file with lists of vectors, one for each of its ids, which may then be any: the job
        has no corpus. Vectors are float16 or float32, of the queries' length; 256 queries are read at a time.
    relevance_column : str, optional
        Column of the candidates' file with lists of numbers: the relevance of each, instead of its cosine to the query.
    relevance_scale : {"as-is", "minmax", "zscore", "rank"}
        How to rescale it, as in `mmr`.
    candidate_ids : bool
        The candidates are ids of the corpus, whose ids must be distinct integers or strings.
    fusion : {"rrf", "minmax", "zscore"}
        How several files of candidates are fused, as `method` of `fuse`. Their order is that of `relevance_column`, or
        best first without, which only "rrf" can be.
    fusion_weights : sequence of float, optional
        Weight of each of the files. Default: 1.
    unknown_ids : {"error", "skip"}
        How to treat a candidate id that is not in the corpus. "error": its query fails, see `on_error`. "skip": the job
        picks from the other candidates, and the summary counts the ids left out.
    index : path, optional
        FAISS index file over the rows of the corpus, as `Corpus.to_faiss` makes it or as `Corpus.search` takes it; or
        a usearch index, ``NAME.usearch``; or a folder of such files whose rows, in the order of their names, follow one
        another (one for each segment); or the folder of a corpus of the same rows. It retrieves the pools instead of
        the exact search, with the settings stored in it (``nprobe``, ``efSearch``) and the library's own threads. Use
        only files that you trust: neither library checks the whole graph or all lists of an index before it searches
        them.
    search_parameters : str, optional
        What the index of a saved corpus (``corpus build`` with `index`) is searched with: "nprobe=32", "efSearch=64".
        Default: as it was built. Such an index finds the pools unless `exact` is given, `pool` is "all" or "certified",
        or the corpus is on a device; what it finds does not depend on `chunk_size`, threads or workers.
    exact : bool
        Search exactly, whether or not the corpus has an index.
    bias : path, optional
        (N,) floats, quality of each corpus row; or name a column of the corpus file with `bias_column`.
    groups, query_groups : path, optional
        (N,) and (Q,) integers, or both strings; or `group_column`, `query_group_column`. A query is not given rows of
        its own group.
    costs : path, optional
        (N,) numbers, what it costs to pick each corpus row, such as its tokens; or name a column with `cost_column`.
        With a `budget`.
    time : path, optional
        (N,) times, or seconds since 1970: when each corpus row was written; or name a column with `time_column`.
        A row may have none. With a `half_life`.
    vector_column, query_vector_column, candidate_column : str, optional
        Columns or tensors; needed if a file has several of that kind (none of them called "embedding" or "vector").
    bias_column, group_column, cost_column, time_column, query_group_column : str, optional
        Columns of the files above where they are given, else of the vectors' file.
    id_column, query_id_column : str, optional
        Default: the column or tensor "id", if the file has one; where it has others only, that is noted in the log.
    method : {"mmr", "vrsd", "msd", "dpp", "ssd", "sift", "coverage"}
    k : int
        Picks of each query; fewer where it has fewer candidates.
    pool : int, "all" or "certified", optional
        How many of the most relevant rows to choose from, above `k`. "all" selects exactly from the whole corpus.
        "certified", for MMR with cosines on the host, gives the same picks from pools that grow until the picks are
        proven. Default: 100, or the candidates if given.
    lambda_d, lambda_b : float, optional
        Weights of relevance against redundancy, and of similarity against bias, in [0, 1]; not of VRSD and
        SIFT. Default: 0.75 for MMR and MSD, 0.25 for GIST, else 0.5; and 0.95.
    max_per_group : int, or mapping of groups to int, optional
        Largest number of picks from one group, or from single ones by their names.
    min_per_group : int, or mapping of groups to int, optional
        Least number of picks from each group among a query's rows, or from single ones, as in `mmr`.
    budget : float, optional
        The most that the picks of a query may cost together. The summary counts the queries with fewer than k picks.
    max_similarity : float, optional
        The largest similarity that a pick may have to an earlier one, in [-1, 1].
    min_relevance : float, optional
        The least relevance of a pick, before ``relevance_scale``.
    half_life : float, timedelta or timedelta64, optional
        Seconds after which a row keeps half of its relevance, by its time, as of `Corpus.select`.
    now : float, datetime or datetime64, optional
        As of `Corpus.select`. Default: when the job began.
    decay : {"exp", "gauss", "linear"}
    decay_floor : float
        ``kind`` and ``floor`` of `decayed`.
    nearest : bool
        Whether a column says which earlier pick each is most similar to: its place in the list from 0; -1: none.
    scale, gamma, window, noise, min_gain, kind, density, eps : optional
        Options of one rule, as in its function: ``scale`` of DPP, ``gamma`` of SSD and coverage, ``window`` of SSD,
        ``noise`` and ``min_gain`` of SIFT, ``kind`` and ``density`` of coverage, ``eps`` of GIST.
    metric : {"cosine", "dot"}, optional
    dtype : {"float32", "float16", "bfloat16", "int8", "binary"}, optional
        How the corpus is held in memory. Default: as a saved corpus is, else "cosine" and "float32".
    device : str, optional
        "cuda" or "cuda:<number>": where the corpus is held and selection runs, as torch tensors. Default: the host.
    backend, num_threads
        As in `ragsys_kernels.mmr`. A job resumes with the backend and instruction set it began with, since others may
        decide near-ties otherwise.
    chunk_size : int
        Queries read, selected for and handed to the writer in one step. Does not change the result, except that an
        `index` may find other rows in other batches.
    shard_size : int
        Queries per Parquet shard. If the job is killed, only shards that are not complete are lost.
    on_error : {"raise", "skip"}
        How to treat a query that cannot be used: one with missing or non-finite values, with a vector of another
        length, with candidates that are not distinct rows of the corpus, or in a part of a file that cannot be read.
        "raise": an error names file and row. "skip": the query gets empty lists, so that rows stay aligned with the
        queries, and a row in ``OUT.job/_errors-00000.parquet``, ... (by the shard's number): ``query_row``,
        ``query_id`` (null if it is not known), ``reason``. Errors in the corpus, its bias or its groups are raised in
        any case, unless `bad_rows` is "skip".
    memory : int or str, optional
        Bytes that the rows held at a time may take, as a number or as "2G": a saved corpus may then be larger. Each
        chunk of queries reads all rows once, one part after the other, and then the rows of its pools. The process
        takes more: its libraries, chunks of queries, and pages of the files, which the system can take back. Not with
        pool "all", an `index` or a `device`. Does not change the result. Of a corpus in segments at a URL: bytes of the
        segments that are fetched at a time; not with pool "certified". On Ray: bytes that an actor may hold of a
        corpus in segments. Actors with some of the segments each are spread over the nodes, by the memory that these
        have, and search for all workers; then no node needs to have the whole corpus. Not with pool "certified".
    bad_rows : {"raise", "skip"}
        How to treat a row of the corpus that cannot be used. "skip": leave it out, also from lists of candidates;
        ``OUT.skipped.csv`` lists it with its number, id and the reason. The files of the corpus are then read twice.
    on_duplicate : {"error", "first", "last"}
        How to treat rows of the corpus with the same id: an error, or keep only the first, or the last; the others are
        listed too.
    fingerprint : {"sampled", "full"}, optional
        How inputs are recognised when the job resumes. "sampled": by size, time of the last change, and the content of
        the first, middle and last MiB of each file; a copy that keeps the time is the same input, a file that was only
        touched is not. "full": by a hash of the whole content, whatever the time; reads all files once more. Neither
        looks at paths. Default: as the job began; "sampled" for a new one.
    verify : bool
        Compare all bytes of a saved corpus with its checksums when the job begins, in one process: about 2 GB a second
        for each processor. Without, its headers and a sample of its rows. On Ray with `memory`, each actor compares the
        segments that it holds, whenever it starts.
    overwrite : bool
        If `out` has an earlier job, start anew. A folder that holds anything else is refused in any case.
    progress : callable, optional
        Called with the queries done and their number, first when the corpus is in memory.
    stop : callable, optional
        Called once the corpus is in memory and after each shard; True stops the job, which can be resumed later.
    engine : {"local", "ray"}
        Where the shards are made: in this process, or by workers on Ray, on this machine or a cluster whose nodes all
        see the files and `out` at the same paths. Both write the same bytes, and either resumes what the other
        began. Workers share one copy of the corpus on each node, in Ray's object store; or see `memory`.
    workers : int, optional
        Ray actors; more than fit on the nodes are refused. Default: as many as fit, beside what holds a corpus in
        segments.
    cpus_per_worker, gpus_per_worker : float, optional
        What Ray keeps for each worker. A worker has as many threads as CPUs unless `num_threads` says otherwise.
        GPUs need a `device`. Default: 1, and 1 with a `device`, else 0.
    cpus_per_holder : float, optional
        What Ray keeps for each actor that holds segments (`memory`), beside their bytes; it has as many threads unless
        `num_threads` says otherwise. Default: 1 where nodes have so many, else none, and a thread for each processor.
    ray_address : str, optional
        Address of a running cluster, or "auto". Default: the Ray that runs in this process, else that of
        ``RAY_ADDRESS``, else one that is started on this machine and stopped at the end.
    ray_timeout : float, optional
        Seconds to wait for room for an actor, also for one to be started again after its node was lost; then the job
        ends with an error, and can be resumed. The log says what is waited for, after 5 seconds. Default: 45.

    Returns
    -------
    Summary

    Raises
    ------
    ValueError, TypeError, OSError, BackendUnavailableError
        Everything that can be checked from options and file headers is, before anything is written. ValueError too
        where `out` holds a job of other inputs, options or version, with the old and the new value of each; OSError
        where another process works in it, and where Ray has lost what the job needs.
    """
    request = Request(
        method, None, None, k, relevance_scale=relevance_scale, lambda_d=lambda_d, lambda_b=lambda_b,
        max_per_group=max_per_group, min_per_group=min_per_group, budget=budget, max_similarity=max_similarity,
        min_relevance=min_relevance, nearest=nearest, scale=scale, gamma=gamma, window=window, noise=noise,
        min_gain=min_gain, kind=kind, density=density, eps=eps, half_life=half_life, now=now, decay=decay,
        decay_floor=decay_floor, backend=backend, num_threads=num_threads,
    )  # fmt: skip
    spec = JobSpec(
        queries=queries, corpus=corpus, candidates=candidates, index=index, search_parameters=search_parameters,
        exact=exact, bias=bias, groups=groups, costs=costs, time=time, time_column=time_column,
        query_groups=query_groups, vector_column=vector_column, id_column=id_column, bias_column=bias_column,
        group_column=group_column, cost_column=cost_column, query_vector_column=query_vector_column,
        query_id_column=query_id_column, query_group_column=query_group_column, candidate_column=candidate_column,
        candidate_vector_column=candidate_vector_column, relevance_column=relevance_column,
        candidate_ids=candidate_ids, fusion=fusion, fusion_weights=fusion_weights,
        unknown_ids=unknown_ids, request=request, pool=pool, metric=metric, dtype=dtype,
        device=device, chunk_size=chunk_size, shard_size=shard_size, on_error=on_error, memory=memory,
        bad_rows=bad_rows, on_duplicate=on_duplicate, fingerprint=fingerprint, verify=verify, overwrite=overwrite,
        engine=engine, workers=workers, cpus_per_worker=cpus_per_worker, gpus_per_worker=gpus_per_worker,
        cpus_per_holder=cpus_per_holder, ray_address=ray_address, ray_timeout=ray_timeout,
    ).plain()  # fmt: skip
    check_apart("select", {"out": out, **skipped_list(out, (bad_rows, on_duplicate))}, spec.files())
    ray = RayOptions.of(spec)
    if ray is not None and memory is not None and pool == "certified":
        raise ValueError(f"select: pool 'certified' must come without memory on Ray, got {memory!r}")
    spec.check_running()
    for name, called in (("progress", progress), ("stop", stop)):
        checks.function("select", name, called)
    inputs = Inputs.open(spec, spec.verify)
    check_options(spec, inputs)
    for notice in inputs.notices(spec):
        _log.info(notice)
    write_skipped("select", out, spec.skips, corpus=inputs.usable)
    return _run(spec.settled(), inputs, folder_at(out).of_job(spec.overwrite), ray, progress, stop)


def _run(
    spec: JobSpec,
    inputs: Inputs,
    folder: Folder,
    ray: RayOptions | None,
    progress: Callable[[int, int], None] | None,
    stop: Callable[[], bool] | None,
) -> Summary:
    check_folder(folder, spec.overwrite)
    with owned(folder), ExitStack() as stack:
        check_folder(folder, spec.overwrite)  # once more: another process may have used the folder meanwhile
        before = None if spec.overwrite else Manifest.read(folder)
        if before is not None and spec.request.half_life is not None and spec.request.now is None:
            spec = replace(spec, request=spec.request.changed(now=before.description["options"].get("now")))
        spec = replace(spec, request=recency.dated(spec.request))
        fingerprint = spec.fingerprint or (before.description["fingerprint"] if before else "sampled")
        now = describe(spec, inputs, result_schema(spec, inputs), fingerprint)
        files = now["inputs"] if fingerprint == "sampled" else described(inputs, "sampled")
        done = {} if before is None else continued(before, now, folder, spec.on_error)
        manifest = Manifest(now if before is None else before.description, False, done)
        missing = [index for index in range(manifest.num_shards) if index not in done]
        start = loaded = time.perf_counter()
        total, earlier = manifest.rows, sum(record.rows for record in done.values())
        selected = 0
        if missing and earlier:
            _log.info("select: goes on from %d of %d queries, done before in %s", earlier, total, folder)
        if not missing:
            if before is not None and not before.complete:
                replace(manifest, complete=True).write(folder)
            JobFolder(folder, manifest.key).remove_records()  # killed just before its end, it left them
        else:
            making = stack.enter_context(_local(spec, inputs) if ray is None else ray_engine.running(spec, inputs, ray))
            loaded = time.perf_counter()

            def advance(rows: int) -> None:
                nonlocal selected
                selected += rows
                if progress is not None:
                    progress(earlier + selected, total)

            advance(0)
            # The engine ends before the folder is left: none of its workers adds a file to one that was cleared.
            with begun(manifest, folder, new=before is None), stack.pop_all():
                if stop is None or not stop():
                    with closing(making(missing, JobFolder(folder, manifest.key), advance)) as records:
                        for record in records:
                            done[record.index] = record
                            if stop is not None and stop():
                                break
                changed = input_differences(files, described(inputs, "sampled"), full=False)
                if changed:
                    raise ValueError(f"select: inputs must not change while the job runs, got {'; '.join(changed)}")
        end = time.perf_counter()
    sums = totals(done.values())
    return Summary(
        queries=total,
        **sums,
        selected=sums["done"] - earlier,
        recall=Recall.total(record.recall for record in done.values() if record.recall is not None),
        unknown=sum(record.unknown or 0 for record in done.values()),
        seconds=end - loaded,
        corpus_seconds=loaded - start,
        method=spec.request.op,
        k=spec.request.k,
        pool="candidates" if inputs.candidates is not None else str(now["options"]["pool"] or "all"),
        backend=str(spec.request.backend),
        instruction_set=str(spec.instruction_set),
        num_threads=spec.request.num_threads or env.num_threads(),
        out=folder.path,
        engine=spec.engine,
    )


@contextmanager
def _local(spec: JobSpec, inputs: Inputs) -> Iterator[Records]:
    """Make shards in this process."""
    yield Worker(spec, inputs=inputs).write_shards
