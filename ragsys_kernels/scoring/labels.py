"""Posteriors of labels from the probabilities of their verbaliser tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .._base import arrays as _arrays
from .._base.arrays import Cupy, Torch
from .._base.types import Array, ArrayLike, ScoringBackend
from .._gpu.plans import planned
from . import _device, finish, validate
from ._call import Call
from ._namespace import arange, namespace, segmented
from .problem import Layout


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
        scales = {"logit_scale": logit_scale, "softcap": softcap}
        posteriors = _on_device if isinstance(call.place, (Torch, Cupy)) else _on_host
        found = posteriors(call, form, T, V, label_ids, cu_labels, prior, rows, temperature, scales)
        result: LabelPosteriors = call.result(found)
        return result


def _on_host(
    call: Call,
    form: dict[str, Any],
    T: int,
    V: int,
    label_ids: ArrayLike,
    cu_labels: Any,
    prior: Any,
    rows: Any,
    temperature: Any,
    scales: dict[str, Any],
) -> LabelPosteriors:
    ids, cu, weights = validate.labels(call.op, label_ids, cu_labels, prior, V)
    read = np.arange(T) if rows is None else validate.row_ids(call.op, rows, T)
    # A pair for each row, whose slot then gets the tokens of all labels.
    layout, fields = call.layout(
        np.zeros(len(read), np.int64), read, num_rows=T, vocab_size=V, temperature=temperature, per="R"
    )
    slots = len(fields["rows"])
    fields["pair_begin"] = np.arange(slots + 1) * len(ids)
    fields["columns"] = np.tile(ids, slots)
    partials = call.run(validate.problem(call.op, form, fields, V, **scales))
    every = Layout(slots * len(ids), T, None, np.repeat(np.arange(slots), len(ids)), None, None, None, 1)
    logps = finish.pair_logps(partials, every).reshape(slots, len(ids))
    if layout.slot is not None:
        back = np.empty(len(read), np.int64)
        back[layout.scored] = layout.slot
        logps = logps[back]
    with np.errstate(invalid="ignore"):  # -inf - -inf
        logp = np.minimum(np.logaddexp.reduceat(logps, cu[:-1], axis=1), 0.0)
        calibrated = logp if weights is None else logp - np.log(weights)
        log_posterior = np.minimum(calibrated - np.logaddexp.reduce(calibrated, axis=1, keepdims=True), 0.0)
    label = np.where(np.isnan(log_posterior).any(axis=1), -1, log_posterior.argmax(axis=1))
    return LabelPosteriors(logp, log_posterior, label)


def _on_device(
    call: Call,
    form: dict[str, Any],
    T: int,
    V: int,
    label_ids: ArrayLike,
    cu_labels: Any,
    prior: Any,
    rows: Any,
    temperature: Any,
    scales: dict[str, Any],
) -> LabelPosteriors:
    op, place = call.op, call.place
    assert isinstance(place, (Torch, Cupy))
    if call.check_values:
        validate.labels(op, _arrays.to_host(label_ids), _arrays.to_host(cu_labels), _arrays.to_host(prior), V)
    ids, cu, weights = _device.labels(op, label_ids, cu_labels, prior, place)
    xp, n, L = namespace(ids), len(ids), len(cu) - 1
    row = arange(T, ids) if rows is None else _device.vector(op, "rows", rows, "(R,)", place)
    R = len(row)
    # A pair for each row in its own order, whose slot then gets the tokens of all labels.
    some = {"vocab_size": V, "temperature": temperature, "per": "R"}
    none = _arrays.full(ids, (R,), 0, "int64")
    if call.check_values:
        call.check(none, row, num_rows=T, **some)
    _, fields = _device.layout(op, place, none, None, num_rows=R, **some)
    outside = (ids < 0) | (ids >= V)
    fields["rows"] = xp.where((row < 0) | (row >= T), -1, row)
    fields["pair_begin"] = arange(R + 1, ids) * n
    fields["columns"] = xp.tile(xp.where(outside, -1, ids), (R,))
    partials = call.run(validate.problem(op, form, fields, V, **scales))
    slot = xp.tile(arange(R, ids)[:, None], (1, n)).reshape(-1)
    every = Layout(R * n, T, None, slot, None, xp.tile(outside, (R,)), None, 1)
    logps = finish.pair_logps(partials, every).reshape(R, n)
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
