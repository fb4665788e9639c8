"""Every small wrong implementation of MMR is caught by the conformance kit, and most are told by their name."""

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels.conformance import conform
from ragsys_kernels.selection import reference, rules

pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")

# --- Mutants: each is the reference with one line changed.

RULE, LOOP = "rules/mmr.py", "reference.py"
MUTANTS = [
    (RULE, "np.maximum(self.m, similarity[: len(self.m)])", "similarity[: len(self.m)]", "penalty", "last"),
    (RULE, "np.full(len(pool.v), -np.inf)", "np.zeros(len(pool.v))", "negative", "zero"),
    (RULE, "np.full(len(pool.v), -np.inf)", "np.full(len(pool.v), -0.2)", None, None),
    (RULE, "np.maximum(self.m, similarity[", "np.maximum(self.m, np.abs(similarity)[", "negative", "absolute"),
    (RULE, "np.maximum(self.m, similarity[: len(self.m)])",
     "np.where(np.isinf(self.m), 0, self.m) + similarity[: len(self.m)]", "penalty", "sum"),
    (RULE, "np.maximum(self.m, similarity[: len(self.m)])",
     "np.minimum(np.where(np.isinf(self.m), 9, self.m), similarity[: len(self.m)])", "penalty", "min"),
    (RULE, "np.maximum(self.m, similarity[: len(self.m)])",
     "np.where(np.isinf(self.m), similarity[: len(self.m)], self.m)", "penalty", "first"),
    (RULE, "- (1 - self.lambda_d) * self.m", "- 0 * np.maximum(self.m, -1)", "penalty", "none"),
    (RULE, "- (1 - self.lambda_d)", "+ (1 - self.lambda_d)", None, None),
    (RULE, "self.lambda_d * self.relevance - (1 - self.lambda_d) * self.m",
     "(1 - self.lambda_d) * self.relevance - self.lambda_d * self.m", "weighs", "diversity"),
    (RULE, "(1 - self.lambda_d) * self.m", "self.m", "weighs", "gain"),
    (RULE, "self.lambda_d * self.relevance - (1 - self.lambda_d) * self.m",
     "self.relevance - self.lambda_d * self.m", "weighs", "penalty"),
    (RULE, "float(problem.lambda_d[q])", "0.5", "weighs", "nothing"),
    (RULE, "float(problem.lambda_d[q])", "float(problem.lambda_d[q]) or 0.5", "zero_weight", "default"),
    (RULE, "float(problem.lambda_d[q])", "float(problem.lambda_d[q]) ** 2", None, None),
    (RULE, "float(problem.lambda_d[q])", "min(float(problem.lambda_d[q]), 0.75)", None, None),
    (RULE, "return self.relevance\n", "return self.lambda_d * self.relevance\n", "first", "weighted"),
    (RULE, "return self.relevance\n", "return -np.arange(len(self.relevance), dtype=float)\n", "first", "position"),
    (RULE, "self.relevance = pool.v", "self.relevance = (pool.v - pool.v.min()) / (np.ptp(pool.v) or 1)", None, None),
    (RULE, "self.relevance = pool.v", "self.relevance = np.maximum(pool.v, 0.7)", None, None),
    (LOOP, "i = int(np.argmax(values))  #", "i = len(values) - 1 - int(np.argmax(values[::-1]))  #", "ties", "highest"),
    (LOOP, "i = int(np.argmax(values))  #", "i = int(np.argmax(np.round(values, 1)))  #", None, None),
    (LOOP, "        take(i)\n    if density", "        take(max(i - 1, 0))\n    if density", None, None),
    (LOOP, "        take(i)\n    if density", "        if step < 2:\n            take(i)\n    if density", None, None),
    (LOOP, "np.where(limits.open(), rule.values(), -np.inf)", "rule.values()", None, None),
    (LOOP, "for step in range(wanted)", "for step in range(wanted - 1)", None, None),
    (LOOP, "for step in range(wanted)", "for step in range(min(wanted, 3))", None, None),
]  # fmt: skip


