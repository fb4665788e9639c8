"""Options that more than one command has, in the same words."""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from datetime import datetime, timezone
from typing import Annotated, Any

import typer

from ..selection.parameters import SCALARS
from ._app import COLUMNS, INPUT, RULE, RUN, option

QUERIES = option(INPUT, "Query vectors, of shape (Q, D), in any of these formats.", metavar="FILE")
CANDIDATES = option(
    INPUT,
    "Corpus rows to choose from for each query: integers (Q, P), padded with -1, or a column of integer lists.",
    metavar="FILE",
    show_default="the --pool most relevant rows",
)
CANDIDATE_IDS = option(INPUT, "Candidates are the corpus' ids, as picks of a job are, not row numbers.")
BIAS = option(INPUT, "Quality of each corpus row, floats of shape (N,).", metavar="FILE")
VECTOR_COLUMN = option(COLUMNS, "Column of the corpus vectors.", show_default="the only float list")
ID_COLUMN = option(COLUMNS, "Column of the corpus ids.", show_default="id, else row numbers")
BIAS_COLUMN = option(COLUMNS, "Column of the bias, in the file of --bias, else in that of --corpus.")
GROUP_COLUMN = option(COLUMNS, "Column of the groups, in the file of --groups, else in that of --corpus.")
COST_COLUMN = option(COLUMNS, "Column of the costs, in the file of --costs, else in that of --corpus.")
TIME_COLUMN = option(COLUMNS, "Column of the times, in the file of --time, else in that of --corpus.")
QUERY_VECTOR_COLUMN = option(COLUMNS, "Column of the query vectors.", show_default="the only float list")
QUERY_ID_COLUMN = option(COLUMNS, "Column of the query ids.", show_default="id, else row numbers")
CANDIDATE_COLUMN = option(COLUMNS, "Column of the candidate rows.", show_default="the only integer list")
BAD_ROWS = option(
    INPUT,
    "How to treat a row that cannot be used: no vector, NaN, another length. skip leaves it out, and OUT.skipped.csv "
    "lists it with id and reason.",
)
ON_DUPLICATE = option(INPUT, "Which of several rows with one id is kept; OUT.skipped.csv lists the others.")
K = option(RULE, "Number of picks for each query.", metavar="N")
Quiet = Annotated[bool, option(RUN, "Print only warnings and errors.", "--quiet")]


def of_table(but: Collection[str]) -> dict[str, Any]:
    """Return the options of a command that are arguments of a selection, but those of some names."""
    found: dict[str, Any] = {}
    for parameter in (each for each in SCALARS if each.name not in but):
        limits = f", {parameter.rule_of('')}" if math.isfinite(parameter.range_of("")[1]) else ""
        rules = f"; {text}" if (text := parameter.rules_text()) else ""
        of = ", or of some groups by name" if parameter.by_group else ""
        metavar: dict[str, Any] = {"metavar": "N"} if parameter.kind == "count" else {}
        if parameter.by_group:
            metavar = {"metavar": "N|NAME=N,..", "parser": quotas}
        default = {} if parameter.kind == "flag" else {"show_default": parameter.default_text()}
        found[parameter.name] = option(RULE, f"{parameter.help}{of}{limits}{rules}.", **metavar, **default)
    return found


def quotas(text: str) -> int | dict[str, Any]:
    """Read 2, or of single groups news=2,law=1, or a JSON object, whose names may have "=" and ","."""
    if text.lstrip("-").isdigit():
        return int(text)
    try:
        if text.startswith("{"):
            pairs = json.loads(text, object_pairs_hook=list)
        else:
            pairs = [(name, int(number)) for name, number in (each.split("=") for each in text.split(","))]
    except ValueError:
        raise typer.BadParameter("must be an integer, NAME=N,.., or a JSON object where names have = or ,") from None
    found = dict(pairs)
    if len(found) < len(pairs):
        raise typer.BadParameter("must name each group once")
    return found


def seconds(text: str) -> float:
    """Read 60, 60s, 5m, 1h or 7d."""
    factor = {"s": 1, "m": 60, "h": 3600, "d": 86_400}.get(text[-1:], 0)
    try:
        found = float(text[:-1] if factor else text) * (factor or 1)
    except ValueError:
        found = 0.0
    if not 0 < found < math.inf:
        raise typer.BadParameter("must be a time above 0, as 60s, 5m, 1h or 7d")
    return found


def moment(text: str) -> float:
    """Read seconds since 1970, or a time as ISO 8601 writes it, of UTC where it names no other zone."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter("must be seconds since 1970 or a time, as 2026-03-31 or 2026-03-31T12:00") from None
    return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()
