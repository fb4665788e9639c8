"""Comparisons of files: what they read, how they go on after a kill, the command."""

import re
import shutil
from functools import partial

import numpy as np
import pytest
from backends import needs

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

import ragsys_kernels as rk  # noqa: E402
from ragsys_kernels.comparison import compare, compare_files, files, plot, work  # noqa: E402

pytestmark = needs("matplotlib")

RNG = np.random.default_rng(0)
ROWS, QUERIES = (RNG.standard_normal((n, 8)).astype(np.float32) for n in (300, 25))
NAMES = [f"d{i}" for i in range(300)]
ASKED = [f"q{q}" for q in range(25)]
QUICK = {"k": 4, "pool": 20, "methods": ["mmr:0.5", "vrsd"], "peers": False}


def vectors(rows):
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    texts = [f"text of {name}" for name in NAMES]
    pq.write_table(pa.table({"id": NAMES, "text": texts, "embedding": vectors(ROWS)}), folder / "corpus.parquet")
    pq.write_table(pa.table({"id": ASKED, "embedding": vectors(QUERIES)}), folder / "queries.parquet")
    (folder / "asked.txt").write_text("".join(f"what of {name}?\n" for name in ASKED))
    np.save(folder / "bias.npy", np.linspace(-1, 0, 300).astype(np.float32))
    np.save(folder / "candidates.npy", np.tile(np.arange(20), (25, 1)))
    spoilt = ROWS.copy()
    spoilt[7, 2] = np.nan
    np.save(folder / "spoilt.npy", spoilt)
    (folder / "other").mkdir()
    (folder / "other" / "notes.txt").write_text("")
    (folder / "qrels").write_text("".join(f"q{q} 0 d{q} 1\n" for q in range(20)))
    return folder


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Intervals and plots take longer than all else together; test_comparison.py has them."""
    monkeypatch.setattr(files, "compare", partial(compare, samples=100))
    monkeypatch.setattr(plot, "draw", lambda *_: {"png": b"", "svg": b"", "inline": b"<svg></svg>"})


@pytest.fixture
def paths(folder, tmp_path):
    return {"corpus": folder / "corpus.parquet", "queries": folder / "queries.parquet", "out": tmp_path / "out"}


def test_files_are_the_arrays(folder, paths):
    corpus = rk.Corpus(ROWS, bias=np.load(folder / "bias.npy"), ids=NAMES)
    options = {**QUICK, "qrels": folder / "qrels", "lambda_b": 0.7, "sample": 12, "seed": 3}
    found = compare_files(
        **paths, bias=folder / "bias.npy", text_column="text", query_texts=folder / "asked.txt", **options
    )
    expected = compare(corpus, QUERIES, query_ids=ASKED, samples=100, **options)
    assert found.query_ids == expected.query_ids
    assert set(found.query_ids) <= set(ASKED[:20])
    for name, indices in expected.indices.items():
        np.testing.assert_array_equal(found.indices[name], indices)
    example = found.examples[0]
    assert example.text == f"what of {example.name}?"
    pick = example.picks["VRSD"][0]
    assert pick.text == f"text of {pick.name}"
    page = (paths["out"] / "report.html").read_text()
    assert pick.text in page
    assert "<title>Which rule for corpus.parquet?</title>" in page


def test_a_text_is_a_line_whatever_it_holds(folder, paths, tmp_path):
    """Only a line feed ends it, and what stands before it on other systems."""
    texts = [f"what\u2028of\x85{name}\f\x1c?" for name in ASKED]
    (tmp_path / "asked.txt").write_bytes("\r\n".join(texts).encode())
    found = compare_files(**paths, query_texts=tmp_path / "asked.txt", sample=12, **QUICK)
    example = found.examples[0]
    assert example.text == f"what of {example.name} ?"  # as a page shows it


def test_a_saved_corpus_and_candidates(folder, paths, tmp_path):
    rk.Corpus(ROWS, ids=NAMES).save(tmp_path / "saved")
    paths["corpus"] = tmp_path / "saved"
    options = {**QUICK, "pool": None}
    found = compare_files(**paths, candidates=folder / "candidates.npy", **options)
    assert found.indices["random"].max() < 20
    with pytest.raises(ValueError, match=r"^compare: bias must be left out with the saved corpus"):
        compare_files(**paths, bias=folder / "bias.npy", **options)
    with pytest.raises(
        ValueError, match=r"^compare: metric must be that of the saved corpus .*, 'cosine', or left out"
    ):
        compare_files(**paths, metric="dot", **options)
    paths["corpus"], paths["out"] = f"file://{tmp_path}/saved", tmp_path / "again"
    again = compare_files(**paths, candidates=folder / "candidates.npy", metric="cosine", **options)
    np.testing.assert_array_equal(again.indices["vrsd"], found.indices["vrsd"])


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("kind", ["strings", "integers"])
def test_candidates_by_the_ids_of_the_corpus(folder, paths, tmp_path, caplog, kind, saved):
    """Integers are row numbers too: nothing but the option tells which they are."""
    ids = NAMES[::-1] if kind == "strings" else list(range(299, -1, -1))
    pq.write_table(pa.table({"id": ids, "embedding": vectors(ROWS)}), tmp_path / "corpus.parquet")
    rk.Corpus(ROWS, ids=ids).save(tmp_path / "saved")
    paths["corpus"] = tmp_path / ("saved" if saved else "corpus.parquet")
    pools = np.argsort(RNG.random((25, 300)))[:, :30]
    lists = [[ids[row] for row in pool[: 30 - query % 3]] for query, pool in enumerate(pools)]
    pq.write_table(pa.table({"ids": lists}), tmp_path / "picks.parquet")
    for query in range(25):
        pools[query, 30 - query % 3 :] = -1
    given = {"candidates": tmp_path / "picks.parquet", "candidate_column": "ids", **QUICK, "pool": None}
    with caplog.at_level("INFO", "ragsys_kernels"):
        found = compare_files(**paths, candidate_ids=True, **given)
        assert not caplog.messages
        np.save(tmp_path / "rows.npy", pools)
        rows = {**given, "candidates": tmp_path / "rows.npy", "candidate_column": None}
        again = compare_files(**paths, **rows)  # the same comparison, which is there
    assert [text.partition(",")[0] for text in caplog.messages] == ["compare: candidates are row numbers of the corpus"]
    expected = compare(rk.Corpus(ROWS), QUERIES, candidates=pools, samples=100, **{**QUICK, "pool": None})
    for name, indices in expected.indices.items():
        np.testing.assert_array_equal(found.indices[name], indices)
        np.testing.assert_array_equal(again.indices[name], indices)


def test_candidates_that_are_no_ids_are_refused(folder, paths, tmp_path):
    def refused(match, **options):
        with pytest.raises(ValueError, match=f"^compare: {match}"):
            compare_files(**{**paths, **options}, candidate_ids=True, **{**QUICK, "pool": None})

    refused("candidate_ids must come with candidates, got candidate_ids alone")
    np.save(tmp_path / "rows.npy", ROWS)
    rows = folder / "candidates.npy"
    refused("candidate_ids must come with ids of the corpus, got none", corpus=tmp_path / "rows.npy", candidates=rows)
    refused("candidates must be strings as the ids of the corpus are, got integers in .*candidates", candidates=rows)
    pq.write_table(pa.table({"ids": [["d1", "d2"]] * 24 + [["d1", "none"]]}), tmp_path / "ids.parquet")
    match = r"candidates must be ids of the corpus, got 'none' in row 24 of .*ids\.parquet"
    refused(match, candidates=tmp_path / "ids.parquet")
    pq.write_table(pa.table({"ids": [["d1", "d2"]] * 24}), tmp_path / "ids.parquet")
    match = r"candidates must have one row for each of the 25 queries, got 24 in .*ids\.parquet"
    refused(match, candidates=tmp_path / "ids.parquet")
    nothing = tmp_path / "no-queries.npy"
    np.save(nothing, QUERIES[:0])
    pq.write_table(pa.table({"ids": pa.array([], pa.list_(pa.string()))}), tmp_path / "ids.parquet")
    match = r"queries must have shape \(Q, 8\), Q at least 1, got \(0, 8\)"
    refused(match, queries=nothing, candidates=tmp_path / "ids.parquet")


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"corpus": "spoilt.npy"}, ValueError, r"corpus must be usable, got .*spoilt\.npy: .* got NaN .* in row 7"),
        ({"corpus": "no.npy"}, FileNotFoundError, r"corpus must be an existing file, got .*no\.npy"),
        ({"texts": "bias.npy"}, ValueError, r"texts must not be a \.npy file to have a column"),
        ({"texts": "asked.txt"}, ValueError, r"texts must have one text for each of 300 rows, got 25"),
        ({"query_texts": "asked.txt", "query_text_column": "a"}, ValueError, r"query_texts must have columns to have"),
        ({"text_column": "words"}, ValueError, r"texts must have a column 'words', got"),
        ({"out": "qrels"}, FileExistsError, r"out must be a folder, got the file"),
        ({"out": "corpus.parquet"}, ValueError, r"out must not be an input, .* corpus .*corpus\.parquet"),
        ({"out": "."}, ValueError, r"out must not be an input, lie in one or hold one, got .* and corpus .*\.parquet"),
        ({"out": "other"}, FileExistsError, r"out must be new, empty, or hold an earlier .*, got .* with notes\.txt"),
    ],
)
def test_bad_files_are_named(folder, paths, options, error, match):
    given = {name: value if name.endswith("column") else folder / value for name, value in options.items()}
    with pytest.raises(error, match=f"^compare: .*{match}"):
        compare_files(**{**paths, **given}, **QUICK)


@pytest.fixture
def made(monkeypatch):
    """The names of the methods that are run."""
    names, run = [], work.run
    monkeypatch.setattr(
        work, "run", lambda problem, setting, top: names.append(setting.name) or run(problem, setting, top)
    )
    return names


def test_a_run_that_was_stopped_goes_on(paths, made, tmp_path):
    """And one that was killed: it leaves what is there when it is."""

    def stop(done, total):
        if done == 2:
            shutil.copytree(paths["out"], tmp_path / "killed")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare_files(**paths, **QUICK, progress=stop)
    assert made == ["top-k", "random"]
    assert not (paths["out"] / "report.html").exists()
    (paths["out"] / "methods" / ".left.0123456789ab.partial").write_bytes(b"x")
    kept = {path.name: path.read_bytes() for path in (tmp_path / "killed" / "methods").iterdir()}
    assert len(kept) == 2
    made.clear()
    compare_files(**{**paths, "out": tmp_path / "killed"}, **QUICK)
    found = compare_files(**paths, **QUICK)
    assert made == ["mmr:0.5", "vrsd"] * 2
    assert kept.items() <= {path.name: path.read_bytes() for path in (paths["out"] / "methods").iterdir()}.items()
    assert not [path for path in (paths["out"] / "methods").iterdir() if path.suffix == ".partial"]
    made.clear()
    again = compare_files(**paths, **QUICK)
    assert made == []
    assert again.figures == found.figures
    compare_files(**paths, **{**QUICK, "methods": ["vrsd", "sift"]})
    assert made == ["sift"]


def test_another_comparison_is_refused_or_overwritten(paths, made):
    compare_files(**paths, **QUICK)
    with pytest.raises(ValueError, match=r"^compare: out must hold .*overwrite.* with .*k 4, now 3; seed 0, now 1"):
        compare_files(**paths, **{**QUICK, "k": 3, "seed": 1})
    made.clear()
    found = compare_files(**paths, **{**QUICK, "k": 3}, overwrite=True)
    assert len(made) == 4
    assert found.indices["vrsd"].shape == (25, 3)


def test_a_change_of_the_vectors_is_seen(paths, tmp_path):
    compare_files(**paths, **QUICK)
    changed = ROWS.copy()
    changed[rk.Corpus(ROWS).search(QUERIES[:1], 1)[0][0, 0]] *= [1, 1, 1, 1, 1, 1, 1, 1.0001]
    np.save(tmp_path / "changed.npy", changed)
    with pytest.raises(ValueError, match=r"vectors and bias of the pools [0-9a-f]{16}, now [0-9a-f]{16}"):
        compare_files(**{**paths, "corpus": tmp_path / "changed.npy"}, **QUICK)


def test_what_is_damaged_is_made_again(paths, made):
    found = compare_files(**paths, **QUICK)
    file = next((paths["out"] / "methods").glob("vrsd*.npz"))
    content = file.read_bytes()
    place = content.index(b"indices")
    bit = content[: place + 200] + bytes([content[place + 200] ^ 1]) + content[place + 201 :]
    said = re.search(rb"'shape': [^}]*} *", content[place:])[0]
    shape = content.replace(said, b"'shape': (99999999999999, 3), }".ljust(len(said)))
    for damaged in (bit, content[:100], b"", shape):
        file.write_bytes(damaged)
        made.clear()
        with pytest.warns(UserWarning, match=r"vrsd-\w+\.npz is damaged and made again") as caught:
            again = compare_files(**paths, **QUICK)
        assert caught[0].filename == __file__
        assert made == ["vrsd"]
        np.testing.assert_array_equal(again.indices["vrsd"], found.indices["vrsd"])
    (paths["out"] / "comparison.json").write_text("{")
    with pytest.raises(ValueError, match=r"comparison\.json must be as a comparison wrote it, or overwrite be given"):
        compare_files(**paths, **QUICK)


def test_the_command(command, folder, tmp_path):
    inputs = "--corpus corpus.parquet --queries queries.parquet --qrels qrels --text-column text"
    options = f"--k 4 --pool 20 --methods mmr:0.5,vrsd --no-peers --out {tmp_path / 'out'}"
    arguments = [*inputs.split(), *options.split()]
    result = command(folder, "compare", *arguments)
    assert (result.returncode, result.stderr) == (0, "")
    assert "\nTake " in result.stdout
    assert result.stdout.splitlines()[-1] == f"-> {tmp_path / 'out' / 'report.html'}"
    assert command(folder, "compare", *arguments, "--quiet").stdout == ""
    refused = command(folder, "compare", *arguments, "--k", "3")
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: compare: out must hold a comparison of the same inputs")
    assert refused.stderr.count("\n") == 1
