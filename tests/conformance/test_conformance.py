"""The conformance kit: its sets tell the variants of MMR apart, with margins far above rounding."""

import math
from dataclasses import replace

import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels import testing
from ragsys_kernels.conformance import fit, kit, sets, variants
from ragsys_kernels.conformance.respects import RESPECTS
from ragsys_kernels.conformance.variants import Question, Variant

pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")


class Model:
    """An adapter that answers as a variant does."""

    name, takes, weight, pages = "a variant", "query", "lambda_mult", False

    def __init__(self, variant):
        self._variant = variant

    def ask(self, question, shown=()):
        if any(math.isnan(x) for row in question.rows for x in row):
            raise ValueError("NaN")
        return list(self._variant.picks(question))


def report_of(variant):
    return kit.examine(Model(variant), "a variant")


def grid(stages):
    """All variants that the stages refine, the textbook's first."""
    found = (Variant(),)
    for stage in stages:
        found = fit._grid(found, stage).variants
    return found


ONE_APART = [
    replace(Variant(), **{respect: value})
    for respect in vars(Variant())
    for value in RESPECTS[respect].values
    if value not in ("given", getattr(Variant(), respect))
] + [Variant()]


# What cannot be told of a function that has another value: where nothing is subtracted nothing of it is seen, and the
# sets of ties have ties for the textbook's values alone.
UNSEEN = {
    ("penalty", "none"): {"order", "weighs", "negative", "similarity", "zero_weight", "ties", "first"},
    ("zero_weight", "default"): {"first"},  # λ is never 0
    ("weighs", "penalty"): {"zero_weight", "first"},
    ("weighs", "nothing"): {"zero_weight", "first"},
    ("weighs", "no relevance"): {"zero_weight", "first", "negative", "penalty", "ties"},
    ("relevance", "euclidean"): {"ties"},
    ("relevance", "squared"): {"ties"},
    ("similarity", "euclidean"): {"ties"},
    ("similarity", "squared"): {"ties"},
    ("negative", "shifted"): {"ties"},
    ("first", "position"): {"zero_weight", "first_ties", "ties"},
    ("pool", "k"): {"ties", "first_ties", "first"},  # the sets of ties leave one candidate for the second pick
    ("pool", "k, highest"): {"ties", "first_ties", "first"},
}


def names(variant):
    return next((f"{r}-{v}" for r, v in vars(variant).items() if v != getattr(Variant(), r)), "textbook")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("variant", ONE_APART, ids=names)
def test_every_value_of_every_respect_is_told(variant):
    """A function that departs in one respect is told to be just that, in all of them."""
    report = report_of(variant)
    assert report.fits
    unseen = set().union(*(UNSEEN.get(each, ()) for each in vars(variant).items()))
    for respect, value in vars(variant).items():
        values = report[respect].values
        assert value in values, respect
        assert len(values) == 1 or respect in unseen, respect
    assert report.textbook is not False or variant != Variant()


def split(group, question):
    """The variants of a group by their answers."""
    found = {}
    for variant in group:
        found.setdefault(variant.picks(question), []).append(variant)
    return list(found.values())


def test_variants_of_the_core_are_told_apart_as_far_as_they_differ():
    """Variants that give the same answers to all sets of the core do so for other unit vectors too, but for few."""
    groups = [[variant for variant in grid([sets.CORE]) if variant.order == "picks"]]
    for question in sets.CORE.questions:
        parts = [[group] if len(group) == 1 else split(group, question) for group in groups]
        groups = [part for some in parts for part in some]
    assert len(groups) > 1000
    rng = np.random.default_rng(0)
    alike = [group for group in groups if len(group) > 1]
    apart = 0
    for group in alike[:: len(alike) // 100]:
        rows = rng.uniform(0, 1, (7, 8))
        rows, query = rows / np.linalg.norm(rows, axis=1, keepdims=True), rng.uniform(0, 1, 8)
        query /= np.linalg.norm(query)
        other = Question("", tuple(query), tuple(map(tuple, rows)), float(rng.uniform(0.1, 0.9)), 4)
        apart += len({variant.picks(other) for variant in group}) > 1
    assert apart <= 2  # of a hundred: sums and means of squared distances in a pool of k


# What a stage's sets were searched for: those of the core for every variant, the others for cosines and dot products.
SEARCHED = {"core": (sets.CORE,), "negative": (sets.CORE, sets.NEGATIVE), "lengths": (sets.CORE, sets.LENGTHS)}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", SEARCHED)
def test_margins_are_far_above_rounding(monkeypatch, name):
    """The best two values of every step, and any two relevances, are 5e-4 apart for each variant that a set is for."""
    gaps = []
    largest = variants._largest

    def checked(values, *rest):
        best = sorted(values)[-2:]
        gaps.append(best[-1] - best[0] if len(best) == 2 else math.inf)
        return largest(values, *rest)

    monkeypatch.setattr(variants, "_largest", checked)
    found = [v for v in grid(SEARCHED[name]) if v.order == "picks" and (v.penalty != "none" or v.weighs == "relevance")]
    if name != "core":
        plain = ("cosine", "dot")
        found = [v for v in found if v.relevance in plain and v.similarity in plain and v.negative != "shifted"]
        found = [v for v in found if v.weighs != "no relevance"]  # a tie where all negative similarities are 0
    for question in SEARCHED[name][-1].questions:
        for variant in found[:: 5 if name == "core" else 1]:
            relevance = sorted(variant.chosen(question)[1])
            gaps.append(float(np.diff(relevance).min()))
    assert min(gaps) >= 5e-4


def test_ties_are_exact_in_float32():
    for question in (*sets.TIES.questions, sets.ENDS.questions[0]):
        for row in (question.query, *question.rows):
            assert np.array_equal(np.float32(row), row)
            assert math.log2(max(row)) % 1 == 0  # so that a row may be scaled by its largest element first
            assert sum(x * x for x in row) == 1


def test_model_gives_the_picks_of_the_reference():
    """Two implementations that share nothing: the textbook's variant and `mmr`, on random vectors."""
    rng = np.random.default_rng(1)
    for _ in range(30):
        rows, query = rng.standard_normal((9, 5)), rng.standard_normal(5)
        question = Question("", tuple(query), tuple(map(tuple, rows)), 0.4, 5)
        problem = {"queries": query[None].astype(np.float32), "embeddings": rows.astype(np.float32)[None], "k": 5}
        result = rk.mmr(**problem, lambda_d=0.4)
        testing.check_selection("mmr", {**problem, "lambda_d": 0.4}, result)
        assert Variant().picks(question) == tuple(result.indices[0])
