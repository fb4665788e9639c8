"""The papers' evaluations as pages of results/, and the tables over them in docs/papers/."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / "benchmarks").is_dir(), reason="the tests run outside of the source tree")


def test_tables_of_the_documentation_are_up_to_date(module):
    papers, places = module("reports.papers"), module("reports.places")
    parts = papers.summaries(papers.RESULTS)
    known = {part for part in places.PLACES if part.startswith("papers-")}
    assert set(parts) == {
        part for part in known if part == papers.DIRECTIONS or (papers.RESULTS / f"{part}.md").is_file()
    }
    for part, text in parts.items():
        assert places.filled(part, text) in (ROOT / places.PLACES[part]).read_text(encoding="utf-8")


def test_page_takes_the_first_table_of_a_report(module, tmp_path, capsys):
    report = tmp_path / "report"
    report.mkdir()
    (report / "plot.png").write_bytes(b"drawn")
    (report / "report.json").write_text('{"evaluation": "ralm", "settings": {}}')
    (report / "report.md").write_text(
        "# Title\n\nVerdict.\n\n## A\n\n| finding | here |\n| --- | --- |\n| x | y |\n\n![Plot.](plot.png)\n\n"
        "| method | value |\n| --- | ---: |\n| none | 1 |\n\n| later | 2 |\n| --- | ---: |\n"
    )
    page = tmp_path / "docs" / "papers" / "ralm.md"
    page.parent.mkdir(parents=True)
    page.write_text("before\n<!-- papers-ralm:begin -->\nold\n<!-- papers-ralm:end -->\nafter\n")
    module("reports.papers").main(["--root", str(tmp_path), "--out", str(tmp_path), str(report)])
    expected = "**Title** ([all tables](../../benchmarks/results/papers-ralm.md)). Verdict.\n\n| method | value |\n"
    part = module("reports.places").filled("papers-ralm", f"{expected}| --- | ---: |\n| none | 1 |\n")
    assert page.read_text() == f"before\n{part}\nafter\n"
    assert "\n![Plot.](papers-ralm-plot.png)\n" in (tmp_path / "papers-ralm.md").read_text()
    assert (tmp_path / "papers-ralm-plot.png").read_bytes() == b"drawn"
    (report / "report.json").write_text('{"evaluation": "ralm", "settings": {"model": "gemma3, fingerprint 1"}}')
    module("reports.papers").main(["--root", str(tmp_path), "--out", str(tmp_path), str(report)])
    assert "(papers-ralm-gemma3-plot.png)" in (tmp_path / "papers-ralm-gemma3.md").read_text()
    for about, name in (
        ({"evaluation": "ralm", "settings": {"texts": "wikitext"}}, "papers-ralm"),
        ({"evaluation": "ralm", "settings": {"texts": "ag-news", "model": "gemma3 (G)"}}, "papers-ralm-news-gemma3"),
        ({"evaluation": "ralm", "settings": {"texts": "python"}}, "papers-ralm-python"),
        ({"evaluation": "vrsd-answers", "settings": {"command": "x --scores-only"}}, "papers-vrsd-answers-scores"),
    ):
        (report / "report.json").write_text(json.dumps(about))
        assert module("reports.papers").take(report, tmp_path).stem == name


@pytest.mark.parametrize(
    ("answers", "said", "same"),
    [
        (["yes", "yes"], "2 yes", "yes"),
        (["no", "undecided"], "1 undecided, 1 no", "no, where decided"),
        (["models differ", "no", "yes"], "1 yes, 1 no, 1 where the paper's models differ", "in part"),
        (["models differ", "undecided"], "1 undecided, 1 where the paper's models differ", "undecided"),
    ],
)
def test_directions_count_what_a_page_answers(module, answers, said, same):
    assert module("reports.directions").tally(answers) == (said, same)


def test_an_ordering_is_undecided_where_a_model_of_ours_leaves_a_difference_open(module):
    def row(*answers):
        rows = [{"ordering": "Rel+Bias over Rel", "same direction?": answer} for answer in answers]
        found = module("reports.directions")._orderings(rows, "")
        return next(row for row in found if row[1].startswith("the bias with relevance"))

    assert row("undecided", "models differ")[3] == "undecided"
    assert row("models differ", "models differ")[3] == "the paper's models differ"


@pytest.mark.parametrize(
    ("differences", "said", "same"),
    [
        (("**-2 [-2.5, -1.5]**", "**-1 [-1.4, -0.6]**", "best"), "", "undecided"),
        (("**-1 [-1.5, -0.5]**", "**-1.2 [-1.6, -0.8]**", "best"), "", "undecided"),
        (("**-1 [-1.5, -0.5]**", "**-2 [-2.4, -1.6]**", "best"), "; below both ends at λ_d = 0.5", "yes"),
        (("**-1 [-1.5, -0.5]**", "best", "**-1 [-1.5, -0.5]**"), "; above both ends at λ_d = 0.5", "yes"),
        (("**-1 [-1.5, -0.5]**", "best", "-1 [-2.5, +0.5]"), "", "undecided"),
    ],
)
def test_figure_1_is_told_where_intervals_decide(module, tmp_path, differences, said, same):
    columns = ("λ_d", "λ_b", "picks' mean cosine", "DPO minus the best")
    lines = [columns, ["---"] * 4, ("0.5", "no bias", "0.1", "best")]
    lines += [(weight, "0.95", "0.2", value) for weight, value in zip(("0", "0.5", "1"), differences, strict=True)]
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    (tmp_path / "page.md").write_text(f"## Figure 1: diversity and DPO\n\n{text}", encoding="utf-8")
    best = ("0", "0.5", "1")[differences.index("best")]
    *_, told, found = module("reports.directions")._figure1(tmp_path / "page.md")
    assert (told, found) == (f"best at λ_d = {best}, picks' mean cosine 0.2{said}", same)


def test_directions_have_a_column_for_each_page_of_a_text(module, tmp_path):
    """Findings stand in the order of the page that has most of them; what a page has not was not run."""
    directions = module("reports.directions")
    head = "# T\n\n## What the paper finds, and what is found here\n\n"
    head += "| finding | here | change of it |\n| --- | --- | --- |\n"
    assert directions.settings(tmp_path, directions.TEXTS) == [("where", "it finds")]
    pages = {"papers-ralm": "| a (Table 1) | no | +1% |\n| c (b) (Figure 3) | undecided | +3% |\n"}
    pages["papers-ralm-python"] = (
        "| a (Table 1) | yes | -2% |\n| d (section 6.1) | yes | -4% |\n| c (b) (Figure 3) | no | 5% |\n"
    )
    for name, rows in pages.items():
        (tmp_path / f"{name}.md").write_text(head + rows)
    titles = (
        "[WikiText](../../benchmarks/results/papers-ralm.md)",
        "[Python's code](../../benchmarks/results/papers-ralm-python.md)",
    )
    assert directions.settings(tmp_path, directions.TEXTS) == [
        ("where", "it finds", *titles),
        ("", "setting", "", ""),
        ("Table 1", "a", "**no**: +1%", "**yes**: -2%"),
        ("Section 6.1", "d", "not run", "**yes**: -4%"),
        ("Figure 3", "c (b)", "undecided: +3%", "**no**: 5%"),
    ]
    first, empty, *why = directions.reasons(tmp_path, directions.TEXTS).split("\n")
    assert (first, empty) == ("Reasons for the differences:", "")
    assert why == [f"- WikiText: {directions.FAR}.", f"- Python's code: {directions.FEW}."]
    (tmp_path / "papers-boolq.md").write_text(head + "| d helps (Section 7) | yes | +3 |\n")
    assert directions.reasons(tmp_path, directions.QUESTIONS) == f"Reasons for the differences: {directions.YES_NO}."


def test_a_column_says_what_it_is_of_and_the_papers_figures_stand_once(module, tmp_path):
    """An oracle is no finding, and a page of words is not read as one of tokens."""
    directions = module("reports.directions")
    text = (
        "# T\n\n## What the paper finds, and what is found here\n\n"
        "| finding | here | change of {unit} perplexity | the paper's, {like} |\n| --- | --- | --- | --- |\n"
        "| a (Table 1) | yes | -2% | {there} |\n| o (Figure 7) | by construction | -9% |  |\n\n"
        "## Configuration\n\n| setting | value |\n| --- | --- |\n| BM25 | `{bm25}` |\n| sizes: windows | `30` |\n"
        "| sizes: window | `192` |\n"
    )
    (tmp_path / "papers-ralm.md").write_text(text.format(unit="word", like="WikiText-103", there="-17%", bm25="k1 2"))
    (tmp_path / "papers-ralm-news.md").write_text(text.format(unit="token", like="RealNews", there="-18%", bm25="k1 1"))
    head, *rows = directions.settings(tmp_path, directions.TEXTS)
    assert head[:3] == ("where", "it finds", "the paper's")
    assert rows == [
        ("", "setting", "", "30 windows of 192 tokens; word perplexity", "30 windows of 192 tokens; token perplexity"),
        ("Table 1", "a", "WikiText-103: -17%; RealNews: -18%", "**yes**: -2%", "**yes**: -2%"),
        ("Figure 7", "o", "", "by construction: -9%", "by construction: -9%"),
    ]
    shared = directions._shared(tmp_path, directions.TEXTS, [head, *rows])
    assert shared.startswith("Changes of perplexity, below 0 for the better, with 95 % intervals. BM25: k1 2 or k1 1. ")
    assert "If none of the 2 differences were real, 0.1 would be decided by chance." in shared
