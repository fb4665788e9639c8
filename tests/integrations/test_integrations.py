"""What all drop-ins have in common: what they import, what their extras install."""

import re
import warnings
from inspect import Parameter, signature
from pathlib import Path

import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels.integrations import langchain, llama_index, pyversity, vrsd

ROOT = Path(__file__).parents[2]
PEERS = {
    "langchain": ("langchain-core", "langchain_core"),
    "llama-index": ("llama-index-core", "llama_index"),
    "haystack": ("haystack-ai", "haystack"),
    "pyversity": ("pyversity", "pyversity"),
}


@pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="the tests run outside of the source tree")
def test_an_extra_installs_its_peer_and_nothing_else():
    text = (ROOT / "pyproject.toml").read_text()
    for extra, (package, _) in PEERS.items():
        wanted = re.search(rf'^{extra} = \["([\w-]+)[^",]*"\]$', text, re.MULTILINE)
        assert wanted is not None, extra
        assert wanted.group(1) == package


def test_a_peer_is_imported_for_its_types_alone_and_else_not_needed(run_python):
    """Without LlamaIndex the rule is that of 0.14: the last pick counts, and 0 is all."""
    code = f"""
import sys
from ragsys_kernels.integrations import langchain, llama_index, pyversity, vrsd
rows = [[1, 0], [1, 0.1], [0, 1]]
assert langchain.maximal_marginal_relevance([1, 0.2], rows, 0.3, 2) == [1, 2]
assert llama_index.get_top_k_mmr_embeddings([1, 0.2], rows, similarity_top_k=2, penalty="max")[1] == [1, 2]
assert vrsd.VecRetSimDiv(rows, [1, 0.5], 2)[1] == [1, 2]
for strategy in pyversity.Strategy:
    assert pyversity.diversify([[1, 0, 0], [0, 1, 0], [1, 1, 1]], [1, 0.5, 0.2], 2, strategy).indices[0] in (0, 2)
peers = {[module for _, module in PEERS.values()]}
assert not {{"torch", *peers}} & set(sys.modules)
sys.modules.update(dict.fromkeys(peers))
rows = [[1, 0], [0, 1], [1, 0], [0.6, 0.8]]
assert llama_index.get_top_k_mmr_embeddings([1, 0], rows, None, 0, mmr_threshold=0.1)[1] == [0, 1, 2, 3]
for needed in (
    lambda: langchain.SelectionRetriever,
    lambda: llama_index.SelectionPostprocessor,
    lambda: __import__("ragsys_kernels.integrations.haystack"),
):
    try:
        needed()
    except ModuleNotFoundError as error:
        print(error)
"""
    said = run_python(code).stdout.splitlines()
    assert len(said) == 3
    for line, extra in zip(said, PEERS, strict=False):
        _, module = PEERS[extra]
        assert re.fullmatch(rf"ragsys_kernels\.integrations needs {module}: pip install '.+\[{extra}\]'", line)


def cosine(a, b):
    return float(np.dot(a, b) / (np.linalg.norm(a) * np.linalg.norm(b)))


OF_LLAMA_INDEX = [
    ("get_top_k_mmr_embeddings", lambda rows, k, form=form: llama_index.get_top_k_mmr_embeddings(
        np.ones(3), [*rows, [np.nan, 0, 0]], form[0], k, penalty=form[1])[1])  # of four rows one has no cosine
    for form in ((None, "last"), (None, "max"), (cosine, "last"), (cosine, "max"))
]  # fmt: skip
# The second form has similarities below 0, the third runs in NumPy, without diversity nothing but scores counts.
FORMS = [(np.eye(3), {}), (np.eye(3) - 0.5, {}), (2 * np.eye(3), {"normalize": False}), (np.eye(3), {"diversity": 0.0})]
OF_PYVERSITY = [
    (strategy.value, lambda _, k, rows=rows, options=options, strategy=strategy: pyversity.diversify(
        rows, [1, 2, 3], k, strategy, **options).indices)
    for strategy in pyversity.Strategy for rows, options in FORMS
    if "normalize" not in options or strategy is not pyversity.Strategy.DPP
]  # fmt: skip
CALLS = [
    *(("maximal_marginal_relevance", lambda rows, k, weight=weight: langchain.maximal_marginal_relevance(
        np.ones(3), rows, weight, 3 if k is None else k)) for weight in (0.5, 1.5)),
    ("VecRetSimDiv", lambda rows, k: vrsd.VecRetSimDiv(rows, np.ones(3), 3 if k is None else k)[1]),
    *OF_LLAMA_INDEX, *OF_PYVERSITY,
]  # fmt: skip


@pytest.mark.parametrize(("name", "call"), CALLS, ids=[name for name, _ in CALLS])
def test_a_pool_no_larger_than_k_warns_once_in_the_callers_numbers(name, call):
    rows = np.eye(3)
    for k in (3, 10):
        with pytest.warns(rk.PoolSizeWarning) as seen:
            assert sorted(call(rows, k)) == [0, 1, 2]
        (told,) = seen
        assert str(told.message).startswith(f"{name}: the pool of 3 is no larger than k = {k}, ")
        assert told.filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for k, picks in ((2, 2), (-1, 0)):
            assert len(call(rows, k)) == picks
        if name not in ("maximal_marginal_relevance", "VecRetSimDiv"):
            assert sorted(call(rows, None)) == [0, 1, 2]


