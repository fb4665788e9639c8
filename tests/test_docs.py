"""The site builds without a warning, has every public name, loads nothing from elsewhere, and its Python runs."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ragsys_kernels as rk

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))

pytestmark = [
    pytest.mark.skipif(not DOCS.is_dir(), reason="the tests run outside of the source tree"),
    pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning"),
]

# What a page's blocks import beside the library.
NEEDS = {
    "migration/langchain.md": "langchain_core",
    "migration/llama_index_haystack.md": "llama_index.core",
    "offline.md": "pyarrow",
}


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)])
def test_python_of_a_page_runs(page, tmp_path, monkeypatch):
    pytest.importorskip(NEEDS.get(page, "numpy"))
    monkeypatch.chdir(tmp_path)
    found = {}
    for number, code in enumerate(blocks(page)):
        exec(compile(code, f"{page}, block {number}", "exec"), found)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for module in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(module)
    out = tmp_path_factory.mktemp("site")
    # Not with --quiet, which takes the warnings away that --strict is to count.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", out]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    return out


def public_modules():
    """Packages, and modules of the drop-ins, that say what is public, and the modules whose functions are."""
    packages = [path for path in (ROOT / "ragsys_kernels").rglob("*.py") if path.parent.name == "integrations"]
    packages += (ROOT / "ragsys_kernels").glob("*/__init__.py")
    named = [path for path in packages if re.search(r"^__all__ = ", path.read_text(), re.MULTILINE)]
    modules = [path.with_suffix("").relative_to(ROOT).as_posix().removesuffix("/__init__") for path in named]
    return ["ragsys_kernels", *(path.replace("/", ".") for path in modules), "ragsys_kernels.metrics"]


def names(module):
    path = ROOT / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    tree = ast.parse(file.read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]


def test_every_public_name_is_on_a_page(site):
    anchors = set()
    for page in (site / "api").glob("*.html"):
        anchors |= set(re.findall(r'id="(ragsys_kernels\.[\w.]+)"', page.read_text()))
    modules = public_modules()
    assert {"ragsys_kernels.icl", "ragsys_kernels.integrations.langchain"} <= set(modules)
    expected = {f"{module}.{name}" for module in modules for name in names(module) if not name.startswith("_")}
    assert not {name for name in expected - anchors if _wants_a_place(name)}


def _wants_a_place(name):
    """Constants have no docstring to show, and what the library itself exports is there."""
    module, _, attribute = name.rpartition(".")
    return attribute not in rk.__all__ and callable(getattr(importlib.import_module(module), attribute))


def test_nothing_is_loaded_from_elsewhere(site):
    loaded = re.compile(r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=\"((?:https?:)?//[^\"]+)\"")
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(PAGES)
    assert not {url for page in pages for url in loaded.findall(page.read_text())}
    assert "fonts.googleapis" not in (site / "index.html").read_text()


def test_pages_take_sections_from_the_readme_and_tables_from_results(site):
    text = (site / "offline.html").read_text()
    assert "ragsys-kernels select" in text
    table = (ROOT / "benchmarks" / "results" / "lambda.md").read_text()
    first = re.search(r"^\| 0 \| ([\d.]+)", table, re.MULTILINE).group(1)
    assert f">{first}<" in (site / "parameters.html").read_text()
    assert not re.search(r"<!-- (from|names)", text)
