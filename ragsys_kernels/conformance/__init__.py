"""Which MMR is it: a few dozen designed vector sets tell the variants of MMR apart that go by this one name.

`conform` asks a function, and `conform_service` a service, to pick out of the sets; a model of the variants is fitted
to what comes back, respect by respect (`RESPECTS`), with the set that tells the difference as evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .adapters import CallError
from .kit import examine
from .report import Evidence, Finding, Report
from .respects import DEFINITION, RESPECTS, SOURCE
from .service import Service, vectors
from .targets import ADAPTERS, adapter_of, name_of, resolved

__all__ = [
    "ADAPTERS",
    "DEFINITION",
    "RESPECTS",
    "SOURCE",
    "CallError",
    "Evidence",
    "Finding",
    "Report",
    "conform",
    "conform_service",
    "vectors",
]


def conform(
    function: Callable[..., Any] | str,
    *,
    adapter: str = "auto",
    arguments: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Report:
    """Tell which variant of MMR a function is.

    Parameters
    ----------
    function : callable or str
        A function of a query and vectors (or scores and vectors) that returns the positions it picks; a class of a
        vector store or a ranker; or where such a thing is, ``"module:name"``.
    adapter : str
        How to call it: "function", by the names of its parameters; "langchain-store", "haystack", "qdrant"; "auto"
        finds out.
    arguments : mapping of str to str, optional
        What a parameter is for, where its name does not say it: ``{"query": "anchor", "weight": "theta"}``. The keys
        are query, rows, scores, k, weight, ids, shown and offset.
    options : mapping, optional
        Further arguments of the call: ``{"strategy": "mmr"}``.

    Returns
    -------
    Report
        A finding for each of `RESPECTS`; ``report.textbook`` says whether it is MMR as it is published, ``str(report)``
        and ``report.to_markdown()`` show it.

    Raises
    ------
    CallError
        The function cannot be called, or what it returns cannot be read.

    Notes
    -----
    The function gets float32 arrays of 5 to 60 rows of 8 dimensions, or lists if it refuses arrays, about 65 times.
    Definition: Carbonell and Goldstein, SIGIR 1998.

    Examples
    --------
    >>> import ragsys_kernels as rk
    >>> from ragsys_kernels.conformance import conform
    >>> report = conform(rk.mmr)
    >>> report.textbook, report["ties"].says
    (True, 'lowest position')
    """
    called = resolved(function) if isinstance(function, str) else function
    return examine(adapter_of(called, adapter, arguments, options), name_of(function))


def conform_service(url: str, *, corpus: str | None = None, token: str | None = None) -> Report:
    """Tell which variant of MMR a service picks by, over ``/v1/select``.

    Parameters
    ----------
    url : str
        Of the service, as ``http://127.0.0.1:8080``.
    corpus : str, optional
        Its corpus of the rows of `vectors`, whose ids are the row numbers; None: the only one that it has.
    token : str, optional
        Its bearer token.

    Returns
    -------
    Report
        As of `conform`. What a corpus cannot hold is not asked.

    Raises
    ------
    CallError
        The service does not answer, or has another corpus.
    """
    service = Service(url, corpus, token)
    try:
        return examine(service, url)
    finally:
        service.close()
