"""`compare`: what is measured against its definition, intervals, the recommendation, the files of the report."""

import csv
import io
import json
import math
import re

import numpy as np
import pytest
from html_pages import Page
from peer_pools import unit

import ragsys_kernels as rk
from ragsys_kernels._base.files import csv_of
from ragsys_kernels.comparison import compare, write
from ragsys_kernels.comparison.measures import MEASURES
from ragsys_kernels.comparison.qrels import Judgement, placed, read
from ragsys_kernels.comparison.settings import settings

RNG = np.random.default_rng(0)
CENTRES = RNG.standard_normal((30, 12))
ROWS = (CENTRES[RNG.integers(0, 30, 600)] + 0.6 * RNG.standard_normal((600, 12))).astype(np.float32)
QUERIES = (CENTRES[RNG.integers(0, 30, 40)] + 0.6 * RNG.standard_normal((40, 12))).astype(np.float32)
QUICK = {"k": 4, "pool": 30, "samples": 400, "peers": False}


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """The folder of a report, and the comparison."""
    pytest.importorskip("matplotlib")
    out, texts = tmp_path_factory.mktemp("report"), [f"text <b>{i}</b> | {i}" for i in range(600)]
    return out, compare(ROWS, QUERIES, **QUICK, texts=texts, query_texts=[f"ask {q}" for q in range(40)], out=out)


@pytest.fixture(scope="module")
def found(reported):
    return reported[1]


def test_every_rule_takes_part_on_the_same_pools(found):
    assert {setting.rule for setting in found.settings} == {*rk.METHODS, "random"}
    assert [setting.name for setting in found.settings[:2]] == ["top-k", "random"]
    nearest, _ = rk.Corpus(ROWS).search(QUERIES, 30)
    for name, indices in found.indices.items():
        for q, row in enumerate(indices):
            real = row[row >= 0]
            assert len(real) == len(set(real.tolist()))
            assert len(real) == 4 or name.startswith(("ceiling", "gist"))
            assert set(real.tolist()) <= set(nearest[q].tolist())
    np.testing.assert_array_equal(found.indices["top-k"], nearest[:, :4])
    for setting in found.settings[2:]:
        picks = getattr(rk, setting.rule)(QUERIES, rk.Corpus(ROWS), 4, candidates=nearest, **setting.arguments)
        np.testing.assert_array_equal(found.indices[setting.name], picks.indices)


def test_judgements(found):
    """nDCG, recall and MRR by hand; queries without a relevant document take no part; padded names are strings."""
    names = [f"doc {i}" for i in range(600)]
    top = found.indices["top-k"]
    qrels = {
        f"q{q}": {names[top[q, 1]]: 2, names[top[q, 3]]: 1, "no such": 1, "nor such": 1, names[5]: 0} for q in range(10)
    }
    qrels["q11"] = {names[0]: 0}
    corpus = rk.Corpus(ROWS, ids=names)
    judged = compare(corpus, QUERIES, qrels=qrels, query_ids=[f"q{q}" for q in range(40)], **QUICK, methods=["vrsd"])
    assert judged.query_ids == [f"q{q}" for q in range(10)]
    values = judged.values["top-k"]
    ideal = 2 + 1 / math.log2(3) + 1 / 2 + 1 / math.log2(5)
    np.testing.assert_allclose(values["ndcg"], (2 / math.log2(3) + 1 / math.log2(5)) / ideal)
    np.testing.assert_allclose(values["recall"], 2 / 4)
    assert judged.problem.judged.absent == 2
    np.testing.assert_allclose(values["mrr"], 1 / 2)
    assert "alpha_ndcg" not in values


