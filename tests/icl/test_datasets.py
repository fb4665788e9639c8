"""The question sets: how items become texts, where files are looked for, and what is said when they are not there."""

import gzip
import sys
import types

import pytest
from tiny_encoder import write_sets

from ragsys_kernels.icl.datasets import VRSD_SETS, _files, data_folder, truthfulqa, vrsd_set

pytestmark = pytest.mark.usefixtures("nowhere")

ARC = [
    '{"question": "Why?", "answers": ["so", "because"]}',
    '{"question": "a->b?", "answers": ["no"]}',
    *(f'{{"question": "q{i}", "answers": ["a{i}"]}}' for i in range(2, 9)),
]


def arc(folder, train=ARC, test=(), dev=()):
    (folder / "arc_da").mkdir()
    for split, lines in (("train", train), ("test", test), ("dev", dev)):
        (folder / "arc_da" / f"ARC{split}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_items_queries_and_pool(tmp_path):
    found = vrsd_set(
        "arc-da", arc(tmp_path, ARC, ['{"question": "t", "answers": ["x"]}'], ['{"question": "d", "answers": ["y"]}'])
    )
    assert found.questions == ["Why?", "a"]  # the first fifth of 11; before the first arrow
    assert found.answers == ["so. because", "b?->no"]
    assert found.pool == [*(f"q{i}->a{i}" for i in range(2, 9)), "t->x", "d->y"]
    assert (found.name, found.title) == ("arc-da", "ARC-DA")
    assert list(found.source) == ["ARCtrain.jsonl", "ARCtest.jsonl", "ARCdev.jsonl"]


def test_options_and_messages(tmp_path):
    write_sets(tmp_path)
    found = vrsd_set("openbookqa", tmp_path)
    assert len(found.questions) == 10
    question, _, answer = found.pool[0].partition("->")
    stem, _, options = question.partition("? The option can be: ")
    assert options.split(". ")[10 % 4] == answer
    assert stem
    puzzle = vrsd_set("puzzle", tmp_path)
    assert (len(puzzle.questions), len(puzzle.pool)) == (6, 24)


def test_compressed_files_have_the_same_content(tmp_path):
    plain, packed = write_sets(tmp_path / "plain"), write_sets(tmp_path / "packed")
    for path in list(packed.rglob("*.jsonl")):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    for name in VRSD_SETS:
        one, two = vrsd_set(name, plain), vrsd_set(name, packed)
        assert one[:5] == two[:5]
        assert list(one.source.values()) == list(two.source.values())
    cut = packed / "puzzle" / "puzzle.jsonl.gz"
    whole = cut.read_bytes()
    for damaged in (whole[:-9], whole[:20] + bytes(20) + whole[40:], b"no" + whole[2:]):
        cut.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"data must be a whole gzip file, got .*puzzle\.jsonl\.gz"):
            vrsd_set("puzzle", packed)


def test_where_the_folder_is(tmp_path, monkeypatch):
    assert data_folder() is None
    beside = tmp_path / "beside"
    beside.mkdir()
    monkeypatch.setattr(_files, "_BESIDE", (tmp_path / "nothing", beside))
    assert data_folder() == beside
    named = tmp_path / "named"
    monkeypatch.setenv("RAGSYS_KERNELS_DATA", str(named))
    with pytest.raises(FileNotFoundError, match=r"RAGSYS_KERNELS_DATA must be an existing folder, got .*named"):
        data_folder()
    named.mkdir()
    assert data_folder() == named
    assert data_folder(beside) == beside
    with pytest.raises(FileNotFoundError, match=r"data must be an existing folder, got .*gone"):
        data_folder(tmp_path / "gone")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("no json", "JSONDecodeError"),
        ('{"answers": []}', "KeyError 'question'"),
        ("[1]", "TypeError"),
    ],
)
def test_a_line_that_is_no_item(tmp_path, line, reason):
    arc(tmp_path, [*ARC, line])
    with pytest.raises(ValueError, match=rf"data must hold items of the set, got .*ARCtrain\.jsonl, line 10: {reason}"):
        vrsd_set("arc-da", tmp_path)


def test_what_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"set arc-da needs arc_da/ARCtrain\.jsonl, .*none is known: pass data"):
        vrsd_set("arc-da")
    with pytest.raises(
        FileNotFoundError, match=r"set puzzle needs puzzle/puzzle\.jsonl in a data folder, and .* lacks it"
    ):
        vrsd_set("puzzle", tmp_path)
    with pytest.raises(ValueError, match="set must be one of arc-da, openbookqa, puzzle, got 'boolq'"):
        vrsd_set("boolq", tmp_path)
    with pytest.raises(ValueError, match="set arc-da must have at least 5 items, got 4"):
        vrsd_set("arc-da", arc(tmp_path, ARC[:4]))


