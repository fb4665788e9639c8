"""Prompt templates: what they make of values, how they are read from files, and what is no template."""

import json
import sys

import pytest

from ragsys_kernels.icl.prompts import CLASSIFICATION, DOCUMENTS, QA, TEMPLATES, PromptTemplate
from ragsys_kernels.icl.quality import TEMPLATE


def test_prompts_are_joined_in_order():
    pairs = [{"question": "one", "answer": "1"}, {"question": "two", "answer": "2"}]
    assert QA.prompt({"question": "three"}, pairs) == "Q: one\nA: 1\n\nQ: two\nA: 2\n\nQ: three\nA:"
    assert QA.prompt({"question": "three"}) == "Q: three\nA:"
    assert QA.answer({"answer": "3"}) == " 3"
    assert QA.query + QA.continuation == QA.demonstration == TEMPLATE
    assert CLASSIFICATION.prompt({"text": "c"}, [{"text": "a", "label": "b"}]) == "Text: a\nLabel: b\n\nText: c\nLabel:"
    assert DOCUMENTS.prompt({"prefix": "and then"}, [{"title": "T", "text": "x"}]) == "T\nx\nand then"
    assert set(TEMPLATES) == {"qa", "classification", "documents"}


def test_values_stand_as_they_are_and_the_instruction_comes_first():
    made = PromptTemplate("{{{a}}} {b}", "{a}:", "{b}", instruction="Do {this}.", separator=" | ")
    assert made.prompt({"a": "{b}"}, [{"a": "{x}", "b": "{}"}]) == "Do {this}. | {{x}} {} | {b}:"
    with pytest.raises(ValueError, match="prompt: demonstration must have a value for 'b', got a"):
        made.prompt({"a": "1"}, [{"a": "2"}])
    with pytest.raises(ValueError, match="prompt: continuation must have a value for 'b', got none"):
        made.answer({})
    with pytest.raises(TypeError, match="prompt: b must be a str, got NoneType"):
        made.answer({"b": None})


def test_files(tmp_path):
    fields = {"demonstration": "{q}={a}", "query": "{q}=", "continuation": "{a}", "separator": ";"}
    (tmp_path / "t.json").write_text(json.dumps(fields))
    made = PromptTemplate.from_file(tmp_path / "t.json")
    assert made.prompt({"q": "3"}, [{"q": "1", "a": "2"}]) == "1=2;3="
    (tmp_path / "t.toml").write_text("\n".join(f'{name} = "{value}"' for name, value in fields.items()))
    if sys.version_info >= (3, 11):
        assert PromptTemplate.from_file(tmp_path / "t.toml") == made
    else:
        with pytest.raises(ValueError, match=r"file must be readable as TOML, .*: TOML needs Python 3\.11"):
            PromptTemplate.from_file(tmp_path / "t.toml")


@pytest.mark.parametrize(
    ("content", "kind", "match"),
    [
        ({"query": "{q}"}, ValueError, "file must have .*, got no 'demonstration' in"),
        ({"demonstration": "{q}", "query": "{q}", "continuation": "{a}", "x": 1}, ValueError, ".* the unknown 'x' in"),
        (
            {"demonstration": 1, "query": "{q}", "continuation": "{a}"},
            TypeError,
            "demonstration must be a str, got int",
        ),
        ([], ValueError, "file must hold a table, got list in"),
    ],
)
def test_files_that_are_no_templates(tmp_path, content, kind, match):
    (tmp_path / "t.json").write_text(json.dumps(content))
    with pytest.raises(kind, match=f"PromptTemplate: {match}"):
        PromptTemplate.from_file(tmp_path / "t.json")


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "t.json").write_text("{")
    with pytest.raises(ValueError, match=r"PromptTemplate: file must be readable as JSON, got .*t\.json: "):
        PromptTemplate.from_file(tmp_path / "t.json")
    with pytest.raises(ValueError, match=r"PromptTemplate: file must be \.json or \.toml, got .*t\.txt"):
        PromptTemplate.from_file(tmp_path / "t.txt")
    with pytest.raises(FileNotFoundError):
        PromptTemplate.from_file(tmp_path / "gone.json")


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"query": "no field"}, "query must have a field in braces, got 'no field'"),
        ({"query": "{q} "}, "query must end without white space, got '{q} '"),
        ({"demonstration": "{q"}, "demonstration must have fields in braces, got '{q': "),
        ({"demonstration": "{}"}, "demonstration must name its fields plainly, got '' in '{}'"),
        ({"demonstration": "{q.x}"}, r"demonstration must name its fields plainly, got 'q\.x'"),
        ({"continuation": "{a!r}"}, "continuation must name its fields plainly, got 'a'"),
        ({"continuation": "{a:3}"}, "continuation must name its fields plainly, got 'a'"),
    ],
)
def test_texts_that_are_no_templates(changed, match):
    with pytest.raises(ValueError, match=f"PromptTemplate: {match}"):
        PromptTemplate(**{"demonstration": "{q} {a}", "query": "{q}", "continuation": "{a}", **changed})
