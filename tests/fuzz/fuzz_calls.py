"""Calls that go wrong, and odd ones that must not: `python tests/fuzz/fuzz_calls.py --seed 1 --calls 5000`.

A case is drawn from (seed, number) alone: a good call of a public function, one or two of whose arguments are exchanged
for something else. Such a call has to end in a documented error, ``<function>: `` first and the argument named, or with
the result of the same numbers in their plainest form (float32, int64, contiguous, in native byte order). What has no
plain form must be an error."""

import array
import decimal
import fractions
import functools
import mmap
import os
import re
import sys
import tempfile
import traceback
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import torch
from fuzz_runs import Fuzzer, WrongError, main

import ragsys_kernels as rk
from ragsys_kernels import metrics

DOCUMENTED = ("ValueError", "TypeError", "BackendUnavailableError", "FileExistsError", "MemoryError")


class NoPlainFormError(Exception):
    """It stands for no numbers, or not for such as the argument takes."""


# Kinds of arguments: how a value of each looks in its plainest form


def _array(x: Any) -> np.ndarray:
    """The numbers of whatever holds numbers."""
    if isinstance(x, np.ma.MaskedArray):
        if np.ma.getmaskarray(x).any():
            raise NoPlainFormError
        x = x.data
    if isinstance(x, torch.Tensor):
        if x.device.type != "cpu" or x.layout is not torch.strided or x.is_quantized or x.is_nested:
            raise NoPlainFormError
        x = x.detach().resolve_neg().resolve_conj()
        x = x.to(torch.float64).numpy() if x.dtype is torch.bfloat16 else x.numpy()
    elif not isinstance(x, np.ndarray) and hasattr(x, "__dlpack__"):
        x = np.from_dlpack(x)
    if isinstance(x, (str, bytes, set, dict)) or x is None:
        raise NoPlainFormError
    x = np.asarray(x)
    if x.dtype.name == "bfloat16":
        return x.astype(np.float64)
    if x.dtype.kind not in "fiub":
        raise NoPlainFormError
    return x


def floats(x: Any, dtype: str = "float32") -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.array(_array(x), dtype, order="C")


def integers(x: Any) -> np.ndarray:
    x = _array(x)
    if x.size and x.dtype.kind == "f" and not ((x == np.rint(x)) & (np.abs(x.astype(np.float64)) < 2e9)).all():
        raise NoPlainFormError
    if x.size and x.dtype == np.uint64 and x.max() >= 1 << 63:
        raise NoPlainFormError
    return np.array(x, np.int64, order="C")


def flags(x: Any) -> np.ndarray:
    x = _array(x)
    if x.dtype != np.bool_:
        raise NoPlainFormError
    return np.array(x, order="C")


def mask_or_rows(x: Any) -> np.ndarray:
    return flags(x) if _array(x).dtype == np.bool_ else integers(x)


def external_ids(x: Any) -> Any:
    if isinstance(x, (list, tuple, np.ndarray)) and all(isinstance(each, str) for each in list(x)):
        return [str(each) for each in x]
    return integers(x)


def number(x: Any) -> Any:
    if isinstance(x, (decimal.Decimal, fractions.Fraction)):
        return float(x)
    if isinstance(x, int):
        return float(x)
    x = floats(x, "float64")
    return float(x) if x.shape == () else x


def count(x: Any) -> Any:
    if isinstance(x, int):
        return int(x)
    x = integers(x)
    return int(x) if x.shape == () else x


def text(x: Any) -> str:
    if not isinstance(x, str):
        raise NoPlainFormError
    return str(x)


def flag(x: Any) -> bool:
    if not isinstance(x, (bool, np.bool_)) and not (isinstance(x, int) and x in (0, 1)):
        raise NoPlainFormError
    return bool(x)


def names(x: Any) -> tuple[str, ...]:
    if not isinstance(x, (list, tuple)) or not all(isinstance(name, str) for name in x):
        raise NoPlainFormError
    return tuple(map(str, x))


def labels(x: Any) -> np.ndarray:
    if isinstance(x, torch.Tensor):
        return _array(x)
    if isinstance(x, np.ma.MaskedArray) and np.ma.getmaskarray(x).any():
        raise NoPlainFormError
    x = np.array(np.asarray(x).tolist())
    if x.dtype.kind not in "iufbUS":
        raise NoPlainFormError
    return x


