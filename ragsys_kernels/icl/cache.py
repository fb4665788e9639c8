"""Scores kept in a SQLite file, found again by model, prompt and continuation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from ragsys_kernels.icl._database import Database, PathLike, hash_key
from ragsys_kernels.icl.language_model import LanguageModel, PairError, Part, Scores, texts

_APPLICATION, _VERSION = 0x52534B43, 1  # "RSKC"


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
        self._database = Database(path, "scores", _APPLICATION, _VERSION, "tokens BLOB, logp BLOB, greedy INTEGER")

    @property
    def fingerprint(self) -> str:
        return self.model.fingerprint

    def score(self, prompts: Sequence[str], continuations: Sequence[str]) -> Scores:
        """Score as the model does; see `LanguageModel.score`."""
        prompts, continuations = texts("score", "prompts", prompts), texts("score", "continuations", continuations)
        keys = [hash_key(self.fingerprint, *pair) for pair in zip(prompts, continuations, strict=True)]
        found = {key: _part(*row) for key, row in self._database.find(keys).items()}
        missing = [i for i, key in enumerate(keys) if key not in found]
        self.hits += len(keys) - len(missing)
        if missing:
            try:
                new = self.model.score([prompts[i] for i in missing], [continuations[i] for i in missing])
            except PairError as error:
                raise PairError("score", error.rule, missing[error.pair]) from error
            parts = {keys[i]: part for i, part in zip(missing, new.parts(), strict=True)}
            self._database.add((key, *_stored(part)) for key, part in parts.items())
            found |= parts
        return Scores.of(found[key] for key in keys)

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> CachedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _stored(part: Part) -> tuple[bytes, bytes, int]:
    return part.tokens.astype("<i8").tobytes(), part.logp.astype("<f4").tobytes(), int(part.greedy)


def _part(tokens: bytes, logp: bytes, greedy: int) -> Part:
    return Part(np.frombuffer(tokens, "<i8"), np.frombuffer(logp, "<f4"), bool(greedy))


@contextmanager
def cached(model: LanguageModel, path: PathLike | None) -> Iterator[LanguageModel]:
    """The model itself, or with a cache for the time of the block."""
    if path is None:
        yield model
    else:
        with closing(CachedModel(model, path)) as scorer:
            yield scorer
