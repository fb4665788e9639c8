"""Tables over the four papers: what each table and figure finds, what is found here, and whether it is the same.

Of the pages of results/ that `benchmarks.reports.papers` has taken; it calls this. In-Context RALM was run in several
settings, which are the columns of its tables.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.reports import tables
from benchmarks.reports.page_plots import Table, numbers, table

HEADER = ("where", "it finds", "here", "same direction?")
EARLIER = ("its page is of an earlier run, without directions", "undecided")
Row = tuple[str, str, str, str]
PAPER = "the paper's"  # how columns of pages begin, which say of what: "the paper's, WikiText-103"
# What a page answers about one of the paper's differences, and how it is counted.
ANSWERS = {"yes": "yes", "undecided": "undecided", "no": "no", "models differ": "where the paper's models differ"}

DIRECTIONS = "The paper's directions"
FIGURE_1 = "Figure 1: diversity and DPO"
LIKENESS, TO_BEST = "picks' mean cosine", "DPO minus the best"
WHY = "Reasons for the differences:"
VRSD = (
    "Our models have 135 and 270 million parameters, the paper's 7 billion and more. The paper's differences are at "
    "most 0.037, and with these numbers of questions our intervals leave most of them undecided. With each model, one "
    "difference is decided against the paper: on ARC-DA SmolLM2 finds the answers more probable after the nearest "
    "questions, and on OpenBookQA Gemma does so after those that share words (BM25). Small models also gain from "
    "similar demonstrations elsewhere: RAGSys' DPO, and labels of AG News, are better after the nearest "
    "demonstrations than after diverse ones. Cosine similarity (Table 3) and MMR with λ = 1 (Table 2) pick the same "
    "items, but the paper has different figures for them, for some models and sets."
)
RAGSYS = (
    "The paper's models have 7 and 8 billion parameters, 26 to 60 times as many. With both models here, DPO is higher "
    "after the most relevant demonstrations than after diverse ones: small models gain most from demonstrations that "
    "resemble the question. Added to relevance, the bias (the model's own log-probabilities) lowers MC2 and DPO with "
    "both models here; it raises MC1 and MC3 a little with both of the paper's models, and with none here."
)
AICL = (
    "GPT-J has 6 billion parameters, 44 times as many. SAICL uses the number of demonstrations after which a model is "
    "right and most certain; for this model that is mostly more than the best static number (three on AG News, none "
    "or one on SST-2). 1,492 and 872 texts leave differences of 0.03 undecided."
)
YES_NO = (
    "the models are small, and one of them, Gemma, was not trained on instructions: it says yes to 98 % of the "
    "questions, and to more after a passage, which leaves little to measure; the questions and passages are BoolQ's, "
    "not Natural Questions and TriviaQA, which were not run, with all of Wikipedia"
)
NOT_RUN = "not run"
LARGER = "the weights of OPT and LLaMA were not available, and the larger ones need a GPU"
ONCE = (
    "A further encoder, and a second model as ranker, were run in one setting each, because each is one finding of "
    "the paper."
)
FAR = (
    "not the size of the model, because the paper's smallest, GPT-2 S, has 110 million parameters. The collection has "
    "no passage on a window's subject (a piece of its own article lowers perplexity); the paper's is Wikipedia, which "
    "was not in GPT-2's training data. A document takes a sixth or a third of a window here; the paper's windows have "
    "1,024 tokens"
)


def tally(values: list[str]) -> tuple[str, str]:
    """Return how often each answer stands in a column, and the answer to the whole."""
    counts = Counter(values)
    said = ", ".join(f"{counts[answer]} {words}" for answer, words in ANSWERS.items() if counts[answer])
    decided = {answer for answer in ("yes", "no") if counts[answer]}
    if decided == {"yes", "no"}:
        return said, "in part"
    if not decided:
        return said, "undecided"
    return said, f"{decided.pop()}{', where decided' if counts['undecided'] else ''}"


def tallied(rows: Table) -> tuple[str, str]:
    """Return `tally` of the rows of a page."""
    return tally([row["same direction?"].partition(":")[0] for row in rows])


def grouped(rows: Table, column: str) -> dict[str, Table]:
    """Return the rows by what stands in a column, in the order of the page."""
    return {name: [row for row in rows if row[column] == name] for name in dict.fromkeys(row[column] for row in rows)}


def by_model(out: Path, page: str) -> Iterator[tuple[str, Path]]:
    """Yield the pages of an evaluation that there are, with the name of the model where it is not the first."""
    for model, suffix in (("", ""), (", Gemma 3 270M", "-gemma3")):
        if (path := out / f"{page}{suffix}.md").is_file():
            yield model, path


def known(page: Path, heading: str) -> bool:
    """Say whether a page has a section; one of an earlier run may lack it."""
    return f"# {heading}\n" in page.read_text(encoding="utf-8")


def _vrsd(out: Path) -> Iterator[Row]:
    page = out / "papers-vrsd.md"
    rows = table(page, "Table 1: win rate and largest difference")
    above = sum(numbers(row["mean difference"])[1] > 0 for row in rows)
    _, same = tally(["yes" if numbers(row["mean difference"])[1] > 0 else "undecided" for row in rows])
    yield (
        "Table 1", "the sum of VRSD's picks is nearer to the query than MMR's: 3 sets, 3 λ",
        f"{above} of {len(rows)} above, 0 outside the interval", same,
    )  # fmt: skip
    rows = [row for row in table(page, "Table 3, retrieval part: cosine top-k and BM25") if row["VRSD wins"]]
    rows = [row for row in rows if row["method"] in ("cosine top-k", "BM25 (Okapi)")]
    most = sum(numbers(row["95 % interval"])[0] > 50 for row in rows)
    yield (
        "Table 3", "it is also nearer than those of cosine top-k and BM25: 3 sets",
        f"{most} of {len(rows)}: VRSD wins most queries, half outside the interval",
        "yes" if most == len(rows) else "in part",
    )  # fmt: skip
    for model, answers in by_model(out, "papers-vrsd-answers"):
        said, same = EARLIER
        if known(answers, DIRECTIONS):
            said, same = tallied(table(answers, DIRECTIONS))
        yield f"Tables 2, 3{model}", "answers after VRSD's picks are better than after MMR's and BM25's", said, same
    for model, scores in by_model(out, "papers-vrsd-answers-scores"):
        for measure, rows in grouped(table(scores, DIRECTIONS), "measure").items():
            yield f"Tables 2, 3{model}", f"the same: {measure}, not in the paper", *tallied(rows)
    yield "Table 1", "the same with two encoders of OpenAI", "its models are not published", NOT_RUN
    yield "Figure 1", "geometry of MMR's and VRSD's picks", "[drawn](vrsd.md)", "no result"
    yield "Theorem 1", "the problem is NP-complete, by the subset sum", "the reduction is a test", "yes"


def _ragsys(out: Path) -> Iterator[Row]:
    bias: list[dict[tuple[str, str], float]] = []  # by model: the sign of what the bias does, by ordering and metric
    for model, page in by_model(out, "papers-ragsys"):
        rows = table(page, DIRECTIONS)
        yield from _orderings(rows, model)
        of_bias = [row for row in rows if row["ordering"] in ("Rel+Bias over Rel", "Rel+Div+Bias over Rel+Div")]
        bias.append({
            (row["ordering"], row["metric"]): np.sign(numbers(row["here"])[0]) for row in of_bias if "**" in row["here"]
        })  # fmt: skip
    if len(bias) == 2:
        both = bias[0].keys() & bias[1].keys()
        other = sum(bias[0][key] != bias[1][key] for key in both)
        said = f"of {len(both)} differences decided with both models, {other or 'none'} has another sign"
        yield "Section 4.3", "the effect of the bias depends on the model", said, "yes" if other else "no"
    if known(out / "papers-ragsys.md", FIGURE_1):
        yield _figure1(out / "papers-ragsys.md")


def _orderings(rows: Table, model: str) -> Iterator[Row]:
    for one, text in (
        ("Rel over Fix", "relevant demonstrations are better than fixed ones"),
        ("Rel+Div over Rel", "diverse ones are better than the most relevant"),
        ("Rel+Div+Bias over Rel+Bias", "with bias, diverse ones are better in MC1 and MC3 and worse in MC2"),
        ("Bias over Fix", "the bias alone, against fixed ones"),
        ("Rel+Bias over Rel", "the bias with relevance"),
        ("Rel+Div+Bias over Rel+Div", "the bias with both"),
    ):
        said, same = tallied(grouped(rows, "ordering").get(one, []))
        if same == "undecided" and "undecided" not in said:
            same = "the paper's models differ"
        yield f"Tables 1, 2{model}", f"{text} (4 metrics)", said, same


def _figure1(page: Path) -> Row:
    """Return whether DPO neither rises nor falls with λ_d all the way, on the paper's curve, with the bias.

    So it is where a point between the ends is above both, or below both, by their intervals against the best.
    """
    rows = [row for row in table(page, FIGURE_1) if row["λ_b"] != "no bias"]
    spans = [(0.0, 0.0) if row[TO_BEST] == "best" else tuple(numbers(row[TO_BEST])[1:3]) for row in rows]
    ends, inner = (spans[0], spans[-1]), [*zip(spans, rows, strict=True)][1:-1]
    best = next(row for row in rows if row[TO_BEST] == "best")
    said = f"best at λ_d = {best['λ_d']}, picks' mean cosine {best[LIKENESS]}"
    lowest = [row["λ_d"] for (_, high), row in inner if high < min(low for low, _ in ends)]
    highest = [row["λ_d"] for (low, _), row in inner if low > max(high for _, high in ends)]
    for place, found in (("below", lowest), ("above", highest)):
        if found:
            said += f"; {place} both ends at λ_d = {', '.join(found)}"
    same = "yes" if lowest or highest else "undecided"
    return "Figure 1", "DPO is not monotonic in diversity", said, same


def _aicl(out: Path) -> Iterator[Row]:
    page = out / "papers-aicl.md"
    if not known(page, DIRECTIONS):
        yield "Table 1", "SAICL is better than every static k", *EARLIER
        return
    for name, rows in grouped(table(page, DIRECTIONS), "difference in F1").items():
        yield "Table 1", f"{name} (3 sets)", *tallied(rows)
    if known(page, "Input sizes"):
        for name, rows in grouped(table(page, "Input sizes"), "difference in mean input tokens").items():
            fewer = (sum(numbers(row[column])[0] < 0 for row in rows) for column in ("paper", "ours"))
            _, same = tallied(rows)
            text = f"smaller inputs: {name}, mean tokens (3 sets)"
            yield "Table 1", text, "{} below 0 in the paper, {} here".format(*fewer), same
    yield "Figures 1 to 3", "drawings of the method", "not reproduced", "no result"


class Setting(NamedTuple):
    """A page of In-Context RALM, what its column is named, and why its findings may be others than the paper's."""

    page: str
    title: str
    why: str