def test_subtopics_give_alpha_ndcg(tmp_path, found):
    top = found.indices["top-k"]
    lines = [f"{q} {s} {top[q, place]} 1\n" for q in range(6) for s, place in ((1, 0), (2, 0), (1, 1), (3, 2))]
    (tmp_path / "qrels").write_text("".join(lines))
    judged = compare(ROWS, QUERIES, qrels=tmp_path / "qrels", **QUICK, methods=["vrsd"])
    # Gains 2, 1/2 and 1 in this order; the ideal one is 2, 1, 1/2.
    gains = [2 + 0.5 / math.log2(3) + 1 / 2, 2 + 1 / math.log2(3) + 0.5 / 2]
    np.testing.assert_allclose(judged.values["top-k"]["alpha_ndcg"], gains[0] / gains[1])
    # The grade of a document is the best of its subtopics, whichever comes last.
    lines = [f"{q} {s} {top[q, s]} {2 - s}\n{q} 1 {top[q, 0]} 1\n" for q in range(6) for s in (0, 1)]
    (tmp_path / "graded").write_text("".join(lines))
    graded = compare(ROWS, QUERIES, qrels=tmp_path / "graded", **QUICK, methods=["vrsd"])
    np.testing.assert_allclose(graded.values["top-k"]["ndcg"], 1)
    np.testing.assert_allclose(graded.values["top-k"]["recall"], 1)
    lines = [f"{q} 0 {top[q, 1]} 3\n{q} 1 {top[q, 1]} 1\n{q} 0 {top[q, 0]} 2\n" for q in range(6)]
    (tmp_path / "graded").write_text("".join(lines))
    graded = compare(ROWS, QUERIES, qrels=tmp_path / "graded", **QUICK, methods=["vrsd"])
    np.testing.assert_allclose(graded.values["top-k"]["ndcg"], (2 + 3 / math.log2(3)) / (3 + 2 / math.log2(3)))


def test_judgements_have_names_as_they_stand_there(tmp_path):
    names = ["a\xa0b", "x\u2028y", "\x85", "\x0c", "c\0"]
    lines = [f"q{name} 0\t {name}  {i}\r\n" for i, name in enumerate(names)]
    (tmp_path / "qrels").write_bytes("\ufeff".encode() + "\n".join(lines).encode())
    assert read(tmp_path / "qrels") == [Judgement(f"q{name}", "0", name, i) for i, name in enumerate(names)]


@pytest.mark.parametrize("ids", [None, np.array([2**63 - 1, -7, 5, 20])])
def test_judgements_name_integer_ids_in_plain_decimal_form(ids):
    known = [0, 1, 2, 3] if ids is None else ids.tolist()
    corpus = rk.Corpus(ROWS[:4], ids=ids)
    wrong = [f"0{known[3]}", f"+{known[3]}", "-0", "1_0", "x", "-1", str(2**63)]
    judged = placed([Judgement("q", "0", str(name), 1) for name in (*known, *wrong)], ["q"], corpus)
    assert judged.rows.tolist()[:4] == [0, 1, 2, 3]
    assert judged.absent == len(wrong)


def test_ids_of_the_queries_table_can_be_told_apart():
    names = [f"{i}{('', ' x', chr(0x2028), chr(34), chr(13))[i % 5]}" for i in range(len(ROWS))]
    found = compare(rk.Corpus(ROWS, ids=names), QUERIES[:9], **QUICK, methods=["vrsd"])
    table = io.StringIO(csv_of(write.queries(found)).decode(), newline="")
    cells = {(row["method"], row["query"]): row["ids"] for row in csv.DictReader(table)}
    for method, picks in found.indices.items():
        for query, rows in zip(found.query_ids, picks.tolist(), strict=True):
            parts = re.findall(r'"(?:[^"\\]|\\.)*"|[^ ]+', cells[method, query])
            got = [json.loads(part) if part.startswith('"') else part for part in parts]
            assert got == [names[row] for row in rows]


