"""The evaluation of adaptive in-context learning with a tiny model: its numbers, its report, going on."""

import re
import sys
from dataclasses import replace

import numpy as np
import pytest
from backends import needs
from evaluations import check_files, model, settings_of, stopping, values_of
from tiny_encoder import TinyEncoder
from tiny_sets import write_classification

import ragsys_kernels as rk
from benchmarks import papers
from benchmarks.papers.aicl import PROMPTS, Sizes
from benchmarks.papers.aicl import report as aicl_report
from benchmarks.papers.aicl.paper import TABLE
from benchmarks.papers.statistics import bootstrap_f1
from ragsys_kernels.icl import Rule
from ragsys_kernels.icl.adaptive_k import qpp_k
from ragsys_kernels.icl.posteriors import LabelModel, Posteriors
from ragsys_kernels.metrics import macro_scores, nqc

pytestmark = needs("bm25s", "matplotlib", "sklearn")

SIZES = Sizes(test=8, train=24, learn=8)
FIXED = "static k of the training texts"
METHODS = ["0-shot", "static k=1", "static k=3", "static k=5", FIXED, "QPP-AICL", "SAICL"]


def small_prompts():
    """The prompts with label words that the tiny tokenizer has."""
    words = ("Paris", "cats", "north", "capital")
    return {name: prompt._replace(words=words[: len(prompt.words)]) for name, prompt in PROMPTS.items()}


@pytest.fixture
def data(tmp_path, monkeypatch):
    for name, prompt in small_prompts().items():
        monkeypatch.setitem(PROMPTS, name, prompt)
    return write_classification(tmp_path / "data")


def evaluated(folder, **options):
    home = folder.parent  # what is kept is there for all tests
    given = {"out": home / "out", "cache": home.parent / "aicl", "data": folder, "samples": 100, "model": model()}
    return papers.aicl(**{**given, "encoder": TinyEncoder(), "sizes": SIZES, "pool": 8, **options})


def brute(items, top_m):
    """Every method by its definition, each prompt run alone."""
    encoder, prompt = TinyEncoder(), PROMPTS[items.name]
    labeler = LabelModel(model(), prompt.labels, share=False)
    train, test = (encoder.encode(texts).astype(np.float64) for texts in (items.train_texts, items.test_texts))
    shown = [*zip(items.train_texts, items.train_labels, strict=True)]

    def run(cosines, text, ks):
        near = np.argsort(-cosines, kind="stable")[:8]
        prompts = [prompt.render([shown[i] for i in near[:k]], text) for k in ks]
        found = Posteriors.of(labeler.score([prompts]), len(prompt.words))
        highest = np.sort(cosines)[::-1][:top_m]  # the nearest M, not the pool
        return found, float(nqc(highest[None])[0])

    best, spreads, right = [], [], []
    for i in range(8):
        cosines = train @ train[i]
        cosines[i] = -np.inf
        found, spread = run(cosines, items.train_texts[i], range(6))
        truth = items.train_labels[i]
        sure = [row[truth] if row.argmax() == truth else -np.inf for row in found.log_posterior]
        best.append(int(np.argmax(sure)) if max(sure) > -np.inf else 1)
        right.append(found.label)
        spreads.append(spread)
    rows = []
    for vector, text in zip(test, items.test_texts, strict=True):
        found, spread = run(train @ vector, text, range(6))
        rows.append((found, int(qpp_k([spread], 5, largest=max(spreads))[0])))
    fixed = int(np.argmax([macro_scores(items.train_labels[:8], column).f1 for column in np.transpose(right)]))
    return best, fixed, rows


def test_numbers_are_the_definitions(data):
    summary = evaluated(data, sets=["ag-news"], top_m=3)
    table = values_of(data.parent / "out")
    assert len(table) == 8 * 7
    for result in summary.results:
        best, fixed, rows = brute(result.items, 3)
        assert result.learnt.tolist() == best
        assert list(result.ks) == METHODS
        for q, (found, easy) in enumerate(rows):
            assert [result.ks[label][q] for label in METHODS[:6]] == [0, 1, 3, 5, fixed, easy]
            for label in METHODS:
                k = result.ks[label][q]
                assert result.predictions[label][q] == found.label[k]
                assert result.tokens[label][q] == found.tokens[k]
                assert result.entropies[label][q] == pytest.approx(found.entropy[k], abs=1e-4)
        mine = [row for row in table if row["set"] == result.items.name and row["method"] == "SAICL"]
        assert [int(row["k"]) for row in mine] == result.ks["SAICL"].tolist()
        assert [int(row["prediction"]) for row in mine] == result.predictions["SAICL"].tolist()


