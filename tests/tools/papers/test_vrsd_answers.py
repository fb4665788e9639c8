"""The evaluation of answers after VRSD's picks, with a tiny model: its prompts, its measures, its report, going on."""

import re
import sys

import lm_models
import numpy as np
import pytest
from backends import needs
from evaluations import check_files, model, settings_of, stopping, values_of
from tiny_encoder import TinyEncoder, write_sets

from benchmarks import papers
from benchmarks.papers.vrsd import answers
from benchmarks.papers.vrsd import answers_report as vrsd_answers_report
from benchmarks.papers.vrsd.answers import PROMPTS, evaluate, is_right, rouge_scorer
from ragsys_kernels.icl import HuggingFaceModel
from ragsys_kernels.icl.datasets import QuestionSet, vrsd_set
from ragsys_kernels.icl.generation import _WINDOW, GreedyGenerator
from ragsys_kernels.reporting.statistics import Interval

pytestmark = needs("bm25s", "matplotlib", "rank_bm25", "rouge_score")

METHODS = ["no items", "random items", "MMR λ=0", "MMR λ=0.5", "MMR λ=1", "BM25 (Okapi)", "VRSD"]


def last_answer(self, prompts, stop):
    """The last demonstration's answer; without one, a word."""
    return ["A: " + prompt.rsplit("A: ", 1)[1].partition("\n")[0] if "A: " in prompt else "sun" for prompt in prompts]


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setattr(GreedyGenerator, "generate", last_answer)
    return write_sets(tmp_path / "data")


def evaluated(folder, **options):
    home = folder.parent  # what is kept is there for all tests
    given = {"out": home / "out", "cache": home.parent / "answers", "data": folder, "samples": 100, "model": model()}
    return papers.vrsd_answers(**{**given, "encoder": TinyEncoder(), "queries": 3, "pool": 9, "k": 3, **options})


def asked(result, label):
    """Number, prompt, question and answer of each query after a method's picks."""
    questions, template = result.questions, PROMPTS[result.questions.name][0]
    items = [dict(zip(("question", "answer"), item.split("->", 1), strict=True)) for item in questions.pool]
    for q, (question, truth) in enumerate(zip(questions.questions, questions.answers, strict=True)):
        yield q, template.prompt({"question": question}, [items[i] for i in result.picks[label][q]]), question, truth


class Told:
    """Answers from the demonstrations: the first word of the question and how many items stand before it."""

    fingerprint = "told"

    def __init__(self):
        self.prompts, self.stops = [], []

    def generate(self, prompts, stop, progress):
        self.prompts += prompts
        self.stops.append(stop)
        return [f"{prompt.rsplit('Q: ', 1)[1].split()[0]} {prompt.count('Q: ') - 1}" for prompt in prompts]


def test_every_method_has_its_items_in_the_prompt(data):
    questions = vrsd_set("openbookqa", data)
    model, truth = Told(), []
    found = evaluate(TinyEncoder(), model, questions, lambda *pair: truth.append(pair) or [0, 0, 0], k=3, pool=9)
    assert list(found.picks) == METHODS
    assert model.stops == [PROMPTS["openbookqa"][1]]
    size = len(questions.questions)
    assert len(model.prompts) == 7 * size
    items = [item.split("->", 1) for item in questions.pool]
    for at, label in enumerate(METHODS):
        for q in range(size):
            shown = [f"Q: {items[i][0]}\nA: {items[i][1]}" for i in found.picks[label][q]]
            prompt = "\n\n".join([PROMPTS["openbookqa"][0].instruction, *shown, f"Q: {questions.questions[q]}\nA:"])
            assert model.prompts[at * size + q] == prompt
            assert len(shown) == (0 if label == "no items" else 3)
    near = TinyEncoder().encode(questions.questions) @ TinyEncoder().encode(questions.pool).T
    np.testing.assert_array_equal(found.picks["MMR λ=1"], np.argsort(-near, axis=1, kind="stable")[:, :3])
    assert [one for one, _ in truth[:size]] == questions.answers
    random = found.picks["random items"]
    assert all(len(set(row)) == 3 for row in random.tolist())
    assert len(np.unique(random)) > 12  # of 40, in ten rows of three
    again = evaluate(TinyEncoder(), model, questions, lambda *_: [0, 0, 0], k=3, pool=9, seed=1)
    assert (again.picks["random items"] != random).any()