def test_intervals_are_those_of_resampling(found):
    values = {name: found.values[name]["relevance"] for name in ("top-k", "mmr:0.5")}
    drawn = np.random.default_rng(3).integers(0, 40, (4000, 40))
    figure = found.figures["mmr:0.5"]["relevance"]
    assert figure.mean.mean == pytest.approx(values["mmr:0.5"].mean())
    assert figure.queries == 40
    apart = (values["mmr:0.5"] - values["top-k"])[drawn].mean(axis=1)
    np.testing.assert_allclose(figure.difference[1:], np.percentile(apart, [2.5, 97.5]), atol=6e-3)
    assert figure.certain.low <= figure.difference.low < figure.difference.high <= figure.certain.high < 0
    assert figure.sign == -1
    assert found.figures["top-k"]["relevance"].sign == 0


def test_a_value_that_some_queries_lack_is_left_out():
    pools = np.full((40, 30), -1)
    pools[:, :8] = rk.Corpus(ROWS).search(QUERIES, 8).indices
    pools[:10, 1:] = -1  # one item: no pair
    some = compare(ROWS, QUERIES, candidates=pools, k=4, samples=400, methods=["vrsd"], peers=False)
    figure = some.figures["vrsd"]["similarity"]
    assert figure.queries == 30
    assert figure.mean.mean == pytest.approx(np.nanmean(some.values["vrsd"]["similarity"]))
    assert some.values["vrsd"]["picks"][:10].tolist() == [1] * 10
    assert some.values["vrsd"]["overlap"][:10].tolist() == [1] * 10  # of the picks that there are
    assert "picks" not in {measure.name for measure in compare(ROWS, QUERIES, **QUICK, methods=["vrsd"]).columns}


def test_bias_has_a_column_and_top_k_without_it(found):
    corpus = rk.Corpus(ROWS, bias=np.linspace(-1, 1, 600).astype(np.float32))
    biased = compare(corpus, QUERIES, **QUICK, lambda_b=0.5, methods=["mmr:0.5"])
    assert [setting.name for setting in biased.settings] == ["top-k", "nearest", "random", "mmr:0.5"]
    expected = rk.mmr(QUERIES, corpus, 4, candidates=corpus.search(QUERIES, 30, lambda_b=0.5)[0], lambda_b=0.5,
                      lambda_d=0.5)  # fmt: skip
    np.testing.assert_array_equal(biased.indices["mmr:0.5"], expected.indices)
    assert biased.figures["top-k"]["bias"].mean.mean > biased.figures["nearest"]["bias"].mean.mean
    np.testing.assert_allclose(biased.values["top-k"]["bias"], corpus.bias[biased.indices["top-k"]].mean(axis=1))


def test_sample_and_seed():
    first, again, other = (
        compare(ROWS, QUERIES, **QUICK, methods=["vrsd"], sample=15, seed=seed) for seed in (1, 1, 2)
    )
    assert len(first.query_ids) == 15
    assert first.query_ids == again.query_ids != other.query_ids
    np.testing.assert_array_equal(first.indices["random"], again.indices["random"])
    assert first.figures["vrsd"]["relevance"] == again.figures["vrsd"]["relevance"]
    picked = [int(name) for name in first.query_ids]
    everything = compare(ROWS, QUERIES, **QUICK, methods=["vrsd"], seed=1)
    np.testing.assert_array_equal(first.indices["random"], everything.indices["random"][picked])