def rows_of(x: Any) -> Any:
    return x if isinstance(x, rk.Corpus) else floats(x)


def path(x: Any) -> Path:
    if not isinstance(x, (str, bytes, Path)):
        raise NoPlainFormError
    return Path(os.fsdecode(x))


def thing(x: Any) -> Any:
    """Objects that are what they are."""
    if type(x).__module__.partition(".")[0] not in ("ragsys_kernels", "faiss", "pathlib"):
        raise NoPlainFormError
    return x


doubles = functools.partial(floats, dtype="float64")

# What calls are made of: the function, what its messages begin with, its arguments and their kinds


Good = tuple[str, Callable[..., Any], dict[str, Any], dict[str, Callable[[Any], Any]]]

SELECTION = {
    "queries": floats, "embeddings": floats, "k": count, "candidates": integers, "relevance": floats, "bias": floats,
    "lambda_d": number, "lambda_b": number, "groups": integers, "query_groups": integers, "max_per_group": count,
    "min_per_group": count, "initial": integers, "allowed": mask_or_rows, "exclude": mask_or_rows, "metric": text,
    "check_values": flag, "backend": text, "num_threads": count, "on_error": text,
    "costs": doubles, "budget": number, "max_similarity": number, "min_relevance": number,
    "quality": floats, "scale": number, "gamma": number, "window": count, "noise": number, "min_gain": number,
    "kind": text, "aspects": floats, "weights": floats, "density": flag, "nearest": flag,
}  # fmt: skip
CORPUS = {
    "embeddings": floats, "bias": floats, "groups": external_ids, "metric": text, "dtype": text, "device": text,
    "ids": external_ids, "costs": doubles,
}  # fmt: skip
SEARCH = {
    "queries": floats, "n": count, "lambda_b": number, "query_groups": integers, "allowed": mask_or_rows,
    "exclude": mask_or_rows, "index": thing, "backend": text,
    "num_threads": count, "on_error": text,
}  # fmt: skip
SCORING = {
    "logits": floats, "hidden": floats, "weight": floats, "bias": floats, "targets": integers, "rows": integers,
    "cu_answers": integers, "answer_ids": integers, "num_answers": count, "temperature": number, "logit_scale": number,
    "softcap": number, "vocab_size": count, "allowed": integers, "ignore_index": count, "want": names, "reduce": names,
    "out_of_range": text, "return_lse": flag, "check_values": flag, "backend": text, "num_threads": count,
    "label_ids": integers, "cu_labels": integers, "prior": floats, "first_column": count, "entropy": flag, "rank": flag,
    "k": count,
    "target_logits": floats, "partials": thing, "parts": thing,
}  # fmt: skip
STORED = {"path": path, "device": text, "verify": flag, "overwrite": flag, "index": text}
METRICS = {
    "logp": doubles, "is_correct": flags, "cu_questions": integers, "best": integers, "reference": doubles,
    "beta": number, "sum_logp": number, "count": count, "queries": doubles, "embeddings": doubles, "indices": integers,
    "metric": text, "ours": doubles, "theirs": doubles, "tolerance": number, "judgements": flags, "alpha": number,
    "scores": doubles, "corpus_score": number, "labels": labels, "predictions": labels,
}  # fmt: skip


def good(rng: np.random.Generator) -> Good:
    family = rng.choice(
        (_selection, _corpus, _stored, _search, _select, _scoring, _metrics), p=(0.3, 0.08, 0.02, 0.1, 0.1, 0.25, 0.15)
    )
    made: Good = family(rng)
    return made


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def _on_error(rng: np.random.Generator) -> str:
    return str(rng.choice(("raise", "skip")))


