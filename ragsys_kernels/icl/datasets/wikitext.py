"""WikiText-103 as In-Context RALM reads it, and a collection of passages to retrieve from."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

from ..._base.types import PathLike
from ._files import File, Hub, read
from .boolq import Passage, boolq_passages

OVERLAP = 8  # words in a row that a passage may not have in common with a text that is evaluated
_TITLE = re.compile(r" = ([^=].*[^=]) = \n")
_WORD = re.compile(r"\w+")
_SPACED = re.compile(r"\S+")


class WikiText(NamedTuple):
    """A split of WikiText-103: one text, and the articles that it consists of."""

    name: str
    text: str
    articles: list[Passage]  # whole, with their headings; end to end they are the text
    source: dict[str, str]  # file or data set: sha256 of its content, or "" where it was fetched


class PassageSet(NamedTuple):
    """Passages to retrieve from, and how many were left out so that none of an evaluated text is among them."""

    passages: list[Passage]
    same_title: int  # left out: of an evaluated article
    same_words: int  # left out: has `OVERLAP` words in a row in common with the evaluated text
    source: dict[str, str]


def wikitext(split: str, folder: PathLike | None = None) -> WikiText:
    """Return WikiText-103-v1, the word level form with ``<unk>``: "test" or "valid".

    Rows are joined without a separator, an empty row being " \\n", as in In-Context RALM's code and the original files.
    So the text has one space for each word and one for each line; their number (245,569 in test) is what word
    perplexity divides by.

    Parameters
    ----------
    split : {"test", "valid"}
    folder : path, optional
        Holds ``wikitext103/test.txt`` and ``wikitext103/valid.txt``, as they are or with ``.gz``: CSV with one quoted
        column, a row a line of the original. Default: `data_folder`. What lacks is fetched with the package
        ``datasets``.

    Raises
    ------
    FileNotFoundError
        The set is missing; the message says what to pass.
    ValueError
        The file is something else.
    """
    if split not in _SPLITS:
        raise ValueError(f"split must be one of {', '.join(_SPLITS)}, got {split!r}")
    hub = Hub("Salesforce/wikitext", "wikitext-103-v1", (_SPLITS[split],), ("text",))
    files = {f"wikitext103/{split}.txt": _csv_rows}
    rows, source = read(f"wikitext-103 {split}", files, folder, hub, partial(map, itemgetter("text")))
    if not any(rows):
        raise ValueError(f"data must hold rows of text, got none in {', '.join(source)}")
    lines = [row or " \n" for row in rows]
    # A title has empty rows around it; two lines of formulas in test look like one otherwise.
    empty = [True, *(not row for row in rows), True]
    found_titles = [(i, _TITLE.fullmatch(row)) for i, row in enumerate(rows) if empty[i] and empty[i + 2]]
    titles = [(i, match[1]) for i, match in found_titles if match]
    # The first article begins where the text does, whatever comes before its title.
    starts = [0, *(i for i, _ in titles[1:]), len(lines)]
    articles = [
        Passage(title, "".join(lines[a:b]))
        for title, (a, b) in zip([title for _, title in titles] or [""], pairwise(starts), strict=True)
    ]
    return WikiText(split, "".join(lines), articles, source)


def ralm_passages(evaluated: WikiText, folder: PathLike | None = None, *, words: int = 100) -> PassageSet:
    """Return a stand-in for In-Context RALM's Wikipedia index: BoolQ's passages and the articles of WikiText's valid.

    Nothing of the evaluated text is among them. Passages of articles with a title of an evaluated one are left out, as
    the paper does it, and so is every passage that has `OVERLAP` words in a row in common with the evaluated text
    (words in lower case, without punctuation).

    Parameters
    ----------
    evaluated : WikiText
    folder : path, optional
        See `wikitext` and `boolq_passages`.
    words : int
        Articles and passages are cut into pieces of at most so many words, as equal as can be. Wikipedia's DPR index,
        which the paper uses, has 100.

    Raises
    ------
    FileNotFoundError, ValueError
        Those of `wikitext`; `evaluated` is the split that would be retrieved from.
    """
    if words < 1:
        raise ValueError(f"ralm_passages: words must be at least 1, got {words}")
    if evaluated.name == "valid":
        raise ValueError("ralm_passages: evaluated must not be the split that is retrieved from, got valid")
    held_out = wikitext("valid", folder)
    boolq, source = boolq_passages(folder)
    articles = [Passage(title, _without_headings(text)) for title, text in held_out.articles]
    names = [title for title, _ in evaluated.articles]
    return PassageSet(*kept_passages([*boolq, *articles], names, evaluated.text, words), {**source, **held_out.source})


def kept_passages(
    articles: Sequence[Passage], titles: Sequence[str], text: str, words: int, *, layout: bool = False
) -> tuple[list[Passage], int, int]:
    """Return the distinct pieces of articles that have nothing of an evaluated text, and how many were left out.

    Left out are those with one of its titles, and those with `OVERLAP` of its words in a row. `layout` keeps the white
    space between words as it is.
    """
    evaluated, runs = {_words(title) for title in titles}, _runs(_words(text))
    kept: dict[Passage, None] = {}
    same_title = same_words = 0
    for passage in (piece for whole in articles for piece in _pieces(whole, words, layout)):
        if _words(passage.title) in evaluated:
            same_title += 1
        elif not runs.isdisjoint(_runs(_words(passage.document))):
            same_words += 1
        else:
            kept[passage] = None
    return list(kept), same_title, same_words


def _csv_rows(file: File) -> Iterator[str]:
    try:
        for number, row in enumerate(csv.reader(io.StringIO(file.text, newline=""), strict=True), 1):
            if len(row) > 1:
                got = f"{len(row)} in {file.path}, row {number}"
                raise ValueError(f"data must be CSV with one quoted column, got {got}")
            yield row[0] if row else ""
    except csv.Error as error:
        raise ValueError(f"data must be CSV with one quoted column, got {file.path}: {error}") from error


def _without_headings(article: str) -> str:
    return "".join(line for line in article.splitlines(keepends=True) if not line.startswith(" = "))


def _pieces(whole: Passage, limit: int, layout: bool = False) -> Iterator[Passage]:
    places = [match.span() for match in _SPACED.finditer(whole.text)]
    number = -(-len(places) // limit)
    ends = [len(places) * i // number for i in range(number + 1)] if number else []
    for begin, end in pairwise(ends):
        if layout:  # with the white space before the first word: it may be the line's indentation
            text = whole.text[places[begin - 1][1] if begin else 0 : places[end - 1][1]].strip("\n")
        else:
            text = " ".join(whole.text[a:b] for a, b in places[begin:end])
        yield Passage(whole.title, text)


def _words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(text.lower()))


def _runs(words: Sequence[str]) -> set[int]:
    """Return hashes of all runs of `OVERLAP` words; two texts without a common one have no such run in common."""
    return {hash(tuple(words[i : i + OVERLAP])) for i in range(len(words) - OVERLAP + 1)}


_SPLITS = {"test": "test", "valid": "validation"}
