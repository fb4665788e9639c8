"""The bias job and its command: what is written, what is refused, and how it goes on after a kill."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip("transformers")
import pyarrow as pa
import pyarrow.parquet as pq

typer_testing = pytest.importorskip("typer.testing")

import lm_models  # noqa: E402
import pyarrow.csv  # noqa: E402
import pyarrow.json  # noqa: E402

from ragsys_kernels import offline  # noqa: E402
from ragsys_kernels.icl import HuggingFaceModel, quality_bias  # noqa: E402
from ragsys_kernels.offline import text_files  # noqa: E402

QUESTIONS = [f'What "is", {i % 7}?\nWhy' for i in range(30)]
ANSWERS = ["42", "NA", "null", "Paris, in the north", "é 🙂", *(f"because {i}" for i in range(25))]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return lm_models.save(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def expected(model):
    return quality_bias(HuggingFaceModel(lm_models.model(), lm_models.tokenizer()), QUESTIONS, ANSWERS)


@pytest.fixture
def folder(tmp_path):
    pairs = pa.table({"id": range(30), "question": QUESTIONS, "answer": ANSWERS})
    pq.write_table(pairs, tmp_path / "pairs.parquet")
    pyarrow.csv.write_csv(pairs, tmp_path / "pairs.csv")
    lines = [json.dumps({"question": q, "answer": a}) for q, a in zip(QUESTIONS, ANSWERS, strict=True)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def job(folder, model, **options):
    return offline.bias(**{"pairs": folder / "pairs.parquet", "model": model, "out": folder / "bias.npy", **options})


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_npy_has_the_bias_of_each_row(folder, model, expected, kind):
    before = names(folder)
    summary = job(folder, model, pairs=folder / f"pairs.{kind}")
    bias = np.load(folder / "bias.npy")
    assert bias.dtype == np.float32
    np.testing.assert_allclose(bias, expected, rtol=0, atol=1e-5)
    assert names(folder) == sorted([*before, "bias.npy"])  # the cache is gone
    assert (summary.pairs, summary.cached) == (30, 0)
    assert summary.mean == pytest.approx(expected.mean(), abs=1e-5)
    assert re.fullmatch(
        r"30 pairs in \d+\.\d\d s \(\d+\.\d pairs/s, model loaded in \d+\.\d\d s\), mean bias -\d+\.\d{3}, "
        r"model \S+ -> \S+bias\.npy",
        str(summary),
    )


def test_names_of_files_may_be_any_bytes(folder, model):
    odd = os.fsdecode(b"odd\xff")
    for kind in ("parquet", "csv", "jsonl"):
        (folder / f"pairs.{kind}").rename(folder / f"{odd}.{kind}")
        assert len(text_files.read("bias", "pairs", folder / f"{odd}.{kind}")) == 30
    assert job(folder, model, pairs=folder / f"{odd}.csv", out=folder / f"{odd}.npy").pairs == 30
    assert np.load(folder / f"{odd}.npy").shape == (30,)


def test_parquet_has_the_columns_of_the_input_and_the_bias(folder, model, expected):
    job(folder, model, out=folder / "with.parquet")
    table = pq.read_table(folder / "with.parquet")
    assert table.column_names == ["id", "question", "answer", "bias"]
    assert table.drop_columns("bias").equals(pq.read_table(folder / "pairs.parquet"))
    np.testing.assert_allclose(table["bias"].to_numpy(), expected, rtol=0, atol=1e-5)
    job(folder, model, pairs=folder / "with.parquet", out=folder / "twice.parquet", bias_column="again")
    assert pq.read_table(folder / "twice.parquet").column_names[-1] == "again"
    with pytest.raises(ValueError, match=r"bias: bias_column must be new, got 'bias', which is in .*with\.parquet"):
        job(folder, model, pairs=folder / "with.parquet", out=folder / "third.parquet")


def test_columns_template_and_threads(folder, model):
    import torch

    table = pa.table({"q": pa.array(QUESTIONS).dictionary_encode(), "a": pa.array(ANSWERS, pa.large_string())})
    pq.write_table(table, folder / "named.parquet")
    threads = torch.get_num_threads()
    options = {"question_column": "q", "answer_column": "a", "template": "{question} {answer}", "num_threads": 2}
    job(folder, model, pairs=folder / "named.parquet", **options)
    scorer = HuggingFaceModel(lm_models.model(), lm_models.tokenizer())
    direct = quality_bias(scorer, QUESTIONS, ANSWERS, template="{question} {answer}")
    np.testing.assert_allclose(np.load(folder / "bias.npy"), direct, rtol=0, atol=1e-5)
    assert torch.get_num_threads() == threads


def test_a_cache_is_kept_and_used(folder, model, expected):
    assert job(folder, model, cache=folder / "kept").cached == 0
    summary = job(folder, model, cache=folder / "kept", overwrite=True)
    assert summary.cached == 30
    assert "(30 from the cache" in str(summary) or ", 30 from the cache," in str(summary)
    np.testing.assert_allclose(np.load(folder / "bias.npy"), expected, rtol=0, atol=1e-5)
    # Another template, other prompts.
    assert job(folder, model, cache=folder / "kept", overwrite=True, template="{question}\n{answer}").cached == 0


@pytest.mark.parametrize(
    ("options", "kind", "match"),
    [
        ({"pairs": "no.csv"}, FileNotFoundError, r"pairs must be an existing file, got .*no\.csv"),
        ({"pairs": "bad.txt"}, ValueError, r"pairs must be a \.parquet, \.csv, \.jsonl file, got .*bad\.txt"),
        ({"pairs": "bad.parquet"}, ValueError, r"pairs must be a readable \.parquet file, got .*bad\.parquet"),
        ({"pairs": "bad.jsonl"}, ValueError, r"pairs must be a readable \.jsonl file, got .*bad\.jsonl"),
        ({"pairs": "empty.csv"}, ValueError, r"pairs must have at least one row, got none in .*empty\.csv"),
        ({"pairs": "hole.parquet"}, ValueError, r"pairs must hold text in every row of 'answer', got none in row 2 of"),
        ({"pairs": "blank.csv"}, ValueError, r"pairs must hold text in every row of 'question', got none in row 1 of"),
        ({"answer_column": "id"}, ValueError, r"pairs must hold text in column 'id', got int64 in .*pairs\.parquet"),
        ({"question_column": "q"}, ValueError, r"pairs must have one column 'q', got \['id', 'question', 'answer'\]"),
        ({"template": "Q: {question}"}, ValueError, r"template must have \{question\} and end with \{answer\}"),
        ({"out": "bias.txt"}, ValueError, r"out must be a \.npy or \.parquet file, got .*bias\.txt"),
        ({"out": "bad.parquet"}, FileExistsError, r"out must be new, or overwrite be given for a file, got"),
        ({"out": "pairs.parquet", "overwrite": True}, ValueError, r"out must not be an input, .* pairs .*\.parquet"),
        ({"out": "b.npy", "cache": "b.npy"}, ValueError, r"cache must not share files with out, got"),
        ({"out": "nowhere/bias.npy"}, FileNotFoundError, r"out must be in an existing folder, got .*nowhere/bias\.npy"),
        ({"bias_column": "b"}, ValueError, r"bias_column must come with a \.parquet file to write, got 'b'"),
        ({"num_threads": 0}, ValueError, r"num_threads must be at least 1, got 0"),
        ({"model": "./nothing"}, FileNotFoundError, r"model must be loadable, got \./nothing: .* existing path"),
        ({"dtype": "int8"}, ValueError, r"model must be loadable, .*dtype must be float32, float16 or bfloat16"),
        ({"cache": "pairs.csv"}, ValueError, r"cache must be a file of scores, got .*pairs\.csv"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)  # fmt: skip
def test_bad_input_is_refused_and_writes_nothing(folder, model, options, kind, match):
    for name in ("bad.txt", "bad.parquet", "bad.jsonl"):
        (folder / name).write_text("{nonsense")
    (folder / "empty.csv").write_text("question,answer\n")
    (folder / "blank.csv").write_text("question,answer\na,b\n  ,c\n")
    pq.write_table(pa.table({"question": ["a"] * 3, "answer": ["a", "b", None]}), folder / "hole.parquet")
    paths = {name: folder / value for name, value in options.items() if name in ("pairs", "out", "cache")}
    before = names(folder)
    with pytest.raises(kind, match=match):
        job(folder, **{"model": model, **options, **paths})
    assert names(folder) == before


def test_row_that_does_not_fit_is_named(folder, tmp_path_factory):
    model = lm_models.save(tmp_path_factory.mktemp("gpt2"), "gpt2")
    answers = [*ANSWERS[:11], "Z" * 200, *ANSWERS[12:]]
    pq.write_table(pa.table({"question": QUESTIONS, "answer": answers}), folder / "long.parquet")
    with pytest.raises(ValueError, match=r"bias: prompts must leave room .* in row 11 of .*long\.parquet"):
        job(folder, model, pairs=folder / "long.parquet")
    assert "bias.npy" not in names(folder)


# --- The command.


@pytest.fixture
def run(command):
    return lambda folder, *arguments: command(folder, "bias", *arguments)


def test_command_prints_one_summary_line(run, folder, model, expected):
    arguments = ("--pairs", "pairs.csv", "--model", model, "--out", "bias.npy", "--num-threads", "1")
    result = run(folder, *arguments)
    assert (result.returncode, result.stderr) == (0, "")
    assert re.fullmatch(r"30 pairs in .* -> \S+bias\.npy\n", result.stdout)
    np.testing.assert_allclose(np.load(folder / "bias.npy"), expected, rtol=0, atol=1e-5)
    result = run(folder, *arguments)
    assert (result.returncode, result.stdout) == (1, "")
    assert re.fullmatch(r"error: bias: out must be new, or --overwrite .*bias\.npy\n", result.stderr)


def test_missing_extra_is_one_line(run, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    result = run(folder, "--pairs", "pairs.csv", "--model", "some/name", "--out", "bias.npy")
    assert (result.returncode, result.stdout) == (1, "")
    assert re.search(r"needs transformers: pip install '.+\[lm\]'", result.stderr)
    assert result.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_stopped_job_goes_on(run, folder, model, number):
    """Killed once it has scored something, and run again: the rest is scored; the result is that of a whole run."""
    pairs = {"question": [f"What is {i}? " + "Why? " * (i % 40) for i in range(1500)], "answer": ["Paris"] * 1500}
    pq.write_table(pa.table(pairs), folder / "many.parquet")
    whole = quality_bias(HuggingFaceModel(lm_models.model(), lm_models.tokenizer()), *pairs.values())
    arguments = ("--pairs", "many.parquet", "--model", str(model), "--out", "bias.npy")
    scores = folder / ".bias.npy.scores"
    command = [sys.executable, "-m", "ragsys_kernels.cli", "bias", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, env=environment) as process:
        while process.poll() is None and not stored(scores):
            time.sleep(0.01)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == (143 if number == signal.SIGTERM else -number)
    if number == signal.SIGTERM:
        assert errors.splitlines()[-1] == "error: bias: interrupted; run it again to resume"
    assert "bias.npy" not in names(folder)
    kept = stored(scores)
    assert 0 < kept < 1500
    result = run(folder, *arguments)
    assert result.returncode == 0, result.stderr
    assert f", {kept} from the cache," in result.stdout
    np.testing.assert_allclose(np.load(folder / "bias.npy"), whole, rtol=0, atol=1e-5)
    assert ".bias.npy.scores" not in names(folder)


def stored(path):
    if not path.exists():
        return 0
    database = sqlite3.connect(path, timeout=10)
    try:
        return database.execute("SELECT count(*) FROM scores").fetchone()[0]
    except sqlite3.OperationalError:  # no table yet
        return 0
    finally:
        database.close()