def _selection(rng: np.random.Generator) -> Good:
    op = str(rng.choice(("mmr", "vrsd", "msd", "dpp", "ssd", "sift", "coverage"), p=(0.4, 0.2, *[0.08] * 5)))
    Q, N, D, P = 3, 14, 6, 9
    form = rng.choice(("pools", "dense", "corpus", "whole"))
    rows = _normal(rng, N, D)
    a: dict[str, Any] = {"queries": _normal(rng, Q, D), "embeddings": rows, "k": 4}
    size = (N,)
    if form == "dense":
        a["embeddings"], size = _normal(rng, Q, P, D), (Q, P)
    elif form == "pools":
        a["candidates"] = np.stack([rng.permutation(N)[:P] for _ in range(Q)])
        a["relevance"] = _normal(rng, Q, P)
    elif form == "corpus":
        a["embeddings"] = rk.Corpus(rows)
    a["groups"], a["query_groups"], a["max_per_group"] = rng.integers(0, 4, size), rng.integers(0, 4, Q), 2
    a["initial"] = np.array([[0, -1], [1, 2], [-1, -1]])
    places = P if form == "dense" else N
    a["allowed"], a["exclude"] = rng.random((Q, places)) < 0.8, rng.integers(-1, places, (Q, 2))
    if op not in ("vrsd", "sift"):
        a.update(bias=_normal(rng, *size), lambda_d=0.5, lambda_b=np.array([0.1, 0.5, 1], np.float32))
    if rng.random() < 0.3:
        a.update(costs=rng.integers(1, 9, size).astype(float), budget=12.0, max_similarity=np.full(Q, 0.9))
    a.update(_of_rule(op, rng, size))
    a.update(metric="cosine", check_values=None, backend="auto", num_threads=1, on_error=_on_error(rng))
    kinds = {**SELECTION, "embeddings": rows_of} if form == "corpus" else SELECTION
    return op, getattr(rk, op), a, kinds


def _of_rule(op: str, rng: np.random.Generator, items: tuple[int, ...]) -> dict[str, Any]:
    """The arguments of one rule alone."""
    options: dict[str, dict[str, Any]] = {
        "dpp": {"quality": rng.uniform(0.5, 2, items), "scale": 1.0},
        "ssd": {"gamma": 0.7, "window": 3},
        "sift": {"noise": 0.1, "min_gain": 0.001},
        "coverage": {"kind": "cover", "aspects": _normal(rng, 3, 2, 6), "weights": rng.random((3, 2)), "gamma": 0.5},
    }
    if op == "dpp" and rng.random() < 0.5:
        del options[op]["quality"]
    return options.get(op, {})


def _corpus(rng: np.random.Generator) -> Good:
    rows = _normal(rng, 14, 6)
    a = {"embeddings": rows, "bias": _normal(rng, 14), "groups": rng.integers(0, 4, 14)}
    a.update(metric="cosine", dtype="float32", device=None, ids=rng.permutation(14), costs=rng.random(14))

    def asked(**arguments: Any) -> Any:
        corpus = rk.Corpus(**arguments)
        queries = np.eye(3, corpus.dims, dtype=np.float32)
        own = None if corpus.groups is None else np.arange(3)
        own = own if corpus.group_names is None else ["0", "1", "2"]
        known = (
            np.array([zlib.crc32(str(each).encode()) for each in corpus.ids]),
            np.zeros(0) if corpus.costs is None else corpus.costs,
        )
        return (*known, *corpus.search(queries, 5, query_groups=own), *corpus.select(queries, 3, pool=6))

    return "Corpus", asked, a, CORPUS


def _stored(rng: np.random.Generator) -> Good:
    """What reads and writes folders, moves and builds."""
    corpus = rk.Corpus(_normal(rng, 14, 6))
    name = str(rng.choice(("load", "save", "to", "to_faiss")))
    if name == "to":
        return "Corpus", lambda device: len(corpus.to(device)), {"device": "cpu"}, STORED
    if name == "to_faiss":
        return name, lambda index: corpus.to_faiss(index).ntotal, {"index": "Flat"}, STORED

    def called(path: Any, **arguments: Any) -> Any:
        with tempfile.TemporaryDirectory() as base:
            corpus.save(os.path.join(base, "corpus"))
            if isinstance(path, (str, bytes, Path)):
                path = os.path.join(base, os.fsdecode(path))
            if name == "save":
                return corpus.save(path, **arguments)
            return rk.Corpus.load(path, **arguments).search(np.eye(3, 6, dtype=np.float32), 3)

    more = {"overwrite": True} if name == "save" else {"device": "cpu", "verify": False}
    return "Corpus", called, {"path": "corpus", **more}, STORED


