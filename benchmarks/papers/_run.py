"""What all evaluations share: checks before the work, models and caches, a report at the end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ragsys_kernels._base import env
from ragsys_kernels._base.checks import count, threads
from ragsys_kernels._base.types import NDArray as Array
from ragsys_kernels._base.types import PathLike
from ragsys_kernels.icl.cache import CachedModel
from ragsys_kernels.icl.encoders import CachedEncoder, Encoder, SentenceTransformerEncoder
from ragsys_kernels.icl.huggingface import HuggingFaceModel, open_model
from ragsys_kernels.icl.language_model import LanguageModel
from ragsys_kernels.icl.retrievers import BM25Retriever
from ragsys_kernels.icl.runtime import torch_threads

from .report import Report, check_free, draw

Progress = Callable[[int, int], None]


class BM25Form(NamedTuple):
    """A form of BM25 that evaluations know by name."""

    made: Callable[[Sequence[str]], BM25Retriever]
    said: str  # of its parameters, in reports


BM25_FORMS = {
    "lucene": BM25Form(BM25Retriever, "k1 1.5, b 0.75, no stems"),
    "pyserini": BM25Form(BM25Retriever.pyserini, "k1 0.9, b 0.4, Porter's stems"),
}


# The models of `icl.packaged` in full, with the type that their packages store the weights in.
TITLES = {
    "minilm": "all-MiniLM-L6-v2, float32",
    "mpnet": "all-mpnet-base-v2, float32",
    "smollm2": "SmolLM2-135M-Instruct, GGUF Q4_1",
    "gemma3": "Gemma 3 270M, GGUF Q4_K_M",
}


class Run:
    """One run of an evaluation, of the name `op`. Whatever would prevent the report is refused here, before any work.

    The folder `out` is new, empty, or has an earlier report of the same evaluation; `cache` is that of the environment
    by default. `num_threads` are torch's while a model is open, and those of the kernels.
    """

    def __init__(
        self, op: str, out: PathLike, *, cache: PathLike | None, samples: int, num_threads: int | None = None
    ) -> None:
        self._start = time.perf_counter()
        count(op, "samples", samples)
        threads(op, num_threads)
        check_free(out, op)
        draw(lambda figure: None, 1, 1)  # matplotlib may be missing
        self.op, self.out, self.samples, self.num_threads = op, Path(out), samples, num_threads
        self.cache = env.cache_folder() if cache is None else Path(cache)

    @property
    def seconds(self) -> float:
        """Time since the run began."""
        return time.perf_counter() - self._start

    def kept(self, name: str) -> Path:
        """Return the file of the cache folder for what is kept under a name."""
        return self.cache / f"{name}.sqlite"

    @contextmanager
    def embeddings(self, encoder: PathLike | Encoder, progress: Progress | None = None) -> Iterator[CachedEncoder]:
        """Open an encoder whose embeddings are kept: one that is given, or one of sentence-transformers by name."""
        if isinstance(encoder, (str, os.PathLike)):
            encoder = SentenceTransformerEncoder(encoder, num_threads=self.num_threads, cache=self.cache)
        with CachedEncoder(encoder, self.kept("embeddings"), progress=progress) as kept:
            yield kept

    @contextmanager
    def language_model(
        self, model: PathLike | LanguageModel, *, dtype: Any = "bfloat16", **options: Any
    ) -> Iterator[CachedModel]:
        """Open a model whose scores are kept, for the time of the block.

        A name or path is as `HuggingFaceModel.from_pretrained` takes it, `options` are further ones of that. For a
        model that is open the other parameters play no part.
        """
        self.cache.mkdir(parents=True, exist_ok=True)
        named = isinstance(model, (str, os.PathLike))
        with torch_threads(self.op, self.num_threads if named else None):
            if isinstance(model, (str, os.PathLike)):
                given = {"dtype": dtype, "cache": self.cache, "num_threads": self.num_threads, **options}
                model = open_model(self.op, model, **given)
            with CachedModel(model, self.kept("scores")) as scorer:
                yield scorer

    def hugging_face(self, scorer: CachedModel) -> HuggingFaceModel:
        """Return the inner Hugging Face model, for evaluations that need more than scores."""
        if not isinstance(scorer.model, HuggingFaceModel):
            raise TypeError(f"{self.op}: model must be a HuggingFaceModel, got {type(scorer.model).__name__}")
        return scorer.model

    def bootstrap(self, over: str = "") -> str:
        """Say how the intervals were made; `over` names what is drawn where that is not the queries."""
        return f"{self.samples} samples{over and f' over {over}'}, expanded percentiles, seed 0"

    def write(self, report: Report, settings: Mapping[str, Any]) -> None:
        """Write the report with a last section for the settings it came from."""
        report.configuration(settings, self.num_threads)
        report.write(self.out)


class Summary:
    """What an evaluation did: as text the lines of its results, then its work, its time and its report."""

    seconds: float
    out: Path

    def lines(self) -> Iterable[str]:
        """Return one line for each result."""
        raise NotImplementedError

    def work(self) -> str:
        """Say what was computed and what came from the cache."""
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n".join([*self.lines(), f"{self.work()}, {self.seconds:.1f} s -> {self.out / 'report.html'}"])


def sets_named(op: str, sets: Sequence[str] | None, default: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the sets that take part, each once."""
    names = tuple(dict.fromkeys(default if sets is None else sets))
    if not names:
        raise ValueError(f"{op}: sets must name at least one of {', '.join(known)}, got none")
    return names


def drawn(size: int, number: int | None, seed: int = 0) -> Array:
    """Draw `number` of `size` positions, None being all, in ascending order; a larger number includes the smaller."""
    return np.sort(np.random.default_rng(seed).permutation(size)[:number])


def digests(sources: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the first digits of the SHA-256 of the files that data sets were read from, by name of the file."""
    return {name: digest[:16] for source in sources for name, digest in source.items()}


def described(model: PathLike | LanguageModel, scorer: CachedModel, encoder: Encoder | None) -> dict[str, str]:
    """Return what a report says of the models."""
    named = isinstance(model, (str, os.PathLike))
    name = os.fspath(model) if named else getattr(model, "name", type(model).__name__)  # type: ignore[arg-type]
    inner = scorer.model
    dtype = str(inner.model.dtype) if isinstance(inner, HuggingFaceModel) else "the model's"
    return {
        "model": f"{_in_full(name)}, fingerprint {scorer.fingerprint}",
        "dtype": dtype.removeprefix("torch."),
        "encoder": "none" if encoder is None else described_encoder(encoder),
    }


def described_encoder(encoder: Encoder) -> str:
    """Return what a report says of an encoder."""
    return f"{_in_full(encoder.name)}, fingerprint {encoder.fingerprint}"


def _in_full(name: str) -> str:
    return f"{name} ({TITLES[name]})" if name in TITLES else name