FEW = (
    "not the size of the model, as above. The collections have 10 to 36 thousand passages, the paper's all of "
    "Wikipedia or all training texts; a document takes a sixth to a third of a window; there are 60 to 300 windows. A "
    "predictive ranker learns from 48 to 240 texts, the paper's from a training set. An article of AG News has some "
    "50 tokens, so a query of 32 tokens often reaches into the previous article, and 16 are better"
)
TEXTS = (
    Setting("papers-ralm", "WikiText", FAR),
    Setting("papers-ralm-short", "WikiText, 192 tokens", FAR),
    Setting("papers-ralm-news", "AG News", FEW),
    Setting("papers-ralm-news-short", "AG News, 192 tokens", FEW),
    Setting("papers-ralm-news-gemma3", "AG News, 192 tokens, Gemma 3 270M", FEW),
    Setting("papers-ralm-python", "Python's code", FEW),
)
QUESTIONS = (
    Setting("papers-boolq", "SmolLM2", YES_NO),
    Setting("papers-boolq-gemma3", "Gemma 3 270M", YES_NO),
)


def settings(out: Path, of: tuple[Setting, ...]) -> list[tuple[str, ...]]:
    """Return a row for each finding, with the paper's figures where a page has them, and a column for each setting."""
    run = [one for one in of if (out / f"{one.page}.md").is_file()]
    tables = {one: table(out / f"{one.page}.md", "What the paper finds, and what is found here") for one in run}
    found: dict[tuple[str, str], dict[Setting, str]] = {}
    paper: dict[tuple[str, str], dict[str, None]] = {}
    for one in sorted(run, key=lambda one: -len(tables[one])):  # the longest has the findings in their order
        for row in tables[one]:
            finding, _, where = row["finding"].rpartition(" (")
            key = where[:1].upper() + where[1:].rstrip(")"), finding
            change = next(value for column, value in row.items() if column.startswith("change"))
            answer = f"**{row['here']}**" if row["here"] in ("yes", "no") else row["here"]
            found.setdefault(key, {})[one] = f"{answer}: {change}"
            of_text = ((column.partition(", ")[2], value) for column, value in row.items() if column.startswith(PAPER))
            paper.setdefault(key, {}).update({f"{text}: {value}": None for text, value in of_text if value})
    heads = ["where", "it finds", *([PAPER] if any(paper.values()) else [])]
    there = {key: ["; ".join(sorted(paper[key], reverse=True))] if PAPER in heads else [] for key in found}
    rows = [(*key, *there[key], *(cells.get(one, NOT_RUN) for one in run)) for key, cells in found.items()]
    if said := [_setting(out / f"{one.page}.md") for one in run]:
        rows.insert(0, ("", "setting", *([""] if PAPER in heads else []), *said))
    return [(*heads, *(f"[{one.title}](../../benchmarks/results/{one.page}.md)" for one in run)), *rows]