def _search(rng: np.random.Generator) -> Good:
    corpus = rk.Corpus(_normal(rng, 14, 6), bias=_normal(rng, 14), groups=rng.integers(0, 4, 14))
    a = {"queries": _normal(rng, 3, 6), "n": 5, "lambda_b": 0.5, "query_groups": rng.integers(0, 4, 3)}
    a.update(allowed=rng.permutation(14)[:11], exclude=rng.random((3, 14)) < 0.2)
    a.update(index=None, backend="auto", num_threads=1, on_error=_on_error(rng))
    return "search", corpus.search, a, SEARCH


def _select(rng: np.random.Generator) -> Good:
    op, _, a, kinds = _selection(rng)
    corpus = rk.Corpus(_normal(rng, 14, 6))
    a.pop("embeddings")
    if a["groups"].ndim == 2:
        a["groups"], a["allowed"] = rng.integers(0, 4, 14), rng.random(14) < 0.8
        for name in ("bias", "costs", "quality"):
            if name in a:
                a[name] = rng.uniform(0.5, 2, 14) if name != "bias" else _normal(rng, 14)
    if rng.random() < 0.5:
        a.pop("candidates", None)
        a.pop("relevance", None)
    return "select", corpus.select, {**a, "method": op, "pool": 8}, {**kinds, "method": text, "pool": count}


def _scoring(rng: np.random.Generator) -> Good:
    ops = (
        "token_logprobs",
        "answer_logprobs",
        "label_posteriors",
        "logprob_partials",
        "merge_partials",
        "top_logprobs",
    )
    op = str(rng.choice(ops))
    T, V, D, M = 4, 11, 5, 6
    a: dict[str, Any] = {"logits": _normal(rng, T, V)}
    if op not in ("token_logprobs", "merge_partials") and rng.random() < 0.4:
        a = {"hidden": _normal(rng, T, D), "weight": _normal(rng, V, D), "bias": _normal(rng, V)}
    pairs = {"targets": rng.integers(0, V, M), "rows": rng.integers(0, T, M)}
    answers = {"cu_answers": np.array([0, 2, 2, M])}
    if rng.random() < 0.4:
        answers = {"answer_ids": rng.integers(0, 3, M)}
        if op == "answer_logprobs":
            answers["num_answers"] = 3  # type: ignore[assignment]
    common = {"temperature": 0.7, "logit_scale": 1.5, "softcap": 5.0}
    run = {"check_values": None, "backend": "auto", "num_threads": 1}
    if op == "token_logprobs":
        a.update(targets=rng.integers(0, V, T), allowed=np.arange(1, V), return_lse=True, ignore_index=2, vocab_size=V)
        a.update(common, out_of_range="raise", temperature=np.array([0.5, 1, 2, 1]), **run)
    elif op == "answer_logprobs":
        if rng.random() < 0.25:
            whole = {"targets": pairs["targets"], "rows": pairs["rows"], "vocab_size": V}
            a = {"partials": rk.logprob_partials(**a, **whole), **whole, **answers}
        else:
            a.update(pairs, **answers, **common, vocab_size=V, allowed=np.arange(V))
        a.update(ignore_index=-100, want=("logp", "lse"), reduce=("sum", "mean", "count"), out_of_range="nan", **run)
    elif op == "label_posteriors":
        a.update(label_ids=np.array([3, 1, 7, 0]), cu_labels=np.array([0, 1, 4]), prior=np.array([0.3, 0.7]))
        a.update(common, rows=np.array([2, 0, 2]), vocab_size=V, **run)
    elif op == "top_logprobs":
        if rng.random() < 0.25:
            a = {"partials": rk.logprob_partials(**a, vocab_size=V, k=4), "k": 3}
        else:
            a.update(common, k=3, rows=np.array([2, 0, 2]), vocab_size=V, allowed=np.arange(V))
        a.update(run)
    elif op == "logprob_partials":
        a.update(pairs, **answers, **common, vocab_size=2 * V, first_column=3, allowed=np.arange(2 * V))
        a.update(ignore_index=0, out_of_range="raise", entropy=True, rank=False, target_logits=None, **run)
    else:
        parts = [
            rk.logprob_partials(_normal(rng, T, V), **pairs, vocab_size=2 * V, first_column=first, entropy=True)
            for first in (0, V)
        ]
        s, name = int(rng.integers(0, 2)), str(rng.choice(parts[0]._fields))
        kind = integers if name == "rank" else doubles

        def merged(**fields: Any) -> Any:
            part = parts[s]._replace(**fields)
            return rk.merge_partials([part, parts[1]] if s == 0 else [parts[0], part])

        return op, merged, {name: getattr(parts[s], name)}, {name: kind}
    return op, getattr(rk, op), a, SCORING


