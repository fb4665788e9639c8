"""What all drop-ins have in common: what they import, what their extras install."""

import re
from inspect import Parameter, signature
from pathlib import Path

import pytest

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


def test_no_peer_is_imported_before_its_types_are_needed(run_python):
    code = (
        "import sys\n"
        "from ragsys_kernels.integrations import langchain, llama_index, pyversity, vrsd\n"
        "rows = [[1, 0], [1, 0.1], [0, 1]]\n"
        "assert langchain.maximal_marginal_relevance([1, 0.2], rows, 0.3, 2) == [1, 2]\n"
        "assert llama_index.get_top_k_mmr_embeddings([1, 0.2], rows, similarity_top_k=2, penalty='max')[1] == [1, 2]\n"
        "assert pyversity.mmr(rows, [0.1, 1, 0.9], 2).indices.tolist() == [1, 2]\n"
        "assert vrsd.VecRetSimDiv(rows, [1, 0.5], 2)[1] == [1, 2]\n"
        f"loaded = set({[module for _, module in PEERS.values()]}) & set(sys.modules)\n"
        "assert not loaded, loaded\n"
        "assert 'torch' not in sys.modules"
    )
    run_python(code)


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
# have, where none are said.
DEFAULTS = [
    ("langchain:maximal_marginal_relevance", "langchain_core.vectorstores.utils:maximal_marginal_relevance"),
    *((f"langchain_stores:MaxMarginalRelevanceMixin.{prefix}max_marginal_relevance_{search}", SEARCH)
      for prefix in ("", "a")
      for search in ("search", "search_by_vector", "search_with_score", "search_with_score_by_vector")),
    ("langchain_stores:search", "ragsys_kernels:mmr"),
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
    ("llama_index:get_top_k_mmr_embeddings",
     "llama_index.core.indices.query.embedding_utils:get_top_k_mmr_embeddings"),
    ("llama_index:SelectionPostprocessor", "llama_index.core.indices.vector_store.retrievers:VectorIndexRetriever",
     {"similarity_top_k": "similarity_top_k"}),
    ("llama_index:SelectionPostprocessor", "langchain:maximal_marginal_relevance", {"mmr_threshold": "lambda_mult"}),
    ("llama_index:SelectionPostprocessor", "ragsys_kernels:mmr"),
    ("haystack:SentenceTransformersDiversityRanker", EMBEDDED),
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


def test_defaults_of_the_vrsd_script():
    from ragsys_kernels.integrations.vrsd import VecRetSimDiv

    assert defaults(VecRetSimDiv) == {"k": 4}