def test_report(data, figures):
    summary = evaluated(data)
    out = data.parent / "out"
    texts = [text for one in summary.results for text in (*one.items.train_texts, *one.items.test_texts)]
    check_files(out, ["f1.png", "k.png"], texts)
    text = (out / "report.md").read_text()
    assert text.count("**Quick run**: the test texts are 8 of AG News") == 1
    for title, result in zip(("AG News", "Jigsaw toxic", "SST-2"), summary.results, strict=True):
        for label in METHODS:
            scores = macro_scores(result.items.test_labels, result.predictions[label])
            numbers = " | ".join(f"{value:.3f}" for value in scores)
            paper = TABLE[result.items.name].get(label)
            printed = [""] * 5
            if paper is not None:
                shares = (f"{value:.3f}" for value in (paper.f1, paper.precision, paper.recall))
                printed = [*shares, f"{paper.k:.2f}", f"{paper.tokens}"]
            ends = rf"{result.ks[label].mean():.2f} \| {result.tokens[label].mean():.0f} \| {' . '.join(printed)} \|"
            assert re.search(rf"\| {title} \| {label} \| {re.escape(numbers)} \| \[.*\] \| {ends}", text)
        assert f"{title}: macro F1 0-shot " in str(summary)
        more = result.tokens["SAICL"].mean() - result.tokens["static k=5"].mean()
        there = TABLE[result.items.name]["SAICL"].tokens - TABLE[result.items.name]["static k=5"].tokens
        start = (
            rf"\| {title} \| SAICL - static k=5 \| {re.escape(f'{there:+d}')} \| (?:\*\*)?{re.escape(f'{more:+.0f}')} "
        )
        assert re.search(start, text)
    places = "(above|below|not distinguishable from)"
    assert re.search(rf"SAICL, against the best static k of the test texts: {places} it on ", text)
    settings = settings_of(out)
    assert settings["QPP-AICL"].startswith("NQC of the 5 nearest texts")
    assert settings["demonstrations"] == "dense, cosine top-k of 8, nearest-first, M = 5"
    assert settings["label words, Jigsaw toxic"] == list(PROMPTS["jigsaw"].words)


def test_options_reach_the_prompts(data):
    """Another order, rule or similarity asks for other prompts; and the order takes more tokens."""
    given = {"sets": ["ag-news"], "cache": data.parent / "shared", "diverse": (), "sizes": replace(SIZES, test=2)}
    first = evaluated(data, **given)
    last = evaluated(data, **given, order="nearest-last")
    assert (first.cached, last.cached > 0, last.scored > 0) == (0, True, True)  # k = 0 and 1 are the same prompts
    assert last.tokens_run / last.scored > 1.2 * first.tokens_run / first.scored
    assert evaluated(data, **given, rule=Rule("mmr", 0.3)).scored
    entropy = evaluated(data, **given, best_k="entropy")
    assert entropy.results[0].learnt.tolist() != first.results[0].learnt.tolist()
    assert evaluated(data, **given, similarity="bm25").scored
    again = evaluated(data, **given)
    assert (again.scored, again.tokens_run) == (0, 0)
    fewer = evaluated(data, **given, max_k=2)
    assert max(fewer.results[0].ks["QPP-AICL"].max(), fewer.results[0].ks["SAICL"].max()) <= 2


