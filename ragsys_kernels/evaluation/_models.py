"""The language model of an evaluation: opened once for all, with its scores kept."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ragsys_kernels.evaluation.report import PathLike
from ragsys_kernels.icl._runtime import torch_threads
from ragsys_kernels.icl.cache import CachedModel
from ragsys_kernels.icl.huggingface import open_model
from ragsys_kernels.icl.language_model import LanguageModel


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


def name_of(model: PathLike | LanguageModel) -> str:
    """What a report calls the model."""
    if isinstance(model, (str, os.PathLike)):
        return os.fspath(model)
    return str(getattr(model, "name", type(model).__name__))
