"""The table of arguments in docs/parameters.md: python -m benchmarks.reports.parameters

Its rows are those of `ragsys_kernels.selection.parameters`, with what only the page says.
"""

from __future__ import annotations

from pathlib import Path

from ragsys_kernels.selection.parameters import TABLE, Parameter

PAGE = Path(__file__).resolve().parents[2] / "docs" / "parameters.md"
HEAD = "| argument | meaning | value | default |\n|---|---|---|---|\n"

# What follows the sentence of the table.
NOTES = {
    "relevance": "such as a reranker's",
    "relevance_scale": "[how it is computed](#the-scale-of-relevance)",
    "bias": "[how to compute one](quality.md)",
    "lambda_d": "1 is plain top-k, lower is more diverse: [what it does](#what-lambda_d-does)",
    "lambda_b": "1 ignores the bias",
    "query_groups": "leave-one-out",
    "initial": "they count as earlier picks",
    "allowed": "[filters](#filters)",
    "exclude": "[filters](#filters)",
    "costs": "for example its tokens",
    "budget": "[budgets](rules/constraints.md)",
    "max_similarity": "[ceilings](rules/constraints.md)",
    "min_relevance": "[limits](rules/constraints.md); the bias does not count",
    "metric": "`dot` is the product of rows as they are",
}
_SHAPES = {
    ("ids", "query"): "ids (Q, any)", ("values", "item"): "numbers (N,), or (Q, P) for pools of vectors",
    ("values", "candidate"): "numbers (Q, P)", ("values", "aspect"): "numbers (Q, A)",
    ("vectors", "aspect"): "vectors (Q, A, D)",
}  # fmt: skip
_FORMS = {"groups": "integers or strings (N,)", "query_groups": "integers or strings (Q,)", "candidates": "ids (Q, P)"}
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
        kind = "an integer" if parameter.kind == "count" else "a number"
        return f"{kind if usual == kind else f'{kind} {usual}'}{but}{each}"
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
    return HEAD + "".join(map(row_of, TABLE))


def written(page: str) -> str:
    """Return a page with the table as it is now in the place of the one that it has."""
    before, _, after = page.partition(HEAD)
    rows = after.splitlines(keepends=True)
    end = next((n for n, line in enumerate(rows) if not line.startswith("|")), len(rows))
    return before + table() + "".join(rows[end:])


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
