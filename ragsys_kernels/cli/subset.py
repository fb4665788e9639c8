"""The commands over a whole data set: ``subset`` chooses a part of it, ``dedupe`` takes near-duplicates out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .. import offline
from ..offline.picks import file_beside
from ..selection.continued import RULES
from ..selection.parameters import OF_RESULT, RECENCY
from . import _options
from ._app import COLUMNS, INPUT, INTERRUPTED, RESUMABLE, RULE, RUN, app, one_line_errors, option, progress_bar, run
from ._options import Quiet
from ._takes import takes

_CORPUS = option(
    INPUT,
    "Vectors, of shape (N, D): path or URL in any format that select takes, or a folder of corpus build.",
    metavar="FILE",
)
_QUALITY = option(
    INPUT, "Column of --corpus with the quality of each row; of a folder of corpus build: bias.", metavar="NAME"
)
_METRIC = option(
    RULE,
    "Similarity of vectors: cosine normalises them, dot takes them as they are.",
    show_default="that of a saved corpus, else cosine",
)
_DTYPE = option(
    RUN, "Type of the corpus in memory.", metavar="DTYPE", show_default="that of a saved corpus, else float32"
)
_MEMORY = option(
    RUN, "Refuse a corpus whose rows take more memory, before they are read.", metavar="2G", show_default="no limit"
)
_ROWS = option(
    INPUT,
    "Write the columns of --corpus, a table, too. A column of the result that it has gets the command before its name.",
)
_OVERWRITE = option(INPUT, "Replace existing files.")
_BACKEND = option(RUN, "Backend: auto, cpu or reference.")
_THREADS = option(RUN, "Number of threads.", metavar="N", show_default="one per core")


def _ids(text: str) -> Any:
    return option(INPUT, f"{text}: ids one a line, or a column id; row numbers without ids.", metavar="FILE")


@app.command()
@takes(
    offline.subset,
    corpus=_CORPUS,
    out=option(INPUT, "Parquet file of the chosen rows, in the order in which they were chosen.", metavar="FILE"),
    quality=_QUALITY,
    targets=option(INPUT, "Vectors that the rows are to be relevant to, in any of these formats.", metavar="FILE"),
    index=option(
        INPUT,
        "FAISS index, or usearch's (NAME.usearch), over the corpus: finds --neighbors.",
        metavar="FILE",
        show_default="that of a corpus of corpus build --index, else exact search",
    ),
    exact=option(INPUT, "Find --neighbors exactly, also where the corpus has an index."),
    initial=_ids("Rows already chosen, which the others are to be unlike"),
    allowed=_ids("The only rows to choose from"),
    exclude=_ids("Rows not to choose"),
    rows=_ROWS,
    overwrite=_OVERWRITE,
    vector_column=_options.VECTOR_COLUMN,
    id_column=_options.ID_COLUMN,
    group_column=option(COLUMNS, "Column of the groups, for --max-per-group and --min-per-group."),
    cost_column=option(COLUMNS, "Column of the costs, for --budget."),
    target_column=option(COLUMNS, "Column of the targets' vectors.", show_default="the only float list"),
    k=option(RULE, "Number of rows to choose.", metavar="N"),
    rule=option(RULE, "Rule: mmr, msd, dpp, ssd, coverage or gist; with --targets also vrsd or sift."),
    target_relevance=option(RULE, "With --targets, relevance to them: the mean of the similarities, or the largest."),
    neighbors=option(
        RULE, "Of coverage: how many nearest rows of each may cover it.", metavar="N", show_default="all rows"
    ),
    relevance_scale=option(
        RULE, "With --targets, how to rescale that relevance: by its range, to z-scores, or to ranks."
    ),
    **_options.of_table(but=("relevance_scale", "metric", *OF_RESULT, *(each.name for each in RECENCY))),
    metric=_METRIC,
    dtype=_DTYPE,
    backend=_BACKEND,
    num_threads=_THREADS,
    memory=_MEMORY,
)
def subset(quiet: Quiet = False, **given: Any) -> None:
    """Choose rows of a whole data set without queries, exactly: unlike each other, of quality, relevant to targets.

    Each row of the result has rank, id, row, score, relevance and redundancy. With --lambda-d 0 the rows are spread as
    the greedy algorithm for k centers spreads them; quality weighs lambda_d (1 - lambda_b) against 1 - lambda_d of
    redundancy, so that --lambda-b 0 leaves the choice to --lambda-d alone. The picks so far are kept in OUT.picks every
    5 seconds, and the same command goes on from them; not by coverage and GIST.
    """

    def interrupted() -> str:
        return RESUMABLE if given["rule"] in RULES and file_beside(Path(given["out"])).exists() else INTERRUPTED

    bar = ("rows", "reading the corpus", "choosing")
    run("subset", quiet, bar, lambda each: offline.subset(progress=each, **given), True, interrupted)


@app.command()
@takes(
    offline.dedupe,
    corpus=_CORPUS,
    out=option(INPUT, "Parquet file of the rows that are kept.", metavar="FILE"),
    removed=option(INPUT, "Parquet file of the others, each with the row that stands for it.", metavar="FILE"),
    pairs=option(INPUT, "Parquet file of all similar pairs.", metavar="FILE"),
    quality=_QUALITY,
    index=option(
        INPUT,
        "FAISS index, or usearch's (NAME.usearch), over the corpus: approximate, and its recall is said.",
        metavar="FILE",
        show_default="exact search",
    ),
    rows=_ROWS,
    overwrite=_OVERWRITE,
    vector_column=_options.VECTOR_COLUMN,
    id_column=_options.ID_COLUMN,
    threshold=option(RULE, "Similarity from which a row is a duplicate of another.", metavar="X"),
    groups=option(RULE, "Add to each row its group: the lowest row that similar pairs connect it with."),
    neighbors=option(RULE, "With --index: rows that it finds for each.", metavar="N", show_default="32"),
    metric=_METRIC,
    dtype=_DTYPE,
    backend=_BACKEND,
    num_threads=_THREADS,
    memory=_MEMORY,
)
def dedupe(quiet: Quiet = False, **given: Any) -> None:
    """Take near-duplicates out of a data set, exactly.

    A row is kept unless its similarity to one kept before is at least --threshold; of two similar rows the first is
    kept, or with --quality the better one.
    """
    bar = ("rows", "reading the corpus", "comparing")
    with one_line_errors("dedupe"), progress_bar(quiet, *bar) as progress:
        summary = offline.dedupe(progress=progress, **given)
    if not quiet:
        print(summary)
