"""What the evaluations share: the checks before the work, the models, and what a report says of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ragsys_kernels import _env
from ragsys_kernels._checks import threads
from ragsys_kernels.evaluation.report import check_free, draw
from ragsys_kernels.icl._database import PathLike
from ragsys_kernels.icl._runtime import torch_threads
from ragsys_kernels.icl.cache import CachedModel
from ragsys_kernels.icl.encoders import Encoder, SentenceTransformerEncoder
from ragsys_kernels.icl.huggingface import HuggingFaceModel, open_model
from ragsys_kernels.icl.language_model import LanguageModel


def prepared(op: str, out: PathLike, cache: PathLike | None, num_threads: int | None) -> Path:
    """The folder of what is kept; what cannot end in a report is refused now, not after the work."""
    threads(op, num_threads)
    check_free(out, op)
    draw(lambda figure: None, 1, 1)  # the package may be missing
    return _env.cache_folder() if cache is None else Path(cache)


def sets_named(op: str, sets: Sequence[str] | None, default: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """The names of the sets that take part, each once."""
    names = tuple(dict.fromkeys(default if sets is None else sets))
    if not names:
        raise ValueError(f"{op}: sets must name at least one of {', '.join(known)}, got none")
    return names


def text_encoder(encoder: PathLike | Encoder, *, cache: Path, num_threads: int | None) -> Encoder:
    """An encoder at hand, or one of sentence-transformers from a name or path."""
    if isinstance(encoder, (str, os.PathLike)):
        return SentenceTransformerEncoder(encoder, num_threads=num_threads, cache=cache)
    return encoder


@contextmanager
def language_model(
    op: str,
    model: PathLike | LanguageModel,
    *,
    cache: Path,
    dtype: Any = "bfloat16",
    num_threads: int | None = None,
    **options: Any,
) -> Iterator[CachedModel]:
    """A model whose scores are kept in ``scores.sqlite`` of the cache folder, for the time of the block.

    Parameters
    ----------
    op : str
        The evaluation, for messages.
    model : str, path or LanguageModel
        A name or path as `HuggingFaceModel.from_pretrained` takes it, or a model at hand, for which the other
        parameters but `cache` play no part.
    cache : path
        Folder, made if missing; also for a model that is unpacked once.
    dtype : {"float32", "float16", "bfloat16"}
    num_threads : int, optional
        torch's, while the block runs, and those of the scoring op.
    **options
        Of `HuggingFaceModel`.
    """
    cache.mkdir(parents=True, exist_ok=True)
    named = isinstance(model, (str, os.PathLike))
    with torch_threads(op, num_threads if named else None):
        opened: LanguageModel
        if isinstance(model, (str, os.PathLike)):
            opened = open_model(op, model, dtype=dtype, cache=cache, num_threads=num_threads, **options)
        else:
            opened = model
        with CachedModel(opened, cache / "scores.sqlite") as scorer:
            yield scorer


def hugging_face(op: str, scorer: CachedModel) -> HuggingFaceModel:
    """The model inside, for evaluations that need more of it than scores."""
    if not isinstance(scorer.model, HuggingFaceModel):
        raise TypeError(f"{op}: model must be a HuggingFaceModel, got {type(scorer.model).__name__}")
    return scorer.model


def described(model: PathLike | LanguageModel, scorer: CachedModel, encoder: Encoder | None) -> dict[str, str]:
    """What a report says of the models."""
    named = isinstance(model, (str, os.PathLike))
    name = os.fspath(model) if named else getattr(model, "name", type(model).__name__)  # type: ignore[arg-type]
    inner = scorer.model
    dtype = str(inner.model.dtype) if isinstance(inner, HuggingFaceModel) else "the model's"
    return {
        "model": f"{name}, fingerprint {scorer.fingerprint}",
        "dtype": dtype.removeprefix("torch."),
        "encoder": "none" if encoder is None else f"{encoder.name}, fingerprint {encoder.fingerprint}",
    }
