"""The command ``compare``: rules of selection on one's own corpus and queries, as a report."""

from __future__ import annotations

from typing import Annotated, Any

from .. import comparison
from . import _options
from ._app import COLUMNS, INPUT, RULE, RUN, app, option, run
from ._options import Quiet
from ._takes import takes


@app.command()
@takes(
    comparison.compare_files,
    corpus=option(INPUT, "Saved corpus, or vectors of shape (N, D) in any format that select takes.", metavar="PATH"),
    queries=_options.QUERIES,
    out=option(INPUT, "Folder of the report: new, empty, or of the same comparison, which goes on.", metavar="DIR"),
    candidates=_options.CANDIDATES,
    candidate_ids=_options.CANDIDATE_IDS,
    qrels=option(INPUT, "Relevance judgements: query, 0 or subtopic, document and grade in each line.", metavar="FILE"),
    bias=_options.BIAS,
    texts=option(INPUT, "Texts of the corpus rows, for examples: .txt, or a file with a column.", metavar="FILE"),
    query_texts=option(INPUT, "Texts of the queries, in any of these formats.", metavar="FILE"),
    title=option(INPUT, "Title of the report.", show_default="Which rule for the corpus' name?"),
    bad_rows=_options.BAD_ROWS,
    on_duplicate=_options.ON_DUPLICATE,
    overwrite=option(INPUT, "Discard a comparison of other inputs or options at --out."),
    vector_column=_options.VECTOR_COLUMN,
    id_column=_options.ID_COLUMN,
    bias_column=_options.BIAS_COLUMN,
    text_column=option(
        COLUMNS, "Column of the texts, in the file of --texts, else in that of --corpus.", show_default="text"
    ),
    query_vector_column=_options.QUERY_VECTOR_COLUMN,
    query_id_column=_options.QUERY_ID_COLUMN,
    query_text_column=option(
        COLUMNS,
        "Column of the queries' texts, in the file of --query-texts, else in that of --queries.",
        show_default="text",
    ),
    candidate_column=_options.CANDIDATE_COLUMN,
    k=_options.K,
    pool=option(RULE, "Number of most relevant rows to choose from.", metavar="N", show_default="100"),
    methods=Annotated[
        str | None,
        option(
            RULE,
            "What is compared beside top-k and random picks, as in mmr:0.9/0.5,vrsd: mmr, msd, dpp, ssd, gist, "
            "coverage or its kinds facility, cover, xquad, each with its λ after a colon; ceiling, vrsd, sift.",
            metavar="NAMES",
            show_default="all",
        ),
    ],
    lambda_b=option(RULE, "Weight of similarity against bias, from 0 to 1."),
    metric=option(RULE, "Similarity of vectors.", show_default="that of a saved corpus, else cosine"),
    max_loss=option(RULE, "Share of top-k's usefulness, or relevance, that a recommended method may cost."),
    sample=option(RUN, "Number of queries that are drawn; 0 takes all.", metavar="N"),
    seed=option(RUN, "Seed of the sample, of random picks and of the bootstrap.", metavar="N"),
    peers=option(RUN, "Time other libraries that are installed on the same pools."),
    whole=option(
        RUN,
        "Number of queries for which MMR and VRSD choose out of the whole corpus too: how large a pool is needed.",
        metavar="N",
    ),
    num_threads=option(RUN, "Number of threads; methods are timed with as many.", metavar="N"),
)
def compare(quiet: Quiet = False, **given: Any) -> None:
    """Compare rules of selection on your own corpus and queries, and recommend one.

    Every rule chooses out of the same pools. The report, report.html and report.md in --out, has a table with 95 %
    intervals of relevance, redundancy, coverage and time, with --qrels of nDCG, recall and MRR too, the trade-off as a
    plot, examples side by side, and a recommendation with the rule that it follows. A run that was stopped goes on when
    the same command is run again. Needs the extra compare.
    """
    names = given.pop("methods")
    given["methods"] = None if names is None else [name.strip() for name in names.split(",")]
    given["sample"] = given["sample"] or None
    bar = ("methods", "reading the corpus", "comparing")
    run("compare", quiet, bar, lambda progress: comparison.compare_files(progress=progress, **given), noted=True)
