"""What the conformance kit can call: functions of any usual signature; the command and its status."""

import functools
import json
import warnings

import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels import conformance
from ragsys_kernels.conformance import CallError, conform, reading


def picks_of(query, rows, k, weight, relevance=None):
    """MMR as it is published, in a few lines."""
    rows = np.asarray(rows, np.float64)
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    if relevance is None:
        relevance = unit @ np.asarray(query, np.float64) / np.linalg.norm(query)
    picks = []
    while len(picks) < min(k, len(rows)):
        values = weight * relevance - (1 - weight) * np.max(unit @ unit[picks].T, axis=1) if picks else 1 * relevance
        values[picks] = -np.inf
        picks.append(int(np.argmax(values)))
    return picks


# --- Functions.


def by_position(query_embedding, embedding_list, lambda_mult=0.5, k=4, /):
    return picks_of(query_embedding, embedding_list, k, lambda_mult)


def of_lists(q, vectors, alpha=0.5, top_n=4):
    if not isinstance(vectors, list):
        raise TypeError("lists only")
    return picks_of(q, vectors, top_n, alpha)


def of_a_batch(queries, embeddings, k, lam=0.5):
    (query,) = queries  # two dimensions
    assert len(query) == 8
    return np.array([picks_of(query, embeddings, k, lam)])


def that_returns_rows(query, docs, k, lambda_=0.5):
    return [docs[i] for i in picks_of(query, docs, k, lambda_)]


def with_scores_behind(query, items, limit, mmr_lambda=0.5):
    return [(str(i), 0.5) for i in picks_of(query, items, limit, mmr_lambda)]


def with_scores_before(query, items, limit, mmr_lambda=0.5):
    found = picks_of(query, items, limit, mmr_lambda)
    return [0.5] * len(found), found


def of_words(doc_embedding, word_embeddings, words, top_n=5, diversity=0.8):
    return [(words[i], 0.5) for i in picks_of(doc_embedding, word_embeddings, top_n, 1 - diversity)]


def that_returns_records(query, candidates, size, balance=0.5):
    return {"picks": [{"id": i, "score": 1.0} for i in picks_of(query, candidates, size, balance)]}


def of_scores(rel, matrix, n, lmbda=0.5):
    return picks_of(None, matrix, n, lmbda, np.asarray(rel))


def of_scores_and_a_query(query, scores, matrix, n, lmbda=0.5):
    return picks_of(None, matrix, n, lmbda, np.asarray(scores))


def with_a_page(query, rows, k, lam, offset=0):
    return picks_of(query, rows, k + offset, lam)[offset:]


def padded(query, rows, k, lam):
    found = picks_of(query, rows, k, lam)
    return found + [-1] * (k - len(found))


FUNCTIONS = [
    by_position, of_lists, of_a_batch, that_returns_rows, with_scores_behind, with_scores_before, of_words,
    that_returns_records, of_scores, of_scores_and_a_query, with_a_page, padded,
]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_functions_of_usual_signatures_are_called(function):
    report = conform(function)
    assert report.textbook, report.verdict
    assert report["weighs"].value == ("diversity" if function is of_words else "relevance")
    assert report["relevance"].value == ("given" if "of_scores" in function.__name__ else "cosine")
    assert report["pages"].value == ("continues" if function is with_a_page else "not offered")
    assert report["more"].value == ("padded" if function is padded else "shorter")


def test_functions_of_tensors_are_called():
    torch = pytest.importorskip("torch")

    def of_tensors(query, embeddings, k, lam):
        picks = picks_of(query.double().numpy(), torch.nn.functional.normalize(embeddings), k, lam)
        return torch.tensor(picks), torch.zeros(len(picks))

    report = conform(of_tensors)
    assert report.textbook
    assert report["none"].value == "none"


def test_what_has_no_name_is_called_too():
    class Ranker:
        def __call__(self, query, embeddings, k, lam):
            return picks_of(query, embeddings, k, lam)

        def rank(self, query, embeddings, k, lam):
            return self(query, embeddings, k, lam)

    for called, name in [
        (Ranker(), "Ranker"),
        (Ranker().rank, "Ranker.rank"),
        (functools.partial(picks_of, relevance=None), "partial"),
    ]:
        report = conform(called)
        assert report.textbook
        assert report.target.endswith(name)