def test_diverse_demonstrations(data):
    """Every rule's predictions and similarities, each prompt run alone."""
    rules = (Rule("mmr", 0.4), Rule("vrsd"))
    (result,) = evaluated(data, sets=["sst-2"], diverse=rules).results
    items, encoder, prompt = result.items, TinyEncoder(), PROMPTS["sst-2"]
    train, test = (encoder.encode(texts) for texts in (items.train_texts, items.test_texts))
    labeler = LabelModel(model(), prompt.labels, share=False)
    assert [one.rule for one in result.diverse] == ["cosine top-k", "MMR λ=0.4", "VRSD"]
    shown = METHODS[1:]
    for one, pick in zip(result.diverse, (Rule("top"), *rules), strict=True):
        assert set(one.predictions) <= set(shown)
        near = np.argsort(-(test @ train.T), axis=1, kind="stable")[:, :8]
        picks = pick.select(test, rk.Corpus(train), 5, candidates=near).indices
        for q, text in enumerate(items.test_texts):
            for label in one.predictions:
                k = result.ks[label][q]
                chosen = picks[q, :k]
                before = [(items.train_texts[i], items.train_labels[i]) for i in chosen]
                found = Posteriors.of(labeler.score([[prompt.render(before, text)]]), 2)
                assert one.predictions[label][q] == found.label[0]
                among = (train[chosen] @ train[chosen].T)[np.triu_indices(k, 1)]
                expected = among.mean() if k > 1 else np.nan
                np.testing.assert_allclose(one.cosines[label][q], expected, atol=1e-5)
    for label, predictions in result.diverse[0].predictions.items():
        np.testing.assert_array_equal(predictions, result.predictions[label])
    text = (data.parent / "out" / "report.md").read_text()
    assert "| SST-2 | static k=5 | VRSD | " in text
    assert "| SST-2 | static k=1 | " not in text.partition("# Diverse demonstrations")[2]  # the same by every rule
    rows = [one.predictions[label] for label in aicl_report._several(result) for one in result.diverse[1:]]
    assert f" of {len(rows)} differences from the nearest texts have 0 outside" in text
    assert len({result.ks[label].tobytes() for label in aicl_report._several(result)}) * 2 == len(rows)
    assert 2 <= len(rows) < 2 * len(result.diverse[0].predictions)
    assert "Diverse demonstrations" not in "".join(
        evaluated(data, sets=["sst-2"], diverse=(), out=data.parent / "none").out.joinpath("report.md").read_text()
    )


def test_directions_are_decided_by_intervals(data):
    result = evaluated(data, sets=["sst-2"], diverse=()).results[0]
    truth = result.items.test_labels
    wrong = dict.fromkeys(METHODS, 1 - truth)

    def told_of(label):
        one = result._replace(predictions={**wrong, label: truth})
        return {line[1]: line for line in aicl_report._directions(one, aicl_report._rows(one, 100))}

    found = {name: line[-1] for name, line in told_of("SAICL").items()}
    assert found["SAICL - best static k"] == found["SAICL - QPP-AICL"] == "yes"  # as on SST-2 in the paper
    assert found["QPP-AICL - best static k"] == "undecided"
    told = told_of("QPP-AICL")
    assert told["SAICL - QPP-AICL"][2] == "+0.083"
    assert told["SAICL - QPP-AICL"][3].startswith("**-1.000 [-1.000, -")
    assert told["SAICL - QPP-AICL"][4] == "no"
    assert told["QPP-AICL - best static k"][2] == "-0.076"
    # Demonstrations at all are judged by the best number of them, also where none is better: by the interval.
    assert found["best static k from 1 - 0-shot"] == "undecided"
    told = told_of("0-shot")
    assert told["best static k from 1 - 0-shot"][3].startswith("**-1.000 [-1.000, -")
    assert told["best static k from 1 - 0-shot"][4] == "no"


def test_intervals_of_f1():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 60)
    predictions = np.stack(
        [np.where(rng.random(60) < right, labels, rng.integers(0, 3, 60)) for right in (0.2, 0.8)], 1
    )
    scores, differences = bootstrap_f1(labels, predictions, samples=4000)
    expected = [macro_scores(labels, column).f1 for column in predictions.T]
    assert [score.mean for score in scores] == pytest.approx(expected)
    draws = []
    for _ in range(2000):
        rows = rng.integers(0, 60, 60)
        draws.append([macro_scores(labels[rows], column[rows]).f1 for column in predictions.T])
    draws = np.array(draws)
    for score, column in zip(scores, draws.T, strict=True):
        assert [score.low, score.high] == pytest.approx(np.percentile(column, [2.5, 97.5]), abs=0.02)
    gap = differences[1][0]
    assert gap.mean == pytest.approx(expected[1] - expected[0])
    assert [gap.low, gap.high] == pytest.approx(np.percentile(draws[:, 1] - draws[:, 0], [2.5, 97.5]), abs=0.03)
    assert differences[0][0] == (0, 0, 0)
    # A class that only one of them predicts counts for that one.
    scores, _ = bootstrap_f1([0, 0, 1], np.array([[0, 0], [0, 2], [1, 1]]), samples=10)
    assert [score.mean for score in scores] == pytest.approx([1.0, macro_scores([0, 0, 1], [0, 2, 1]).f1])
    with pytest.raises(ValueError, match="bootstrap_f1: labels and predictions must be"):
        bootstrap_f1([0, 1], [0, 1])


