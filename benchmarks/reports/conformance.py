"""Which MMR the libraries have that one comes from: results/conformance.md, whose sections are on the pages of these.

python -m benchmarks.reports.conformance

Needs all of them: the extra `test`, qdrant-client and keybert.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from typing import Any, NamedTuple

from benchmarks.harness.ledger import RESULTS
from benchmarks.reports.tables import table, write
from ragsys_kernels import conformance

OUT = RESULTS / "conformance.md"


class Peer(NamedTuple):
    """A function, as the page calls it."""

    label: str
    target: str
    package: str
    options: Mapping[str, Any] = {}


_TRANSFORMERS = "haystack_integrations.components.rankers.sentence_transformers:SentenceTransformersDiversityRanker"
_GREEDY = {"strategy": "greedy_diversity_order"}

PEERS = {
    "LangChain": (
        Peer(
            "`maximal_marginal_relevance`",
            "langchain_core.vectorstores.utils:maximal_marginal_relevance",
            "langchain-core",
        ),
        Peer("`InMemoryVectorStore`", "langchain_core.vectorstores:InMemoryVectorStore", "langchain-core"),
    ),
    "LlamaIndex": (
        Peer(
            "`get_top_k_mmr_embeddings`",
            "llama_index.core.indices.query.embedding_utils:get_top_k_mmr_embeddings",
            "llama-index-core",
        ),
    ),
    "Haystack": (
        Peer("`SentenceTransformersDiversityRanker`, MMR", _TRANSFORMERS, "sentence-transformers-haystack"),
        Peer("its default strategy, which is not called MMR", _TRANSFORMERS, "sentence-transformers-haystack", _GREEDY),
        Peer(
            "`PyversityRanker`",
            "haystack_integrations.components.rankers.pyversity:PyversityRanker",
            "pyversity-haystack",
        ),
    ),
    "pyversity": (Peer("`mmr`", "pyversity:mmr", "pyversity"),),
    "Qdrant": (
        Peer("as it is, in local mode", "qdrant_client:QdrantClient", "qdrant-client"),
        Peer("with `candidates_limit`", "qdrant_client:QdrantClient", "qdrant-client", {"candidates_limit": 100}),
    ),
    "KeyBERT": (Peer("`mmr`", "keybert._mmr:mmr", "keybert"),),
    "ragsys_kernels": (Peer("`rk.mmr`", "ragsys_kernels:mmr", "ragsys_kernels"),),
}


@cache
def _report(target: str, options: tuple[tuple[str, Any], ...]) -> conformance.Report:
    os.environ.setdefault("HAYSTACK_TELEMETRY_ENABLED", "False")
    return conformance.conform(target, options=dict(options))


def report(peer: Peer) -> conformance.Report:
    return _report(peer.target, tuple(peer.options.items()))


def section(name: str) -> str:
    """Return what the functions of one library do in each respect; what is not MMR as it is published is bold."""
    peers = PEERS[name]
    reports = [report(peer) for peer in peers]
    rows = []
    for findings in zip(*(each.findings for each in reports), strict=True):
        cells = [_cell(finding) for finding in findings]
        rows.append([findings[0].title, *cells])
    columns = range(len(peers) + 1)
    return table(["", *(peer.label for peer in peers)], rows, texts=columns, tight=True)


def _cell(finding: conformance.Finding) -> str:
    words = finding.says.replace("|", "/")
    return f"**{words}**" if finding.textbook is False else words


def summary() -> str:
    """Return what each of them is, in a line."""
    rows = []
    for name, peers in PEERS.items():
        for peer in peers:
            found = report(peer)
            departs = "; ".join(
                f"{each.title.lower()}: {each.says}" for each in found.departures if each.textbook is False
            )
            is_mmr = "yes" if found.textbook else "no"
            rows.append([f"{name}: {peer.label}", is_mmr, departs.replace("|", "/")])
    return table(["", "MMR as published", "what differs"], rows, texts=range(3), tight=True)


def main() -> None:
    packages = sorted({peer.package for peers in PEERS.values() for peer in peers} - {"ragsys_kernels"})
    about = (
        "Written by `python -m benchmarks.reports.conformance`, which asks each function, with its defaults, to pick "
        "out of designed sets of vectors ([Which MMR is it?](../../docs/conformance.md)). MMR as published: "
        f"{conformance.DEFINITION}. {conformance.SOURCE}. Versions: "
        f"{', '.join(f'{package} {version(package)}' for package in packages)}. "
        "LanceDB 0.40 and Chroma 1.5 have no MMR of their own; LangChain's stores of them select as its function does."
    )
    sections = (part for name in PEERS for part in (f"## {name}", section(name)))
    write(OUT, "Which MMR the libraries have", about, "## All of them", summary(), *sections)


if __name__ == "__main__":
    main()