def test_the_curve_is_mmr_at_every_weight():
    qrels = {q: {int(i): 1 for i in RNG.permutation(600)[:60]} for q in range(40)}
    found = compare(ROWS, QUERIES, k=3, pool=12, samples=50, methods=["vrsd"], qrels=qrels, peers=False)
    curve, pools = found.curve, found.problem.candidates
    assert (np.diff(curve.ends) > 0).all()
    assert curve.ends[-1] == 1
    best = np.full(40, -1.0)
    for weight in np.linspace(0, 1, 41, dtype=np.float32):
        picks = rk.mmr(QUERIES, ROWS, 3, candidates=pools, lambda_d=float(weight)).indices
        place = np.searchsorted(curve.ends, np.float64(weight))
        expected = {
            "relevance": (unit(ROWS[picks]) * unit(QUERIES)[:, None]).sum(axis=2).mean(),
            "similarity": rk.metrics.pairwise_cosine(ROWS, picks).mean(),
            "ndcg": found.problem.judged.measures(picks)["ndcg"].mean(),
        }
        assert {name: curve.values[name][place] for name in expected} == pytest.approx(expected, abs=1e-6), weight
        best = np.maximum(best, found.problem.judged.measures(picks)["ndcg"])
    path = rk.mmr_path(QUERIES, ROWS, 3, candidates=pools)
    assert curve.selections == path.num_segments.mean()
    assert best.mean() <= curve.best["ndcg"] + 1e-9 < best.mean() + 0.02
    top = curve.values["relevance"][-1]
    least = curve.least("relevance", 0.97 * top)
    after = curve.values["relevance"][curve.ends > least]
    assert after.min() >= 0.97 * top > curve.values["relevance"][curve.ends <= least][-1]
    assert curve.least("relevance", -1) == 0
    assert curve.least("relevance", 2) is None
    where, most = curve.highest("ndcg")
    assert most == curve.values["ndcg"].max() == curve.values["ndcg"][np.searchsorted(curve.ends, where)]


def test_the_curve_where_queries_change_at_the_same_weights():
    twice = np.repeat(QUERIES[:6], 2, axis=0)
    curve = compare(ROWS, twice, k=3, pool=12, samples=50, methods=["vrsd"], peers=False).curve
    once = compare(ROWS, QUERIES[:6], k=3, pool=12, samples=50, methods=["vrsd"], peers=False).curve
    np.testing.assert_array_equal(curve.ends, once.ends)
    np.testing.assert_allclose(curve.values["relevance"], once.values["relevance"], atol=1e-12)


def test_sizes_of_pools_are_held_to_the_whole_corpus():
    options = {"k": 4, "pool": 40, "samples": 50, "peers": False, "whole": 10}
    found = compare(ROWS, QUERIES, methods=["mmr:0.5", "vrsd", "dpp", "ceiling"], **options)
    sizes = found.sizes
    assert (sizes.queries, sizes.sizes, set(sizes.shares)) == (10, [10, 20, 40, 80, 160], {"mmr:0.5", "vrsd"})
    corpus, some = rk.Corpus(ROWS), QUERIES[np.linspace(0, 39, 10).round().astype(int)]
    for name, rule, arguments in (("mmr:0.5", rk.mmr, {"lambda_d": 0.5}), ("vrsd", rk.vrsd, {})):
        whole = rule(some, corpus, 4, **arguments).indices
        expected = []
        for size in sizes.sizes:
            picks = rule(some, corpus, 4, candidates=corpus.search(some, size)[0], **arguments).indices
            same = [set(a.tolist()) == set(b.tolist()) for a, b in zip(picks, whole, strict=True)]
            expected.append(np.mean(same))
        assert sizes.shares[name] == expected
        assert expected[0] < expected[-1]
    assert compare(ROWS, QUERIES, **QUICK, methods=["vrsd"], whole=0).sizes is None


def test_certified_picks_are_those_of_the_whole_corpus():
    corpus = rk.Corpus(ROWS, bias=RNG.uniform(-1, 0, 600).astype(np.float32))
    found = compare(corpus, QUERIES, k=4, pool=100, samples=50, methods=["mmr:0.9/0.3", "vrsd"], peers=False)
    assert found.values["top-k"]["certified"].all()
    some = found.values["mmr:0.9"]["certified"].astype(bool)
    assert some.sum() > 5
    whole = rk.mmr(QUERIES[some], corpus, 4, lambda_d=0.9).indices
    np.testing.assert_array_equal(found.indices["mmr:0.9"][some], whole)
    assert found.values["mmr:0.3"]["certified"].sum() < some.sum()
    for name in ("vrsd", "random", "nearest"):  # nearest: the pools are by relevance with bias
        assert "certified" not in found.values[name]
    assert "certified" in {measure.name for measure in found.columns}
    pools = found.problem.candidates
    given = compare(corpus, QUERIES, candidates=pools, k=4, samples=50, methods=["vrsd"], peers=False)
    assert "certified" not in given.values["top-k"]