# What cannot be told of some of them, such as ties of a function that subtracts nothing.
UNSEEN = ("weighs", "zero_weight", "negative", "similarity", "ties", "first_ties", "first", "zero_row", "order", "pool")


def mutated(file, old, new):
    """The names of a module of the reference with one text replaced."""
    folder = Path(reference.__file__).parent
    text = (folder / file).read_text()
    assert text.count(old) >= 1, old
    module = ModuleType("mutant")
    module.__package__ = "ragsys_kernels.selection" + (".rules" if file == RULE else "")
    exec(compile(text.replace(old, new), file, "exec"), module.__dict__)
    return module


@pytest.mark.parametrize(("file", "old"), sorted({(file, old) for file, old, *_ in MUTANTS}), ids=lambda x: str(x)[:40])
def test_the_line_that_a_mutant_changes_is_in_the_reference(file, old):
    mutated(file, old, old)


def mmr(query, embeddings, k, lambda_mult):
    return rk.mmr(query[None], embeddings[None], k, lambda_d=lambda_mult, backend="reference").indices[0]


@pytest.fixture(scope="module")
def textbook():
    return conform(mmr)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("file", "old", "new", "respect", "value"), MUTANTS, ids=lambda x: str(x)[:40])
def test_every_mutant_of_the_reference_is_caught(monkeypatch, textbook, file, old, new, respect, value):
    assert textbook.textbook
    module = mutated(file, old, new)
    if file == RULE:
        monkeypatch.setitem(rules.RULES, "mmr", module.MMR)
    else:
        monkeypatch.setattr(reference, "_pick", module._pick)
    with np.errstate(all="ignore"):
        report = conform(mmr)
    assert report.findings != textbook.findings
    if respect is None:
        assert not report.textbook
        assert report.fits or "none of the variants" in report.verdict
    else:
        assert report.fits
        assert report[respect].value == value
        apart = {f.respect for f, g in zip(report.findings, textbook.findings, strict=True) if f.values != g.values}
        assert apart <= {respect, *UNSEEN}
        assert report.textbook is ((respect, value) in (("ties", "highest"), ("first", "weighted")))


WRAPPED = {
    "dot products": (lambda q, E, k, w: dot(q, E, k, w), "relevance", "dot"),
    "the k nearest": (lambda q, E, k, w: near(q, E, k, w, k), "pool", "k"),
    "the 20 nearest": (lambda q, E, k, w: near(q, E, k, w, 20), "pool", "20"),
    "four times k": (lambda q, E, k, w: near(q, E, k, w, max(12, 4 * k)), "pool", "12"),
    "by position": (lambda q, E, k, w: sorted(mmr(q, E, k, w)), "order", "input"),
    "by relevance": (lambda q, E, k, w: sorted(mmr(q, E, k, w), key=lambda i: -cosines(q, E)[i]), "order", "relevance"),
    "backwards": (lambda q, E, k, w: mmr(q, E, k, w)[::-1], "order", "reversed"),
    "without copies": (lambda q, E, k, w: unique(q, E, k, w), "duplicates", "removed"),
}  # fmt: skip


def dot(q, E, k, w):
    return rk.mmr(q[None], E[None], k, lambda_d=w, metric="dot").indices[0]


def cosines(q, E):
    return E @ q / np.maximum(np.linalg.norm(E, axis=1), 1e-9) / np.linalg.norm(q)


def near(q, E, k, w, size):
    pool = np.sort(np.argsort(-cosines(q, E), kind="stable")[:size])
    return pool[[i for i in mmr(q, E[pool], min(k, len(pool)), w) if i >= 0]]


def unique(q, E, k, w):
    first = np.sort(np.unique(E, axis=0, return_index=True)[1])
    return first[[i for i in mmr(q, E[first], min(k, len(first)), w) if i >= 0]]


@pytest.mark.parametrize("name", WRAPPED)
def test_every_mutant_around_the_reference_is_caught(name):
    function, respect, value = WRAPPED[name]

    def mutant(query, embeddings, k, lambda_mult):
        return function(query, embeddings, k, lambda_mult)

    report = conform(mutant)
    assert report[respect].value == value
    assert report.textbook is (respect == "relevance")
    assert report.fits
