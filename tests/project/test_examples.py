"""The scripts of examples/ run, and show what they are there to show."""

import os
import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [
    pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the tests run outside of the source tree"),
    pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning"),
]

SOLAR = "solar panels turn"


def printed(name, peer, capsys):
    """The lines under each heading that a script prints."""
    pytest.importorskip(peer)
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    found = {}
    for line in capsys.readouterr().out.splitlines():
        if line.startswith("  "):
            found[heading].append(line.strip())  # noqa: F821
        else:
            heading, _, rest = line.partition(":")
            found[heading] = [rest.strip()] if rest.strip() else []
    return found


def test_langchain(capsys):
    found = printed("langchain_mmr.py", "langchain_core", capsys)
    assert all(text.startswith(SOLAR) for text in found["similarity"])
    for heading in ("MMR", "VRSD", "MMR with bias", "examples"):
        assert sum(text.startswith(SOLAR) for text in found[heading]) < len(found[heading])
    assert found["MMR with bias"] != found["MMR"]
    assert found["function"] == ["[1, 3, 4]"]


def test_llama_index(capsys):
    found = printed("llama_index_mmr.py", "llama_index.core", capsys)
    assert all(text.startswith(SOLAR) for text in found["similarity"])
    for method in ("mmr", "vrsd"):
        assert len(found[method]) == 3
        assert sum(text.startswith(SOLAR) for text in found[method]) < 3
    assert found["penalty against last"] != found["penalty against max"]


def test_haystack(capsys):
    found = printed("haystack_mmr.py", "haystack", capsys)
    assert [*found] == ["MMR", "MMR with bias", "VRSD", "PyversityRanker", "SentenceTransformersDiversityRanker"]
    assert all(len(texts) == 3 for texts in found.values())
    assert found["MMR"] == found["SentenceTransformersDiversityRanker"] == found["PyversityRanker"]
    assert found["MMR with bias"] != found["MMR"]


def test_pyversity(capsys):
    pytest.importorskip("pyversity")
    runpy.run_path(str(EXAMPLES / "pyversity_mmr.py"))
    picks = [line[line.index("[") : line.index("]")] for line in capsys.readouterr().out.splitlines()]
    assert len(picks) == 2
    assert picks[0] == picks[1]


NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def shown(notebook):
    """What its cells print, word by word, numbers apart from words, and how many plots they show."""
    outputs = [each for cell in notebook.cells for each in cell.get("outputs", ())]
    printed = "".join(each.text for each in outputs if each.output_type == "stream")
    parts = re.split(r"([+-]?\d+\.\d+)", printed)
    plots = sum("image/png" in each.get("data", {}) for each in outputs)
    return parts[::2], [float(each) for each in parts[1::2]], plots, len(outputs)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_shows_what_it_keeps(path, monkeypatch):
    for module in ("nbclient", "ipykernel", "matplotlib", "sklearn"):
        pytest.importorskip(module)
    import nbclient
    import nbformat

    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES.parent), prepend=os.pathsep)
    kept = nbformat.read(path, as_version=4)
    fresh = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(fresh, timeout=300, resources={"metadata": {"path": str(EXAMPLES)}}).execute()
    words, numbers, plots, outputs = shown(kept)
    assert plots > 0
    assert shown(fresh)[0] == words
    assert shown(fresh)[1] == pytest.approx(numbers, abs=2e-3)
    assert shown(fresh)[2:] == (plots, outputs)


def test_notebooks_are_listed_and_name_no_machine():
    assert {path.stem for path in NOTEBOOKS} == {"quickstart", "which_rule"}
    for path in NOTEBOOKS:
        for page in (EXAMPLES / "README.md", EXAMPLES.parent / "docs" / "examples.md"):
            assert f"{path.name})" in page.read_text()
        assert not re.search(r"/(?:home|root|tmp|work|Users)/", path.read_text())


def test_every_script_is_run_and_listed():
    scripts = {path.name for path in EXAMPLES.glob("*_mmr.py")}  # tests/serving runs the others
    text = Path(__file__).read_text()
    listed = (EXAMPLES / "README.md").read_text()
    page = (EXAMPLES.parent / "docs" / "examples.md").read_text()
    assert scripts
    assert all(f'"{name}"' in text and f"({name})" in listed and name in page for name in scripts)
