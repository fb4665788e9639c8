"""What all evaluations share: report folders, models by name, what is refused before the work."""

import json
import re
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from backends import needs

pytest.importorskip("torch")
pytest.importorskip("transformers")

import lm_models
from html_pages import Page
from tiny_encoder import TinyEncoder

from benchmarks import papers
from benchmarks.papers import _run
from benchmarks.papers import report as report_module
from benchmarks.papers.report import Report, check_free
from ragsys_kernels._base.files import replacing
from ragsys_kernels.icl import packaged

pytestmark = needs("matplotlib")


def example(rows=(("a < b", "1|2"),)):
    report = Report("example", "Numbers & more")
    report.text("Some `code`, **bold** and\n     1 < 2.")
    report.heading("Table")
    report.table(("what", "value"), rows)
    report.notes(["first", "second"])
    report.plot("plot.png", (3, 2), "A <plot>", lambda figure: figure.subplots().plot([1, 2]))
    report.configuration({"k": 4, "list": [1, 2], "dict": {"a": 1}})
    return report


def test_markdown_and_html_say_the_same(tmp_path, figures):
    report = example()
    folder = report.write(tmp_path / "new" / "folder")
    names = ["plot.png", "report.html", "report.json", "report.md"]
    assert sorted(path.name for path in folder.iterdir()) == names
    text = (folder / "report.md").read_text()
    assert text.startswith("# Numbers & more\n\nSome `code`, **bold** and 1 < 2.\n\n## Table\n\n| what | value |\n")
    assert "| a < b | 1\\|2 |" in text
    assert "- first\n- second" in text
    assert "![A <plot>](plot.png)" in text
    page = Page((folder / "report.html").read_text())
    assert ("img", {"src": "plot.png", "alt": "A <plot>"}) in page.tags
    for part in ("Numbers & more", "code", "1 < 2.", "a < b", "1|2", "second", "A <plot>", "ragsys_kernels"):
        assert part in page.text
    assert (folder / "plot.png").read_bytes()[:4] == b"\x89PNG"
    about = json.loads((folder / "report.json").read_text())
    assert about["evaluation"] == "example"
    assert about["files"] == ["plot.png", "report.html", "report.md"]
    assert about["settings"]["k"] == 4
    assert {"numpy", "backend", "date", "Python"} <= set(about["settings"])


