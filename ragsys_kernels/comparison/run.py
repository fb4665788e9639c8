"""`compare`: every method on the same pools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from .._base import checks
from .._base.files import check_local
from .._base.types import ArrayLike, PathLike
from ..corpus import Corpus
from . import advice, table, work
from . import curve as curves
from . import examples as shown
from . import peers as others
from . import qrels as judgements
from . import sizes as pool_sizes
from .problem import prepare
from .result import Comparison
from .settings import OP, TOP, settings
from .store import Store
from .write import REPORT_FILES, check_plots, write

Progress = Callable[[int, int], None]


def compare(
    corpus: Corpus | ArrayLike,
    queries: ArrayLike,
    *,
    candidates: ArrayLike | None = None,
    qrels: PathLike | Mapping[Any, Mapping[Any, int]] | None = None,
    query_ids: Sequence[Any] | ArrayLike | None = None,
    texts: Sequence[str] | None = None,
    query_texts: Sequence[str] | None = None,
    k: int = 6,
    pool: int | None = None,
    methods: Sequence[str] | Mapping[str, tuple[str, Mapping[str, Any]]] | None = None,
    lambda_b: float = 0.95,
    sample: int | None = 1000,
    seed: int = 0,
    max_loss: float = 0.05,
    samples: int = 10_000,
    level: float = 0.95,
    peers: bool = True,
    whole: int = 50,
    num_threads: int | None = 1,
    out: PathLike | None = None,
    overwrite: bool = False,
    title: str = "Which rule for this corpus?",
    about: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare rules of selection on one's own corpus and queries, all on the same pools.

    Every method picks k rows for each query out of the same pool. What the picks are worth is measured, with paired
    bootstrap intervals over the queries, and a method is recommended by a rule that the report states. Plain top-k, MMR
    with ``lambda_d=1``, and random picks out of the pool always take part.

    Parameters
    ----------
    corpus : Corpus, or (N, D) floating point
        On the host. Its bias, if it has one, acts in the pools and in every rule that takes one.
    queries : (Q, D) floating point
    candidates : (Q, P) int32 | int64, optional
        Pools of another retriever as rows of the corpus, padded with -1. Default: the ``pool`` nearest rows, exactly.
    qrels : path, or mapping, optional
        Relevance judgements: a file in the format of TREC (query, 0 or a subtopic, document, grade), or grades by
        document by query. Queries that have no relevant document are left out. Names are those of ``query_ids`` and of
        ``corpus.ids``.
    query_ids : (Q,) str or integers, optional
        What the queries are called. Default: their numbers from 0.
    texts, query_texts : (N,) and (Q,) str, optional
        Shown in the examples.
    k : int
        Picks of a query.
    pool : int, optional
        Rows that are retrieved for each query, above k. Default: 100. Not with ``candidates``.
    methods : sequence of str, or mapping, optional
        Names such as "vrsd", "mmr" (at its usual weights) or "mmr:0.9/0.5" (at these λ_d); "all" is the default: mmr,
        msd, dpp, ssd, facility, cover and xquad (together: coverage), gist, ceiling (top-k without near-duplicates),
        vrsd, sift. Or labels that map to a rule of `METHODS` and a dictionary of its arguments.
    lambda_b : float, in [0, 1]
        Weight of relevance against the bias, where there is one.
    sample : int or None
        How many queries are drawn, without replacement; None: all.
    seed : int
        Of the sample, of random picks and of the bootstrap.
    max_loss : float
        How much of top-k's usefulness, or of its relevance without judgements, a recommended method may cost, as a
        share; its picks must be less alike by as much.
    samples : int
        Bootstrap samples.
    level : float
        Of the intervals.
    peers : bool
        Time langchain-core and pyversity on the same pools, where they are installed.
    whole : int
        For so many queries MMR and VRSD choose out of the whole corpus too, which shows how large a pool should be; 0
        leaves that out. Not with ``candidates``.
    num_threads : int or None
        Threads while methods are timed; None: all.
    out : path, optional
        Local folder for the report: ``report.html``, ``report.md``, ``curve.png``, ``curve.svg``, ``metrics.csv`` and
        ``queries.csv``. Needs matplotlib. What is done is kept there, so that a run that was killed goes on when it is
        started again; a method that is added later is the only one that is run.
    overwrite : bool
        Discard an earlier comparison of other inputs at `out`.
    title : str
        Of the report.
    about : mapping, optional
        More that the report's table of the configuration says.
    progress : callable, optional
        Called with how many methods are done, and how many there are.

    Returns
    -------
    Comparison
        As text, a table and the recommendation.

    Raises
    ------
    ValueError, TypeError
        Arguments that do not fit; a pool no larger than k; names that the judgements do not know; an `out` with a
        comparison of other inputs.
    FileExistsError
        `out` holds anything but a comparison.

    Notes
    -----
    1,000 queries over 400,000 rows of 50 dimensions take some seconds, of which most are the bootstrap and the rules
    that look at all pairs of a pool.

    Examples
    --------
    >>> import numpy as np
    >>> from ragsys_kernels.comparison import compare
    >>> rng = np.random.default_rng(0)
    >>> rows, queries = (rng.standard_normal((n, 8), dtype=np.float32) for n in (500, 40))
    >>> found = compare(rows, queries, k=4, pool=30, methods=["mmr:0.75/0.5", "vrsd"], samples=500)
    >>> found.advice.setting
    'mmr:0.75'
    """
    samples = checks.count(OP, "samples", samples)
    checks.function(OP, "progress", progress)
    whole, seed = checks.whole(OP, "whole", whole), checks.whole(OP, "seed", seed)
    for name, natural in (("whole", whole), ("seed", seed)):
        if natural < 0:
            raise ValueError(f"{OP}: {name} must be at least 0, got {natural}")
    for name, share in (("max_loss", max_loss), ("lambda_b", lambda_b)):
        if not 0 <= checks.number(OP, name, share) <= 1:
            raise ValueError(f"{OP}: {name} must be within [0, 1], got {share}")
    if not 0 < checks.number(OP, "level", level) < 1:
        raise ValueError(f"{OP}: level must be within (0, 1), got {level}")
    num_threads = checks.threads(OP, num_threads)
    if out is not None:
        check_local(OP, "out", out)
    for name, given, rows in (("texts", texts, corpus), ("query_texts", query_texts, queries)):
        if given is not None and len(given) != len(rows):  # type: ignore[arg-type]
            raise ValueError(f"{OP}: {name} must have one text for each row, got {len(given)}")
    known = None if qrels is None else judgements.given(qrels)
    problem = prepare(
        corpus,
        queries,
        candidates=candidates,
        judgements=known,
        query_ids=query_ids,
        k=k,
        pool=pool,
        lambda_b=lambda_b,
        sample=sample,
        seed=seed,
        num_threads=num_threads,
    )
    chosen = settings(methods, biased=problem.biased)
    if out is not None:
        check_plots()
    store = Store(out, problem.described(), reports=REPORT_FILES, overwrite=checks.flag(OP, "overwrite", overwrite))
    outcomes = {}
    for done, setting in enumerate(chosen):
        if progress is not None:
            progress(done, len(chosen))
        outcomes[setting.name] = store.outcome(setting, partial(work.run, problem, setting, chosen[0]))
    values = table.per_query(chosen, outcomes)
    found = table.figures(chosen, outcomes, values, samples=samples, level=level, seed=seed)
    indices = {name: outcome.indices for name, outcome in outcomes.items()}
    told = advice.advise(chosen, found, max_loss=max_loss, level=level)
    alike = values[TOP]["similarity"]
    comparison = Comparison(
        title=title,
        settings=chosen,
        query_ids=problem.query_ids,
        indices=indices,
        values=values,
        figures=found,
        advice=told,
        curve=curves.curve(problem, table.usefulness(found), store.kept),
        peers=others.peers(problem) if peers else [],
        sizes=pool_sizes.sizes(problem, chosen, whole, store.kept),
        examples=shown.examples(problem, shown.shown(chosen, told.setting), indices, alike, texts, query_texts),
        problem=problem,
        samples=samples,
        level=level,
        max_loss=max_loss,
        out=store.folder,
    )
    if store.folder is not None:
        write(comparison, store.folder, dict(about or {}))
    return comparison