def _metrics(rng: np.random.Generator) -> Good:
    op = str(rng.choice((
        "multiple_choice", "dpo", "perplexity", "sum_cosine", "pairwise_cosine", "win_rate", "max_diff", "alpha_ndcg",
        "nqc", "macro_scores",
    )))  # fmt: skip
    answers = {"logp": -rng.random(5), "is_correct": np.array([True, False, True, True, False])}
    answers["cu_questions"] = np.array([0, 2, 5])
    picks = {"embeddings": rng.standard_normal((7, 3)), "indices": np.array([[0, 3, 6], [2, -1, -1]])}
    two = {"ours": rng.random(4), "theirs": rng.random(4)}
    a: dict[str, Any] = {
        "multiple_choice": {**answers, "best": np.array([0, 3])},
        "dpo": {**answers, "reference": -rng.random(5), "beta": 0.5},
        "perplexity": {"sum_logp": -rng.random(3), "count": np.array([2, 0, 1])},
        "sum_cosine": {"queries": rng.standard_normal((2, 3)), **picks, "metric": "cosine"},
        "pairwise_cosine": picks,
        "win_rate": {**two, "tolerance": 0.1},
        "max_diff": two,
        "alpha_ndcg": {"indices": picks["indices"], "judgements": rng.random((7, 4)) < 0.5, "alpha": 0.5},
        "nqc": {"scores": rng.random((2, 3)), "corpus_score": np.array([-1.0, 2.0])},
        "macro_scores": {"labels": rng.integers(0, 3, 6), "predictions": rng.integers(0, 3, 6)},
    }[op]
    return op, getattr(metrics, op), a, METRICS


# What arguments are exchanged for


class Lies:
    """Says that it is an array."""

    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise self.error("no array after all")


class LiesOfDlpack:
    def __dlpack__(self, **_: Any) -> Any:
        raise RuntimeError("no capsule after all")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class OnNoDevice(LiesOfDlpack):
    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


class Name(str):
    """A string of a kind of its own."""


def _of_anything(x: Any, rng: np.random.Generator) -> Any:
    """Something that has nothing to do with what was there."""
    made: Any = (
        None, "text", "", b"bytes", object(), {}, {"a": 1}, [], (), set(), {1, 2}, True, False, 1.5, -1, 0, 1, 2**31,
        2**63, 2**64, 10**30, -(2**70), 1e-300, 1e300, float("nan"), float("inf"), -float("inf"), 1 + 2j, [[1.0], [1,
        2]], [None], ["a", "b"], int, len, range(3), iter([1]), Ellipsis, NotImplemented, slice(1),
        decimal.Decimal("0.5"), fractions.Fraction(1, 2), np.float32(0.5), np.int64(2), np.bool_(True),
        np.float64("nan"), np.array(None), np.array("a"), np.array([]), np.zeros((0, 6)), np.array(3), np.array(0.5),
        np.array([3]), np.zeros((3, 6), "f2"), np.zeros((2, 2, 2, 2), np.float32), np.array([[1, "a"]], object),
        np.zeros(3, "M8[s]"), np.zeros(3, "c8"), np.zeros(3, "V4"), np.zeros(3, [("a", "f4")]), np.zeros((), "f4"),
        np.str_("cosine"), Name("cosine"), "MMR", "cuda", "cuda:0", "triton", "reference", "cpu", ("logp", 3),
        ("logp", "logp"), "logp", Lies(RuntimeError), Lies(ValueError), LiesOfDlpack(), OnNoDevice(),
        Path("nowhere"), array.array("f", [1, 2, 3]), memoryview(b"abc"), bytearray(b"abc"),
        np.random.default_rng(0), warnings, ValueError("a value"), np.datetime64("2020"), np.ma.masked,
    )  # fmt: skip
    return made[rng.integers(len(made))]


