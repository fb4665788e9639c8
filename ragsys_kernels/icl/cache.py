"""Scores kept in a SQLite file, found again by model, prompt and continuation."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from ragsys_kernels.icl.language_model import LanguageModel, PairError, Part, Scores, texts

PathLike = str | os.PathLike[str]

_APPLICATION, _VERSION = 0x52534B43, 1  # "RSKC"; the version changes with the meaning or form of the rows
_TABLE = "CREATE TABLE scores (key BLOB PRIMARY KEY, tokens BLOB, logp BLOB, greedy INTEGER) WITHOUT ROWID"
_TIMEOUT = 60.0  # seconds to wait for another process that writes


class CachedModel:
    """A language model whose scores are kept in a file.

    Each call of `score` adds what it computed in one transaction: after a kill the file holds whole calls, and several
    processes may share it. Keys are hashes of the model's fingerprint, the prompt and the continuation, so
    that one file serves any number of models, and a model is known again under another path.

    Parameters
    ----------
    model : LanguageModel
    path : path
        Made if missing; the folder must exist.

    Raises
    ------
    ValueError
        The file is something else.
    OSError
        The file cannot be opened or written.
    """

    def __init__(self, model: LanguageModel, path: PathLike) -> None:
        self.model, self.path = model, Path(path)
        self.hits = 0  # continuations that were in the file
        try:
            self._database = sqlite3.connect(self.path, timeout=_TIMEOUT)
        except sqlite3.Error as error:
            raise OSError(f"cache must be a file that can be opened, got {self.path}: {error}") from error
        try:
            with self._errors():
                self._prepare()
        except BaseException:
            self.close()
            raise

    @property
    def fingerprint(self) -> str:
        return self.model.fingerprint

    def score(self, prompts: Sequence[str], continuations: Sequence[str]) -> Scores:
        """Score as the model does; see `LanguageModel.score`."""
        prompts, continuations = texts("score", "prompts", prompts), texts("score", "continuations", continuations)
        keys = [self._key(*pair) for pair in zip(prompts, continuations, strict=True)]
        with self._errors():
            found = {key: part for key in dict.fromkeys(keys) if (part := self._find(key)) is not None}
        missing = [i for i, key in enumerate(keys) if key not in found]
        self.hits += len(keys) - len(missing)
        if missing:
            try:
                new = self.model.score([prompts[i] for i in missing], [continuations[i] for i in missing])
            except PairError as error:
                raise PairError("score", error.rule, missing[error.pair]) from error
            parts = {keys[i]: part for i, part in zip(missing, new.parts(), strict=True)}
            with self._errors(), self._database:
                self._database.executemany(
                    "INSERT OR REPLACE INTO scores VALUES (?, ?, ?, ?)",
                    [(key, *_stored(part)) for key, part in parts.items()],
                )
            found |= parts
        return Scores.of(found[key] for key in keys)

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> CachedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _key(self, prompt: str, continuation: str) -> bytes:
        digest = hashlib.blake2b(digest_size=20)
        for text in (self.fingerprint, prompt, continuation):
            data = text.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "little") + data)
        return digest.digest()

    def _find(self, key: bytes) -> Part | None:
        row = self._database.execute("SELECT tokens, logp, greedy FROM scores WHERE key = ?", (key,)).fetchone()
        if row is None:
            return None
        return Part(np.frombuffer(row[0], "<i8"), np.frombuffer(row[1], "<f4"), bool(row[2]))

    def _prepare(self) -> None:
        application, version = (
            self._database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
        )
        if (application, version) == (_APPLICATION, _VERSION):
            return
        if application or version or self._database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise ValueError(f"cache must be a new file or one made by this version, got {self.path}")
        with self._database:  # in one transaction: another process sees an empty file or a whole one
            self._database.execute("BEGIN IMMEDIATE")
            if not self._database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                self._database.execute(_TABLE)
                self._database.execute(f"PRAGMA application_id = {_APPLICATION}")
                self._database.execute(f"PRAGMA user_version = {_VERSION}")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:  # full, read-only, locked
            raise OSError(f"cache must be a file that can be read and written, got {self.path}: {error}") from error
        except sqlite3.DatabaseError as error:
            raise ValueError(f"cache must be a file of scores, got {self.path}: {error}") from error


def _stored(part: Part) -> tuple[bytes, bytes, int]:
    return part.tokens.astype("<i8").tobytes(), part.logp.astype("<f4").tobytes(), int(part.greedy)


@contextmanager
def cached(model: LanguageModel, path: PathLike | None) -> Iterator[LanguageModel]:
    """The model itself, or with a cache for the time of the block."""
    if path is None:
        yield model
    else:
        with closing(CachedModel(model, path)) as scorer:
            yield scorer
