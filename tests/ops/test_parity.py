"""Each backend file of an op folder has the same public functions with equal signatures."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

import ragsys_kernels as rk
from ragsys_kernels import _dispatch

PACKAGE = Path(rk.__file__).parent
# Functions that one backend alone has: `testing` counts the work of the cpu's bounds.
# On a device log-probs come from few launches, which take the arguments as they were given.
OWN = {("selection", "cpu"): ["run"], ("selection", "cuda"): ["lacking"], ("scoring", "triton"): ["results"]}
OPS = sorted(path.parent.name for path in PACKAGE.glob("*/reference.py"))


def functions(op, backend):
    """Public functions defined in a backend file, with their signatures, read without importing it."""
    tree = ast.parse((PACKAGE / op / f"{_dispatch.MODULES.get(backend, backend).replace('.', '/')}.py").read_text())
    defined = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    found = {node.name: (ast.unparse(node.args), ast.unparse(node.returns)) for node in defined}
    for node in tree.body:  # one function under several names
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id in found:
            found |= {target.id: found[node.value.id] for target in node.targets}
    return {name: what for name, what in found.items() if not name.startswith("_")}


def test_there_is_an_op():
    assert OPS == sorted(_dispatch.BACKENDS) == ["scoring", "selection"]


@pytest.mark.parametrize("op", OPS)
def test_backends_have_the_functions_of_the_reference(op):
    expected = functions(op, "reference")
    assert expected
    for backend in (*_dispatch.BACKENDS[op], *_dispatch.DEVICE_BACKENDS[op]):
        found = functions(op, backend)
        for name in OWN.get((op, backend), ()):
            del found[name]
        # Kernels have not all rules, nor paths: ``RULES`` of the backend says which.
        lacking = {name for name in expected if name in (*rk.METHODS, "mmr_path") and name not in found}
        lacking -= {"mmr", "vrsd"}
        assert found == {name: what for name, what in expected.items() if name not in lacking}, backend


@pytest.mark.parametrize("op", OPS)
def test_every_function_of_a_backend_is_documented_in_the_reference(op):
    reference = importlib.import_module(f"ragsys_kernels.{op}.reference")
    for name in functions(op, "reference"):
        assert getattr(reference, name).__doc__, name


def test_mmr_and_vrsd_share_the_parameters_they_have_in_common():
    mmr, vrsd = (inspect.signature(method).parameters for method in (rk.mmr, rk.vrsd))
    assert set(mmr) - set(vrsd) == {"bias", "lambda_d", "lambda_b", "outside", "similarity"}
    assert [name for name in mmr if name in vrsd] == list(vrsd)
    for name, parameter in vrsd.items():
        # MMR needs no vectors where similarities are given.
        default = None if name in ("queries", "embeddings", "k") else parameter.default
        assert (parameter.kind, default) == (mmr[name].kind, mmr[name].default), name


def test_public_names_are_those_of_the_specification():
    assert sorted(rk.__all__) == [
        "AnswerLogprobs", "BackendUnavailableError", "ConversionWarning", "Corpus", "Duplicates", "Fused",
        "LabelPosteriors", "METHODS", "Partials", "PoolSizeWarning", "RelevanceRangeWarning", "SearchResult",
        "Selection", "SelectionPath", "TopLogprobs", "__version__", "answer_logprobs", "coverage", "decayed", "dpp",
        "duplicates", "fuse", "gist", "label_posteriors", "logprob_partials", "merge_partials", "mmr", "mmr_path",
        "msd", "show_config", "sift", "ssd", "token_logprobs", "top_logprobs", "vrsd",
    ]  # fmt: skip
    assert set(rk.__all__) <= set(dir(rk))
    assert all(getattr(rk, name).__name__ == name for name in rk.__all__ if name not in ("METHODS", "__version__"))
    assert rk.Selection._fields == ("indices", "scores", "relevance", "redundancy", "lengths")
    assert [*inspect.signature(rk.mmr).parameters] == [
        "queries", "embeddings", "k", "candidates", "relevance", "relevance_scale", "similarity", "bias",
        "lambda_d", "lambda_b", "groups", "query_groups", "max_per_group", "min_per_group", "initial", "allowed",
        "exclude", "costs", "budget", "max_similarity", "min_relevance", "nearest",
        "outside", "metric", "check_values", "backend", "num_threads", "on_error",
    ]  # fmt: skip
    assert rk.AnswerLogprobs._fields == ("logp", "lse", "max", "entropy", "rank", "sum", "mean", "count", "greedy")
    assert [*inspect.signature(rk.answer_logprobs).parameters] == [
        "logits", "hidden", "weight", "bias", "targets", "rows", "cu_answers", "answer_ids", "num_answers",
        "temperature", "logit_scale", "softcap", "vocab_size", "allowed", "ignore_index", "want", "reduce",
        "out_of_range", "partials", "check_values", "backend", "num_threads",
    ]  # fmt: skip
    assert [*inspect.signature(rk.Corpus).parameters] == [
        "embeddings", "bias", "groups", "metric", "dtype", "device", "ids", "costs", "time",
    ]  # fmt: skip
