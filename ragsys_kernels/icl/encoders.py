"""Text encoders behind one small protocol, and their embeddings kept in a file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from .._base.extras import needed
from .._base.types import NDArray as Array
from .._base.types import PathLike
from . import packaged
from .forward.loading import add_tensor, configuration
from .language_model import some_texts
from .openai.embeddings import OpenAICompatibleEncoder
from .runtime import quiet_transformers, torch_threads
from .storage.database import Kept, hash_key
from .tokenization import vocabulary

_WINDOW = 64  # texts; what a killed run loses at most (two seconds of all-mpnet-base-v2 on one core)


class Encoder(Protocol):
    """A model that gives each text a vector."""

    @property
    def name(self) -> str:
        """Name of the encoder in reports."""

    @property
    def fingerprint(self) -> str:
        """Text that changes with anything that changes a vector: weights, configuration, tokenizer."""

    def encode(self, texts: Sequence[str]) -> Array:
        """Return (N, D) float32 vectors of N texts; N is at least 1."""


class SentenceTransformerEncoder:
    """A model of sentence-transformers on the CPU, with its own pooling and normalisation.

    Parameters
    ----------
    name_or_path : str or path
        "mpnet" (all-mpnet-base-v2) or "minilm" (all-MiniLM-L6-v2) for the models that packages carry, see
        `packaged.find`; else a folder or a name on the Hugging Face hub.
    batch_size : int
        Texts in one forward pass.
    num_threads : int, optional
        torch's threads while it encodes. Default: torch's own number.
    cache : path, optional
        Folder for models that packages carry in pieces; see `packaged.find`.

    Raises
    ------
    ModuleNotFoundError
        sentence-transformers, or a package with the model, is not installed.
    ValueError, OSError
        There is no such model, or it cannot be read.
    """

    def __init__(
        self,
        name_or_path: PathLike,
        *,
        batch_size: int = 32,
        num_threads: int | None = None,
        cache: PathLike | None = None,
    ) -> None:
        op = "encoder"
        if batch_size < 1:
            raise ValueError(f"{op}: batch_size must be at least 1, got {batch_size}")
        self.name = os.fspath(name_or_path)
        self._batch_size, self._num_threads = batch_size, num_threads
        source = str(packaged.find(self.name, cache)) if self.name in packaged.ENCODERS else self.name
        with quiet_transformers():
            with needed(op, "encoders", "sentence-transformers"):
                from sentence_transformers import SentenceTransformer
            try:
                self._model: Any = SentenceTransformer(source, device="cpu", trust_remote_code=False)
            except MemoryError:
                raise
            except Exception as error:  # whatever the reader of a damaged or missing model raises
                known = "a folder, a name on the hub, " + " or ".join(packaged.ENCODERS)
                raise ValueError(f"{op}: model must be loadable, {known}, got {source}: {error}") from error

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all weights, the configuration of every module, and the tokenizer."""
        digest = hashlib.blake2b(digest_size=20)
        for name, tensor in self._model.state_dict().items():
            add_tensor(digest, name, tensor)
        settings = [type(module).__name__ + str(_settings(module)) for module in self._model]
        settings += [str(self._model.max_seq_length), str(getattr(self._model, "default_prompt_name", None))]
        settings += [str(getattr(self._model, "prompts", None)), vocabulary(self._model.tokenizer)]
        digest.update("\n".join(settings).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    def encode(self, texts: Sequence[str]) -> Array:
        """Return (N, D) float32 vectors, as the model gives them (of unit length, for the two named models)."""
        sentences = some_texts("encode", "texts", texts)
        with torch_threads("encode", self._num_threads):
            rows = self._model.encode(
                sentences, batch_size=self._batch_size, show_progress_bar=False, convert_to_numpy=True
            )
        return np.asarray(rows, np.float32)


def _settings(module: Any) -> dict[str, Any]:
    known = module.get_config_dict() if hasattr(module, "get_config_dict") else {}
    found = {name: known[name] for name in sorted(known)}
    if hasattr(getattr(module, "config", None), "to_diff_dict"):  # of the network: heads, activation
        found["config"] = configuration(module.config)
    return found


class CachedEncoder(Kept):
    """An encoder whose vectors are kept in a file, found by model and text.

    Texts that are new are encoded longest first, 64 at a time, and each such window is added in one transaction: a
    killed run resumes where it was, and several processes may share the file. A text has one vector whatever texts come
    with it, so that equal texts have exactly equal vectors.

    Parameters
    ----------
    encoder : Encoder
    path : path
        SQLite file, made if missing, with its folder.
    progress : callable, optional
        Called with the new texts done and their number, first with 0.

    Raises
    ------
    ValueError
        The file is something else; vectors that are not finite.
    OSError
        The file cannot be opened or written.
    """

    def __init__(self, encoder: Encoder, path: PathLike, *, progress: Callable[[int, int], None] | None = None) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        super().__init__(encoder, path, "embeddings", b"RSKE", "vector BLOB")
        self.encoder, self._progress = encoder, progress

    @property
    def name(self) -> str:
        return self.encoder.name

    def encode(self, texts: Sequence[str]) -> Array:
        """Return (N, D) float32 vectors of the texts."""
        sentences = some_texts("encode", "texts", texts)
        keys = {text: hash_key(self.fingerprint, text) for text in sentences}

        def encoded(window: list[str]) -> Iterator[bytes]:
            rows = self.encoder.encode(window)
            bad = ~np.isfinite(rows).all(axis=1)
            if bad.any():
                raise ValueError(f"encode: vectors must be finite, got NaN or inf for {window[int(bad.argmax())]!r}")
            return (row.astype("<f4").tobytes() for row in rows)

        found = self._filled(keys, _WINDOW, encoded, self._progress)
        return np.stack([np.frombuffer(found[keys[text]], "<f4") for text in sentences])


def open_encoder(
    op: str,
    model: str | Encoder,
    *,
    name: str | None = None,
    batch_size: int = 32,
    num_threads: int | None = None,
) -> Encoder:
    """Return the encoder that a name, a folder or the URL of a server stands for; `name` is its name on the server."""
    if not isinstance(model, str):
        return model
    if not model.startswith(("http://", "https://")):
        if name is not None:
            raise ValueError(f"{op}: model_name must come with the URL of a server, got model {model!r}")
        return SentenceTransformerEncoder(model, batch_size=batch_size, num_threads=num_threads)
    if name is None:
        raise ValueError(f"{op}: model_name must be given with the URL of a server, got model {model!r} alone")
    return OpenAICompatibleEncoder(model, name, batch_size=batch_size)