def _setting(page: Path) -> str:
    """Return what a column is of: windows, and what perplexity is of."""
    if not known(page, "Configuration"):
        return ""
    text = page.read_text(encoding="utf-8")
    about = dict(re.findall(r"^\| (sizes: windows?) \| `(.*)` \|$", text, flags=re.M))
    if not about:
        return f"{number[0]} questions" if (number := re.search(r"\d+(?= questions of BoolQ)", text)) else ""
    unit = re.search(r"change of (\w+) perplexity", text)
    return f"{about['sizes: windows']} windows of {about['sizes: window']} tokens; {unit[1] if unit else ''} perplexity"


def _shared(out: Path, of: tuple[Setting, ...], found: list[tuple[str, ...]]) -> str:
    """Return what the cells of `found` have in common: BM25, the sign that is for the better, what chance decides."""
    pages = [out / f"{one.page}.md" for one in of if (out / f"{one.page}.md").is_file()]
    said = [re.search(r"^\| BM25 \| `(.*)` \|$", page.read_text(encoding="utf-8"), flags=re.M) for page in pages]
    bm25 = " or ".join(dict.fromkeys(one[1] for one in said if one))
    cells = [cell for row in found[1:] for cell in row]
    verdicts = sum(cell.startswith(("**", "undecided")) for cell in cells)
    unit = "Changes of perplexity, below 0 for the better" if of is TEXTS else "Differences of balanced accuracy"
    return (
        f"{unit}, with 95 % intervals. BM25: {bm25}. If none of the {verdicts} differences were real, "
        f"{verdicts / 20:.1f} would be decided by chance."
    )