def _torch(x: np.ndarray) -> Any:
    return torch.from_numpy(np.ascontiguousarray(x).copy())


def _tensors(x: np.ndarray, rng: np.random.Generator) -> Any:
    """A tensor of an odd kind with the same numbers, or what it has in place of numbers."""
    t = _torch(x)
    kinds = {
        "plain": lambda: t,
        "float8": lambda: t.to(torch.float32).to(torch.float8_e4m3fn),
        "bfloat16": lambda: t.to(torch.bfloat16),
        "half": lambda: t.to(torch.float16),
        "meta": lambda: t.to("meta"),
        "sparse": lambda: t.to_sparse(),
        "compressed": lambda: t.to(torch.float32).reshape(t.shape[0], -1).to_sparse_csr(),
        "quantised": lambda: torch.quantize_per_tensor(t.to(torch.float32), 0.1, 0, torch.quint8),
        "nested": lambda: torch.nested.nested_tensor([t.to(torch.float32)]),
        "gradient": lambda: t.to(torch.float32).requires_grad_(),
        "negated": lambda: torch._neg_view(-t),
        "complex": lambda: t.to(torch.complex64),
        "expanded": lambda: t[:1].expand(t.shape),
        "transposed": lambda: t.T.contiguous().T if t.ndim == 2 else t,
        "unsigned": lambda: t.to(torch.uint16),
        "bool": lambda: t.to(torch.bool),
        "parameter": lambda: torch.nn.Parameter(t.to(torch.float32)),
        "conjugated": lambda: t.to(torch.complex64).conj(),
        "empty": lambda: t[:0],
        "inference": lambda: _inference(t),
        "int4": lambda: t.to(torch.int32).to(torch.int8),
        "double": lambda: t.to(torch.float64),
    }
    return kinds[str(rng.choice(list(kinds)))]()


def _inference(t: Any) -> Any:
    with torch.inference_mode():
        return t + 0


def _closed_map(x: np.ndarray) -> np.ndarray:
    """Of a file that has been closed and removed."""
    with tempfile.NamedTemporaryFile(suffix=".npy") as file:
        np.save(file, x)
        file.flush()
        held = np.load(file.name, mmap_mode="r")
    try:
        held._mmap.close()
    except BufferError:  # as it should be: the array holds it
        return held
    return x


def _laid_out(x: np.ndarray, rng: np.random.Generator) -> Any:
    """The same numbers in memory or in objects of another kind."""
    ways = {
        "swapped": lambda: x.astype(x.dtype.newbyteorder(">")),
        "list": lambda: x.tolist(),
        "tuple": lambda: tuple(x.tolist()),
        "rows": lambda: list(x),
        "fortran": lambda: np.asfortranarray(x),
        "strided": lambda: np.repeat(x, 2, axis=-1)[..., ::2],
        "backwards": lambda: x[::-1].copy()[::-1],
        "last axis backwards": lambda: x[..., ::-1].copy()[..., ::-1],
        "every second": lambda: np.repeat(x, 2, axis=0)[::2],
        "read-only": lambda: _locked(x),
        "unaligned": lambda: _unaligned(x),
        "matrix": lambda: np.matrix(x) if x.ndim == 2 else x,
        "masked": lambda: np.ma.masked_array(x, rng.random(x.shape) < 0.3),
        "unmasked": lambda: np.ma.masked_array(x),
        "objects": lambda: x.astype(object),
        "strings": lambda: x.astype(str),
        "broadcast": lambda: np.broadcast_to(x[:1], x.shape),
        "map": lambda: _closed_map(x),
        "record": lambda: x.view(np.recarray),
        "float64": lambda: x.astype("f8"),
        "float32": lambda: x.astype("f4"),
        "float16": lambda: x.astype("f2"),
        "long double": lambda: x.astype(np.longdouble),
        "bfloat16": lambda: x.astype(ml_dtypes.bfloat16),
        "float8": lambda: x.astype(ml_dtypes.float8_e4m3fn),
        "int4": lambda: x.astype(ml_dtypes.int4),
        "int8": lambda: x.astype("i1"),
        "int16": lambda: x.astype("i2"),
        "int32": lambda: x.astype("i4"),
        "uint64": lambda: x.astype("i8").astype("u8"),
        "uint16": lambda: x.astype("i8").astype("u2"),
        "swapped int32": lambda: x.astype(">i4"),
        "swapped float64": lambda: x.astype(">f8"),
        "bool": lambda: x.astype(bool),
        "complex": lambda: x.astype("c8"),
        "dlpack": lambda: np.from_dlpack(_torch(x)),
        "shared": lambda: np.frombuffer(_mapped(x), x.dtype).reshape(x.shape),
    }
    return ways[str(rng.choice(list(ways)))]()