def test_openbookqa_is_fetched_where_it_can_be(tmp_path, monkeypatch):
    row = {"question_stem": "stem", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "B"}
    hub = types.SimpleNamespace(load_dataset=lambda *name, **_: {s: [row] * 4 for s in ("train", "test", "validation")})
    monkeypatch.setitem(sys.modules, "datasets", hub)
    found = vrsd_set("openbookqa", tmp_path)
    assert found.questions == ["stem? The option can be: a. b"] * 2
    assert found.pool == ["stem? The option can be: a. b->b"] * 10
    assert found.source == {"allenai/openbookqa": ""}

    del row["choices"]
    message = "set openbookqa must have the column 'choices', got question_stem, answerKey from allenai/openbookqa"
    with pytest.raises(ValueError, match=message):
        vrsd_set("openbookqa", tmp_path)
    hub.load_dataset = lambda *name, **_: {s: [] for s in ("train", "test", "validation")}
    with pytest.raises(ValueError, match="set openbookqa must have rows, got none from allenai/openbookqa"):
        vrsd_set("openbookqa", tmp_path)

    def fails(*name, **_):
        raise ConnectionError("no network")

    hub.load_dataset = fails
    with pytest.raises(
        FileNotFoundError, match="lacks it; fetching allenai/openbookqa failed: ConnectionError: no net"
    ):
        vrsd_set("openbookqa", tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(FileNotFoundError, match="lacks it; to fetch allenai/openbookqa: pip install datasets"):
        vrsd_set("openbookqa", tmp_path)


def test_the_papers_sizes(monkeypatch):
    monkeypatch.undo()
    if data_folder() is None:
        pytest.skip("the data folder is not here")
    sizes = {name: (len(found.questions), len(found.pool)) for name in VRSD_SETS if (found := vrsd_set(name))}
    assert sizes == {"arc-da": (597, 2388), "openbookqa": (1191, 4766), "puzzle": (20, 80)}


# --- TruthfulQA.

TRUTHFUL = """\ufeffType,Question,Best Answer,Correct Answers,Incorrect Answers
x,"Why, though?",so ,because; so;,no; nay; no
x, When? ,now,now,; never
"""


def truthful(folder, text=TRUTHFUL, name="TruthfulQA_v1.csv"):
    (folder / "truthfulqa").mkdir(exist_ok=True)
    content = text.encode()
    (folder / "truthfulqa" / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    return folder


@pytest.mark.parametrize("name", ["TruthfulQA_v1.csv", "TruthfulQA_v1.csv.gz"])
def test_answers_with_and_without_empty_ones(tmp_path, name):
    truthful(tmp_path, name=name)
    clean = truthfulqa("clean", tmp_path)
    assert clean.questions == ["Why, though?", "When?"]
    assert clean.answers == ["because", "so", "no", "nay", "now", "never"]
    assert clean.is_correct.tolist() == [True, True, False, False, True, False]
    assert clean.cu_questions.tolist() == [0, 4, 6]
    assert clean.best.tolist() == [1, 4]
    assert clean.triplets == 2 * 2 + 1
    assert clean.answers_to(1) == ["now", "never"]
    assert [pairs.tolist() for pairs in clean.pairs] == [[0, 0, 1], [0, 1, 4]]
    assert list(clean.source) == [name]
    paper = truthfulqa("paper", tmp_path)
    assert paper.answers == ["because", "so", "", "no", "nay", "no", "now", "", "never"]
    assert (paper.best.tolist(), paper.triplets) == ([1, 6], 3 * 3 + 2)
    assert paper.source == clean.source


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("Best Answer,", "Best,", r"data must hold the column 'Best Answer', got none in row 2 of .*v1\.csv"),
        ("so ,because", "him,because", r"must hold the best answer among the correct ones, got row 2 of .*v1\.csv"),
        ("now,now,; never", "now,now,;", "must hold a question with both kinds of answers, got row 3 of "),
        (TRUTHFUL.partition("\n")[2], "", "data must hold questions, got none in "),
    ],
)
def test_rows_that_are_none_of_truthfulqa(tmp_path, old, new, match):
    with pytest.raises(ValueError, match=match):
        truthfulqa("clean", truthful(tmp_path, TRUTHFUL.replace(old, new)))


def test_truthfulqa_is_fetched_where_it_can_be(tmp_path, monkeypatch):
    row = {"question": "Why?", "best_answer": "so", "correct_answers": ["so", "so"], "incorrect_answers": ["no"]}
    hub = types.SimpleNamespace(load_dataset=lambda *name, **_: {"validation": [row]})
    monkeypatch.setitem(sys.modules, "datasets", hub)
    found = truthfulqa("clean", tmp_path)
    assert (found.answers, found.source) == (["so", "no"], {"truthfulqa/truthful_qa": ""})
    with pytest.raises(
        FileNotFoundError, match=r"set truthfulqa needs truthfulqa/TruthfulQA_v1\.csv in a .* lacks it$"
    ):
        truthfulqa("paper", tmp_path)  # the copy there has no empty answers


def test_the_papers_counts(monkeypatch):
    monkeypatch.undo()
    if data_folder() is None:
        pytest.skip("the data folder is not here")
    found = {which: truthfulqa(which) for which in ("paper", "clean")}
    counts = {which: (len(one.questions), int(one.is_correct.sum()), one.triplets) for which, one in found.items()}
    assert counts == {"paper": (817, 2846, 12485), "clean": (817, 2837, 12352)}