def test_verdict_says_which_order_holds(data):
    result = evaluated(data, sets=["sst-2"]).results[0]
    truth = result.items.test_labels
    wrong = dict.fromkeys(METHODS, 1 - truth)
    good = result._replace(predictions={**wrong, "SAICL": truth})
    text = aicl_report._verdict([good], [aicl_report._rows(good, 100)])
    against = "against the best static k of the test texts:"
    assert f"SAICL, {against} above it on SST-2 (+1.000, " in text
    assert f"QPP-AICL, {against} not distinguishable from it on SST-2 (+0.000, " in text
    good = result._replace(predictions={**wrong, "static k=3": truth})
    assert "below it on SST-2 (-1.000, static k=3)" in aicl_report._verdict([good], [aicl_report._rows(good, 100)])
    found = aicl_report._rows(result, 100)
    unclear = "not distinguishable from"
    for place, low, high in (("above", 0.1, 0.2), (unclear, 0.0, 0.2), (unclear, -0.2, 0.0)):
        gap = aicl_report.Interval((low + high) / 2, low, high)
        rows = {label: row._replace(above=dict.fromkeys(row.above, gap)) for label, row in found.items()}
        text = aicl_report._verdict([result], [rows])
        assert text.count(f"{place} it on SST-2") == text.count("training texts the places are the same.") == 2
    rows["SAICL"].above[aicl_report.FIXED] = aicl_report.Interval(0.25, 0.2, 0.3)
    text = aicl_report._verdict([result], [rows])
    assert "Against that of the training texts: above it on SST-2 (+0.250, static k=" in text
    assert text.count("the places are the same") == 1


def test_a_stopped_run_goes_on(data):
    options = {"sets": ["sst-2"], "diverse": (), "sizes": replace(SIZES, test=3)}
    whole = evaluated(data, **options, out=data.parent / "whole", cache=data.parent / "another")
    with pytest.raises(KeyboardInterrupt):
        evaluated(data, **options, cache=data.parent, progress=stopping(lambda *at: at == (SIZES.learn, SIZES.learn)))
    assert not (data.parent / "out").exists()
    summary = evaluated(data, **options, cache=data.parent)
    assert 0 < summary.scored < whole.scored
    for label in METHODS:
        np.testing.assert_array_equal(whole.results[0].predictions[label], summary.results[0].predictions[label])


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"order": "best"}, "order must be one of 'nearest-first', 'nearest-last', got 'best'"),
        ({"similarity": "x"}, "similarity must be one of 'dense', 'bm25', got 'x'"),
        ({"best_k": "x"}, "best_k must be one of 'posterior', 'entropy', got 'x'"),
        ({"rule": Rule("best")}, "method must be one of 'top', 'mmr', 'vrsd', got 'best'"),
        ({"diverse": [Rule("best")]}, "diverse must be one of 'top', 'mmr', 'vrsd', got 'best'"),
        ({"rule": Rule("mmr", 2.0)}, r"lambda_d must be in \[0, 1\], got 2.0"),
        ({"top_m": 1}, "top_m must be from 2 to the pool's 8, got 1"),
        ({"max_k": 0}, "max_k must be at least 1, got 0"),
        ({"max_k": 60}, "pool must be at least the 60 demonstrations that a text can get, got 8"),
        ({"pool": 4}, "pool must be at least the 5 demonstrations that a text can get, got 4"),
        ({"sizes": replace(SIZES, learn=0)}, "sizes.learn must be at least 1, got 0"),
    ],
)
def test_bad_options(data, options, match):
    encoder = TinyEncoder()
    with pytest.raises(ValueError, match=f"aicl: {match}"):
        evaluated(data, encoder=encoder, **options)
    assert not encoder.calls


def test_scikit_learn_is_missed_at_once(data, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ModuleNotFoundError, match=r"aicl needs scikit-learn: pip install '.+\[evaluate\]'"):
        evaluated(data)