def test_a_report_replaces_only_its_own(tmp_path):
    report = example()
    report.values([("a", "b")])
    report.write(tmp_path)
    again = example((("new", "3"),))
    again.write(tmp_path)
    assert not (tmp_path / "values.csv").exists()
    assert "| new | 3 |" in (tmp_path / "report.md").read_text()
    (tmp_path / "mine.txt").write_text("kept")
    again.write(tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "kept"
    assert not list(tmp_path.glob(".*"))


def test_another_process_may_write_the_same_report_meanwhile(tmp_path, monkeypatch):
    """Those that divide the work of a run finish together; at each step of one the other finds its folder."""
    steps = []

    @contextmanager
    def stepwise(path):
        with replacing(path) as file:
            yield file
            steps.append(path.name)
            check_free(tmp_path / "out", "example")
        check_free(tmp_path / "out", "example")

    monkeypatch.setattr(report_module, "replacing", stepwise)
    example().write(tmp_path / "out")
    assert sorted(steps) == ["plot.png", "report.html", "report.json", "report.md"]
    monkeypatch.undo()
    example().write(tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(steps)


def test_folders_that_are_refused(tmp_path):
    check_free(tmp_path, "example")
    check_free(tmp_path / "new", "example")
    (tmp_path / "file").write_text("")
    for out in (tmp_path, tmp_path / "file"):
        with pytest.raises(FileExistsError, match="example: out must be "):
            check_free(out, "example")
    for out in ("s3://bucket/made", Path("s3://bucket/made")):
        with pytest.raises(ValueError, match=r"^example: out must be a local path, got "):
            check_free(out, "example")
    example().write(tmp_path / "report")
    assert set(check_free(tmp_path / "report", "example")) == {"plot.png", "report.html", "report.md"}
    with pytest.raises(FileExistsError, match="other: out must be new, empty, or hold an earlier report"):
        check_free(tmp_path / "report", "other")
    (tmp_path / "report" / "report.json").write_text("{")
    with pytest.raises(FileExistsError, match="example: out must be new"):
        example().write(tmp_path / "report")


def test_encoders_by_path_and_at_hand(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(_run, "SentenceTransformerEncoder", lambda name, **options: seen.append((name, options)))
    run = _run.Run("example", tmp_path / "out", cache=tmp_path, samples=1, num_threads=2)
    for name in ("minilm", tmp_path / "model"):
        with run.embeddings(name):
            assert seen.pop() == (name, {"num_threads": 2, "cache": tmp_path})
    encoder = TinyEncoder()
    with run.embeddings(encoder) as kept:
        assert kept.encoder is encoder


@needs("gguf", "accelerate")
def test_language_models_by_name_and_at_hand(tmp_path, monkeypatch):
    gguf = lm_models.save_gguf(tmp_path / "tiny.gguf")
    monkeypatch.setattr(packaged, "find", lambda name, cache: {"smollm2": gguf}[name])
    prompts, answers = ["Q: Why do cats purr?\nA:"] * 2, [" They are content.", " Paris"]
    run = _run.Run("t", tmp_path / "out", cache=tmp_path / "new", samples=1, num_threads=1)
    with run.language_model("smollm2", dtype="float32") as scorer:
        model = scorer.model
        scorer.score(prompts, answers)
    with run.language_model(model) as scorer:
        scorer.score(prompts, answers)
        assert scorer.hits == 2
        assert scorer.model is model
        for name, said in (("smollm2", "smollm2 (SmolLM2-135M-Instruct, GGUF Q4_1)"), (model, "HuggingFaceModel")):
            assert _run.described(name, scorer, None) == {
                "model": f"{said}, fingerprint {model.fingerprint}", "dtype": "float32", "encoder": "none",
            }  # fmt: skip
    assert (tmp_path / "new" / "scores.sqlite").is_file()


def test_configuration_names_the_command_without_the_folders_of_the_machine(monkeypatch, figures):
    words = ["vrsd", "--out", "/home/me/o", "--quick", "--cache=/home/me/c", "--sets", "a b"]
    monkeypatch.setattr(sys, "argv", [papers.__file__.replace("__init__", "__main__"), *words])
    report = Report("vrsd", "Title")
    report.configuration({})
    text = report.markdown()
    assert "| command | `python -m benchmarks.papers vrsd --quick --sets 'a b'` |" in text
    assert "/home/me" not in text
    if (Path(report_module.__file__).parents[2] / ".git").exists():
        assert re.search(r"\| commit \| `[0-9a-f]{7,}(-dirty)?` \|", text)
    monkeypatch.setattr(sys, "argv", ["program.py"])
    report = Report("vrsd", "Title")
    report.configuration({})
    assert "| command |" not in report.markdown()


@pytest.mark.parametrize("name", ["aicl", "boolq", "ragsys", "ralm", "vrsd", "vrsd-answers"])
def test_every_evaluation_is_refused_before_the_work(name, tmp_path):
    """A model, an encoder or data are not asked for: there are none."""
    (tmp_path / "mine").write_text("")
    for options, error, message in (
        ({"samples": 0}, ValueError, f"{name}: samples must be at least 1, got 0"),
        ({"num_threads": 0}, ValueError, f"{name}: num_threads must be at least 1, got 0"),
        ({"out": tmp_path}, FileExistsError, f"{name}: out must be new, empty, or hold an earlier report"),
        ({"data": tmp_path / "gone"}, FileNotFoundError, "data must be an existing folder, got .*gone"),
    ):
        with pytest.raises(error, match=message):
            getattr(papers, name.replace("-", "_"))(**{"out": tmp_path / "out", "cache": tmp_path, **options})


@pytest.mark.parametrize("name", ["aicl", "vrsd", "vrsd-answers"])
def test_sets_are_named(name, tmp_path):
    for sets, message in (
        ([], f"{name}: sets must name at least one of .*, got none"),
        (["boolq"], "set must be one of .*, got 'boolq'"),
    ):
        with pytest.raises(ValueError, match=message):
            getattr(papers, name.replace("-", "_"))(out=tmp_path / "out", cache=tmp_path, sets=sets)