def test_methods_by_name_and_of_the_callers_own():
    assert [each.name for each in settings(["mmr:0.3/1/0.6", "vrsd", "top-k"], biased=False)] == [
        "top-k", "random", "mmr:0.3", "mmr:0.6", "vrsd",
    ]  # fmt: skip
    assert {each.arguments["kind"] for each in settings(["coverage:0.5"], biased=False)[2:]} == {
        "facility", "cover", "xquad",
    }  # fmt: skip
    custom = compare(ROWS, QUERIES, **QUICK, methods={"capped": ("mmr", {"lambda_d": 1.0, "max_similarity": 0.5})})
    picks = custom.indices["capped"]
    assert (rk.metrics.near_duplicates(ROWS, picks, threshold=0.5 + 1e-6) == 0).all()


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"methods": ["mrr"]}, ValueError, r"methods must be among top-k, .*, got 'mrr'"),
        ({"methods": ["mmr:2"]}, ValueError, r"methods must have numbers within \[0, 1\], got 'mmr:2'"),
        ({"methods": ["mmr:x"]}, ValueError, r"methods must have numbers after the colon.*, got 'mmr:x'"),
        ({"methods": "mmr"}, TypeError, r"methods must be a list of names, got 'mmr'"),
        ({"methods": {"a": ("b", {})}}, ValueError, r"methods must have rules among mmr, .*, got 'b' for 'a'"),
        ({"methods": {"a": "b"}}, TypeError, r"methods must map labels to a rule and .*, got 'b' for 'a'"),
        ({"pool": 4}, ValueError, r"pool must be above k = 4, .*, got 4"),
        ({"texts": ["a"]}, ValueError, r"texts must have one text for each row, got 1"),
        ({"whole": -1}, ValueError, r"whole must be at least 0, got -1"),
        ({"max_loss": 2}, ValueError, r"max_loss must be within \[0, 1\], got 2"),
        ({"max_loss": "a"}, TypeError, r"max_loss must be a number, got str"),
        ({"lambda_b": 1.5}, ValueError, r"lambda_b must be within \[0, 1\], got 1.5"),
        ({"level": math.nan}, ValueError, r"level must be within \(0, 1\), got nan"),
        ({"seed": -1}, ValueError, r"seed must be at least 0, got -1"),
        ({"seed": "a"}, TypeError, r"seed must be an integer, got str"),
        ({"num_threads": 0}, ValueError, r"num_threads must be at least 1, got 0"),
        ({"methods": {"top-k": ("vrsd", {})}}, ValueError, r"methods must have labels other than .*, got 'top-k'"),
        ({"k": 0}, ValueError, r"k must be at least 1, got 0"),
        ({"candidates": np.zeros((40, 9), int)}, ValueError, "pool must be left out when candidates are given, got 30"),
        ({"query_ids": ["a"] * 40}, ValueError, r"query_ids must be 40 different names, got 40, 1 different"),
        ({"qrels": {"x": {"0": 1}}}, ValueError, r"qrels must have a relevant document for a query of that id"),
        ({"qrels": {"0": {"x": 1}}}, ValueError, r"qrels must name documents by the ids of the corpus, got 'x'"),
        ({"qrels": {"0": {"1": 2**63}}}, ValueError, r"qrels must be a number of 64 bits, got one of 64"),
        ({"qrels": {"0": {"1": 0.5}}}, TypeError, r"qrels must be grades that are integers, got float"),
        ({"qrels": "no file"}, FileNotFoundError, r"qrels must be an existing file, got no file"),
    ],
)
def test_bad_arguments_are_named(options, error, match):
    """Before anything is run."""
    done = []
    with pytest.raises(error, match=f"^compare: {match}"):
        compare(ROWS, QUERIES, **{**QUICK, **options}, progress=lambda *numbers: done.append(numbers))
    assert done == []


