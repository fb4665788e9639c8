"""The command ``compare``: rules of selection on one's own corpus and queries, as a report."""

from __future__ import annotations

from typing import Annotated

import typer

from .. import comparison
from ._app import COLUMNS, INPUT, RESUMABLE, RULE, RUN, app, notices, one_line_errors, option, progress_bar
from ._options import (
    BadRows,
    Bias,
    BiasColumn,
    CandidateColumn,
    CandidateIds,
    Candidates,
    IdColumn,
    K,
    OfBadRows,
    OfDuplicates,
    OnDuplicate,
    Queries,
    QueryIdColumn,
    QueryVectorColumn,
    Quiet,
    VectorColumn,
)
from .files import Metric


@app.command()
def compare(
    corpus: Annotated[
        str,
        option(INPUT, "Saved corpus, or vectors of shape (N, D) in any format that select takes.", metavar="PATH"),
    ],
    queries: Queries,
    out: Annotated[
        str,
        option(INPUT, "Folder of the report: new, empty, or of the same comparison, which goes on.", metavar="DIR"),
    ],
    candidates: Candidates = None,
    candidate_ids: CandidateIds = False,
    qrels: Annotated[
        str | None,
        option(INPUT, "Relevance judgements: query, 0 or subtopic, document and grade in each line.", metavar="FILE"),
    ] = None,
    bias: Bias = None,
    texts: Annotated[
        str | None,
        option(INPUT, "Texts of the corpus rows, for examples: .txt, or a file with a column.", metavar="FILE"),
    ] = None,
    query_texts: Annotated[
        str | None, option(INPUT, "Texts of the queries, in any of these formats.", metavar="FILE")
    ] = None,
    title: Annotated[
        str | None, option(INPUT, "Title of the report.", show_default="Which rule for the corpus' name?")
    ] = None,
    bad_rows: OfBadRows = BadRows.raise_,
    on_duplicate: OfDuplicates = OnDuplicate.error,
    overwrite: Annotated[
        bool, option(INPUT, "Discard a comparison of other inputs or options at --out.", "--overwrite")
    ] = False,
    vector_column: VectorColumn = None,
    id_column: IdColumn = None,
    bias_column: BiasColumn = None,
    text_column: Annotated[
        str | None,
        option(COLUMNS, "Column of the texts, in the file of --texts, else in that of --corpus.", show_default="text"),
    ] = None,
    query_vector_column: QueryVectorColumn = None,
    query_id_column: QueryIdColumn = None,
    query_text_column: Annotated[
        str | None,
        option(
            COLUMNS,
            "Column of the queries' texts, in the file of --query-texts, else in that of --queries.",
            show_default="text",
        ),
    ] = None,
    candidate_column: CandidateColumn = None,
    k: K = 6,
    pool: Annotated[
        int | None, option(RULE, "Number of most relevant rows to choose from.", metavar="N", show_default="100")
    ] = None,
    methods: Annotated[
        str | None,
        option(
            RULE,
            "What is compared beside top-k and random picks, as in mmr:0.9/0.5,vrsd: mmr, msd, dpp, ssd, gist, "
            "coverage or its kinds facility, cover, xquad, each with its λ after a colon; ceiling, vrsd, sift.",
            metavar="NAMES",
            show_default="all",
        ),
    ] = None,
    lambda_b: Annotated[float, option(RULE, "Weight of similarity against bias, from 0 to 1.")] = 0.95,
    metric: Annotated[
        Metric | None,
        option(RULE, "Similarity of vectors.", show_default="that of a saved corpus, else cosine"),
    ] = None,
    max_loss: Annotated[
        float,
        option(RULE, "Share of top-k's usefulness, or relevance, that a recommended method may cost."),
    ] = 0.05,
    sample: Annotated[int, option(RUN, "Number of queries that are drawn; 0 takes all.", metavar="N")] = 1000,
    seed: Annotated[int, option(RUN, "Seed of the sample, of random picks and of the bootstrap.", metavar="N")] = 0,
    peers: Annotated[
        bool, option(RUN, "Time other libraries that are installed on the same pools.", "--peers/--no-peers")
    ] = True,
    whole: Annotated[
        int,
        option(
            RUN,
            "Number of queries for which MMR and VRSD choose out of the whole corpus too: how large a pool is needed.",
            metavar="N",
        ),
    ] = 50,
    num_threads: Annotated[int, option(RUN, "Number of threads; methods are timed with as many.", metavar="N")] = 1,
    quiet: Quiet = False,
) -> None:
    """Compare rules of selection on your own corpus and queries, and recommend one.

    Every rule chooses out of the same pools. The report, report.html and report.md in --out, has a table with 95 %
    intervals of relevance, redundancy, coverage and time, with --qrels of nDCG, recall and MRR too, the trade-off as a
    plot, examples side by side, and a recommendation with the rule that it follows. A run that was stopped goes on when
    the same command is run again. Needs the extra compare.
    """
    with (
        one_line_errors("compare", RESUMABLE),
        notices(quiet),
        progress_bar(quiet, "methods", "reading the corpus", "comparing") as progress,
    ):
        found = comparison.compare_files(
            corpus=corpus,
            queries=queries,
            out=out,
            candidates=candidates,
            candidate_ids=candidate_ids,
            qrels=qrels,
            bias=bias,
            texts=texts,
            query_texts=query_texts,
            vector_column=vector_column,
            id_column=id_column,
            bias_column=bias_column,
            text_column=text_column,
            query_vector_column=query_vector_column,
            query_id_column=query_id_column,
            query_text_column=query_text_column,
            candidate_column=candidate_column,
            k=k,
            pool=pool,
            methods=None if methods is None else [name.strip() for name in methods.split(",")],
            lambda_b=lambda_b,
            metric=None if metric is None else metric.value,
            sample=sample or None,
            seed=seed,
            max_loss=max_loss,
            peers=peers,
            whole=whole,
            num_threads=num_threads,
            overwrite=overwrite,
            title=title,
            bad_rows=bad_rows.value,
            on_duplicate=on_duplicate.value,
            progress=progress,
        )
    if not quiet:
        typer.echo(found)
