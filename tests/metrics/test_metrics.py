"""The metrics against their definitions in exact fractions, and against extreme probabilities."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragsys_kernels.metrics import dpo, multiple_choice, perplexity

# Probabilities are powers of two: their logs, in float64, decide every comparison as the fractions do.
EXPONENTS = st.integers(0, 12)
QUESTION = st.tuples(st.lists(EXPONENTS, min_size=1, max_size=5), st.lists(EXPONENTS, min_size=1, max_size=5))


def flat(questions):
    """Log-probabilities, flags and offsets; correct and incorrect answers alternate where they can."""
    logp, flags, cu = [], [], [0]
    for correct, wrong in questions:
        answers = [(e, True) for e in correct] + [(e, False) for e in wrong]
        answers.sort(key=lambda answer: hash(answer) % 7)
        logp += [-e * math.log(2) for e, _ in answers]
        flags += [flag for _, flag in answers]
        cu.append(len(logp))
    return np.array(logp), np.array(flags), np.array(cu)


@given(st.lists(QUESTION, min_size=1, max_size=4))
def test_multiple_choice_is_its_definition(questions):
    result = multiple_choice(*flat(questions))
    for q, (correct, wrong) in enumerate(questions):
        right = [Fraction(1, 2**e) for e in correct]
        false = [Fraction(1, 2**e) for e in wrong]
        assert result.mc1[q] == (max(right) > max(false))
        assert result.mc2[q] == pytest.approx(sum(p > max(false) for p in right) / len(right), rel=1e-15)
        assert result.mc3[q] == pytest.approx(float(sum(right) / (sum(right) + sum(false))), rel=1e-12)
        assert result.mc3_ratio[q] == pytest.approx(float(sum(right) / sum(false)), rel=1e-12)
        assert result.mc3_log_ratio[q] == pytest.approx(math.log(sum(right) / sum(false)), abs=1e-12)


def test_best_answer_decides_mc1():
    logp, flags, cu = np.log([0.1, 0.4, 0.3, 0.9, 0.2]), np.array([True, True, False, True, False]), [0, 3, 5]
    assert multiple_choice(logp, flags, cu).mc1.tolist() == [1, 1]
    assert multiple_choice(logp, flags, cu, best=[0, 3]).mc1.tolist() == [0, 1]
    assert multiple_choice(logp, flags, cu, best=[1, 3]).mc1.tolist() == [1, 1]


def test_mc3_survives_tiny_probabilities():
    """Ten answers of e-2000 against one of e-2001: exp would make all of them 0."""
    logp = np.array([-2000.0] * 10 + [-2001.0])
    result = multiple_choice(logp, np.arange(11) < 10, [0, 11])
    assert result.mc3[0] == pytest.approx(10 * math.e / (10 * math.e + 1), rel=1e-12)
    assert result.mc3_ratio[0] == pytest.approx(10 * math.e, rel=1e-12)
    far = multiple_choice(np.array([-1.0, -5000.0]), np.array([True, False]), [0, 2])
    assert (far.mc3[0], far.mc3_ratio[0], far.mc3_log_ratio[0]) == (1.0, math.inf, 4999.0)
    assert multiple_choice(np.array([-5000.0, -1.0]), np.array([True, False]), [0, 2]).mc3[0] == 0.0


def test_impossible_answers():
    one = multiple_choice(np.array([-1.0, -np.inf]), np.array([True, False]), [0, 2])
    assert (one.mc1[0], one.mc2[0], one.mc3[0], one.mc3_ratio[0]) == (1, 1, 1, np.inf)
    none = multiple_choice(np.array([-np.inf, -np.inf]), np.array([True, False]), [0, 2])
    assert (none.mc1[0], none.mc2[0]) == (0, 0)  # equal is not above
    assert np.isnan([none.mc3[0], none.mc3_ratio[0]]).all()


@given(st.lists(QUESTION, min_size=1, max_size=3), st.sampled_from([0.1, 1.0, 2.5]), st.booleans())
def test_dpo_is_its_definition(questions, beta, with_reference):
    logp, flags, cu = flat(questions)
    reference = -np.linspace(0.5, 3, len(logp)) if with_reference else np.zeros(len(logp))
    result = dpo(logp, flags, cu, reference=reference if with_reference else None, beta=beta)
    for q in range(len(questions)):
        rows = range(cu[q], cu[q + 1])
        margins = [
            beta * ((logp[a] - reference[a]) - (logp[b] - reference[b]))
            for a in rows if flags[a] for b in rows if not flags[b]
        ]  # fmt: skip
        expected = sum(math.log(1 / (1 + math.exp(-margin))) for margin in margins) / len(margins)
        assert result.dpo[q] == pytest.approx(expected, rel=1e-10, abs=1e-12)
        assert result.margin[q] == pytest.approx(sum(margins) / len(margins), rel=1e-10, abs=1e-10)
        assert result.pairs[q] == len(margins)


def test_dpo_without_incorrect_answers_leaves_their_term_out():
    logp, reference = np.array([-1.0, -4.0, -2.0, -3.0]), np.array([-2.0, -3.0, -2.5, -1.0])
    flags, cu = np.array([True, True, True, False]), [0, 2, 4]
    result = dpo(logp, flags, cu, reference=reference, beta=2.0)
    alone = [2.0 * (logp[a] - reference[a]) for a in (0, 1)]
    assert result.dpo[0] == pytest.approx(sum(math.log(1 / (1 + math.exp(-x))) for x in alone) / 2)
    assert (result.margin[0], result.pairs[0]) == (pytest.approx(sum(alone) / 2), 2)
    assert result.dpo[1] == dpo(logp[2:], flags[2:], [0, 2], reference=reference[2:], beta=2.0).dpo[0]
    with pytest.raises(ValueError, match=r"dpo: reference must be given where .* no incorrect .*, got none for .* 0"):
        dpo(logp, flags, cu)


def test_dpo_of_hopeless_margins_stays_finite():
    result = dpo(np.array([-3000.0, -1.0, -1.0, -3000.0]), np.array([True, False] * 2), [0, 2, 4])
    assert result.dpo.tolist() == [-2999.0, 0.0]


def test_perplexity():
    assert perplexity(-math.log(8), 3) == pytest.approx(2)
    # Three parts of one text, one of them empty; tokens and words.
    assert perplexity([-1.0, 0.0, -5.0], [2, 0, 1]) == pytest.approx(math.exp(2))
    assert perplexity(np.array([-1.0, 0.0, -5.0]), np.array([1, 0, 1])) == pytest.approx(math.exp(3))
    assert perplexity(-1e6, 1) == math.inf


def test_no_questions():
    none = np.zeros(0), np.zeros(0, bool), [0]
    assert all(field.shape == (0,) for field in (*multiple_choice(*none), *dpo(*none)))


GOOD = (np.array([-1.0, -2.0, -3.0, -4.0]), np.array([True, False, True, False]), [0, 2, 4])


def changed(position, value):
    return (*GOOD[:position], value, *GOOD[position + 1 :])


@pytest.mark.parametrize("op", [multiple_choice, dpo])
@pytest.mark.parametrize(
    ("arguments", "kind", "match"),
    [
        (changed(0, [1, 2, 3, 4]), TypeError, "logp must be floating point, got dtype int64"),
        (changed(0, np.zeros((2, 2))), ValueError, r"logp must be of shape \(A,\), got \(2, 2\)"),
        (changed(0, np.array([-1, 0.5, 0, 0])), ValueError, "logp must be log-probabilities of at most 0, got 0.5 for"),
        (changed(0, np.array([-1, 0, np.nan, 0])), ValueError, "logp must be .*, got nan for answer 2"),
        (changed(1, [1, 0, 1, 0]), TypeError, "is_correct must be bool, got dtype int64"),
        (changed(1, np.array([True, False])), ValueError, r"is_correct must have .*, \(4,\), got \(2,\)"),
        (changed(1, np.array([True, True, True, False])), ValueError, ".* got (2 correct of 2|none) for question 0"),
        (changed(1, np.array([True, False, False, False])), ValueError, "cu_questions .*, got 0 correct of 2 for .* 1"),
        (changed(2, [0.0, 2.0, 4.0]), TypeError, "cu_questions must be integers, got dtype float64"),
        (changed(2, [0, 2]), ValueError, r"cu_questions must be a vector from 0 to .* 4, got \[0, 2\]"),
        (changed(2, [1, 4]), ValueError, "cu_questions must be a vector from 0"),
        (changed(2, []), (ValueError, TypeError), "cu_questions must be"),
        (changed(2, [0, 3, 1, 4]), ValueError, r"cu_questions must not decrease, got \[0, 3, 1, 4\]"),
    ],
)  # fmt: skip
def test_bad_input(op, arguments, kind, match):
    with pytest.raises(kind, match=f"{op.__name__}: {match}"):
        op(*arguments)


def test_bad_options():
    with pytest.raises(ValueError, match=r"best must be of shape \(2,\), one for each question, got \(1,\)"):
        multiple_choice(*GOOD, best=[0])
    for rows, q in (([0, 3], 1), ([1, 2], 0), ([0, 0], 1), ([2, 2], 0), ([0, 9], 1)):
        with pytest.raises(ValueError, match=f"best must be a correct answer .*, got {rows[q]} for question {q}"):
            multiple_choice(*GOOD, best=rows)
    with pytest.raises(TypeError, match="best must be integers"):
        multiple_choice(*GOOD, best=[0.0, 2.0])
    for beta in (0, -1, math.nan, math.inf):
        with pytest.raises(ValueError, match="dpo: beta must be above 0 and finite"):
            dpo(*GOOD, beta=beta)
    with pytest.raises(TypeError, match="dpo: beta must be a number, got NoneType"):
        dpo(*GOOD, beta=None)
    with pytest.raises(ValueError, match="dpo: beta must be within the range of float64"):
        dpo(*GOOD, beta=10**400)
    with pytest.raises(ValueError, match="dpo: logp must be finite, got -inf for answer 1"):
        dpo(*changed(0, np.array([-1, -np.inf, -1, -1])))
    with pytest.raises(ValueError, match=r"dpo: reference must be of shape \(4,\), got \(1,\)"):
        dpo(*GOOD, reference=[-1.0])
    with pytest.raises(ValueError, match="dpo: reference must be finite, got nan for answer 3"):
        dpo(*GOOD, reference=[-1.0, -1.0, -1.0, np.nan])


@pytest.mark.parametrize(
    ("arguments", "kind", "match"),
    [
        ((-1.0, 0), ValueError, "count must be at least 1 in all, got 0"),
        ((-1.0, 1.5), TypeError, "count must be integers"),
        (("one", 1), TypeError, "sum_logp must be"),
        (([-1.0, -2.0], [1]), ValueError, "count must have the shape of sum_logp"),
        (([-1.0, 2.0], [1, 1]), ValueError, "sum_logp must be at most 0, got 2.0"),
        (([-1.0, math.nan], [1, 1]), ValueError, "sum_logp must be at most 0, got nan"),
        (([-1.0, -1.0], [3, -1]), ValueError, "count must be at least 0, got -1"),
    ],
)
def test_bad_perplexity(arguments, kind, match):
    with pytest.raises(kind, match=f"perplexity: {match}"):
        perplexity(*arguments)