@pytest.mark.parametrize(("at", "got"), [((3, 4), 600), ((7, 0), -2)])
def test_candidates_beyond_the_corpus_are_named_whatever_is_drawn(at, got):
    pools = np.tile(np.arange(30), (40, 1))
    pools[at] = got
    options = {"k": 4, "samples": 50, "methods": ["vrsd"], "candidates": pools, "sample": 1}
    with pytest.raises(ValueError) as error:
        compare(ROWS, QUERIES, **options)
    row = f"below N = 600, got {got} for query {at[0]}"
    assert str(error.value) == f"compare: candidates must be -1 or rows of the corpus, {row}"


def test_lines_of_judgements_that_cannot_be_read(tmp_path):
    (tmp_path / "qrels").write_text("1 0 5 1\n1 0 5\n")
    with pytest.raises(ValueError, match=r"whole number of 64 bits, got '1 0 5' in line 2 of"):
        compare(ROWS, QUERIES, qrels=tmp_path / "qrels")
    for grade in ("9" * 20, str(-(2**63) - 1), "9" * 5000):
        (tmp_path / "qrels").write_text(f"1 0 5 1\n1 0 6 {grade}\n")
        with pytest.raises(ValueError, match=r"^compare: qrels must have lines of .* of 64 bits, got .* in line 2 of"):
            compare(ROWS, QUERIES, qrels=tmp_path / "qrels")
    with pytest.raises(ValueError, match=r"^compare: queries must have shape \(Q, 12\), Q at least 1, got \(40, 4\)"):
        compare(ROWS, QUERIES[:, :4])


def test_the_report(reported):
    out, found = reported
    assert {"report.html", "report.md", "metrics.csv", "queries.csv", "curve.png", "curve.svg"} <= {
        p.name for p in out.iterdir()
    }
    page = Page((out / "report.html").read_text())
    assert page.loads == []
    lines, columns = len(found.settings), len(found.columns)
    assert page.widths.count(columns + 1) == lines + 1
    compared = sum(measure.better != 0 for measure in found.columns)
    assert page.widths.count(compared + 1) == lines  # without top-k
    markdown = (out / "report.md").read_text()
    for each in (*(setting.label for setting in found.settings), found.advice.rule):
        assert each in page.text
        assert each in markdown
    whole = (out / "report.html").read_text()
    colours = set(re.findall(r"var\(--(\w+), #", whole))
    assert colours
    assert all(re.search(rf"--{name}: #\w+[; ]", whole) for name in colours)  # on a dark page
    for said, plot, table in ((markdown, "![", "| method |"), (whole, "<svg", "<table")):
        assert said.index(found.advice.rule[:9]) < said.index(plot) < said.index(table)  # the curve before any table
    example, top = found.examples[0], {pick.name for pick in found.examples[0].picks["Top-k (λ = 1)"]}
    new = {label: [pick.new for pick in picks] for label, picks in example.picks.items()}
    assert not any(new["Top-k (λ = 1)"])
    assert new["VRSD"] == [pick.name not in top for pick in example.picks["VRSD"]]
    assert 0 < sum(new["VRSD"]) < 4
    row = found.indices["top-k"][found.query_ids.index(found.examples[0].name)][0]
    assert f"text <b>{row}</b> | {row}" in page.text
    assert rf"text \<b\>{row}\</b\> \| {row}" in markdown
    mean = found.figures["vrsd"]["relevance"].mean.mean
    assert re.search(rf"^\| VRSD \| {mean:.3f} \|", markdown, re.MULTILINE)
    assert (out / "curve.png").read_bytes()[:4] == b"\x89PNG"
    assert found.advice.words.replace("**", "") in str(found)
    with open(out / "metrics.csv", newline="") as file:
        lines = {(line["method"], line["measure"]): line for line in csv.DictReader(file)}
    assert float(lines["vrsd", "relevance"]["mean"]) == pytest.approx(mean)
    assert float(lines["vrsd", "sum"]["difference"]) > 0
    assert {name for _, name in lines} <= set(MEASURES)
    with open(out / "queries.csv", newline="") as file:
        each = [line for line in csv.DictReader(file) if line["method"] == "vrsd"]
    assert [float(line["relevance"]) for line in each] == pytest.approx(found.values["vrsd"]["relevance"].tolist())
    assert each[3]["ids"] == " ".join(map(str, found.indices["vrsd"][3]))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("metric", "dtype"), [("dot", "float32"), ("cosine", "int8"), ("cosine", "bfloat16")])
