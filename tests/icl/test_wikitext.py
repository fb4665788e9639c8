"""WikiText and the collection of passages: the text, its articles, and that nothing evaluated is retrieved from."""

import json
import sys

import pytest
import ralm_data

from ragsys_kernels.icl.datasets import Passage, boolq_passages, boolq_questions, ralm_passages, wikitext

pytestmark = pytest.mark.usefixtures("nowhere")


ROWS = ["", " = Cats = \n", "", ' Cats , say "purr" . \n', "", " = 1 rad / s and k = \n", " more \n"]
ROWS += ["", " = = S = = \n", "", " x \n"]


def test_text_and_articles(tmp_path):
    rows = [*ROWS, "", " = Dogs ( animals ) = \n", "", " bark \n"]
    ralm_data.write_csv(tmp_path / "wikitext103" / "test.txt", rows)
    found = wikitext("test", tmp_path)
    assert found.text == "".join(row if row else " \n" for row in rows)
    # One space a word and one a line, as in the original files.
    assert found.text.count(" ") == len(found.text.split()) + found.text.count("\n")
    assert [article.title for article in found.articles] == ["Cats", "Dogs ( animals )"]
    assert "".join(article.text for article in found.articles) == found.text
    assert found.articles[1].text == " = Dogs ( animals ) = \n \n bark \n"
    assert list(found.source) == ["test.txt"]


def test_no_article_is_one(tmp_path):
    ralm_data.write_csv(tmp_path / "wikitext103" / "valid.txt", [" a b \n", " = c = \n", " d \n"])
    assert wikitext("valid", tmp_path).articles == [Passage("", " a b \n = c = \n d \n")]


def test_questions_know_their_passages(tmp_path):
    ralm_data.write(tmp_path)
    path = tmp_path / "boolq" / "BoolQdev.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for i, row in enumerate(rows):
        row |= {"question": f"is it {i}", "answer": i % 3 == 0}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = boolq_questions(tmp_path)
    assert found.passages == boolq_passages(tmp_path)[0]
    assert found.questions == [f"is it {i}" for i in range(13)]
    assert found.answers == [i % 3 == 0 for i in range(13)]
    assert found.own == [*range(12), 0]  # the last has the first one's passage
    assert found.source == boolq_passages(tmp_path)[1]
    for wrong, match in (({"answer": "yes"}, "TypeError answer is of str"), ({"question": 1}, "TypeError question is")):
        path.write_text(json.dumps({**rows[0], **wrong}) + "\n")
        with pytest.raises(ValueError, match=rf"data must hold questions, answers .*jsonl, line 1: {match}"):
            boolq_questions(tmp_path)


def test_passages_are_distinct_and_cut(tmp_path):
    ralm_data.write(tmp_path)
    boolq, source = boolq_passages(tmp_path)
    assert (len(boolq), list(source)) == (12, ["BoolQdev.jsonl"])
    assert boolq[0].document.startswith("Passage 0\n")
    assert Passage("", "text").document == "text"
    found = ralm_passages(wikitext("test", tmp_path), tmp_path, words=10)
    sizes = [len(passage.text.split()) for passage in found.passages]
    assert max(sizes) <= 10
    assert min(sizes) >= 4  # pieces of a text are as equal as can be
    whole = {passage.title: passage.text.split() for passage in boolq}
    pieces = {title: [] for title in whole}
    for passage in found.passages:
        if passage.title in pieces:
            pieces[passage.title] += passage.text.split()
    assert pieces == whole
    valid = [passage for passage in found.passages if passage.title.startswith("Valid")]
    assert len({passage.title for passage in valid}) == 5
    assert not any("=" in passage.text for passage in valid)  # no headings


def test_nothing_of_the_evaluated_text_is_among_the_passages(tmp_path):
    ralm_data.write(tmp_path)
    clean = ralm_passages(wikitext("test", tmp_path), tmp_path)
    assert (clean.same_title, clean.same_words) == (0, 0)
    test = wikitext("test", tmp_path)
    words = test.articles[2].text.split("\n")[2].split()
    leaks = [
        {"title": "test 3", "passage": "Of an evaluated article."},
        {"title": "Quote", "passage": f"They say {' '.join(words[:8]).upper()}!"},
        {"title": "Near", "passage": "They say " + " ".join(words[:7]) + " zebra."},
    ]
    path = tmp_path / "boolq" / "BoolQdev.jsonl"
    path.write_text(path.read_text() + "".join(json.dumps(item) + "\n" for item in leaks))
    found = ralm_passages(test, tmp_path)
    assert (found.same_title, found.same_words) == (1, 1)
    assert {passage.title for passage in found.passages} - {passage.title for passage in clean.passages} == {"Near"}
    # By another way: no eight words in a row of any passage are in the text.
    plain = " ".join("".join(letter if letter.isalnum() else " " for letter in test.text.lower()).split())
    for passage in found.passages:
        spoken = "".join(letter if letter.isalnum() else " " for letter in passage.document.lower()).split()
        for i in range(len(spoken) - 7):
            assert f" {' '.join(spoken[i : i + 8])} " not in f" {plain} "


def test_what_is_refused(tmp_path):
    with pytest.raises(ValueError, match="split must be one of test, valid, got 'train'"):
        wikitext("train", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"set wikitext-103 test needs wikitext103/test\.txt in a data folder"):
        wikitext("test", tmp_path)
    ralm_data.write(tmp_path)
    with pytest.raises(ValueError, match="evaluated must not be the split that is retrieved from, got valid"):
        ralm_passages(wikitext("valid", tmp_path), tmp_path)
    with pytest.raises(ValueError, match="ralm_passages: words must be at least 1, got 0"):
        ralm_passages(wikitext("test", tmp_path), tmp_path, words=0)
    file = tmp_path / "wikitext103" / "test.txt"
    for content, match in (
        (" Cats , purr \n", r"one quoted column, got 2 in .*test\.txt, row 1"),
        ('"a" b\n', r"one quoted column, got .*test\.txt: "),
        ("", r"data must hold rows of text, got none in test\.txt"),
    ):
        file.write_text(content)
        with pytest.raises(ValueError, match=match):
            wikitext("test", tmp_path)
    (tmp_path / "boolq" / "BoolQdev.jsonl").write_text('{"title": "a", "passage": "b"}\n{"title": "a"}\n')
    with pytest.raises(ValueError, match=r"data must hold passages with titles, got .*jsonl, line 2: KeyError"):
        boolq_passages(tmp_path)


def test_what_lacks_is_fetched(tmp_path, monkeypatch):
    import types

    asked = []

    def load_dataset(name, configuration, trust_remote_code=None):
        asked.append((name, configuration, trust_remote_code))
        if "wikitext" in name:
            return {"test": [{"text": row} for row in ROWS], "validation": []}
        return {"validation": [{"passage": "b", "question": "c", "answer": True}]}

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    found = wikitext("test", tmp_path)
    assert (found.articles[0].title, found.source) == ("Cats", {"Salesforce/wikitext": ""})
    assert boolq_passages(tmp_path)[0] == [Passage("", "b")]
    assert boolq_questions(tmp_path)[:4] == (["c"], [True], [0], [Passage("", "b")])
    # Of a model's or data set's own code, which these packages else ask about on a terminal.
    assert asked == [("Salesforce/wikitext", "wikitext-103-v1", False), *[("google/boolq", None, False)] * 2]