def reasons(out: Path, of: tuple[Setting, ...]) -> str:
    """Return why findings may be others than the paper's, in the settings that have been run."""
    titles: dict[str, list[str]] = {}
    for one in of:
        if (out / f"{one.page}.md").is_file():
            titles.setdefault(one.why, []).append(one.title)
    if len(titles) == 1:
        return f"{WHY} {next(iter(titles))}."
    return f"{WHY}\n\n" + "\n".join(f"- {'; '.join(names)}: {why}." for why, names in titles.items())


def page(out: Path) -> str:
    """Return the tables, a section for each paper."""
    needed = ("vrsd", "vrsd-answers", "ragsys", "aicl", "ralm")
    if not all((out / f"papers-{name}.md").is_file() for name in needed):
        return ""
    parts = []
    for title, rows, why in (
        ("VRSD", _vrsd, VRSD),
        ("RAGSys", _ragsys, RAGSYS),
        ("In-context learning as IR", _aicl, AICL),
    ):
        parts += [f"### {title}", _lines([HEADER, *rows(out)]), f"{WHY} {why}"]
    for title, of in (("In-Context RALM: texts", TEXTS), ("In-Context RALM: questions", QUESTIONS)):
        if len(found := settings(out, of)) > 1:
            parts += [f"### {title}", _shared(out, of, found), _lines(found), reasons(out, of)]
            parts += [ONCE] if of is TEXTS else []
    parts += ["### In-Context RALM: the rest", _lines([HEADER, *_ralm_rest()])]
    return "\n" + "\n\n".join(parts) + "\n\n"


def _ralm_rest() -> Iterator[Row]:
    yield "Figure 1", "drawing of a prompt", "not reproduced", "no result"
    yield "Figure 2", "Table 1's gains on WikiText-103, drawn", "[our changes](ralm.md) are drawn", "see Table 1"
    yield "Table 1", "the same on RealNews, ArXiv, Stack Exchange and FreeLaw", "the texts were not available", NOT_RUN
    yield "Tables 2, 5; Figure 4", "larger models, LLaMA and OPT, gain by documents too", LARGER, NOT_RUN
    yield (
        "Tables 3, 4; Figure 8", "tables of the sections on rerankers and on questions",
        "the paper was available only up to its equation 5, so we cannot compare with these", NOT_RUN,
    )  # fmt: skip
    yield (
        "Figures 9, 10", "64 tokens are the best query of dense retrievers",
        "dense retrievers are asked with 64 tokens; other lengths are run for BM25 only", NOT_RUN,
    )  # fmt: skip


def _lines(rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown; the first row is the header."""
    header, *lines = ([cell.replace("|", "\\|") for cell in row] for row in rows)
    return tables.table(header, lines, texts=range(len(header)))
