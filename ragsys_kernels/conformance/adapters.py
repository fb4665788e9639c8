"""How functions are asked: what an adapter is, and calls by the names of parameters."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .reading import UnreadableError, positions, shown
from .variants import Question


class CallError(ValueError):
    """The function could not be called, or what it returned could not be read."""


class NoFormError(Exception):
    """The function answers none of the ways in which arrays are handed over; the message has the error of each."""


def told(error: Exception) -> str:
    """Return an error of a function, or of what it returned, in a line."""
    text = " ".join(str(error).split())
    if isinstance(error, UnreadableError):  # not of the function
        return text[:160]
    return f"{type(error).__name__}: {text[:160]}" if text else type(error).__name__


class Adapter:
    """A way to ask."""

    name: str
    takes: str  # "query", "scores" (the relevance is given), "either", or "both" at once
    weight: str | None  # the name of the argument that weighs
    pages: bool  # whether `ask` knows ``shown``, the positions of the page before

    def ask(self, question: Question, shown: tuple[int, ...] = ()) -> list[int | None]:
        raise NotImplementedError


# What parameters are called, by what they are for; the first name that a function has is meant.
NAMES: dict[str, tuple[str, ...]] = {
    "query": (
        "query", "query_embedding", "query_embeddings", "query_vector", "query_emb", "query_vec", "queries", "q",
        "question", "doc_embedding", "user_embedding", "target",
    ),
    "rows": (
        "embeddings", "embedding_list", "vectors", "candidate_embeddings", "candidate_vectors", "doc_embeddings",
        "document_embeddings", "item_embeddings", "word_embeddings", "embedding_matrix", "features", "feature_matrix",
        "matrix", "items", "rows", "candidates", "documents", "docs", "embs", "X", "x",
    ),
    "scores": ("scores", "relevance", "relevance_scores", "relevances", "query_scores", "rel_scores", "rel"),
    "k": (
        "k", "top_k", "topk", "similarity_top_k", "top_n", "n", "limit", "num_results", "n_results", "max_results",
        "size",
    ),
    "weight": (
        "lambda_mult", "lambda_d", "lambda_param", "lambda_", "lam", "lmbda", "lambda_threshold", "mmr_threshold",
        "lambda_value", "mmr_lambda", "lambda_weight", "Lambda", "diversity", "diversity_weight", "diversity_bias",
        "diversity_factor", "balance", "alpha", "tradeoff", "trade_off", "weight",
    ),
    "ids": ("ids", "words", "labels", "keys", "doc_ids"),
    "shown": ("initial", "already_selected", "selected", "shown"),
    "offset": ("offset", "skip"),
}  # fmt: skip
# How arrays are handed over: a query of one dimension, of two, lists of numbers; and as tensors, where torch is loaded.
_FORMS = ("arrays", "batch", "lists")
_TENSORS = ("tensors", "tensor batch")
_BATCHES = ("batch", "tensor batch")


class Call(Adapter):
    """A function, called by the names of its parameters; ``arguments`` has those that are not usual, by role."""

    def __init__(
        self, function: Callable[..., Any], arguments: Mapping[str, str] | None, options: Mapping[str, Any]
    ) -> None:
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError) as error:
            raise CallError(f"conform: function must have a signature, got {function!r}") from error
        roles = dict(arguments or {})
        for role, name in roles.items():
            if role not in NAMES:
                raise ValueError(f"conform: arguments must be of {', '.join(NAMES)}, got {role!r}")
            if name not in parameters:
                raise ValueError(f"conform: arguments must name parameters of the function, got {role}={name}")
        for role, names in NAMES.items():
            taken = {*roles.values(), *options}
            found = next((name for name in names if name in parameters and name not in taken), None)
            if role not in roles and found is not None:
                roles[role] = found
        for role in ("rows", "k"):
            if role not in roles:
                raise _unnamed(role, parameters)
        kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        needed = [p.name for p in parameters.values() if p.default is p.empty and p.kind not in kinds]
        left = [name for name in needed if name not in {*roles.values(), *options}]
        if left:
            raise CallError(f"conform: options must have a value for the parameter {left[0]!r}, got none")
        query, scores = roles.get("query"), roles.get("scores")
        if query and scores:
            self.takes = "both" if {query, scores} <= set(needed) else "either"
        elif query or scores:
            self.takes = "query" if query else "scores"
        else:
            raise _unnamed("query or scores", parameters)
        self.name, self.weight = "by parameter names", roles.get("weight")
        self.pages = "shown" in roles or "offset" in roles
        self.options, self._function, self._roles = options, function, roles
        self._first = [p.name for p in parameters.values() if p.kind is p.POSITIONAL_ONLY]
        self._form: str | None = None  # that of `_FORMS` which the function takes

    def ask(self, question: Question, shown: tuple[int, ...] = ()) -> list[int | None]:
        if self._form is not None:
            return self._asked(self._form, question, shown)
        errors: dict[str, list[str]] = {}
        for form in (*_FORMS, *(_TENSORS if "torch" in sys.modules else ())):
            try:
                found = self._asked(form, question, shown)
            except Exception as error:  # of the function, whatever it is
                errors.setdefault(told(error), []).append(form)
                continue
            self._form = form
            return found
        if len(errors) == 1:
            raise NoFormError(*errors)
        raise NoFormError("; ".join(f"{', '.join(forms)}: {text}" for text, forms in errors.items()))

    def _asked(self, form: str, question: Question, shown: tuple[int, ...]) -> list[int | None]:
        given = self._given(form, question, shown)
        if self.takes != "either" or question.scores is None:
            return self._called(given, question)
        try:
            return self._called({**given, "query": None}, question)
        except Exception:  # a function that wants both
            return self._called(given, question)

    def _given(self, form: str, question: Question, shown: tuple[int, ...]) -> dict[str, Any]:
        """Return what each role gets."""
        rows = np.array(question.rows, np.float32)
        given: dict[str, Any] = {"rows": rows, "k": question.k, "weight": question.weight}
        query = np.array(question.query, np.float32)
        scores = np.array(question.relevance("given"), np.float32)
        given["query"] = query if form not in _BATCHES else query[None]
        if self.takes in ("scores", "both") or (self.takes == "either" and question.scores is not None):
            given["scores"] = scores if form not in _BATCHES else scores[None]
        if "ids" in self._roles:
            given["ids"] = list(map(str, range(len(rows))))
        if shown and "shown" in self._roles:
            given["shown"] = np.array(shown) if form not in _BATCHES else np.array(shown)[None]
        elif shown and "offset" in self._roles:
            given["offset"] = len(shown)
        if form == "lists":
            given = {role: x.tolist() if isinstance(x, np.ndarray) else x for role, x in given.items()}
        elif form.startswith("tensor"):
            import torch

            given = {role: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for role, x in given.items()}
        return given

    def _called(self, given: dict[str, Any], question: Question) -> list[int | None]:
        rows = np.array(question.rows, np.float32)
        arguments = {self._roles[role]: x for role, x in given.items() if role in self._roles} | dict(self.options)
        first = [arguments.pop(name) for name in self._first if name in arguments]
        found = positions(self._function(*first, **arguments), rows)
        if any(i is not None and not 0 <= i < len(rows) for i in found):
            raise UnreadableError(f"{shown(found)}, not positions below {len(rows)}")
        return found


def _unnamed(role: str, parameters: Mapping[str, Any]) -> CallError:
    return CallError(
        f"conform: function must have a parameter for {role} by a usual name, got {', '.join(parameters) or 'none'}; "
        "say which one it is with arguments"
    )
