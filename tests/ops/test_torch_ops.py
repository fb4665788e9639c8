"""The custom operators of torch: schema, fake kernels and compilation, on CPU tensors."""

import inspect

import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels import testing

torch = pytest.importorskip("torch")
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from ragsys_kernels import torch_ops  # noqa: E402


def all_arguments():
    """Each operator with every argument that it has, none as it is by default."""
    problem = testing.selection_problem(3, 20, 4, 8, bias=True, groups=True)
    tensors = {name: torch.as_tensor(x) for name, x in problem.items() if isinstance(x, np.ndarray)}
    picks = {
        **tensors, "k": 4, "relevance": torch.rand(3, 20), "max_per_group": 2, "metric": "dot", "backend": "reference",
        "initial": tensors["candidates"][:, :2].contiguous(),
        "allowed": torch.arange(40) < 38, "exclude": tensors["candidates"][:, 3:4].contiguous(),
        "costs": torch.arange(40.0), "budget": 30.0, "max_similarity": 0.9, "relevance_scale": "rank",
        "min_relevance": 0.1, "min_per_group": 1,
    }  # fmt: skip
    weighed = {**picks, "lambda_d": 0.3, "lambda_b": 0.6}
    yield "mmr", {**weighed, "queries": None}
    yield "mmr", weighed
    yield "msd", weighed
    yield "dpp", {**weighed, "quality": 1 + torch.rand(3, 20), "scale": 0.5, "window": 3}
    yield "ssd", {**weighed, "gamma": 0.5, "window": 3}
    covered = {"kind": "cover", "aspects": torch.rand(3, 5, 8), "weights": torch.rand(3, 5)}
    yield "coverage", {**weighed, **covered, "gamma": 0.7, "density": True}
    del picks["bias"]
    yield "vrsd", picks
    yield "sift", {**picks, "noise": 0.1, "min_gain": 0.01}
    options = {
        "ignore_index": 7, "temperature": 0.5, "logit_scale": 2.0, "softcap": 20.0, "vocab_size": 30,
        "backend": "numpy", "allowed": torch.arange(1, 30, 2),
    }  # fmt: skip
    targets = torch.tensor([1, 7, 29])
    yield "token_logprobs", {"logits": torch.rand(3, 33), "targets": targets, **options}
    triples = {"targets": targets, "rows": torch.tensor([0, 0, 2]), "cu_answers": torch.tensor([0, 1, 3])}
    heads = {"hidden": torch.rand(3, 8), "weight": torch.rand(33, 8), "bias": torch.rand(33)}
    yield "answer_logprobs", {"logits": torch.rand(3, 33), **dict.fromkeys(heads), **triples, **options}
    yield "answer_logprobs", {"logits": None, **heads, **triples, **options}


CALLS = list(all_arguments())
calls = pytest.mark.parametrize(("name", "given"), CALLS, ids=[f"{name}{i}" for i, (name, _) in enumerate(CALLS)])


def tuples(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.slow  # the same imports of torch, of ten seconds
@pytest.mark.parametrize(("name", "given"), dict(CALLS).items())
def test_operator_passes_the_checks_of_torch(name, given):
    """Without what leaves a query too few picks: NaN, which opcheck does not find equal to itself."""
    left_out = ["max_per_group", "allowed", "exclude", "costs", "budget", "max_similarity", "min_relevance"]
    left_out += ["density", "min_gain", "quality"]  # whose default is text in the function, and no tensor
    some = {key: x for key, x in given.items() if key not in left_out or name not in rk.METHODS}
    torch.library.opcheck(getattr(torch.ops.ragsys_kernels, name).default, (), some)


@calls
def test_every_argument_reaches_the_function(name, given, monkeypatch):
    operator = getattr(torch.ops.ragsys_kernels, name)
    assert {each.name for each in operator.default._schema.arguments} == set(given)
    function, passed = getattr(rk, name), {}
    expected = function(**given)
    if name == "answer_logprobs":
        expected = tuple(getattr(expected, field) for field in ("logp", "sum", "mean", "count", "greedy"))
    elif name in rk.METHODS and name not in ("mmr", "msd", "gist"):
        expected = tuple(x for field, x in expected._asdict().items() if field != "redundancy")

    def recording(*args, **options):
        passed.update(inspect.signature(function).bind(*args, **options).arguments)
        return function(*args, **options)

    monkeypatch.setattr(torch_ops.selection if name in rk.METHODS else torch_ops.scoring, name, recording)
    for ours, theirs in zip(tuples(operator(**given)), tuples(expected), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    for argument, value in given.items():
        same = torch.equal(passed[argument], value) if isinstance(value, torch.Tensor) else passed[argument] == value
        assert same, argument


@pytest.mark.parametrize("name", [*rk.METHODS, "token_logprobs", "answer_logprobs"])
def test_defaults_are_those_of_the_function(name):
    parameters = inspect.signature(getattr(rk, name)).parameters
    arguments = getattr(torch.ops.ragsys_kernels, name).default._schema.arguments
    defaults = {each.name: each.default_value for each in arguments if each.has_default_value()}
    assert defaults
    if name == "dpp":
        assert (defaults.pop("quality"), parameters["quality"].default) == (None, "zscore")
    assert defaults == {argument: parameters[argument].default for argument in defaults}


@calls
def test_fake_kernel_tells_shapes_and_types(name, given):
    operator = getattr(torch.ops.ragsys_kernels, name)
    with FakeTensorMode() as mode:
        told = tuples(operator(**{key: mode.from_tensor(x) if torch.is_tensor(x) else x for key, x in given.items()}))
    real = tuples(operator(**given))
    assert [(x.shape, x.dtype, x.device) for x in told] == [(x.shape, x.dtype, x.device) for x in real]


@pytest.mark.slow  # of which most are imports of torch
def test_compiled_function_keeps_the_operator_whole():
    given = {name: x for name, x in dict(CALLS)["mmr"].items() if name != "queries"}

    def pick(queries):
        indices, scores, *_ = torch_ops.mmr(2 * queries, **given)
        return indices + 1, scores.sum()

    queries = dict(CALLS)["mmr"]["queries"]
    expected = pick(queries)
    compiled = torch.compile(pick, fullgraph=True, backend="aot_eager")(queries)
    assert torch.equal(compiled[0], expected[0])
    assert torch.equal(compiled[1], expected[1])


def test_the_order_of_arguments_is_that_of_programs_that_were_exported():
    """Which name them by their place; new ones follow those of the table before them."""
    schema = torch.ops.ragsys_kernels.coverage.default._schema
    assert [each.name for each in schema.arguments] == [
        "queries", "embeddings", "k", "candidates", "relevance", "bias", "lambda_d", "lambda_b", "kind", "aspects",
        "weights", "gamma", "density", "groups", "query_groups", "max_per_group", "initial", "allowed", "exclude",
        "costs", "budget", "max_similarity", "metric", "backend", "relevance_scale", "min_relevance", "min_per_group",
    ]  # fmt: skip
    queries = {
        name: str(getattr(torch.ops.ragsys_kernels, name).default._schema.arguments[0].type) for name in rk.METHODS
    }
    assert queries == {name: "Tensor" if name in ("vrsd", "sift") else "Optional[Tensor]" for name in rk.METHODS}


def test_errors_are_those_of_the_function():
    with pytest.raises(ValueError, match=r"^mmr: lambda_d must be within \[0, 1\], got 2"):
        torch.ops.ragsys_kernels.mmr(torch.ones(1, 2), torch.eye(2), 1, lambda_d=2.0)
