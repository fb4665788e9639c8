"""The text classification sets of adaptive in-context learning: AG News, Jigsaw toxic comments, SST-2."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..._base.types import NDArray as Array
from ..._base.types import PathLike
from ._files import File, Hub, read

_Item = tuple[str, int]

_COMPARED = 100  # characters of its words by which a text of both files is known


class ClassificationSet(NamedTuple):
    """Texts with labels to learn from, and others to classify."""

    name: str
    title: str
    classes: tuple[str, ...]  # what the labels 0, 1, ... are, in the words of the set
    train_texts: list[str]
    train_labels: Array  # (N,) int64
    test_texts: list[str]
    test_labels: Array  # (Q,) int64
    source: dict[str, str]  # file or data set: sha256 of its content, or "" where it was fetched

    def sample(self, *, train: int | None = None, test: int | None = None, seed: int = 0) -> ClassificationSet:
        """Draw so many items without replacement, or all where the set has no more; None takes all in their order.

        A larger sample of the same seed begins with the smaller one.
        """
        drawn = []
        for stream, (name, size, number) in enumerate(
            (("train", len(self.train_texts), train), ("test", len(self.test_texts), test))
        ):
            if number is not None and number < 1:
                raise ValueError(f"sample: {name} must be at least 1, got {number}")
            order = np.random.default_rng([seed, stream]).permutation(size)[:number]
            drawn.append(np.arange(size) if number is None else order)
        learnt, asked = drawn
        return self._replace(
            train_texts=[self.train_texts[i] for i in learnt], train_labels=self.train_labels[learnt],
            test_texts=[self.test_texts[i] for i in asked], test_labels=self.test_labels[asked],
        )  # fmt: skip


class _Table(NamedTuple):
    """A file of rows with a text and a class, at the columns `text` and `label` of its `width`."""

    path: str
    separator: str  # "\t": quotation marks are part of the text; ",": they enclose cells
    width: int
    text: int
    label: int
    header: tuple[str, ...] | None = None


class _Source(NamedTuple):
    title: str
    classes: tuple[str, ...]
    train: tuple[_Table, ...]
    test: tuple[_Table, ...]
    spelled: dict[str, int]  # classes as the files have them
    hub: Hub | None = None  # with a split for training and one for testing, and the columns of text and label


def classification_set(name: str, folder: PathLike | None = None) -> ClassificationSet:
    """Return one of the sets of adaptive in-context learning: "ag-news", "jigsaw" or "sst-2".

    A training text that is also in the test file is left out: one whose words, in lower case, begin with the same 100
    characters (Jigsaw's files are of two origins and spell the same comment in two ways).

    AG News' test titles are left out, as the training sample has descriptions only.

    Parameters
    ----------
    name : {"ag-news", "jigsaw", "sst-2"}
    folder : path, optional
        Holds ``ag_news/{train_sample_10k.tsv,test.csv}``, ``sst2/{train,dev,test}.tsv`` and
        ``jigsaw_toxic/{toxic_comments_5000,toxicity_nonfuzzed_testset}.csv``, each as it is or with ``.gz``. Default:
        `data_folder`. AG News and SST-2 are fetched with the package ``datasets`` where the folder lacks them (AG News
        then with its titles).

    Raises
    ------
    FileNotFoundError
        The set is missing; the message says what to pass.
    ValueError
        A row that is not an item of the set; the message names file and line.
    """
    if name not in _SOURCES:
        raise ValueError(f"set must be one of {', '.join(_SOURCES)}, got {name!r}")
    source = _SOURCES[name]
    (train, of_train), (test, of_test) = (_part(name, source, part, folder) for part in (0, 1))
    held_out = {_known_by(text) for text, _ in test}
    train = [item for item in train if _known_by(item[0]) not in held_out]
    for which, items in (("training", train), ("test", test)):
        if not items:
            raise ValueError(f"set {name} must have {which} items, got none")
    return ClassificationSet(
        name, source.title, source.classes,
        [text for text, _ in train], np.array([label for _, label in train], np.int64),
        [text for text, _ in test], np.array([label for _, label in test], np.int64),
        of_train | of_test,
    )  # fmt: skip


def _part(name: str, source: _Source, part: int, folder: PathLike | None) -> tuple[list[_Item], dict[str, str]]:
    hub = source.hub and source.hub._replace(splits=source.hub.splits[part : part + 1])
    files = {table.path: partial(_items, table, source.spelled) for table in (source.train, source.test)[part]}

    def of_hub(rows: list[Any]) -> Iterator[_Item]:
        text, label = hub.columns if hub else ("", "")
        return ((str(row[text]), int(row[label])) for row in rows)

    return read(name, files, folder, hub, of_hub, with_folders=True)


def _items(table: _Table, spelled: dict[str, int], file: File) -> Iterator[_Item]:
    begin = table.header is None  # whether items have begun
    for line, row in _rows(file, table.separator):
        problem = ""
        if not begin:
            begin, label = True, ""
            if tuple(row) != table.header:
                problem = f"the header {','.join(row)!r}, not {','.join(table.header or ())!r}"
        elif len(row) != table.width:
            problem = f"{len(row)} columns, not {table.width}"
        elif not row[table.text].strip():
            problem = "no text"
        elif (label := row[table.label]) not in spelled:
            problem = f"the class {label!r}, not one of {', '.join(spelled)}"
        else:
            yield row[table.text], spelled[label]
        if problem:
            raise ValueError(f"data must hold items of the set, got {file.path}, line {line}: {problem}")


def _rows(file: File, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of each row's last line, and its cells; empty lines are left out."""
    if separator == "\t":
        for number, line in enumerate(file.text.split("\n"), 1):
            if line.strip():
                yield number, line.rstrip("\r").split("\t")
        return
    reader = csv.reader(io.StringIO(file.text, newline=""), strict=True)
    try:
        yield from ((reader.line_num, row) for row in reader if row)
    except csv.Error as error:
        raise ValueError(f"data must be CSV, got {file.path}, line {reader.line_num}: {error}") from error


def _known_by(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))[:_COMPARED]


def _sst2(*splits: str) -> tuple[_Table, ...]:
    return tuple(_Table(f"sst2/{split}.tsv", "\t", 2, 0, 1, ("sentence", "label")) for split in splits)


_AG = ("World", "Sports", "Business", "Sci/Tech")
_SOURCES = {
    "ag-news": _Source(
        "AG News", _AG,
        (_Table("ag_news/train_sample_10k.tsv", "\t", 2, 0, 1),),
        (_Table("ag_news/test.csv", ",", 3, 2, 0),),
        {name: i for i, name in enumerate(_AG)} | {str(i + 1): i for i in range(4)},
        Hub("fancyzhx/ag_news", None, ("train", "test"), ("text", "label")),
    ),
    "jigsaw": _Source(
        "Jigsaw toxic", ("not toxic", "toxic"),
        (_Table("jigsaw_toxic/toxic_comments_5000.csv", ",", 3, 1, 2, ("", "text", "toxic")),),
        (_Table("jigsaw_toxic/toxicity_nonfuzzed_testset.csv", ",", 3, 1, 2, ("rev_id", "comment", "toxic")),),
        {"0": 0, "1": 1, "False": 0, "True": 1},
    ),
    "sst-2": _Source(
        "SST-2", ("negative", "positive"), _sst2("train", "dev"), _sst2("test"), {"0": 0, "1": 1},
        Hub("stanfordnlp/sst2", None, ("train", "validation"), ("sentence", "label")),
    ),
}  # fmt: skip
CLASSIFICATION_SETS = tuple(_SOURCES)
