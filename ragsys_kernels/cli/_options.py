"""Options that more than one command has, in the same words."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from ._app import COLUMNS, INPUT, RULE, RUN, option

Queries = Annotated[str, option(INPUT, "Query vectors, of shape (Q, D), in any of these formats.", metavar="FILE")]
Candidates = Annotated[
    str | None,
    option(
        INPUT,
        "Corpus rows to choose from for each query: integers (Q, P), padded with -1, or a column of integer lists.",
        metavar="FILE",
        show_default="the --pool most relevant rows",
    ),
]
CandidateIds = Annotated[
    bool, option(INPUT, "Candidates are the corpus' ids, as picks of a job are, not row numbers.", "--candidate-ids")
]
Bias = Annotated[str | None, option(INPUT, "Quality of each corpus row, floats of shape (N,).", metavar="FILE")]
VectorColumn = Annotated[
    str | None, option(COLUMNS, "Column of the corpus vectors.", show_default="the only float list")
]
IdColumn = Annotated[str | None, option(COLUMNS, "Column of the corpus ids.", show_default="id, else row numbers")]
BiasColumn = Annotated[
    str | None, option(COLUMNS, "Column of the bias, in the file of --bias, else in that of --corpus.")
]
QueryVectorColumn = Annotated[
    str | None, option(COLUMNS, "Column of the query vectors.", show_default="the only float list")
]
QueryIdColumn = Annotated[str | None, option(COLUMNS, "Column of the query ids.", show_default="id, else row numbers")]
CandidateColumn = Annotated[
    str | None, option(COLUMNS, "Column of the candidate rows.", show_default="the only integer list")
]


class BadRows(str, Enum):
    raise_ = "raise"
    skip = "skip"


class OnDuplicate(str, Enum):
    error = "error"
    first = "first"
    last = "last"


OfBadRows = Annotated[
    BadRows,
    option(
        INPUT,
        "What a row does that cannot be used: no vector, NaN, another length. skip leaves it out, and OUT.skipped.csv "
        "lists it with id and reason.",
        "--bad-rows",
    ),
]
OfDuplicates = Annotated[
    OnDuplicate,
    option(INPUT, "Which of several rows with one id is kept; OUT.skipped.csv lists the others.", "--on-duplicate"),
]
K = Annotated[int, option(RULE, "Number of picks for each query.", metavar="N")]
Quiet = Annotated[bool, option(RUN, "Print only warnings and errors.", "--quiet")]
