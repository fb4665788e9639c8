"""The most probable tokens of each row, for the distillation of one model into another."""

from __future__ import annotations

from typing import NamedTuple

from .._base.checks import count
from .._base.types import Array, ArrayLike, ScoringBackend
from .._gpu.plans import planned
from . import finish, validate
from ._call import Call
from .problem import Partials


class TopLogprobs(NamedTuple):
    """The most probable tokens of each row, from the most probable on.

    Attributes
    ----------
    ids : (R, k) int64
        Columns of the vocabulary, the lower one first where two logits are equal; -1 where there is none.
    log_probs : (R, k) float32
        Their log p, in nats, among the whole vocabulary; -inf where there is none.
    """

    ids: Array
    log_probs: Array


@planned("top_logprobs")
def top_logprobs(
    logits: ArrayLike | None = None,
    hidden: ArrayLike | None = None,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    *,
    k: int,
    rows: ArrayLike | None = None,
    temperature: float | ArrayLike = 1.0,
    logit_scale: float = 1.0,
    softcap: float | None = None,
    vocab_size: int | None = None,
    allowed: ArrayLike | None = None,
    partials: Partials | None = None,
    check_values: bool | None = None,
    backend: ScoringBackend = "auto",
    num_threads: int | None = None,
) -> TopLogprobs:
    """Return the k most probable tokens of each row and their log p, from one pass over its logits.

    With log p as `answer_logprobs` defines it: what `token_logprobs` gives for these ids, bit for bit where its backend
    keeps bits. Neither a log-softmax of shape (T, V) is made nor, from hidden states, logits.

    Parameters
    ----------
    logits, hidden, weight, bias, logit_scale, softcap, vocab_size, allowed, check_values, backend, num_threads
        As for `answer_logprobs`.
    k : int
        At least 1. Where fewer columns have a logit above -inf, the rest of a row is id -1 and log p -inf.
    rows : (R,) integers, optional
        Rows to read: those that predict tokens of an answer, say. Default: all, R = T.
    temperature : float or (R,)
        Within [1e-15, 1e15].
    partials : Partials, instead of logits
        Merged partials of shards of the vocabulary, which `logprob_partials` made with at least this ``k``. They
        already include all of the options but ``k``, so do not pass these.

    Returns
    -------
    TopLogprobs
        ``ids`` (R, k) int64, ``log_probs`` (R, k) float32. Natural-log probabilities (nats), descending; of equal
        logits that of the lower id comes first. Arrays of the caller's library, on the device of the arguments.

    Raises
    ------
    ValueError, TypeError, BackendUnavailableError
        As for `answer_logprobs`; k of more than the partials have, or on a GPU above 1,024.

    Notes
    -----
    A row where no logit is finite, or one is NaN or +inf, has ids -1 and log_probs NaN. On the CPU O(V) time a row of
    logits and O(V D) of hidden states, whatever k, and k log k to sort; O(k) memory for each row that a thread has at a
    time. On a device values are not checked: a row out of range gives NaN.

    Examples
    --------
    >>> import numpy as np, ragsys_kernels as rk
    >>> logits = np.log(np.array([[1, 3, 4], [1, 1, 2]], np.float32))
    >>> top = rk.top_logprobs(logits, k=2)
    >>> top.ids, np.exp(top.log_probs).round(3)
    (array([[2, 1],
           [2, 0]]), array([[0.5  , 0.375],
           [0.5  , 0.25 ]], dtype=float32))
    """
    op = "top_logprobs"
    k = count(op, "k", k)
    arrays = {
        "logits": logits, "hidden": hidden, "weight": weight, "bias": bias, "rows": rows, "temperature": temperature,
        "allowed": allowed,
    }  # fmt: skip
    if partials is not None:
        source = {**arrays, "softcap": softcap, "vocab_size": vocab_size}
        for name, number in (("temperature", temperature), ("logit_scale", logit_scale)):
            source[name] = None if validate.is_number(number) and number == 1 else number
        validate.for_partials(op, partials, source)
        arrays["partials"] = partials.ref
    call = Call(op, arrays, backend, num_threads, check_values)
    with call.current:
        if partials is None:
            form, T, V = validate.source(op, logits, hidden, weight, bias, call.place)
            V = validate.vocabulary(op, vocab_size, V)
            fields = call.slots(rows, T, temperature, next(iter(form.values())))
            ids = call.allowed_ids(allowed, V)
            found = call.run(
                validate.problem(op, form, fields, V, allowed=ids, logit_scale=logit_scale, softcap=softcap, top=k)
            )
        else:
            found = _best(op, validate.viewed(op, "partials", partials, call.place), k)
        result: TopLogprobs = call.result(TopLogprobs(*finish.top_logps(found)))
        return result


def _best(op: str, partials: Partials, k: int) -> Partials:
    """Return partials with the k largest z of those they have."""
    for name, got, want in validate.misfits(partials, len(partials.ref), len(partials.target)):
        raise ValueError(f"{op}: partials must have {name} of shape {want}, got {got}")
    if partials.top is None:
        raise ValueError(f"{op}: partials must have top, which logprob_partials gives with k, got None")
    if partials.top.shape[1] < k:
        raise ValueError(f"{op}: k must be at most that of partials, {partials.top.shape[1]}, got {k}")
    return partials._replace(top=partials.top[:, :k], top_ids=partials.top_ids[:, :k])
