"""What In-Context RALM is evaluated on: a text to predict, and passages of the same kind without anything of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, NamedTuple

from ragsys_kernels._base.types import PathLike
from ragsys_kernels.icl.datasets import (
    PassageSet,
    WikiText,
    folder_texts,
    news_texts,
    python_texts,
    ralm_passages,
    wikitext,
)
from ragsys_kernels.icl.datasets.files import EVERY
from ragsys_kernels.icl.datasets.wikitext import OVERLAP

NAMES = ("wikitext", "ag-news", "python")
_ORDINAL = {5: "fifth"}[EVERY]


class Source(NamedTuple):
    """A text to predict, and what is retrieved from."""

    name: str  # of the text: one of `NAMES`, or of a folder
    title: str
    origin: str  # of the passages
    test: WikiText
    collection: PassageSet
    unit: Literal["word", "token"]  # what perplexity is of: words are those of WikiText, as the paper has it
    like: str = "WikiText-103"  # the text of the paper's Table 1 that is of this kind

    def said(self, words: int) -> str:
        """Say what is retrieved from."""
        same_title, same_words = self.collection.same_title, self.collection.same_words
        return (
            f"{len(self.collection.passages)} passages of at most {words} words, of {self.origin}. None has the title "
            f"of an evaluated article, or {OVERLAP} words in a row in common with the evaluated text: {same_title} and "
            f"{same_words} were left out for that"
        )


def source(op: str, text: PathLike, data: PathLike | None, words: int) -> Source:
    """Return a source by its name, or of a folder of files."""
    if text == "wikitext":
        test = wikitext("test", data)
        collection = ralm_passages(test, data, words=words)
        origin = "BoolQ (validation) and WikiText-103 valid"
        return Source("wikitext", "WikiText-103 test", origin, test, collection, "word")
    if text == "ag-news":
        return Source("ag-news", "AG News test", "AG News train", *news_texts(data, words=words), "token", "RealNews")
    if text == "python":
        title = f"Python's standard library, every {_ORDINAL} module"
        return Source("python", title, "its other modules", *python_texts(words=words), "token")
    if not os.path.isdir(text):
        raise ValueError(f"{op}: text must be {', '.join(NAMES)} or an existing folder, got {os.fspath(text)!r}")
    name = Path(text).resolve().name
    files = folder_texts(text, words=words)
    return Source(name, f"{name}, every {_ORDINAL} file", "its other files", *files, "token")
