"""mkdocs hooks: what the repository says elsewhere comes from there.

A line in a page becomes what it names: ``<!-- from FILE: Heading -->`` that section of the file,
``<!-- from FILE: First -> Next -->`` from that section up to another, ``<!-- names: module -->`` the docstrings of the
module's public names that the page does not show by itself. Reports, notebooks and READMEs of folders are pages under
the names below. Pages link to files of the repository by their paths there, so that the links work on GitHub too; here
they lead to the pages that are made of the files, and links to files that are no pages become plain text.
"""

from __future__ import annotations

import ast
import json
import posixpath
import re
from collections.abc import Set
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "design/selection.md": "ragsys_kernels/selection/README.md",
    "design/scoring.md": "ragsys_kernels/scoring/README.md",
    "design/kernels.md": "csrc/README.md",
    "design/selection_triton.md": "ragsys_kernels/selection/triton/README.md",
    "design/selection_cuda.md": "ragsys_kernels/selection/cuda/README.md",
    "design/scoring_triton.md": "ragsys_kernels/scoring/triton/README.md",
    "examples/quickstart.md": "examples/quickstart.ipynb",
    "examples/which_rule.md": "examples/which_rule.ipynb",
}
RESULTS = ROOT / "benchmarks" / "results"


def on_files(files: Files, config: Any) -> Files:
    for page, source in _origins().items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    here = page.file.src_uri
    source = _origins().get(here, f"docs/{here}")
    markdown = _linked(notebook(markdown) if source.endswith(".ipynb") else markdown, source, here)

    def included(match: re.Match[str]) -> str:
        return _linked(section(match[1], match[2]), match[1], here)

    if page.file.inclusion.is_not_in_nav():  # beside the menu the others have their sections
        markdown = re.sub(r"^# .+\n", r"\g<0>\n[TOC]\n", markdown, count=1, flags=re.M)
    markdown = re.sub(r"^<!-- from (\S+): (.+) -->$", included, markdown, flags=re.M)
    shown = set(re.findall(r"^::: (\S+)$", markdown, re.M))
    return re.sub(r"^<!-- names: (\S+) -->$", lambda match: directives(match[1], shown), markdown, flags=re.M)


def on_page_content(html: str, **_: Any) -> str:
    """A docstring that ends a line with `::` before its formulas is read as Markdown, which has one colon there."""
    return html.replace("::</p>", ":</p>")


def notebook(text: str) -> str:
    """The cells of a notebook with the outputs that it keeps; what it prints is a block, a plot is part of the page."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            if output["output_type"] == "stream":
                parts.append(f"```text\n{''.join(output['text']).rstrip()}\n```")
            elif "image/png" in output.get("data", {}):
                parts.append(
                    f'<img alt="plot" src="data:image/png;base64,{"".join(output["data"]["image/png"]).strip()}">'
                )
    return "\n\n".join(parts)


def _origins() -> dict[str, str]:
    """The file that each page outside of docs/ is made of."""
    results = {f"benchmarks/{path.name}": f"benchmarks/results/{path.name}" for path in RESULTS.glob("*")}
    return PAGES | {page: source for page, source in results.items() if page.endswith((".md", ".svg", ".png"))}


def _linked(markdown: str, source: str, page: str) -> str:
    """Text of ``source`` on ``page``: links lead to the pages of the files they name, or become plain text."""
    pages = {origin: name for name, origin in _origins().items()}

    def link(match: re.Match[str]) -> str:
        mark, text, target = match.groups()
        if target is None:  # a block of code
            return match[0]
        path, hash_, anchor = target.partition("#")
        if "://" in target or not path:
            return match[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        name = file.removeprefix("docs/") if file.startswith("docs/") else pages.get(file)
        if name is None:
            return text
        return f"{mark}[{text}]({posixpath.relpath(name, posixpath.dirname(page) or '.')}{hash_}{anchor})"

    return re.sub(r"^```.*?^```$|(!?)\[([^\]\[]+)\]\(([^)\s]+)\)", link, markdown, flags=re.M | re.S)


def section(file: str, wanted: str) -> str:
    """A section of a file without its heading, up to the next of its level or to the one that is named."""
    heading, _, until = wanted.partition(" -> ")
    text = (ROOT / file).read_text(encoding="utf-8")
    start = re.search(rf"^(#+) {re.escape(heading)}\n", text, re.M)
    if start is None:
        raise PluginError(f"docs: {file} must have the section {heading!r}")
    rest = text[start.end() :]
    end = re.search(rf"^#+ {re.escape(until)}$" if until else rf"^#{{1,{len(start[1])}}} ", rest, re.M)
    if end is None and until:
        raise PluginError(f"docs: {file} must have the section {until!r} after {heading!r}")
    return (rest[: end.start()] if end else rest).strip()


def directives(module: str, shown: Set[str]) -> str:
    """One for each public name of a module that is not shown yet, but its constants, which have no docstring."""
    found = (f"{module}.{name}" for name in names(module) if not name.isupper())
    return "\n\n".join(f"::: {name}" for name in found if name not in shown)


def names(module: str) -> list[str]:
    """``__all__``, else what is defined without an underscore, read without importing anything."""
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [name for name in ast.literal_eval(node.value) if not name.startswith("_")]
    defined = (node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef)))
    return [name for name in defined if not name.startswith("_")]
