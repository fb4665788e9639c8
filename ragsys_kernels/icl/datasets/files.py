"""Files of a folder as a text to predict and a collection of the same kind to retrieve from."""

from __future__ import annotations

import gzip
import hashlib
import sysconfig
import zlib
from collections.abc import Sequence
from pathlib import Path

from ..._base.types import PathLike
from .boolq import Passage
from .wikitext import PassageSet, WikiText, kept_passages

EVERY = 5  # of so many files one is predicted
_TESTS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


def folder_texts(
    folder: PathLike, *, words: int = 100, suffixes: Sequence[str] = (), without: Sequence[str] = ()
) -> tuple[WikiText, PassageSet]:
    """Return every fifth text file of a folder, end to end as one text, and the other files as passages.

    A text and a collection of the same kind: documentation, manual pages, code. Files are taken in the order of their
    paths; those that are not UTF-8 text are left out, and ``.gz`` files are unpacked. Passages keep the layout of the
    lines, and have the file's path as their title. Passages that have `OVERLAP` words in a row in common with the
    evaluated text are left out.

    Parameters
    ----------
    folder : path
        Its folders are searched too.
    words : int
        As for `ralm_passages`.
    suffixes : sequence of str
        Take only files whose names, without ``.gz``, end so. Default: all.
    without : sequence of str
        Names of folders that are left out, and of hidden ones.

    Raises
    ------
    FileNotFoundError
        The folder does not exist.
    ValueError
        It has fewer than five files of text.
    """
    if words < 1:
        raise ValueError(f"folder_texts: words must be at least 1, got {words}")
    root = Path(folder)
    if not root.is_dir():
        raise FileNotFoundError(f"folder_texts: folder must be an existing folder, got {folder}")
    left_out = set(without)
    digest, files = hashlib.sha256(), list[Passage]()
    for path in sorted(root.rglob("*"), key=lambda path: path.relative_to(root).as_posix()):
        relative = path.relative_to(root)
        name = relative.as_posix().removesuffix(".gz")
        hidden = any(part.startswith(".") for part in relative.parts)
        if hidden or not left_out.isdisjoint(relative.parts[:-1]) or not name.endswith(tuple(suffixes) or ""):
            continue
        text = _text(path) if path.is_file() else None
        if text is not None:
            digest.update(f"{name}\0{text}\0".encode())
            files.append(Passage(name, text.rstrip() + "\n"))
    if len(files) < EVERY:
        raise ValueError(f"folder_texts: folder must have at least {EVERY} files of text, got {len(files)} in {folder}")
    evaluated = files[EVERY - 1 :: EVERY]
    others = [file for i, file in enumerate(files) if i % EVERY != EVERY - 1]
    text = "".join(file.text for file in evaluated)
    kept, same_title, same_words = kept_passages(others, [], text, words, layout=True)
    source = {f"{len(files)} files, {len(evaluated)} of them evaluated": digest.hexdigest()}
    return WikiText(root.name, text, evaluated, source), PassageSet(kept, same_title, same_words, {})


def python_texts(*, words: int = 100) -> tuple[WikiText, PassageSet]:
    """Return `folder_texts` of the modules of Python's standard library, without their tests."""
    library = sysconfig.get_paths()["stdlib"]
    return folder_texts(library, words=words, suffixes=[".py"], without=sorted(_TESTS))


def _text(path: Path) -> str | None:
    """Return what a file says; None where it is no text."""
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        text = content.decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError):
        return None
    return text if text.strip() and "\0" not in text else None