def test_numbers_are_those_of_each_answer(data):
    summary = evaluated(data, queries=9, answers_only=True)
    assert [result.questions.name for result in summary.results] == ["arc-da", "openbookqa", "puzzle"]
    table = values_of(data.parent / "out")
    assert len(table) == (9 + 9 + 6) * 7
    score = rouge_scorer("test")
    for result in summary.results:
        assert bool(result.right) == (result.questions.name == "openbookqa")
        whole = vrsd_set(result.questions.name, data)
        places = [whole.questions.index(question) for question in result.questions.questions]
        assert places == sorted(set(places))
        truths = [whole.answers[place] for place in places]
        assert truths == result.questions.answers
        for label in METHODS:
            mine = [row for row in table if (row["set"], row["method"]) == (result.questions.name, label)]
            for q, truth in enumerate(truths):
                picks = result.picks[label][q]
                answer = result.questions.pool[picks[-1]].split("->")[1] if len(picks) else "sun"
                assert result.rouge[label][q].tolist() == score(truth, answer)
                assert float(mine[q]["ROUGE-L"]) == pytest.approx(score(truth, answer)[2], abs=1e-6)
                if result.right:
                    options = result.questions.questions[q].split("be: ")[1].split(". ")
                    likeness = {option: score(option, answer)[2] for option in options}
                    best = likeness.pop(truth)
                    assert result.right[label][q] == (best > max(likeness.values())) == bool(int(mine[q]["right"]))
        assert max(values.max() for values in result.rouge.values()) > 0.2


def test_options_are_rated_by_their_log_probability(data, monkeypatch):
    """By a forward pass of each option on its own; more questions than are scored at once."""
    monkeypatch.setattr(answers, "_BLOCK", 3)
    (result,) = evaluated(data, sets=["openbookqa"], queries=5).results
    assert list(result.likeliest) == list(result.per_character) == METHODS
    for label in METHODS:
        for q, prompt, question, truth in asked(result, label):
            options = question.split("be: ")[1].split(". ")
            logp = {option: float(model().score([prompt], [f" {option}"]).sum[0]) for option in options}
            best = logp.pop(truth)
            assert result.likeliest[label][q] == (best > max(logp.values()))
            rivals = [value / len(option) for option, value in logp.items()]
            assert result.per_character[label][q] == (best / len(truth) > max(rivals))
    assert any((result.likeliest[label] != result.per_character[label]).any() for label in METHODS)
    rows = values_of(data.parent / "out")
    told = [int(row["likeliest_per_character"]) for row in rows]
    assert told == np.concatenate([result.per_character[label] for label in METHODS]).astype(int).tolist()
    text = (data.parent / "out" / "report.md").read_text()
    shares = [f"{100 * values['VRSD'].mean():.1f}%" for values in (result.likeliest, result.per_character)]
    assert re.search(rf"\| OpenBookQA \| VRSD \|.* \| {shares[0]} \| \[.*\] \| {shares[1]} \| \[", text)
    assert "| OpenBookQA | MMR λ=1 | accuracy by log-probability per character |" in text


def test_answers_are_scored_without_being_written(data, monkeypatch):
    """The mean log-probability of a token of the set's answer, by full logits; no answer is generated."""
    monkeypatch.setattr(GreedyGenerator, "generate", None)
    summary = evaluated(data, sets=["puzzle", "openbookqa"], queries=4, scores_only=True, cache=data.parent)
    tokenizer = lm_models.tokenizer()
    for result in summary.results:
        assert (result.rouge, result.right, list(result.truth)) == ({}, {}, METHODS)
        for label in METHODS:
            for q, prompt, _, truth in asked(result, label):
                before, answer = tokenizer(prompt)["input_ids"], tokenizer(f" {truth}")["input_ids"]
                found = lm_models.logprobs(before + answer)[-len(answer) :]
                assert result.truth[label][q] == pytest.approx(found.mean(), abs=1e-4)
    text = (data.parent / "out" / "report.md").read_text()
    assert "ROUGE-1" not in text
    assert "VRSD's log-probability of the answer is " in text
    mean = summary.results[0].truth["VRSD"].mean()
    assert re.search(rf"\| Puzzle \| VRSD \|  \|  \|  \|  \| {mean:.3f} \| \[", text)
    assert f"VRSD {mean:.3f}" in str(summary)
    evaluated(data, sets=["puzzle"], queries=4, scores_only=True)
    assert "by log-probability" not in (data.parent / "out" / "report.md").read_text()  # there are no options
    rows = values_of(data.parent / "out")
    assert {row["ROUGE-L"] for row in rows} == {""}
    assert float(rows[0]["logprob"]) == pytest.approx(summary.results[0].truth[METHODS[0]][0], abs=1e-6)