def test_unusual_names_are_said():
    def rerank(anchor, passages, how_many, theta, mode):
        assert mode == "mmr"
        return picks_of(anchor, passages, how_many, theta)

    names = {"query": "anchor", "rows": "passages", "k": "how_many", "weight": "theta"}
    assert conform(rerank, arguments=names, options={"mode": "mmr"}).textbook
    with pytest.raises(CallError, match="conform: function must have a parameter for rows by a usual name, got anchor"):
        conform(rerank)
    with pytest.raises(CallError, match="conform: options must have a value for the parameter 'mode', got none"):
        conform(rerank, arguments=names)
    with pytest.raises(ValueError, match="conform: arguments must name parameters of the function, got query=ancor"):
        conform(rerank, arguments={"query": "ancor"})


def test_a_weight_that_is_called_lambda_may_not_weigh_diversity():
    def backwards(query, embeddings, k, lambda_mult):
        return picks_of(query, embeddings, k, 1 - lambda_mult)

    report = conform(backwards)
    assert report["weighs"].value == "diversity"
    assert [each.respect for each in report.departures] == ["weighs"]


def test_scores_that_are_given_and_not_used():
    def again(query, embeddings, scores, k, lam):
        return picks_of(query, embeddings, k, lam)

    assert conform(again)["relevance"].value == "cosine"


def test_ties_by_chance_are_told():
    rng = np.random.default_rng(0)

    def by_chance(query, embeddings, k, lam):
        order = rng.permutation(len(embeddings))
        return order[picks_of(query, embeddings[order], k, lam)]

    report = conform(by_chance)
    assert report["again"].value == "differs"
    assert report["ties"].says == "by chance: asked again, it answers otherwise"
    assert report.fits is report.textbook
    assert conform(of_a_batch)["again"].value == "same"


def at_the_edges(query, rows, k, lam, shown=()):
    """Repeats picks, knows neither zeros nor NaN, and starts its second page anew."""
    length = np.linalg.norm(rows, axis=1)
    left = [i for i in np.flatnonzero(length > 0) if i not in shown]
    found = [left[i] for i in picks_of(query, rows[left], max(k, 1), lam)]
    return found + found[: k - len(found)] if len(left) == len(rows) else found


def nan_last(query, rows, k, lam, offset=0):
    broken = np.isnan(rows).any(axis=1)
    order = np.argsort(broken, kind="stable")
    found = picks_of(query, rows[~broken], k, lam) if offset < 4 else []
    return [int(order[i]) for i in found] + [int(i) for i in np.flatnonzero(broken)]


def zeros_first(query, rows, k, lam):
    zeros = [int(i) for i in np.flatnonzero(~rows.any(axis=1))]
    return (zeros + [i for i in picks_of(query, rows, k, lam) if i not in zeros])[:k]


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (at_the_edges, {"more": "repeats", "none": "one", "zero_row": "left out", "pages": "anew"}),
        (nan_last, {"nan_row": "last", "pages": "repeats", "more": "shorter"}),
        (zeros_first, {"zero_row": "first", "none": "none"}),
    ],
)
def test_edges_are_told(function, told):
    report = conform(function)
    assert {respect: report[respect].value for respect in told} == told
    assert report.textbook  # of which it says nothing


def test_what_fails_at_an_end_is_told():
    def refuses(query, embeddings, k, lam):
        if lam in (0, 1):
            raise ValueError("lam must be between 0 and 1")
        return picks_of(query, embeddings, k, lam)

    report = conform(refuses)
    assert report["zero_weight"].textbook is False
    assert "λ = 1 is an error: ValueError: lam must be between 0 and 1" in report["zero_weight"].says
    assert not report.textbook


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda query, embeddings, k: "nothing", "k = 4, got str 'nothing', not positions or rows it was given$"),
        (lambda query, embeddings, k: [99], "k = 4, got list \\[99\\], not positions below 6$"),
        (lambda query, embeddings, k: {"a": 1}, "k = 4, got dict {'a': 1}, not positions or rows it was given$"),
        (lambda query, embeddings, k: 1 / 0, "got ZeroDivisionError: division by zero"),
        (lambda embeddings, k: [], "must have a parameter for query or scores by a usual name, got embeddings, k"),
        ("json:nothing", "which has no 'nothing'"),
        ("no_such_module:f", "must be in a module that imports, got 'no_such_module:f': No module named"),
    ],
)
def test_what_cannot_be_called_is_an_error(function, message):
    with pytest.raises(CallError, match=message):
        conform(function)


