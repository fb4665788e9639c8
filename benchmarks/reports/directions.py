"""One table over the four papers: what each table and figure finds, what is found here, and whether it is the same.

Of the pages of results/ that `benchmarks.reports.papers` has taken; it calls this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.reports.page_plots import numbers, table

HEADER = ("paper", "where", "it finds", "here", "same direction?", "why, where it is not yes")
EARLIER = ("its page is of an earlier run, without directions", "undecided")
Row = tuple[str, str, str, str, str, str]

LIKENESS = "picks' mean cosine"
SMALL = "a model of 135 million parameters instead of 7 billion and more; small differences need more questions"
YES_NO = "a small model that answers yes or no; BoolQ's questions and passages instead of the paper's and Wikipedia"
FAR = "the collection is BoolQ's and other articles of WikiText: a document costs more than it says"


def tally(values: list[str]) -> tuple[str, str]:
    """Return how often each answer stands in a column, and the answer to the whole."""
    counts = Counter(values)
    said = ", ".join(
        f"{counts[answer]} {answer}" for answer in ("yes", "undecided", "no", "models differ") if counts[answer]
    )
    decided = {answer for answer in ("yes", "no") if counts[answer]}
    if decided == {"yes", "no"}:
        return said, "in part"
    if not decided:
        return said, "undecided"
    return said, f"{decided.pop()}{', where decided' if counts['undecided'] else ''}"


def known(page: Path, heading: str) -> bool:
    """Say whether a page has a section; one of an earlier run may lack it."""
    return f"# {heading}\n" in page.read_text(encoding="utf-8")


def _vrsd(out: Path) -> Iterator[Row]:
    page = out / "papers-vrsd.md"
    rows = table(page, "Table 1: win rate and largest difference")
    above = sum(numbers(row["mean difference"])[1] > 0 for row in rows)
    _, same = tally(["yes" if numbers(row["mean difference"])[1] > 0 else "undecided" for row in rows])
    yield (
        "VRSD", "Table 1", "the sum of VRSD's picks is nearer to the query than MMR's: 3 sets, 3 λ",
        f"{above} of {len(rows)} above, 0 outside the interval", same, "",
    )  # fmt: skip
    rows = [row for row in table(page, "Table 3, retrieval part: cosine top-k and BM25") if row["VRSD wins"]]
    rows = [row for row in rows if row["method"] in ("cosine top-k", "BM25 (Okapi)")]
    most = sum(numbers(row["VRSD wins"])[0] > 50 for row in rows)
    yield (
        "VRSD", "Table 3", "so it is than that of cosine top-k and BM25: 3 sets",
        f"{most} of {len(rows)}: VRSD wins most queries", "yes" if most == len(rows) else "in part", "",
    )  # fmt: skip
    answers = out / "papers-vrsd-answers.md"
    said, same = EARLIER
    if known(answers, "The paper's directions"):
        said, same = tally([row["same direction?"] for row in table(answers, "The paper's directions")])
    yield (
        "VRSD", "Tables 2, 3", "answers after VRSD's picks are better than after MMR's and BM25's", said, same,
        "" if same == "yes" else SMALL,
    )  # fmt: skip
    for model, suffix in (("", ""), (", Gemma 3 270M", "-gemma3")):
        scores = out / f"papers-vrsd-answers-scores{suffix}.md"
        if not scores.is_file():
            continue
        rows = table(scores, "The paper's directions")
        for measure in dict.fromkeys(row["measure"] for row in rows):
            said, same = tally([row["same direction?"] for row in rows if row["measure"] == measure])
            yield (
                "VRSD", f"Tables 2, 3{model}", f"the same by {measure}, which the paper has not", said, same,
                "" if same == "yes" else SMALL,
            )  # fmt: skip
    yield "VRSD", "Figure 1", "geometry of MMR's and VRSD's picks", "[drawn](vrsd.md)", "no result", ""
    yield "VRSD", "Theorem 1", "the problem is NP-complete, by the subset sum", "the reduction is a test", "yes", ""


def _ragsys(out: Path) -> Iterator[Row]:
    rows = table(out / "papers-ragsys.md", "The paper's directions")
    for one, text in (
        ("Rel over Fix", "relevant demonstrations are better than fixed ones"),
        ("Rel+Div over Rel", "diverse ones are better than the most relevant"),
        ("Rel+Div+Bias over Rel+Bias", "so they are with bias"),
        ("Bias over Fix", "the bias alone, against fixed ones"),
        ("Rel+Bias over Rel", "the bias with relevance"),
        ("Rel+Div+Bias over Rel+Div", "the bias with both"),
    ):
        said, same = tally([row["same direction?"] for row in rows if row["ordering"] == one])
        why = "" if same == "yes" else SMALL
        if same == "undecided" and "differ" in said:
            same = "the paper's models differ"
        yield "RAGSys", "Tables 1, 2", f"{text} (4 metrics)", said, same, why
    page = out / "papers-ragsys-figure1.md"
    if page.is_file():
        rows = [row for row in table(page, "Figure 1: diversity and DPO") if row["λ_b"] != "no bias"]
        best = next(row for row in rows if row["DPO minus the best"] == "best")
        ends = [row["DPO minus the best"] for row in (rows[0], rows[-1])]
        inside = "best" not in ends
        decided = inside and all("**" in end for end in ends)
        same = "yes" if decided else "undecided"
        said = f"best at λ_d = {best['λ_d']}, picks' mean cosine {best[LIKENESS]}"
        why = "" if decided else f"the ends are not told from the best: {ends[0]} at 0, {ends[1]} at 1"
        if not inside:
            why = "the best mean is at an end, and its neighbour is not told from it"
        yield "RAGSys", "Figure 1", "DPO is best between the most diverse and the most alike picks", said, same, why


def _aicl(out: Path) -> Iterator[Row]:
    page = out / "papers-aicl.md"
    if not known(page, "The paper's directions"):
        yield "In-context learning as IR", "Table 1", "SAICL is better than every static k", *EARLIER, SMALL
        return
    rows = table(page, "The paper's directions")
    for name in dict.fromkeys(row["difference in F1"] for row in rows):
        said, same = tally(
            [row["same direction?"].partition(":")[0] for row in rows if row["difference in F1"] == name]
        )
        why = "" if same == "yes" else SMALL
        yield "In-context learning as IR", "Table 1", f"{name} (3 sets)", said, same, why
    yield "In-context learning as IR", "Figures 1 to 3", "drawings of the method", "not drawn again", "no result", ""


FEW = "a smaller model and collection, 30 to 100 windows"
_RALM = (
    ("papers-ralm", "WikiText", FAR),
    ("papers-ralm-news", "AG News", FEW),
    ("papers-ralm-news-short", "AG News, windows of 192 tokens", FEW),
    ("papers-ralm-news-gemma3", "AG News, windows of 192 tokens, Gemma 3 270M", FEW),
    ("papers-ralm-python", "Python's code", FEW),
    ("papers-boolq", "BoolQ", YES_NO),
    ("papers-boolq-gemma3", "BoolQ, Gemma 3 270M", YES_NO),
)


def _ralm(out: Path) -> Iterator[Row]:
    seen = set()
    for name, title, why in _RALM:
        page = out / f"{name}.md"
        if not page.is_file():
            continue
        for row in table(page, "What the paper finds, and what is found here"):
            finding, _, where = row["finding"].rpartition(" (")
            change = next(value for column, value in row.items() if column.startswith("change"))
            seen.add(finding.partition(" ")[0])
            yield (
                "In-Context RALM", f"{where.rstrip(')')}, {title}", finding, change, row["here"],
                "" if row["here"] == "yes" else why,
            )  # fmt: skip
    if "predictive" not in seen:
        yield (
            "In-Context RALM", "Section 6.2", "predictive reranking is better than zero-shot reranking", "not run",
            "not run", "it needs a ranker that is trained on the model's own signal",
        )  # fmt: skip
    yield (
        "In-Context RALM", "Figure 4", "larger models gain by documents too", "not run", "not run",
        "models of up to 66 billion parameters need a GPU",
    )  # fmt: skip
    if not (out / "papers-boolq.md").is_file():
        yield (
            "In-Context RALM", "Section 7", "documents help to answer open questions", "not run", "not run",
            "Wikipedia's index and models of 7 billion parameters are not here",
        )  # fmt: skip


def page(out: Path) -> str:
    """Return the table."""
    needed = ("vrsd", "vrsd-answers", "ragsys", "aicl", "ralm")
    if not all((out / f"papers-{name}.md").is_file() for name in needed):
        return ""
    lines = [HEADER, ("---",) * len(HEADER)]
    lines += [row for part in (_vrsd, _ragsys, _aicl, _ralm) for row in part(out)]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