def _locked(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x.flags.writeable = False
    return x


def _unaligned(x: np.ndarray) -> np.ndarray:
    memory = np.zeros(x.nbytes + 1, np.uint8)
    there = memory[1:].view(x.dtype).reshape(x.shape)
    there[...] = x
    return there


def _mapped(x: np.ndarray) -> mmap.mmap:
    memory = mmap.mmap(-1, max(1, x.nbytes))
    memory.write(x.tobytes())
    return memory


def _shaped(x: np.ndarray, rng: np.random.Generator) -> Any:
    ways = {
        "more": lambda: np.concatenate([x, x]),
        "fewer": lambda: x[:-1],
        "none": lambda: x[:0],
        "no columns": lambda: x[..., :0],
        "more columns": lambda: np.concatenate([x, x], axis=-1),
        "fewer columns": lambda: x[..., :-1],
        "one more axis": lambda: x[None],
        "a last axis": lambda: x[..., None],
        "one less axis": lambda: x[0],
        "flat": lambda: x.reshape(-1),
        "one": lambda: x[:1],
        "turned": lambda: x.T,
        "a number": lambda: x.flat[0],
        "many axes": lambda: x.reshape((1,) * 20 + x.shape),
    }
    return ways[str(rng.choice(list(ways)))]()


def _with_values(x: np.ndarray, rng: np.random.Generator) -> Any:
    """One element, or all, exchanged."""
    x = x.copy()
    if x.dtype.kind == "f":
        odd = (np.nan, np.inf, -np.inf, 1e38, -1e38, 1e-40, 0.0, -0.0, 1e30, -1.0, 2.0)
        if x.dtype == np.float64:
            odd += (1e300, 1e-300, 5e-324)
    elif x.dtype.kind == "b":
        odd = (True, False)  # type: ignore[assignment]
    else:
        odd = (-1, -2, 0, 1, 5, 100, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63))  # type: ignore[assignment]
    value = odd[rng.integers(len(odd))]
    if rng.random() < 0.3:
        x[...] = value
    else:
        x.flat[rng.integers(x.size)] = value
    return x


