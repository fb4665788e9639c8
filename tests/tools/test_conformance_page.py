"""The page of which MMR the libraries have is of the libraries that are installed here."""

import re
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "benchmarks" / "results" / "conformance.md"

pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="the tests run outside of the source tree")
SECTIONS = ["LangChain", "LlamaIndex", "Haystack", "pyversity", "Qdrant", "KeyBERT", "ragsys_kernels"]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in ("Haystack", "KeyBERT") else []) for n in SECTIONS]
)
def test_page_says_what_the_functions_do(module, name):
    """Of the versions that the page names; another one may differ, and the page is written anew then."""
    conformance = module("reports.conformance")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for peer in conformance.PEERS[name]:
            pytest.importorskip(peer.target.partition(":")[0])
        made = conformance.section(name)
    page = PAGE.read_text(encoding="utf-8")
    assert list(conformance.PEERS) == SECTIONS
    assert f"\n## {name}\n\n{made}\n" in page, "python -m benchmarks.reports.conformance writes it again"


def test_sections_are_on_the_migration_pages():
    used = set()
    for page in (ROOT / "docs").rglob("*.md"):
        used |= set(
            re.findall(r"<!-- from benchmarks/results/conformance.md: (\S+) -->", page.read_text(encoding="utf-8"))
        )
    assert used == set(SECTIONS) - {"KeyBERT", "ragsys_kernels"}