def test_answers_are_written_without_being_scored(data, monkeypatch):
    whole = evaluated(data, sets=["puzzle", "openbookqa"])
    monkeypatch.setattr(HuggingFaceModel, "score", None)
    summary = evaluated(data, sets=["puzzle", "openbookqa"], answers_only=True, cache=data.parent / "another")
    for result, other in zip(summary.results, whole.results, strict=True):
        assert result.measures == tuple(name for name in other.measures if "log-probability" not in name)
        for name in result.measures:
            for label in METHODS:
                np.testing.assert_array_equal(result.values(name)[label], other.values(name)[label])
    text = (data.parent / "out" / "report.md").read_text()
    assert "log-probability" not in text
    right, rouge = summary.results[1].right["VRSD"].mean(), summary.results[1].rouge["VRSD"].mean(axis=0)
    means = " | ".join(f"{value:.3f}" for value in rouge)
    row = rf"\| OpenBookQA \| VRSD \| {re.escape(means)} \| \[.*\] \| {right:.1%} \| \[.*\] \| 0.789 \| 0.534 \|"
    assert re.search(row, text)
    rows = values_of(data.parent / "out")
    assert {(row["logprob"], row["likeliest"]) for row in rows} == {("", "")}


def test_directions_are_the_papers(data):
    (result,) = evaluated(data, sets=["puzzle"]).results
    high = {label: np.full((3, 3), 0.2 if label == "VRSD" else 0.1) for label in METHODS}
    high["MMR λ=0.5"] = high["VRSD"]
    high["BM25 (Okapi)"] = high["VRSD"] + 0.1
    result = result._replace(rouge=high)
    found = [{"ROUGE-L": vrsd_answers_report._measure(result, "ROUGE-L", 100)}]
    told = {line[1]: line for line in vrsd_answers_report._directions([result], found)}
    assert told["MMR λ=1"][2:] == ("ROUGE-L", "+0.025", "+0.012", "**+0.100 [+0.100, +0.100]**", "yes")
    assert told["MMR λ=0"][-1] == "models differ"  # on Puzzle one of the paper's two has no difference
    assert (told["MMR λ=0.5"][-1], told["BM25 (Okapi)"][-1]) == ("undecided", "no")


@pytest.mark.parametrize("below", [True, False])
def test_plot_leaves_out_what_lies_far_below(below):
    """The mean without items is written at the bottom where it would press the others together."""
    from matplotlib.figure import Figure

    means = {label: Interval(-2.0, -2.1, -1.9) for label in METHODS}
    means["no items"] = Interval(-5.0, -5.1, -4.9) if below else Interval(-2.2, -2.3, -2.1)
    questions = QuestionSet("puzzle", "Puzzle", ["q"], ["a"], ["p"], {})
    result = vrsd_answers_report.AnswerResult(questions, {}, {}, {}, {}, {}, {})
    figure = Figure()
    vrsd_answers_report._plot(figure, [result], [{result.leading: vrsd_answers_report._Measure(means, {})}])
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == (["-5.00\n↓"] if below else [])
    assert len(axes.containers) == len(METHODS) - below
    assert axes.get_ylim()[0] > -3


def test_measures():
    score = rouge_scorer("test")
    assert score("the sun warms ice", "the sun warms ice") == [1.0, 1.0, 1.0]
    # Two of three words, of four: P = 2/3, R = 2/4; no pair of neighbours; longest common subsequence of one.
    assert score("the sun warms ice", "ice melts sun") == pytest.approx([4 / 7, 0.0, 2 / 7])
    assert score("sun", "") == [0.0, 0.0, 0.0]
    question = "Why? The option can be: the sun. warm ice. warm rocks. rain"
    answers = {"It is warm ice": True, "warm": False, "warm ice warm rocks": False, "": False, "rain": False}
    assert {answer: is_right(score, question, "warm ice", answer) for answer in answers} == answers