def exchanged(x: Any, rng: np.random.Generator) -> Any:
    if not isinstance(x, np.ndarray) or not x.size or rng.random() < 0.3:
        return _of_anything(x, rng)
    way = (_tensors, _laid_out, _laid_out, _shaped, _with_values)[rng.integers(5)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of casts, and of what torch says of its prototypes
        try:
            return way(x, rng)
        except (RuntimeError, TypeError, IndexError, NotImplementedError):  # there is no such form of this array
            return _of_anything(x, rng)


# One case


def attempt(function: Callable[..., Any], arguments: dict[str, Any]) -> tuple[Any, BaseException | None]:
    """The result of a call, or its error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for documented in (rk.PoolSizeWarning, rk.RelevanceRangeWarning, rk.ConversionWarning):
                warnings.simplefilter("ignore", documented)
            warnings.filterwarnings("ignore", ".* names groups that no row of the corpus has")
            return function(**arguments), None
    except Exception as error:
        return None, error


class Drawn(NamedTuple):
    op: str
    function: Callable[..., Any]
    odd: dict[str, Any]  # the arguments
    plain: dict[str, Any]  # those with the exchanged ones in plain form
    exchanged: list[str]
    formless: list[str]  # of which there is none
    what: str


def drawn(seed: int, number: int) -> Drawn:
    rng = np.random.default_rng([seed, number])
    op, function, arguments, kinds = good(rng)
    names = [str(name) for name in rng.permutation(list(arguments))][: 1 if rng.random() < 0.8 else 2]
    odd = {**arguments, **{name: exchanged(arguments[name], rng) for name in names}}
    what = f"{op}(" + ", ".join(f"{name}={_said(odd[name])}" for name in names) + ")"
    plain, formless = dict(odd), []
    for name in names:
        if odd[name] is None:
            continue
        try:
            plain[name] = kinds[name](odd[name])
        except Exception:
            formless.append(name)
    return Drawn(op, function, odd, plain, names, formless, what)


def judge(case: Drawn) -> None:
    """Make the call of a case; raises WrongError unless it ends as it may."""
    found, error = attempt(case.function, case.odd)
    if error is not None:
        _documented(case, error)
        return
    if case.formless:
        raise WrongError(f"{case.what}: taken, although {' and '.join(case.formless)} cannot be")
    expected, error = attempt(case.function, case.plain)
    if error is not None:
        raise WrongError(f"{case.what}: taken, but in plain form it is {type(error).__name__}: {error}")
    _equal(case.what, found, expected, any_float=case.op == "merge_partials")


# A search or a selection within a call is named as what was called.
OPS = {"select": ("select", *rk.METHODS)}


def _documented(case: Drawn, error: BaseException) -> None:
    said = str(error)
    kind = type(error).__name__
    where = "".join(traceback.format_tb(error.__traceback__)[-2:])
    if kind not in DOCUMENTED or not said.startswith(tuple(f"{name}: " for name in OPS.get(case.op, (case.op,)))):
        raise WrongError(f"{case.what}: raises {kind}: {said[:300]}\n{where}")
    # Where the numbers of one array do not fit those of another either may be to blame.
    names = case.exchanged if len(case.formless) == len(case.exchanged) else list(case.odd)
    names = [*names, "parts"] if case.op == "merge_partials" else names
    if not any(re.search(rf"\b{name}\b", said) for name in names):
        raise WrongError(f"{case.what}: the error does not name {' or '.join(names)}: {said[:300]}")


def _equal(what: str, found: Any, expected: Any, any_float: bool) -> None:
    if getattr(found, "errors", None) != getattr(expected, "errors", None):
        raise WrongError(f"{what}: has the errors {found.errors}, not {expected.errors}")
    if isinstance(expected, (tuple, list)):
        if len(found) != len(expected):
            raise WrongError(f"{what}: gives {len(found)} results, not {len(expected)}")
        for one, other in zip(found, expected, strict=True):
            _equal(what, one, other, any_float)
        return
    if expected is None or found is None:
        if found is not expected:
            raise WrongError(f"{what}: gives {found!r}, not {expected!r}")
        return
    one, other = np.asarray(found), np.asarray(expected)
    kinds = one.dtype.kind + other.dtype.kind
    if (one.dtype != other.dtype and not (any_float and kinds == "ff")) or one.shape != other.shape:
        raise WrongError(f"{what}: gives {one.dtype}{one.shape}, not {other.dtype}{other.shape}")
    if not np.allclose(one.astype(np.float64), other.astype(np.float64), 1e-4, 1e-5, equal_nan=True):
        raise WrongError(f"{what}: gives {one.tolist()}, in plain form {other.tolist()}")


def _said(x: Any) -> str:
    text = f"{x.dtype.str}{list(x.shape)} " if isinstance(x, np.ndarray) else f"{type(x).__name__} "
    try:
        return (text + " ".join(repr(x).split()))[:160]
    except Exception:
        return text


def run_one(seed: int, number: int) -> int:
    torch.set_num_threads(1)
    judge(drawn(seed, number))
    return 1


def describe(seed: int, number: int) -> str:
    return drawn(seed, number).what


FUZZER = Fuzzer(__file__, "calls", 5_000, run_one, describe)

if __name__ == "__main__":
    sys.exit(main(FUZZER, __doc__))
