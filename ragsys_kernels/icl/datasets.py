"""The data sets of the papers' evaluations, read from a folder or fetched with the package ``datasets``."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ragsys_kernels import _env
from ragsys_kernels.icl._database import PathLike

# Where they lie beside a checkout, seen from the working folder and from the package in a checkout.
_BESIDE = (Path("..") / "shared" / "data", Path(__file__).resolve().parents[3] / "shared" / "data")


class QuestionSet(NamedTuple):
    """Questions, and the items to choose from for each: other questions with their answers."""

    name: str
    title: str
    questions: list[str]
    answers: list[str]
    pool: list[str]  # "question->answer"
    source: dict[str, str]  # file or data set: sha256 of its content, or "" where it was fetched


class _Source(NamedTuple):
    title: str
    files: tuple[str, ...]  # in the data folder; without .gz
    item: Callable[[Any], tuple[str, str]]  # of a line of a file
    hub: tuple[str, str, tuple[str, ...], Callable[[Any], tuple[str, str]]] | None  # name, configuration, splits, item


def data_folder(folder: PathLike | None = None) -> Path | None:
    """The folder of data sets: the one given, else ``RAGSYS_KERNELS_DATA``, else ``../shared/data`` if it is there."""
    for name, found in (("data", folder), ("RAGSYS_KERNELS_DATA", _env.data_folder())):
        if found is not None:
            if not Path(found).is_dir():
                raise FileNotFoundError(f"{name} must be an existing folder, got {found}")
            return Path(found)
    return next((path for path in _BESIDE if path.is_dir()), None)


def vrsd_set(name: str, folder: PathLike | None = None) -> QuestionSet:
    """One of VRSD's sets: "arc-da", "openbookqa" or "puzzle".

    Every item is one string ``question->answer``, in the order train, test, dev. The first fifth of the items are the
    queries, by their text before ``->``; the rest is the pool. ARC-DA's several answers are joined by ". ";
    OpenBookQA's question is ``stem? The option can be: c1. c2. c3. c4``.

    Parameters
    ----------
    name : {"arc-da", "openbookqa", "puzzle"}
    folder : path, optional
        Holds ``arc_da/ARC{train,test,dev}.jsonl``, ``openbookqa/OpenBookQA{train,test,dev}.jsonl`` and
        ``puzzle/puzzle.jsonl``, each as it is or with ``.gz``. Default: `data_folder`. OpenBookQA is fetched with the
        package ``datasets`` where the folder lacks it.

    Raises
    ------
    FileNotFoundError
        The set is not to be had; the message says what to pass.
    ValueError
        A line that is not an item of the set; the message names file and line.
    """
    if name not in _VRSD:
        raise ValueError(f"set must be one of {', '.join(_VRSD)}, got {name!r}")
    source, home = _VRSD[name], data_folder(folder)
    paths = [_present(home / file) for file in source.files] if home is not None else [None]
    if all(paths):
        items: list[tuple[str, str]] = []
        hashes: dict[str, str] = {}
        for path in (path for path in paths if path is not None):
            content = _content(path)
            hashes[path.name] = hashlib.sha256(content).hexdigest()
            items += _items(path, content, source.item)
    else:
        items, hashes = _fetched(name, source, home), {}
        if source.hub is not None:
            hashes[source.hub[0]] = ""
    size = len(items) // 5
    if not size:
        raise ValueError(f"set {name} must have at least 5 items, got {len(items)}")
    # As VRSD's script has it, the query is what comes before the first arrow, which may be one in the question.
    strings = [f"{question}->{answer}" for question, answer in items]
    parts = [text.partition("->") for text in strings[:size]]
    questions, answers = [question for question, _, _ in parts], [answer for _, _, answer in parts]
    return QuestionSet(name, source.title, questions, answers, strings[size:], hashes)


def _present(path: Path) -> Path | None:
    return next((found for found in (path, path.with_name(f"{path.name}.gz")) if found.is_file()), None)


def _content(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile) as error:
        raise ValueError(f"data must be a whole gzip file, got {path}: {error}") from error


def _items(path: Path, content: bytes, item: Callable[[Any], tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            try:
                question, answer = item(json.loads(line))
            except (KeyError, IndexError, TypeError, ValueError, StopIteration) as error:
                reason = f"{type(error).__name__} {error}"
                raise ValueError(f"data must hold items of the set, got {path}, line {number}: {reason}") from error
            yield question, answer


def _fetched(name: str, source: _Source, home: Path | None) -> list[tuple[str, str]]:
    where = "none is known: pass data (--data) or set RAGSYS_KERNELS_DATA" if home is None else f"{home} lacks it"
    missing = f"set {name} needs {', '.join(source.files)} in a data folder, and {where}"
    if source.hub is None:
        raise FileNotFoundError(missing)
    hub, configuration, splits, item = source.hub
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise FileNotFoundError(f"{missing}; to fetch {hub}: pip install datasets") from error
    try:
        loaded = datasets.load_dataset(hub, configuration)
        return [item(row) for split in splits for row in loaded[split]]
    except Exception as error:  # of the network, the hub, or the data set
        raise FileNotFoundError(f"{missing}; fetching {hub} failed: {type(error).__name__}: {error}") from error


def _arc(line: Any) -> tuple[str, str]:
    return line["question"], ". ".join(line["answers"])


def _openbook(line: Any) -> tuple[str, str]:
    choices = line["question"]["choices"]
    return _options(
        line["question"]["stem"], [choice["text"] for choice in choices], [choice["label"] for choice in choices],
        line["answerKey"],
    )  # fmt: skip


def _openbook_hub(row: Any) -> tuple[str, str]:
    return _options(row["question_stem"], row["choices"]["text"], row["choices"]["label"], row["answerKey"])


def _options(stem: str, texts: list[str], labels: list[str], key: str) -> tuple[str, str]:
    answer = ""
    with suppress(ValueError):
        answer = texts[labels.index(key)]
    return f"{stem}? The option can be: {'. '.join(texts)}", answer


def _puzzle(line: Any) -> tuple[str, str]:
    question, answer = (message["content"] for message in line["messages"][:2])
    return question, answer


_ORDER = ("train", "test", "dev")
_VRSD = {
    "arc-da": _Source("ARC-DA", tuple(f"arc_da/ARC{split}.jsonl" for split in _ORDER), _arc, None),
    "openbookqa": _Source(
        "OpenBookQA",
        tuple(f"openbookqa/OpenBookQA{split}.jsonl" for split in _ORDER),
        _openbook,
        ("allenai/openbookqa", "main", ("train", "test", "validation"), _openbook_hub),
    ),
    "puzzle": _Source("Puzzle", ("puzzle/puzzle.jsonl",), _puzzle, None),
}
VRSD_SETS = tuple(_VRSD)
