"""The tables of arguments in docs/parameters.md: python -m benchmarks.reports.parameters

The rows are those of `ragsys_kernels.selection.parameters`, with what only the page says, and where each can be given.
"""

from __future__ import annotations

import inspect
from collections.abc import Container
from pathlib import Path

from ragsys_kernels import Corpus, offline
from ragsys_kernels.selection.parameters import BY_GROUP, OF_RESULT, RECENCY, TABLE, Parameter
from ragsys_kernels.serving.fields import LISTS_OF_RERANK, OF_PATH, OF_RERANK

PAGE = Path(__file__).resolve().parents[2] / "docs" / "parameters.md"
ALL = (*TABLE, *RECENCY)
HEAD = "| argument | meaning | value | default |\n|---|---|---|---|\n"
WHERE = "| where | without | values of each query |\n|---|---|---|\n"

# What follows the sentence of the table.
NOTES = {
    "relevance": "such as a reranker's",
    "relevance_scale": "[how it is computed](#the-scale-of-relevance)",
    "bias": "[how to compute one](quality.md)",
    "lambda_d": "1 is plain top-k, lower is more diverse: [what it does](#what-lambda_d-does)",
    "lambda_b": "1 ignores the bias",
    "query_groups": "leave-one-out",
    "max_per_group": "in functions also of each level of groups: [quotas](rules/constraints.md#quotas)",
    "min_per_group": "[quotas](rules/constraints.md#quotas)",
    "initial": "they count as earlier picks",
    "allowed": "[filters](#filters)",
    "exclude": "[filters](#filters)",
    "costs": "for example its tokens",
    "budget": "[budgets](rules/constraints.md)",
    "max_similarity": "[ceilings](rules/constraints.md)",
    "min_relevance": "[limits](rules/constraints.md); the bias does not count",
    "nearest": "`nearest` of the result, [how it counts](#which-pick-made-an-item-redundant)",
    "metric": "`dot` is the product of rows as they are",
    "half_life": "[newer first](hybrid.md#newer-first); with a corpus alone",
    "decay_floor": "relevance is multiplied by the larger of the decay and the floor",
    "now": "without, that of the call or of the job's begin",
    "decay": "[its form](hybrid.md#newer-first)",
}
_SHAPES = {
    ("ids", "query"): "ids (Q, any)", ("values", "item"): "numbers (N,), or (Q, P) for pools of vectors",
    ("values", "candidate"): "numbers (Q, P)", ("values", "aspect"): "numbers (Q, A)",
    ("vectors", "aspect"): "vectors (Q, A, D)",
}  # fmt: skip
_FORMS = {
    "groups": "integers or strings (N,); in functions also (N, L)", "query_groups": "integers or strings (Q,)",
    "candidates": "ids (Q, P)", "half_life": "a number above 0, or a timedelta",
    "now": "a number within [-2.6e+11, 2.6e+11], or a datetime, in UTC where it has no zone",
    **dict.fromkeys(BY_GROUP, "an integer at least 1, or a mapping of groups to integers at least 0"),
}  # fmt: skip
_FORMS |= dict.fromkeys(("allowed", "exclude"), "a mask (N,) or (Q, N), or ids (Q, any)")


def value_of(parameter: Parameter) -> str:
    """Return what an argument may be."""
    if parameter.name in _FORMS:
        return _FORMS[parameter.name]
    if parameter.choices:
        return ", ".join(f"`{word}`" for word in parameter.choices)
    if parameter.kind == "flag":
        return "true or false"
    if parameter.kind in ("number", "count"):
        first, *others = parameter.rules
        usual, each = parameter.rule_of(first), ", or one for each query" if parameter.of == "query" else ""
        but = "".join(f"; of {rule} {x}" for rule in others if (x := parameter.rule_of(rule)) != usual)
        return f"{'an integer' if parameter.kind == 'count' else 'a number'} {usual}{but}{each}"
    return _SHAPES[parameter.kind, parameter.of]


def row_of(parameter: Parameter) -> str:
    """Return the row of an argument."""
    notes = filter(None, (NOTES.get(parameter.name), parameter.rules_text() and f"*{parameter.rules_text()}*"))
    meaning = "; ".join((parameter.help, *notes))
    default = "" if parameter.default is None else parameter.default_text()
    default = f"`{default}`" if isinstance(parameter.default, (str, bool)) else default
    return f"| `{parameter.name}` | {meaning} | {value_of(parameter)} | {default} |\n".replace("|  |", "| |")


def table() -> str:
    """Return the whole table."""
    return HEAD + "".join(map(row_of, ALL))


def where() -> str:
    """Return the table of what each entrance does not take."""
    of_jobs = inspect.signature(offline.select).parameters
    each, one = "yes", "no: one for all queries"

    def row(place: str, taken: Container[str], own: str, rule: str | None = None) -> str:
        lacking = [x.name for x in ALL if x.name not in taken and (rule is None or rule in x.rules)]
        return f"| {place} | {', '.join(f'`{name}`' for name in lacking) or 'nothing'} | {own} |\n"

    rows = (
        row("functions", [x.name for x in TABLE], each),
        row("`Corpus.select`", inspect.signature(Corpus.select).parameters, each),
        row("`Corpus.subset`", inspect.signature(Corpus.subset).parameters, "one query"),
        row("`/v1/select` in JSON and Arrow, Flight, tensors", [x.name for x in ALL], each),
        row("rerank (candidates: its documents)", ("candidates", *OF_RERANK, *LISTS_OF_RERANK), "one query"),
        row("`/v1/path`, of MMR's", [x.name for x in OF_PATH], "one query", "mmr"),
        row("jobs, Ray, the command line", {*of_jobs, *(x.removesuffix("_column") for x in of_jobs)}, one),
        row("`torch.ops`, without mappings of groups", [x.name for x in TABLE if x.name not in OF_RESULT], one),
    )
    return WHERE + "".join(rows)


def written(page: str) -> str:
    """Return a page with the tables as they are now in the place of those that it has."""
    for head, now in ((HEAD, table()), (WHERE, where())):
        before, found, after = page.partition(head)
        rows = after.splitlines(keepends=True)
        end = next((n for n, line in enumerate(rows) if not line.startswith("|")), len(rows))
        page = before + now + "".join(rows[end:]) if found else page
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
