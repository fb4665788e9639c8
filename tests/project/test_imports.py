"""What is private to a package stays in it, and a missing package has one text.

import-linter checks the directions of imports (pyproject.toml).
"""

import ast
import functools
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ragsys_kernels._base import extras as _extras

ROOT = Path(__file__).parents[2]
PACKAGE = "ragsys_kernels"
HELPERS = ROOT / "tests" / "helpers"


is_folder = functools.cache(Path.is_dir)


def private_uses(path, root):
    """Names with a leading underscore that a file takes from another folder: (line, dotted name)."""
    folder = path.relative_to(root).parent.parts
    nodes, taken = list(ast.walk(ast.parse(path.read_text(encoding="utf-8")))), {}

    def foreign(name):
        """Whether the first private part of the dotted name belongs to a folder that the file is not in."""
        depth = next((i for i, part in enumerate(name) if part.startswith("_") and not part.endswith("_")), None)
        if depth is None or name[0] != PACKAGE:
            return False
        owner = next(name[:i] for i in range(depth, 0, -1) if is_folder(root.joinpath(*name[:i])))
        return folder[: len(owner)] != owner

    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            base = folder[: len(folder) - node.level + 1] if node.level else ()
            module = (*base, *(node.module or "").split(".")) if node.module else base
            names = {each.asname or each.name: (*module, each.name) for each in node.names}
        elif isinstance(node, ast.Import):
            names = {each.asname or each.name: tuple(each.name.split(".")) for each in node.names}
        else:
            continue
        taken.update(names)
        yield from ((node.lineno, ".".join(name)) for name in names.values() if foreign(name))
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in taken:
            name = (*taken[node.value.id], node.attr)
            if foreign(name) and not foreign(name[:-1]):
                yield node.lineno, ".".join(name)


def test_no_folder_takes_what_is_private_to_another():
    files = sorted((ROOT / PACKAGE).rglob("*.py"))
    assert len(files) > 100
    assert [(str(path), *use) for path in files for use in private_uses(path, ROOT)] == []


# They hold kernels and reports to what only the benchmarks have: compilers of kernels, real data.
USES_OF_BENCHMARKS = {
    "tests/comparison/test_compare_real.py",
    *(f"tests/gpu/test_{name}.py" for name in ("budgets", "compile", "compiler_ir", "cuda_module", "host")),
}


IMPORT_OF_BENCHMARKS = re.compile(
    r"""^\s*(from|import) benchmarks\b|(import_module\(|importorskip\(|"-m", )f?["']benchmarks\b""", re.M
)


def uses_benchmarks(path):
    """Whether a test imports the benchmarks, or a helper that does."""
    text = path.read_text(encoding="utf-8")
    if IMPORT_OF_BENCHMARKS.search(text):
        return True
    imported = re.findall(r"^\s*(?:from|import) (\w+)", text, re.M)
    return any(uses_benchmarks(helper) for name in imported if (helper := HELPERS / f"{name}.py").is_file())


def test_what_guards_tools_is_in_a_folder_of_its_own():
    """`make test` leaves it out."""
    tests = [path for path in (ROOT / "tests").rglob("test_*.py") if ROOT / "tests" / "tools" not in path.parents]
    assert {path.relative_to(ROOT).as_posix() for path in tests if uses_benchmarks(path)} == USES_OF_BENCHMARKS


def test_the_map_has_the_layers_of_the_contract():
    """In docs it has all modules in the order of the contract, those of a layer in one box, each with its line."""
    tomllib = pytest.importorskip("tomllib")
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    expected = [layer.split(" | ") for layer in contracts[0]["layers"]] + [["csrc/cpu", "csrc/cuda"]]
    picture = ElementTree.fromstring((ROOT / "docs" / "architecture.svg").read_text())
    of = {each.get("class"): [] for each in picture.iter()}
    for each in picture.iter():
        of[each.get("class")].append(each)
    boxes = [(float(each.get("y")), float(each.get("height"))) for each in of["band"] + of["band kernels"]]
    names = [(float(each.get("y")), each.text) for each in of["name"]]
    assert [[name for y, name in names if top < y < top + height] for top, height in boxes] == expected
    described = [float(each.get("y")) for each in of[None] if each.tag.endswith("text") and each.text.strip()]
    assert described == [y for y, _ in names]
    assert boxes == sorted(boxes)


@pytest.mark.parametrize(
    ("line", "use"),
    [
        ("from ..two import _one", "two._one"),
        ("from ..two.files import _read", "two.files._read"),
        ("from ragsys_kernels.two._files import read", "two._files.read"),
        ("import ragsys_kernels.two._files", "two._files"),
        ("from ..two import files\nfiles._read()", "two.files._read"),
        ("def f():\n    from .. import two\n    return two._one", "two._one"),
        ("from .. import _arrays, two\nfrom . import _here, files\nfiles._read(_here._x)", None),
        ("from .files import _read\nfrom ..two.problem import Fields\nFields.__name__", None),
    ],
)
def test_private_uses_are_found(tmp_path, line, use):
    for folder in ("one", "two"):
        (tmp_path / PACKAGE / folder).mkdir(parents=True)
    file = tmp_path / PACKAGE / "one" / "files.py"
    file.write_text(line)
    assert [name for _, name in private_uses(file, tmp_path)] == ([f"{PACKAGE}.{use}"] if use else [])


def test_one_file_words_the_error_of_a_missing_package():
    files = (ROOT / PACKAGE).rglob("*.py")
    texts = [path.name for path in files if "pip install '" in path.read_text(encoding="utf-8")]
    assert texts == ["extras.py"]
    with pytest.raises(ModuleNotFoundError) as raised, _extras.needed("select", "faiss"):
        import no_such_package.inner  # noqa: F401
    assert str(raised.value) == f"select needs no_such_package: {_extras.install('faiss')}"
    assert raised.value.name == "no_such_package"


def test_a_missing_module_of_this_package_is_no_missing_package():
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'ragsys_kernels\.nothing'$"):  # noqa: SIM117
        with _extras.needed("select", "faiss"):
            import ragsys_kernels.nothing  # noqa: F401


@pytest.mark.parametrize(
    ("recorded", "given"),
    [
        ('{"dir_info": {"editable": true}, "url": "file:///home/a%20b/rk"}', "/home/a b/rk[lm]"),
        ('{"archive_info": {}, "url": "file:///tmp/{x}/rk-0.1-cp311.whl"}', "/tmp/{x}/rk-0.1-cp311.whl[lm]"),
        ('{"archive_info": {}, "url": "https://host/rk-0.1.whl"}', "ragsys_kernels[lm] @ https://host/rk-0.1.whl"),
        (
            '{"url": "https://host/rk", "vcs_info": {"vcs": "git", "commit_id": "0"}}',
            "ragsys_kernels[lm] @ git+https://host/rk",
        ),
        (None, "ragsys_kernels[lm]"),
    ],
)
def test_what_is_missing_comes_from_where_the_package_came(recorded, given, tmp_path, monkeypatch):
    monkeypatch.setattr(_extras, "_origin", lambda: _extras.origin(recorded, tmp_path))
    assert _extras.install("lm") == f"pip install '{given}'"


def test_a_checkout_that_was_never_installed_names_its_folder(tmp_path):
    (tmp_path / "pyproject.toml").touch()
    assert _extras.origin(None, tmp_path).format(extra="lm") == f"{tmp_path}[lm]"