def test_report(data, figures):
    summary = evaluated(data)
    out = data.parent / "out"
    texts = [text for one in summary.results for text in (*one.questions.questions, *one.questions.pool)]
    check_files(out, ["answers.png"], texts)
    text = (out / "report.md").read_text()
    for title, result in zip(("ARC-DA", "OpenBookQA", "Puzzle"), summary.results, strict=True):
        for label in METHODS:
            means = " | ".join(f"{value:.3f}" for value in result.rouge[label].mean(axis=0))
            share = f"{result.right[label].mean():.1%}" if result.right else ""
            row = rf"\| {title} \| {re.escape(label)} \| {re.escape(means)} \| \[.*\] \| {share} \|"
            assert re.search(row, text)
        assert "VRSD's ROUGE-L is " in text
        assert f"{title}: ROUGE-L no items " in str(summary)
    assert settings_of(out)["sets"]["Puzzle"] == "3 queries, 24 items"


def test_differences_are_paired(data):
    result = evaluated(data, sets=["puzzle"]).results[0]
    rouge = {label: np.zeros((3, 3)) for label in METHODS}
    rouge["VRSD"] = np.array([[0.1] * 3, [0.5] * 3, [0.9] * 3])
    rouge["MMR λ=0.5"] = rouge["VRSD"] - 0.1
    result = result._replace(rouge=rouge)
    measure = means, gaps = vrsd_answers_report._measure(result, "ROUGE-L", 200)
    assert (means["VRSD"].mean, means["VRSD"].high > 0.5) == (pytest.approx(0.5), True)
    assert gaps["MMR λ=0.5"] == pytest.approx((0.1, 0.1, 0.1))
    verdict = vrsd_answers_report._verdict([result], [{"ROUGE-L": measure}])
    assert "above MMR λ=0.5 on Puzzle (+0.100)" in verdict
    assert verdict.startswith("VRSD's ROUGE-L is above MMR λ=0")
    assert "undecided" not in verdict
    gaps["MMR λ=0.5"] = Interval(0.1, 0.0, 0.2)
    verdict = vrsd_answers_report._verdict([result], [{"ROUGE-L": measure}])
    assert "MMR λ=0.5" not in verdict
    assert verdict.endswith("; its other difference from MMR is undecided.")
    measure = measure._replace(gaps=dict.fromkeys(gaps, gaps["MMR λ=0.5"]))
    verdict = vrsd_answers_report._verdict([result], [{"ROUGE-L": measure}])
    assert verdict == "VRSD's ROUGE-L is not distinguishable from MMR's on any set."


def test_accuracies_have_wilsons_interval_and_differences_the_bootstraps(data):
    result = evaluated(data, sets=["openbookqa"]).results[0]
    right = {label: np.array([True, True, True]) for label in METHODS} | {"MMR λ=0": np.zeros(3, bool)}
    means, gaps = vrsd_answers_report._measure(result._replace(right=right), "accuracy", 200)
    assert means["VRSD"] == pytest.approx((1.0, 3 / (3 + 1.959964**2), 1.0))
    assert gaps["MMR λ=0"] == (1.0, 1.0, 1.0)


def test_a_stopped_run_goes_on(data):
    options = {"sets": ["arc-da"], "queries": 9, "answers_only": True}
    whole = evaluated(data, **options, out=data.parent / "whole", cache=data.parent / "another")
    with pytest.raises(KeyboardInterrupt):
        evaluated(data, **options, cache=data.parent, progress=stopping(lambda done, total: done == _WINDOW))
    assert not (data.parent / "out").exists()
    summary = evaluated(data, **options, cache=data.parent)
    assert summary.generated == whole.generated - _WINDOW > 0
    for one, two in zip(whole.results, summary.results, strict=True):
        for label in METHODS:
            np.testing.assert_array_equal(one.rouge[label], two.rouge[label])


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"queries": 0}, "queries must be at least 1, got 0"),
        ({"k": 10}, "k must be at most pool = 9, got 10"),
        ({"pool": 30}, "pool must be at most the 24 items of Puzzle, got 30"),
        ({"answers_only": True, "scores_only": True}, "answers_only must be False with scores_only, got True"),
    ],
)
def test_bad_options(data, options, match):
    with pytest.raises(ValueError, match=f"^vrsd-answers: {match}"):
        evaluated(data, **{"sets": ["puzzle"], **options})


def test_rouge_is_missed_at_once(data, monkeypatch):
    for name in ("rouge_score", "rouge_score.rouge_scorer"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match="vrsd-answers needs rouge-score: pip install"):
        evaluated(data)
