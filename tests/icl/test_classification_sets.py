"""The classification sets: what the files hold, what is left out, samples, and what is said of bad files."""

import numpy as np
import pytest
from tiny_sets import write_classification

from ragsys_kernels.icl.datasets import classification_set

pytestmark = pytest.mark.usefixtures("nowhere")


@pytest.fixture
def data(tmp_path):
    return write_classification(tmp_path / "data")


def change(data, name, old, new):
    path = data / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_items(data):
    (data / "ag_news" / "test.csv").write_text('"3","A title","Two\nlines, ""quoted"""\n"1","B","x"\n')
    (data / "ag_news" / "train_sample_10k.tsv").write_text('say "no\tSports\nb\tSci/Tech\n')
    found = classification_set("ag-news", data)
    assert (found.title, found.classes) == ("AG News", ("World", "Sports", "Business", "Sci/Tech"))
    assert found.test_texts == ['Two\nlines, "quoted"', "x"]
    assert found.test_labels.tolist() == [2, 0]
    assert (found.train_texts, found.train_labels.tolist()) == (['say "no', "b"], [1, 3])
    assert list(found.source) == ["ag_news/train_sample_10k.tsv", "ag_news/test.csv"]
    assert len(classification_set("sst-2", data).train_texts) == 36  # train and dev
    jigsaw = classification_set("jigsaw", data)
    assert jigsaw.test_labels.tolist() == [0, 1] * 6
    assert jigsaw.train_labels.tolist() == [0, 1] * 15


def test_training_texts_of_the_test_file_are_left_out(data):
    long = "word " * 30
    (data / "sst2" / "test.tsv").write_text(f"sentence\tlabel\nA  Short, text!\t1\n{long}end\t0\n")
    (data / "sst2" / "dev.tsv").write_text("sentence\tlabel\nx y\t1\n")
    (data / "sst2" / "train.tsv").write_text(
        f"sentence\tlabel\na short text\t1\na short texts\t1\n{long}other end\t0\n\n{long[5:60]}\t0\n"
    )
    assert classification_set("sst-2", data).train_texts == ["a short texts", long[5:60], "x y"]


def test_samples(data):
    whole = classification_set("ag-news", data)
    some, more = whole.sample(train=5, test=3), whole.sample(train=9, test=4)
    assert more.train_texts[:5] == some.train_texts
    assert more.test_texts[:3] == some.test_texts
    assert len(set(more.train_texts)) == 9
    label_of = dict(zip(whole.train_texts, whole.train_labels, strict=True))
    assert [label_of[text] for text in more.train_texts] == more.train_labels.tolist()
    assert whole.sample(train=5, seed=1).train_texts != some.train_texts
    assert whole.sample().train_texts == whole.train_texts
    assert sorted(whole.sample(test=99).test_texts) == sorted(whole.test_texts)
    np.testing.assert_array_equal(whole.sample(train=5).test_labels, whole.test_labels)
    with pytest.raises(ValueError, match="sample: test must be at least 1, got 0"):
        whole.sample(test=0)


@pytest.mark.parametrize(
    ("name", "file", "old", "new", "message"),
    [
        (
            "ag-news",
            "ag_news/test.csv",
            "2,a title",
            "5,a title",
            r"test\.csv, line 2: the class '5', not one of World",
        ),
        ("ag-news", "ag_news/test.csv", "1,a title,", "1,a title,b,", r"test\.csv, line 1: 4 columns, not 3"),
        ("ag-news", "ag_news/test.csv", "1,a title,", '1,"a title', r"data must be CSV, got .*test\.csv, line "),
        ("sst-2", "sst2/dev.tsv", "sentence\tlabel", "text\tlabel", r"dev\.tsv, line 1: the header 'text,label', not"),
        ("sst-2", "sst2/train.tsv", "\t1\n", "1\n", r"train\.tsv, line 3: 1 columns, not 2"),
        ("jigsaw", "jigsaw_toxic/toxic_comments_5000.csv", "0,sun", "0,,sun", r"line 2: 4 columns, not 3"),
    ],
)
def test_bad_files(data, name, file, old, new, message):
    change(data, file, old, new)
    with pytest.raises(ValueError, match=message):
        classification_set(name, data)


def test_missing_and_empty_files(data):
    (data / "sst2" / "test.tsv").write_text("sentence\tlabel\n")
    with pytest.raises(ValueError, match="set sst-2 must have test items, got none"):
        classification_set("sst-2", data)
    (data / "sst2" / "test.tsv").write_text("sentence\tlabel\n \t1\n")
    with pytest.raises(ValueError, match=r"test\.tsv, line 2: no text"):
        classification_set("sst-2", data)
    (data / "jigsaw_toxic" / "toxic_comments_5000.csv").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"set jigsaw needs jigsaw_toxic/toxic_comments_5000\.csv in a data fol"
    ):
        classification_set("jigsaw", data)
    with pytest.raises(ValueError, match="set must be one of ag-news, jigsaw, sst-2, got 'imdb'"):
        classification_set("imdb", data)


def test_fetched_sets(tmp_path, monkeypatch):
    import sys
    import types

    rows = {"train": [{"sentence": "a", "label": 1}], "validation": [{"sentence": "b", "label": 0}]}
    asked = []
    module = types.SimpleNamespace(load_dataset=lambda *name, **_: asked.append(name) or rows)
    monkeypatch.setitem(sys.modules, "datasets", module)
    found = classification_set("sst-2", tmp_path)
    assert (found.train_texts, found.test_texts) == (["a"], ["b"])
    assert found.source == {"stanfordnlp/sst2": ""}
    assert set(asked) == {("stanfordnlp/sst2", None)}