def test_every_way_to_call_is_told_with_its_error():
    """Which of them the function is made for only its author knows."""

    def of_arrays(query, embeddings, k, lam):
        if not isinstance(query, np.ndarray):
            raise TypeError("arrays only")
        if query.ndim != 1:
            raise ValueError("one query")
        raise KeyError("no weights yet")

    # With torch the last are "lists, tensors, tensor batch".
    wanted = "got arrays: KeyError: 'no weights yet'; batch: ValueError: one query; lists.*: TypeError: arrays only"
    with pytest.raises(CallError, match=f"must answer a set of 6 rows with k = .*, {wanted}"):
        conform(of_arrays)


def test_other_rules_are_none_of_the_variants():
    def vrsd(query, embeddings, k):
        return rk.vrsd(query[None], embeddings[None], k).indices[0]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = conform(vrsd)
    assert not report.fits
    assert not report.textbook
    assert "none of the variants of MMR" in report.verdict
    assert "the nearest: no variant gives all answers" in report["penalty"].says


def test_equal_rows_are_looked_up_in_their_order():
    rows = np.array([[1.0, 0], [0, 1], [1, 0]], np.float32)
    assert reading.positions([rows[2], rows[1], rows[0]], rows) == [0, 1, 2]
    assert reading.positions([], rows) == []


# --- The report, the command.


def test_report_shows_the_sets_that_tell():
    report = conform(rk.mmr)
    found = report.as_dict()
    assert json.loads(json.dumps(found)) == found
    for respect, value in (("penalty", "max"), ("first", "relevance"), ("ties", "lowest")):
        finding = next(each for each in found["findings"] if each["respect"] == respect)
        told = set()
        for evidence in finding["evidence"]:
            assert evidence["got"] == " ".join(map(str, evidence["expected"][value]))
            told |= {other for other, picks in evidence["expected"].items() if picks != evidence["expected"][value]}
        assert told == set(conformance.RESPECTS[respect].values) - {value}
    page = report.to_markdown()
    assert page.startswith("# ragsys_kernels.selection:mmr\n")
    assert "| Penalty | largest similarity to a pick | yes | core " in page
    assert "doi:10.1145/290941.291025" in page
    assert str(report).endswith("is MMR as it is published.")


@pytest.fixture
def functions(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_functions.py").write_text(
        "from ragsys_kernels import mmr\n"
        "def good(query, vectors, k, theta=0.5):\n"
        "    return mmr(query[None], vectors[None], k, lambda_d=theta).indices[0]\n"
        "def bad(query, vectors, k, theta=0.5):\n"
        "    return good(query, vectors, k, 1 - theta)\n"
        "def broken(query, vectors, k):\n"
        "    raise RuntimeError('out of order')\n"
    )
    for number, error in enumerate(("ValueError('at import')", "SystemExit(0)", "SyntaxError('here')")):
        (tmp_path / f"my_script_{number}.py").write_text(f"raise {error}\n")
    return tmp_path


@pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")
def test_command_answers_by_its_status(functions, command):
    good = command(functions, "conform", "my_functions:good", "--argument", "weight=theta")
    assert (good.returncode, good.stderr) == (0, "")
    assert "my_functions:good is MMR as it is published." in good.stdout
    assert "Carbonell" in good.stdout
    bad = command(functions, "conform", "my_functions:bad", "--argument", "weight=theta", "--format", "json")
    assert bad.returncode == 1
    assert json.loads(bad.stdout)["textbook"] is False
    page = command(functions, "conform", "my_functions:bad", "--argument", "weight=theta", "--format", "md")
    assert "| The weight λ | weighs diversity: (1-λ) r - λ s | no |" in page.stdout
    for arguments, message in [
        (["my_functions:broken"], "conform: my_functions:broken must answer a set of 6 rows with k = 4, got Runtime"),
        (["my_functions:missing"], "conform: function must be in its module"),
        (["my_script_0:f"], "conform: function must be in a module that imports, got 'my_script_0:f': ValueError: at"),
        (["my_script_1:f"], "conform: function must be in a module that imports, got 'my_script_1:f': SystemExit: 0"),
        (["my_script_2:f"], "conform: function must be in a module that imports, got 'my_script_2:f': SyntaxError: h"),
        ([], "conform: one of MODULE:NAME, --url and --vectors must be given"),
        (["my_functions:good", "--option", "x"], "conform: argument and option must be NAME=VALUE, got 'x'"),
    ]:
        result = command(functions, "conform", *arguments)
        assert result.returncode == 2
        assert result.stderr.startswith(f"error: {message}")
        assert len(result.stderr.splitlines()) == 1