def named(path):
    """``module:name.name``; ours without ``ragsys_kernels.integrations``."""
    module, _, names = path.partition(":")
    if module in ("langchain", "langchain_stores", "llama_index", "haystack", "pyversity"):
        module = f"ragsys_kernels.integrations.{module}"
    found = pytest.importorskip(module)
    for name in names.split("."):
        found = getattr(found, name)
    return found


def defaults(call):
    """Of a function, of the ``__init__`` of a class, or of the fields of a pydantic model."""
    if hasattr(call, "model_fields"):
        return {name: field.default for name, field in call.model_fields.items() if not field.is_required()}
    call = call.__init__ if isinstance(call, type) else call
    found = {name: each.default for name, each in signature(call).parameters.items()}
    return {name: default for name, default in found.items() if default is not Parameter.empty}


SEARCH = "langchain_core.vectorstores:VectorStore.max_marginal_relevance_search"
SELECTOR = "langchain_core.example_selectors:MaxMarginalRelevanceExampleSelector"
EMBEDDED = "haystack_integrations.components.rankers.sentence_transformers:SentenceTransformersDiversityRanker"
SCORED = "haystack_integrations.components.rankers.pyversity:PyversityRanker"
# A drop-in or a class beside it, what its defaults come from, and the arguments with their names there: all that both
# have, where none are said. Of what has the peer's signature, tests of that say so.
DEFAULTS = [
    *((f"langchain_stores:MaxMarginalRelevanceMixin.{prefix}max_marginal_relevance_{search}", SEARCH)
      for prefix in ("", "a")
      for search in ("search", "search_by_vector", "search_with_score", "search_with_score_by_vector")),
    ("langchain:SelectionRetriever", SEARCH),
    ("langchain:SelectionRetriever", "ragsys_kernels:mmr"),
    ("langchain:SelectionCompressor", SEARCH),
    ("langchain:SelectionCompressor", "ragsys_kernels:mmr"),
    ("langchain:MaxMarginalRelevanceExampleSelector", SELECTOR),
    ("langchain:MaxMarginalRelevanceExampleSelector", SEARCH),
    ("langchain:MaxMarginalRelevanceExampleSelector", "ragsys_kernels:mmr"),
    ("langchain:MaxMarginalRelevanceExampleSelector.from_examples", f"{SELECTOR}.from_examples"),
    ("langchain:MaxMarginalRelevanceExampleSelector.from_examples", SEARCH),
    ("langchain:MaxMarginalRelevanceExampleSelector.from_examples", "ragsys_kernels:mmr"),
    ("llama_index:SelectionPostprocessor", "llama_index.core.indices.vector_store.retrievers:VectorIndexRetriever",
     {"similarity_top_k": "similarity_top_k"}),
    ("llama_index:SelectionPostprocessor", "langchain:maximal_marginal_relevance", {"mmr_threshold": "lambda_mult"}),
    ("llama_index:SelectionPostprocessor", "ragsys_kernels:mmr", {"lambda_b": "lambda_b"}),
    ("haystack:SentenceTransformersDiversityRanker.run", f"{EMBEDDED}.run"),
    ("haystack:PyversityRanker", SCORED),
    ("haystack:PyversityRanker.run", f"{SCORED}.run"),
    ("haystack:SelectionRanker", EMBEDDED, {"top_k": "top_k", "lambda_mult": "lambda_threshold"}),
    ("haystack:SelectionRanker", "ragsys_kernels:mmr", {"lambda_b": "lambda_b"}),
]  # fmt: skip


@pytest.mark.parametrize("case", DEFAULTS, ids=lambda case: "-".join(path.rpartition(":")[2] for path in case[:2]))
def test_defaults_are_those_of_what_a_call_stands_for(case):
    ours, theirs = (defaults(named(path)) for path in case[:2])
    names = case[2] if len(case) > 2 else {name: name for name in ours if name in theirs}
    if theirs.get("k", 0) is None:  # which stands for an argument that the call needs
        names.pop("k", None)
    assert names
    assert {name: ours[name] for name in names} == {name: theirs[other] for name, other in names.items()}


@pytest.mark.parametrize(
    ("ours", "theirs", "more"),
    [
        ("langchain:maximal_marginal_relevance", "langchain_core.vectorstores.utils:maximal_marginal_relevance", []),
        ("llama_index:get_top_k_mmr_embeddings",
         "llama_index.core.indices.query.embedding_utils:get_top_k_mmr_embeddings", [("penalty", None)]),
        ("pyversity:diversify", "pyversity.pyversity:diversify", []),
        *((f"pyversity:{name}", f"pyversity.strategies:{name}", []) for name in ("mmr", "msd", "cover", "dpp", "ssd")),
    ],
)  # fmt: skip
def test_signatures_are_those_of_the_peer(ours, theirs, more):
    mine, reference = (
        [(each.name, each.default) for each in signature(named(path)).parameters.values()] for path in (ours, theirs)
    )
    assert mine == [*reference, *more]


def test_defaults_of_the_vrsd_script():
    assert defaults(vrsd.VecRetSimDiv) == {"k": 4}