def test_corpora_of_other_metrics_and_storage(metric, dtype):
    corpus = rk.Corpus(ROWS, metric=metric, dtype=dtype, bias=np.linspace(-1, 0, 600).astype(np.float32))
    found = compare(corpus, QUERIES, k=3, pool=12, samples=50, whole=5, methods=["mmr:0.5", "vrsd", "coverage"])
    rows, queries = corpus.vectors(np.arange(600)), QUERIES.astype(np.float64)
    asked = queries if metric == "dot" else unit(queries)
    for name in ("top-k", "vrsd"):
        picks, values = found.indices[name], found.values[name]
        chosen = rows[picks]
        np.testing.assert_allclose(values["relevance"], (chosen * asked[:, None]).sum(axis=2).mean(axis=1), rtol=1e-5)
        total = chosen.sum(axis=1)
        np.testing.assert_allclose(values["sum"], (unit(total) * unit(queries)).sum(axis=1), atol=1e-5)
        np.testing.assert_allclose(values["similarity"], rk.metrics.pairwise_cosine(rows, picks), atol=1e-5)
        pools = unit(rows[found.problem.candidates])
        nearest = np.maximum(pools @ unit(chosen).swapaxes(1, 2), 0).max(axis=2).mean(axis=1)
        np.testing.assert_allclose(values["coverage"], nearest, atol=1e-5)
    assert ("certified" in found.values["top-k"]) is (metric == "cosine")
    assert (found.peers == []) is (metric == "dot")
    assert found.curve.values["relevance"][-1] == pytest.approx(found.values["top-k"]["relevance"].mean(), rel=1e-5)


def test_a_peer_that_fails_is_left_out(monkeypatch):
    pyversity = pytest.importorskip("pyversity")

    def fails(*_, **__):
        raise ZeroDivisionError("of the peer")

    monkeypatch.setattr(pyversity, "msd", fails)
    match = "^compare: pyversity is left out, for msd, .* raised ZeroDivisionError"
    with pytest.warns(UserWarning, match=match) as caught:
        found = compare(ROWS, QUERIES, **{**QUICK, "peers": True}, methods=["vrsd"])
    assert caught[0].filename == __file__
    calls = [peer.call.split(",")[0] for peer in found.peers if peer.name == "pyversity"]
    assert calls == ["mmr", "dpp", "ssd", "cover"]
    assert all(peer.same > 0.95 and peer.theirs > 0 < peer.ours for peer in found.peers)


def test_rows_of_zeros_and_queries_of_zeros():
    rows, queries = ROWS[:100].copy(), QUERIES[:5].copy()
    rows[::3] = queries[0] = 0
    found = compare(rows, queries, k=3, pool=20, samples=50)
    assert all(np.isfinite(each["relevance"]).all() for each in found.values.values())
    assert found.values["top-k"]["relevance"][0] == 0
