"""What a rule's function makes of its arguments: a request that holds each of them under its own name."""

import inspect

import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels.selection import request, run
from ragsys_kernels.selection.parameters import DEFAULTS, OF_RULES, TABLE
from ragsys_kernels.selection.request import Request

RULES = {name: getattr(rk, name) for name in rk.METHODS}


@pytest.mark.parametrize("rule", RULES)
def test_a_function_asks_for_what_it_is_given(rule, monkeypatch):
    """By name and by position: `Request` is made by position, where two arguments are easily exchanged."""
    function = inspect.unwrap(RULES[rule])
    monkeypatch.setitem(function.__globals__, "run", lambda asked: asked)
    names = [*inspect.signature(function).parameters]
    one_by_one = {"max_per_group", "min_per_group", "initial", "costs", "budget", "max_similarity"}
    barred = one_by_one if rule == "gist" else set()
    given = {name: None if name in barred else object() for name in names}
    asked = function(**given)
    assert {name: getattr(asked, name) for name in names} == given
    rest = set(request.FIELDS) - {"op", *names}
    usual = Request(rule, None, None, None)
    assert asked.op == rule
    assert all(getattr(asked, name) == getattr(usual, name) for name in rest)


def test_defaults_are_those_of_the_table():
    for rule, function in RULES.items():
        signature = inspect.signature(function).parameters
        given = {name: signature[name].default for name in DEFAULTS[rule]}
        assert given == DEFAULTS[rule], rule
        shared = [each for each in TABLE if each not in OF_RULES]
        for each in shared:
            default = Request.__dataclass_fields__[each.name].default
            assert signature[each.name].default == each.default == default, (rule, each.name)
        own = {"queries", "embeddings", "k", "check_values", "backend", "num_threads", "on_error"}
        own |= {"similarity", "outside"} & set(signature)
        assert set(signature) == own | set(DEFAULTS[rule]) | {each.name for each in shared}, rule


def test_a_request_is_not_changed_by_what_is_made_of_it():
    asked = Request("mmr", *(np.zeros((3, 2)),) * 2, np.array([1, 2, 3]), lambda_d=0.5)
    before = {name: getattr(asked, name) for name in request.FIELDS}
    other = asked.changed(lambda_d="adagres", budget=1.0)
    assert (other.lambda_d, other.budget, other.k) == ("adagres", 1.0, asked.k)
    asked.take(np.array([0]))
    assert all(getattr(asked, name) is before[name] for name in request.FIELDS)


def test_running_a_request_writes_nothing_into_it():
    rows = np.eye(4, 6, dtype=np.float32) + 0.1
    asked = Request("msd", rows[:2], rows, 2, costs=np.ones(4), budget=2.0, lambda_d="adagres", on_error="skip")
    before = {name: getattr(asked, name) for name in request.FIELDS}
    assert (run(asked).lengths == 2).all()
    assert all(getattr(asked, name) is before[name] for name in request.FIELDS)


def test_some_queries_of_a_request():
    """Values of each query are theirs; values of all queries, and of items, stay."""
    each = np.arange(3)
    asked = Request(
        "mmr", np.eye(3), np.zeros((9, 3)), each + 1, candidates=np.arange(9).reshape(3, 3), allowed=np.ones(9, bool),
        lambda_d=[0.1, 0.2, 0.3], lambda_b=0.5, query_groups=["a\0", None, "c"], bias=np.zeros(9), budget=each,
        initial=[[1], [2], [3]], quality=np.zeros((3, 3)), aspects=np.zeros((3, 1, 3)),
    )  # fmt: skip
    some = asked.take(np.array([2, 0]))
    assert some.queries.tolist() == [[0, 0, 1], [1, 0, 0]]
    assert some.k.tolist() == [3, 1]
    assert some.candidates.tolist() == [[6, 7, 8], [0, 1, 2]]
    assert some.initial.tolist() == [[3], [1]]
    assert some.lambda_d.tolist() == [0.3, 0.1]
    assert some.lambda_b == 0.5
    assert some.budget.tolist() == [2, 0]
    assert some.query_groups.tolist() == ["c", "a\0"]
    assert some.allowed is asked.allowed
    assert some.bias is asked.bias
    assert some.embeddings is asked.embeddings
    assert len(some.quality) == len(some.aspects) == 2


def test_some_queries_of_dense_pools():
    """What is of the items of each query goes with the query."""
    rows, marks = np.arange(24.0).reshape(3, 4, 2), np.arange(12).reshape(3, 4)
    names = ("bias", "groups", "costs", "relevance", "weights", "allowed")
    some = Request("mmr", None, rows, 2, **dict.fromkeys(names, marks)).take(np.array([2]))
    assert some.embeddings.tolist() == rows[2:].tolist()
    assert all(getattr(some, name).tolist() == [[8, 9, 10, 11]] for name in names)
