"""Posteriors of labels from the probabilities of their verbaliser tokens."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from .._base import arrays as _arrays
from .._base.arrays import HOST
from .._base.types import Array, ArrayLike, ScoringBackend
from .._gpu.plans import planned
from . import _device, finish, validate
from ._call import Call
from ._namespace import arange, namespace, segmented
from .problem import GivenPairs, Layout, ScoringProblem


class LabelPosteriors(NamedTuple):
    """Log-probabilities of labels for each row, in nats.

    Attributes
    ----------
    logp : (R, L) float64
        log of the summed probability of the label's tokens, among the whole vocabulary.
    log_posterior : (R, L) float64
        log of its share among the labels, divided by the prior.
    label : (R,) int64
        The label of the largest posterior, the first of equals; -1 where that is NaN.
    """

    logp: Array
    log_posterior: Array
    label: Array


@planned("label_posteriors")
def label_posteriors(
    logits: ArrayLike | None = None,
    hidden: ArrayLike | None = None,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    *,
    label_ids: ArrayLike,
    cu_labels: ArrayLike | None = None,
    prior: ArrayLike | None = None,
    rows: ArrayLike | None = None,
    temperature: float | ArrayLike = 1.0,
    logit_scale: float = 1.0,
    softcap: float | None = None,
    vocab_size: int | None = None,
    check_values: bool | None = None,
    backend: ScoringBackend = "auto",
    num_threads: int | None = None,
) -> LabelPosteriors:
    """Return probabilities of labels, each said by tokens of the vocabulary (verbalisers), from one read of a row.

    With p the softmax of a row over the vocabulary::

        p(l) = Σ p(t) over the tokens t of label l                           logp
        posterior(l) = (p(l) / prior(l)) / Σ_k (p(k) / prior(k))             log_posterior

    Parameters
    ----------
    logits, hidden, weight, bias, logit_scale, softcap, vocab_size, check_values, backend, num_threads
        As for `answer_logprobs`.
    label_ids : (n,) integers
        The tokens of all labels, one label after the other; no token twice. For labels of several tokens in sequence
        use `answer_logprobs`.
    cu_labels : (L + 1,) integers, optional
        Label l has the tokens from ``cu_labels[l]`` to ``cu_labels[l + 1]``, at least one. Default: one token each.
    prior : (L,) floating point, optional
        Positive divisor of each label's probability; only ratios matter. For contextual calibration pass the
        probabilities of the labels after a content-free input, for domain-conditional PMI those after the bare prompt.
    rows : (R,) integers, optional
        Rows to read. Default: all.
    temperature : float or (R,)

    Returns
    -------
    LabelPosteriors
        ``logp``, ``log_posterior`` (R, L) float64, ``label`` (R,) int64. Natural logs (nats). Arrays of the caller's
        library, on the device of the arguments.

    Raises
    ------
    ValueError, TypeError, BackendUnavailableError
        As for `answer_logprobs`; a label without a token, a token named twice, a prior that is not positive.

    Notes
    -----
    A row where no label's token is finite has log_posterior NaN and label -1, as has a row with NaN or +inf. O(V) time
    per row of logits, whatever the number of labels. On a device values are not checked: a token or row out of range
    gives NaN; a row that is named twice is read twice.

    Summed verbaliser tokens follow PET (Schick and Schütze, EACL 2021, and its many-token successors); the prior is
    contextual calibration (Zhao, Wallace, Feng, Klein and Singh, "Calibrate Before Use", ICML 2021: the diagonal
    W = diag(p_cf)^-1, b = 0) or domain-conditional PMI (Holtzman, West, Shwartz, Choi and Zettlemoyer, "Surface Form
    Competition", EMNLP 2021).

    Examples
    --------
    >>> import numpy as np, ragsys_kernels as rk
    >>> logits = np.log(np.array([[4, 2, 1, 1]], np.float32))
    >>> found = rk.label_posteriors(logits, label_ids=[0, 1, 2], cu_labels=[0, 1, 3], prior=[0.8, 0.2])
    >>> np.exp(found.logp).round(3), np.exp(found.log_posterior).round(3), found.label
    (array([[0.5  , 0.375]]), array([[0.25, 0.75]]), array([1]))
    """
    op = "label_posteriors"
    arrays = {
        "logits": logits, "hidden": hidden, "weight": weight, "bias": bias, "label_ids": label_ids,
        "cu_labels": cu_labels, "prior": prior, "rows": rows, "temperature": temperature,
    }  # fmt: skip
    call = Call(op, arrays, backend, num_threads, check_values)
    with call.current:
        form, T, V = validate.source(op, logits, hidden, weight, bias, call.place)
        V = validate.vocabulary(op, vocab_size, V)
        if call.check_values and call.place is not HOST:
            here = [_arrays.to_host(x) for x in (label_ids, cu_labels, prior)]
            validate.labels(op, here[0], here[1], here[2], V)
        ids, cu, weights = validate.labels(op, label_ids, cu_labels, prior, V, call.place)
        read = arange(T, ids) if rows is None else validate.vector(op, "rows", rows, "(R,)", call.place)
        # A pair for each row, whose slot then gets the tokens of all labels.
        given = GivenPairs(_arrays.full(ids, (len(read),), 0, "int64"), read, T, V, temperature=temperature, per="R")
        problem_of = functools.partial(
            validate.problem, op, form, num_columns=V, logit_scale=logit_scale, softcap=softcap
        )
        if call.place is HOST:
            found = _posteriors(_logps(call, given, problem_of, ids), cu, weights)
        else:
            found = _device_posteriors(_device_logps(call, given, problem_of, ids), ids, cu, weights)
        result: LabelPosteriors = call.result(found)
        return result


def _logps(call: Call, given: GivenPairs, problem_of: Callable[..., ScoringProblem], ids: np.ndarray) -> np.ndarray:
    """Return log p of the tokens ``ids`` in the row of each pair (R, n)."""
    layout, fields = call.layout(given)
    slots, n = len(fields["rows"]), len(ids)
    fields["pair_begin"], fields["columns"] = np.arange(slots + 1) * n, np.tile(ids, slots)
    partials = call.run(problem_of(fields=fields))
    every = Layout(slots * n, layout.num_rows, None, np.repeat(np.arange(slots), n), None, None, None, 1)
    logps: np.ndarray = finish.pair_logps(partials, every).reshape(slots, n)
    if layout.slot is None:
        return logps
    back = np.empty(layout.num_pairs, np.int64)
    back[layout.scored] = layout.slot
    return logps[back]


def _posteriors(logps: np.ndarray, cu: np.ndarray, weights: np.ndarray | None) -> LabelPosteriors:
    with np.errstate(invalid="ignore"):  # -inf - -inf
        logp = np.minimum(np.logaddexp.reduceat(logps, cu[:-1], axis=1), 0.0)
        calibrated = logp if weights is None else logp - np.log(weights)
        log_posterior = np.minimum(calibrated - np.logaddexp.reduce(calibrated, axis=1, keepdims=True), 0.0)
    label = np.where(np.isnan(log_posterior).any(axis=1), -1, log_posterior.argmax(axis=1))
    return LabelPosteriors(logp, log_posterior, label)


def _device_logps(call: Call, given: GivenPairs, problem_of: Callable[..., ScoringProblem], ids: Any) -> Any:
    """Do what `_logps` does without reading values: every pair has a slot of its own, in the order of the pairs."""
    if call.check_values:
        call.check(given)
    row, T, R, n = given.rows, given.num_rows, len(given.rows), len(ids)
    xp = namespace(ids)
    _, fields = _device.layout(call.op, call.place, replace(given, rows=None, num_rows=R))
    outside = (ids < 0) | (ids >= given.vocab_size)
    fields["rows"] = xp.where((row < 0) | (row >= T), -1, row)
    fields["pair_begin"] = arange(R + 1, ids) * n
    fields["columns"] = xp.tile(xp.where(outside, -1, ids), (R,))
    partials = call.run(problem_of(fields=fields))
    slot = xp.tile(arange(R, ids)[:, None], (1, n)).reshape(-1)
    every = Layout(R * n, R, None, slot, None, xp.tile(outside, (R,)), None, 1)
    return finish.pair_logps(partials, every).reshape(R, n)


def _device_posteriors(logps: Any, ids: Any, cu: Any, weights: Any) -> LabelPosteriors:
    """Do what `_posteriors` does, where bounds of labels may be anything."""
    xp, n, L = namespace(ids), len(ids), len(cu) - 1
    index = arange(n, ids)
    label_of = xp.maximum(xp.searchsorted(cu, index, side="right") - 1, 0)
    last = xp.minimum(xp.maximum(cu[1:] - 1, 0), n - 1)
    begin = xp.minimum(label_of, L - 1)
    logp = xp.minimum(segmented(xp.logaddexp, logps, index - cu[begin])[:, last], 0.0)
    calibrated = logp if weights is None else logp - xp.log(weights)
    whole = segmented(xp.logaddexp, calibrated, arange(L, ids))[:, -1:]
    log_posterior = xp.minimum(calibrated - whole, 0.0)
    label = xp.where(xp.isnan(log_posterior).any(1), -1, log_posterior.argmax(1))
    return LabelPosteriors(logp, log_posterior, label)
