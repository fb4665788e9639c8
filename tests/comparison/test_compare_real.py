"""A comparison on Cranfield, whose judgements other programs score too."""

import math

import numpy as np
import pytest

import ragsys_kernels as rk
from benchmarks.harness import data
from ragsys_kernels.comparison import compare


@pytest.fixture
def cranfield():
    found = data.cranfield()
    if found is None:
        pytest.skip("no data folder has Cranfield")
    return found


@pytest.fixture
def embedded(cranfield):
    text = pytest.importorskip("sklearn.feature_extraction.text")
    decomposition = pytest.importorskip("sklearn.decomposition")
    words = text.TfidfVectorizer(sublinear_tf=True, stop_words="english", min_df=2)
    svd = decomposition.TruncatedSVD(64, random_state=0)
    rows = svd.fit_transform(words.fit_transform(cranfield.documents.values()))
    queries = svd.transform(words.transform(cranfield.queries.values()))
    return rows.astype(np.float32), queries.astype(np.float32)


def test_cranfield_is_as_it_is_described(cranfield):
    assert (len(cranfield.documents), len(cranfield.queries), len(cranfield.qrels)) == (1400, 225, 1837)
    assert {grade for _, _, grade in cranfield.qrels} == {0, 1, 2, 3, 4}
    assert cranfield.documents["1"].startswith(
        "experimental investigation of the aerodynamics of a wing in a slipstream"
    )
    assert cranfield.queries["3"].startswith("what problems of heat conduction in composite slabs")


def test_cranfield_is_scored_as_by_others(cranfield, embedded, tmp_path):
    """nDCG as scikit-learn's, α-nDCG and the others as ndeval's or by hand, from the files alone."""
    metrics = pytest.importorskip("sklearn.metrics")
    rows, queries = embedded
    corpus = rk.Corpus(rows, ids=list(cranfield.documents))
    lines = [f"{query} 0 {document} {grade}\n" for query, document, grade in cranfield.qrels]
    (tmp_path / "qrels").write_text("".join(lines))
    found = compare(corpus, queries, qrels=tmp_path / "qrels", query_ids=list(cranfield.queries), k=10, samples=1000,
                    methods=["mmr:0.75/0.35", "vrsd"], peers=False)  # fmt: skip
    assert len(found.query_ids) == 225
    place = {name: i for i, name in enumerate(cranfield.documents)}
    grades = np.zeros((226, 1400))
    for query, document, grade in cranfield.qrels:
        grades[int(query), place[document]] = max(grades[int(query), place[document]], grade)
    for name in ("top-k", "mmr:0.35", "vrsd"):
        values, picks = found.values[name], found.indices[name]
        for q, query in enumerate(found.query_ids[::7]):
            own, row = picks[7 * q], grades[int(query)]
            scores = np.zeros(1400)
            scores[own] = np.arange(10, 0, -1)
            hits = row[own] > 0
            assert values["ndcg"][7 * q] == pytest.approx(metrics.ndcg_score(row[None], scores[None], k=10))
            assert values["recall"][7 * q] == hits.sum() / (row > 0).sum()
            assert values["mrr"][7 * q] == (1 / (hits.argmax() + 1) if hits.any() else 0)
    # Diversity costs on Cranfield: every answer is wanted, and they are alike.
    ndcg = {name: each["ndcg"] for name, each in found.figures.items()}
    assert 0.3 < ndcg["top-k"].mean.mean < 0.45
    assert ndcg["mmr:0.35"].certain.high < -0.1
    assert found.advice.setting == "top-k"
    assert not math.isnan(ndcg["random"].mean.mean)
