"""BoolQ's questions with passages, by a tiny model: values by brute force, the report, resumption, the command."""

import json
import math
import random
import re

import lm_models
import numpy as np
import pytest
from backends import needs
from evaluations import check_files, model, settings_of, stopping, values_of
from ralm_data import WORDS
from tiny_encoder import TinyEncoder

import ragsys_kernels as rk
from benchmarks import papers
from benchmarks.papers.boolq import report as boolq_report
from benchmarks.papers.boolq import run as boolq_run
from ragsys_kernels.icl import BM25Retriever

pytestmark = needs("bm25s", "matplotlib")

LABELS = [
    "no document", "any passage", "BM25, first", "BM25, first two", "dense, first", "dense, first two",
    "MMR λ=0.5, two", "VRSD, two", "own passage",
]  # fmt: skip
PASSAGES, LIMIT = 23, 5


def items_of(seed=0):
    """Questions about the words of their passages; two share a passage, one has a capital and a question mark."""
    rng = random.Random(seed)
    rows = []
    for i in range(PASSAGES):
        passage = rng.choices(WORDS, k=rng.randint(4, 8))
        question = " ".join([*rng.sample(passage, 3), *rng.choices(WORDS, k=2)])
        rows.append(
            {"question": question, "title": f"Title {i}", "answer": i % 3 != 1, "passage": " ".join(passage)}
        )  # fmt: skip
    rows[4]["question"] = f"Is {rows[4]['question']}?"
    rows[7]["question"] = "zebra"  # of which BM25 finds nothing
    return [*rows, {**rows[2], "question": "is light in ice", "answer": False}]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("boolq") / "data"
    (folder / "boolq").mkdir(parents=True)
    (folder / "boolq" / "BoolQdev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in items_of()))
    return folder


# The tiny model never says yes; of these it takes one or the other.
ANSWERS = (" content", " in")


@pytest.fixture
def evaluated(data, tmp_path, monkeypatch):
    assert boolq_run.ANSWERS == (" yes", " no")
    monkeypatch.setattr(boolq_run, "ANSWERS", ANSWERS)

    def run(**options):
        given = {"out": tmp_path / "out", "cache": data.parent, "data": data, "model": model(), "samples": 100}
        return papers.boolq(**{**given, "encoder": TinyEncoder(), "words": LIMIT, **options})

    return run


def brute_picks():
    """The documents of every question and method by their definitions."""
    rows = items_of()
    documents = [f"{row['title']}\n{row['passage']}" for row in rows[:PASSAGES]]
    vectors, queries = (TinyEncoder().encode(texts) for texts in (documents, [row["question"] for row in rows]))
    pools = np.argsort(-(queries @ vectors.T), axis=1, kind="stable")[:, :20]
    sparse = [row[row >= 0] for row in BM25Retriever(documents).search([row["question"] for row in rows], 2).ids]
    own = np.array([*range(PASSAGES), 2])
    steps = np.random.default_rng(0).integers(PASSAGES - 1, size=len(rows))
    found = (
        [()] * len(rows), (own[:, None] + 1 + steps[:, None]) % PASSAGES, [row[:1] for row in sparse], sparse,
        pools[:, :1], pools[:, :2], rk.mmr(queries, vectors, 2, candidates=pools, lambda_d=0.5).indices,
        rk.vrsd(queries, vectors, 2, candidates=pools).indices, own[:, None],
    )  # fmt: skip
    return {label: [tuple(map(int, row)) for row in picks] for label, picks in zip(LABELS, found, strict=True)}


def brute_prompt(q, ids):
    """The paper's form, written out."""
    rows = items_of()
    question = rows[q]["question"]
    question = question[0].lower() + question[1:] + ("" if question.endswith("?") else "?")
    shown = ["\n\n".join([f"Title {i}", " ".join(rows[i]["passage"].split(" ")[:LIMIT]), ""]) for i in ids]
    lead = ["Answer", "Based on this text, answer", "Based on these texts, answer"][len(ids)]
    return "".join(shown) + f"{lead} these questions:\nQ: {question}\nA:"


def brute_logp(prompt):
    """Summed log p of both answers, from all logits of each text."""
    tokenizer, sums = lm_models.tokenizer(), []
    before = tokenizer(prompt)["input_ids"]
    for answer in ANSWERS:
        ids = tokenizer(prompt + answer)["input_ids"]
        assert ids[: len(before)] == before
        sums.append(lm_models.logprobs(ids)[len(before) - 1 :].sum())
    return sums


def test_values_are_the_definitions(evaluated):
    result, picks = evaluated().result, brute_picks()
    rows = items_of()
    assert list(result.picks) == list(result.logp) == LABELS
    assert result.picks == picks
    assert result.picks["BM25, first"][7] == ()
    assert result.picks["MMR λ=0.5, two"] != result.picks["dense, first two"] != result.picks["VRSD, two"]
    assert not any(row == (own,) for row, own in zip(picks["any passage"], result.own, strict=True))
    truth = np.array([row["answer"] for row in rows])
    prompts = {}
    for label in LABELS:
        texts = [brute_prompt(q, ids) for q, ids in enumerate(picks[label])]
        prompts |= {text: brute_logp(text) for text in texts if text not in prompts}
        logp = np.array([prompts[text] for text in texts])
        np.testing.assert_allclose(result.logp[label], logp, atol=2e-3, err_msg=label)
        right, wrong = logp[np.arange(len(rows)), 1 - truth], logp[np.arange(len(rows)), truth.astype(int)]
        assert result.right(label).tolist() == (right > wrong).tolist()
        assert result.yes(label).tolist() == (logp[:, 0] > logp[:, 1]).tolist()
        np.testing.assert_allclose(result.raw(label), right, atol=2e-3)
        among = [math.log(math.exp(r) / (math.exp(r) + math.exp(w))) for r, w in zip(right, wrong, strict=True)]
        np.testing.assert_allclose(result.normalised(label), among, atol=2e-3)
        assert result.found(label).tolist() == [own in ids for own, ids in zip(result.own, picks[label], strict=True)]
    assert result.prompts == len(prompts)
    assert {bool(one) for label in LABELS for one in result.yes(label)} == {False, True}


def test_report_has_every_method_and_no_text_of_the_data(evaluated, tmp_path, figures):
    summary = evaluated()
    out, result = tmp_path / "out", summary.result
    texts = [row[name] for row in items_of() for name in ("passage", "title", "question")]
    check_files(out, ["changes.png", "methods.png"], texts)
    text = (out / "report.md").read_text()
    assert "Quick run" not in text
    for label in LABELS:
        right, yes = result.right(label), result.yes(label)
        balanced = (right[result.truth].mean() + right[~result.truth].mean()) / 2
        cells = [f"{right.mean():.1%}", r"\[.*?\]", f"{balanced:.1%}", r"\[.*?\]", f"{yes.mean():.1%}", r"\[.*?\]"]
        cells += [f"{result.normalised(label).mean():.3f}", r"\[.*?\]", f"{result.raw(label).mean():.3f}", r"\[.*?\]"]
        cells += [f"{result.found(label).mean():.1%}" if label in LABELS[2:-1] else ""]
        assert re.search(rf"\| {re.escape(label)} \| " + r" \| ".join(cells) + r" \|", text), label
        assert f"{label}: accuracy {right.mean():.1%}, yes {yes.mean():.1%}" in str(summary)
    cut = sum(len(row["passage"].split()) > LIMIT for row in items_of()[:PASSAGES])
    assert f"first {LIMIT} words, so that prompts stay short: {cut} are longer" in " ".join(text.split())
    rows = values_of(out)
    assert len(rows) == (PASSAGES + 1) * len(LABELS)
    assert {row["documents"] for row in rows if row["method"] == "no document"} == {""}
    for row in rows:
        q, label = int(row["question"]), row["method"]
        assert [float(row["logp_yes"]), float(row["logp_no"])] == pytest.approx(result.logp[label][q], abs=1e-6)
        assert (int(row["right"]), int(row["answer"])) == (result.right(label)[q], result.truth[q])
        assert int(row["own_passage"]) == result.own[q]
        assert tuple(map(int, row["documents"].split())) == result.picks[label][q]
    settings = settings_of(out)
    assert (settings["words of a passage"], settings["BM25"]) == (LIMIT, "k1 1.5, b 0.75, no stems")


def test_fewer_questions_are_a_quick_run_and_come_from_the_cache(evaluated, tmp_path, monkeypatch):
    steps = []
    whole = evaluated(progress=lambda *step: steps.append(step))
    assert steps[-(PASSAGES + 2) :] == [(done, PASSAGES + 1) for done in range(PASSAGES + 2)]
    again = evaluated()
    assert again.cached == 2 * whole.result.prompts == 2 * again.result.prompts
    some = evaluated(questions=5)
    assert some.cached == 2 * some.result.prompts
    assert "**Quick run.** 5 questions of BoolQ" in (tmp_path / "out" / "report.md").read_text()
    for label in LABELS:  # those of the whole run, a random passage too
        assert some.result.picks[label] == [whole.result.picks[label][q] for q in some.result.questions]
        np.testing.assert_array_equal(some.result.logp[label], whole.result.logp[label][some.result.questions])
    monkeypatch.setattr(boolq_run, "QUICK_QUESTIONS", 4)
    assert len(evaluated(quick=True).result.truth) == 4
    assert len(evaluated(quick=True, questions=3).result.truth) == 3


def test_a_stopped_run_goes_on(evaluated, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        evaluated(cache=tmp_path, questions=8, progress=stopping(lambda *at: at == (6, 8)))
    assert 6 * 2 * 4 < evaluated(cache=tmp_path, questions=8).cached < 6 * 2 * 9 + 1


def made(shares, yes=60):
    """A result of 100 questions, of which each method has these shares right."""
    truth = np.arange(100) < yes
    right = {label: np.arange(100) % 10 < 10 * shares.get(label, 0.5) for label in LABELS}
    logp = {label: np.where(truth == one, 0.0, -2.0) for label, one in right.items()}
    return boolq_report.BoolQResult(
        np.arange(100), truth, np.zeros(100, int), {label: [()] * 100 for label in LABELS},
        {label: np.stack([values, np.full(100, -1.0)], axis=1) for label, values in logp.items()}, 1,
    )  # fmt: skip


def test_findings_are_decided_by_the_interval():
    shares = {"dense, first": 0.7, "dense, first two": 0.7, "BM25, first": 0.5, "BM25, first two": 0.3}
    result = made(shares)
    assert result.right("dense, first").mean() == 0.7
    text = boolq_report.report_of(result, 500, collection=9, words=5, cut=1).markdown()
    rows = re.findall(
        r"^\| (documents|a second|BM25 is)(.*?) \| (\w+) \| ([-+.\d]+|the same)(?: \[.*\] points| answers) \|$",
        text,
        re.M,
    )
    assert [(answer, change) for _, _, answer, change in rows] == [
        ("yes", "+20.0"), ("yes", "+20.0"), ("no", "-20.0"), ("undecided", "the same"), ("no", "-20.0")
    ]  # fmt: skip
    assert all(re.search(r"\((Section 7|Figure 3)\)$", finding) for _, finding, _, _ in rows)
    verdicts = r"\+20\.0 \[.*?\] \| higher \| \+20\.0 \[.*?\] \| higher \| .*? \| higher \|"
    assert re.search(rf"^\| dense, first \| no document \| [^|]* \| {verdicts}$", text, re.M)
    assert re.search(r"^\| BM25, first \| dense, first \| .* \| -20\.0 \[.*?\] \| lower \| .* \| lower \|", text, re.M)
    assert re.search(r"^\| dense, first two \| dense, first \|(.*\| undecided){3} \|$", text, re.M)


def test_always_yes_is_no_gain_in_balanced_accuracy():
    result = made({}, yes=80)
    result.logp["no document"][:] = [-2.0, -1.0]
    result.logp["dense, first"][:] = [-1.0, -2.0]
    text = boolq_report.report_of(result, 500, collection=9, words=5, cut=1).markdown()
    assert "| dense, first | 80.0% | [71.1%, 86.7%] | 50.0% | [50.0%, 50.0%] | 100.0% | [96.3%, 100.0%] |" in text
    assert "questions: the dense retriever's first (Section 7) | undecided | the same answers |" in text
    assert re.search(r"^\| dense, first \| no document \| .* \| undecided \| \+60\.0 \[.*?\] \| higher \|", text, re.M)
    result.logp["own passage"][:] = -1.0
    assert not result.right("own passage").any()  # equal ones are not right
    assert not result.yes("own passage").any()


@pytest.mark.parametrize(
    ("options", "kind", "match"),
    [
        ({"bm25": "atire"}, ValueError, "boolq: bm25 must be one of 'lucene', 'pyserini', got 'atire'"),
        ({"questions": 0}, ValueError, "boolq: questions must be at least 1, got 0"),
        ({"words": 0}, ValueError, "boolq: words must be at least 1, got 0"),
        ({"words": 1.5}, TypeError, "boolq: words must be an integer, got float"),
    ],
)
def test_bad_options(evaluated, tmp_path, options, kind, match):
    with pytest.raises(kind, match=match):
        evaluated(**options)
    assert not (tmp_path / "out").exists()


def test_one_passage_is_no_collection(evaluated, tmp_path):
    (tmp_path / "boolq").mkdir()
    (tmp_path / "boolq" / "BoolQdev.jsonl").write_text(json.dumps(items_of()[0]) + "\n")
    with pytest.raises(ValueError, match="boolq: data must have two passages, got 1"):
        evaluated(data=tmp_path)
