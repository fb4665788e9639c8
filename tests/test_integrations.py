"""What all drop-ins have in common: what they import, what their extras install."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
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
