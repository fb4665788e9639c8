"""log p of targets, and of answers that are made of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .._base.checks import count, flag
from .._base.types import Array, ArrayLike, OutOfRange, ScoringBackend
from .._gpu.plans import planned
from . import finish, quick, validate
from ._call import Call
from .problem import GivenPairs, Layout, Partials

_WANT = ("logp", "lse", "max", "entropy", "rank")
_REDUCE = ("sum", "mean", "count", "greedy")


class AnswerLogprobs(NamedTuple):
    """Log-probabilities of pairs and answers, in nats; fields not requested are None.

    Attributes
    ----------
    logp : (M,) float32
        log p of each target; 0 for an ignored pair.
    lse, max, entropy : (T,) float32
        log Σ exp z, largest z and -Σ p log p of each row of the input; NaN where no pair reads the row.
    rank : (M,) int64
        Columns with a strictly greater logit; 0 for an ignored pair, -1 where log p is NaN.
    sum : (A,) float64
        Sum of log p over the answer's pairs; 0 for an empty answer.
    mean : (A,) float64
        ``sum / count``; NaN for an empty answer.
    count : (A,) int64
        Pairs that are not ignored.
    greedy : (A,) bool
        The target of each pair that counts has the largest logit of its row; True for an empty answer.
    """

    logp: Array
    lse: Array
    max: Array
    entropy: Array
    rank: Array
    sum: Array
    mean: Array
    count: Array
    greedy: Array


@planned("token_logprobs")
def token_logprobs(
    logits: ArrayLike,
    targets: ArrayLike,
    *,
    ignore_index: int | None = -100,
    temperature: float | ArrayLike = 1.0,
    logit_scale: float = 1.0,
    softcap: float | None = None,
    vocab_size: int | None = None,
    allowed: ArrayLike | None = None,
    return_lse: bool = False,
    out_of_range: OutOfRange = "raise",
    check_values: bool | None = None,
    backend: ScoringBackend = "auto",
    num_threads: int | None = None,
) -> Array:
    """Return log p of one target in each row of logits: ``log_softmax(logits)[arange(T), targets]`` in one pass.

    Parameters
    ----------
    logits : (T, V) float32 | float16 | bfloat16
        Never copied; the last axis must be contiguous. -inf is a masked entry.
    targets : (T,) integers
        The column whose probability row t gives. The caller shifts.
    temperature : float or (T,)
    return_lse : bool
        Return log Σ exp z of each row as well.
    ignore_index, logit_scale, softcap, vocab_size, allowed, out_of_range, check_values, backend, num_threads
        As for `answer_logprobs`.

    Returns
    -------
    (T,) float32, or with ``return_lse`` two of them
        Natural-log probabilities (nats), 0 for ignored targets; log Σ exp z, NaN for ignored targets. Arrays of the
        caller's library, on the device of the arguments.

    Raises
    ------
    ValueError, TypeError, BackendUnavailableError
        As for `answer_logprobs`, whose notes also apply here.

    Examples
    --------
    >>> import numpy as np, ragsys_kernels as rk
    >>> rk.token_logprobs(np.log(np.array([[1, 3], [1, 1]], np.float32)), [1, 0]).round(3)
    array([-0.288, -0.693], dtype=float32)
    """
    op = "token_logprobs"
    if (
        type(temperature) is type(logit_scale) is float
        and temperature == logit_scale == 1
        and type(ignore_index) is int
        and ignore_index == -100
        and softcap is vocab_size is allowed is check_values is None
        and return_lse is False
        and isinstance(out_of_range, str)
        and out_of_range == "raise"
        and isinstance(backend, str)
        and backend == "auto"
    ):
        logp = quick.token_logprobs(logits, targets, num_threads)
        if logp is not None:
            return logp
    arrays = {"logits": logits, "targets": targets, "temperature": temperature, "allowed": allowed}
    call = Call(op, arrays, backend, num_threads, check_values)
    if logits is None:
        raise ValueError(f"{op}: logits must be given, got None")
    return_lse = flag(op, "return_lse", return_lse)
    with call.current:
        form, T, V = validate.source(op, logits, None, None, None, call.place)
        V = validate.vocabulary(op, vocab_size, V)
        given = GivenPairs(
            targets, None, T, V, temperature=temperature, ignore_index=ignore_index, out_of_range=out_of_range, per="T"
        )
        scales: dict[str, Any] = {"logit_scale": logit_scale, "softcap": softcap}
        pairs = call.pairs(given)
        if pairs is not None:
            wanted = frozenset(("logp", "lse") if return_lse else ("logp",))
            made = call.results(form, pairs, V, wanted, call.allowed_ids(allowed, V), **scales)
            logp = call.result(made["logp"])
            return (logp, call.result(made["lse"])) if return_lse else logp
        layout, fields = call.layout(given)
        problem = validate.problem(op, form, fields, V, allowed=call.allowed_ids(allowed, V), **scales)
        partials = call.run(problem)
        logp = call.result(finish.narrow(finish.pair_logps(partials, layout)))
        if not return_lse:
            return logp
        return logp, call.result(finish.by_row(finish.lse(partials), problem.rows, layout))


@planned("answer_logprobs")
def answer_logprobs(
    logits: ArrayLike | None = None,
    hidden: ArrayLike | None = None,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    *,
    targets: ArrayLike,
    rows: ArrayLike | None = None,
    cu_answers: ArrayLike | None = None,
    answer_ids: ArrayLike | None = None,
    num_answers: int | None = None,
    temperature: float | ArrayLike = 1.0,
    logit_scale: float = 1.0,
    softcap: float | None = None,
    vocab_size: int | None = None,
    allowed: ArrayLike | None = None,
    ignore_index: int | None = -100,
    want: tuple[str, ...] = ("logp",),
    reduce: tuple[str, ...] = _REDUCE,
    out_of_range: OutOfRange = "raise",
    partials: Partials | None = None,
    check_values: bool | None = None,
    backend: ScoringBackend = "auto",
    num_threads: int | None = None,
) -> AnswerLogprobs:
    """Score (row, token, answer) triples: log p of each; sums, means, counts and greedy flags per answer.

    With x the logits of a row, given or ``hidden @ weight.T + bias``, which are then never stored::

        z_v = softcap_(logit_scale * x_v) / temperature          softcap_(x) = softcap * tanh(x / softcap)
        log p(t | row) = z_t - log Σ_v exp z_v

    over the columns v below ``vocab_size`` that are in ``allowed``.

    Parameters
    ----------
    logits : (T, V) float32 | float16 | bfloat16
        Never copied; the last axis must be contiguous. -inf is a masked entry. Only rows with a target are read.
    hidden : (T, D) float32 | float16 | bfloat16, instead of logits
    weight : (V, D) float32 | float16 | bfloat16, with hidden
        The output matrix (LM head), of the same or another element type. Never copied.
    bias : (V,) floating point, optional
        Of the output matrix.
    targets : (M,) integers
        The column whose probability ``rows[i]`` gives. The caller shifts.
    rows : (M,) integers, optional
        The row that predicts each target; a row may have any number of targets and is read once. Default: row i for
        target i, with M = T.
    cu_answers : (A + 1,) integers, optional
        Answer a has the pairs from ``cu_answers[a]`` to ``cu_answers[a + 1]``, from 0 to M. Default: one answer.
    answer_ids : (M,) integers, optional
        Instead: the answer of each pair, in any order.
    num_answers : int, optional
        A, with ``answer_ids``. Default: the largest of them + 1. On a device, where ids are not read by the host, the
        default is the number of temperatures, and without these it is required.
    temperature : float or (A,)
        Within [1e-15, 1e15].
    logit_scale : float
        Within [1e-15, 1e15].
    softcap : float, optional
        Within [1e-15, 1e15].
    vocab_size : int, optional
        Columns from here on are padding and never enter. Default: V.
    allowed : (n,) integers, optional
        Sorted ids: only these columns enter. Another target has log p -inf.
    ignore_index : int or None
        Targets of this value are ignored: log p 0, not counted.
    want : tuple of {"logp", "lse", "max", "entropy", "rank"}
    reduce : tuple of {"sum", "mean", "count", "greedy"}
        Fields to compute; "rank" and "entropy" take up to a fifth more time.
    out_of_range : {"raise", "nan"}
        How to treat a target outside [0, vocab_size): an error, or NaN for itself and its answer. On a device always
        NaN.
    partials : Partials, instead of logits
        Merged partials of shards of the vocabulary, made with the same targets, rows, answers, temperature and
        ``ignore_index``; ``vocab_size`` is then required. They already include weight, bias, ``logit_scale``,
        ``softcap`` and ``allowed``, so do not pass these.
    check_values : bool, optional
        True: check values on a device too, which synchronises. On the host they are always checked.
    backend : {"auto", "cpu", "numpy", "reference", "triton"}
    num_threads : int, optional
        Default: RAGSYS_KERNELS_NUM_THREADS, else all processors of the process.

    Returns
    -------
    AnswerLogprobs
        ``logp`` (M,) float32, ``lse``, ``max``, ``entropy`` (T,) float32, ``rank`` (M,) int64, ``sum``, ``mean`` (A,)
        float64, ``count`` (A,) int64, ``greedy`` (A,) bool; None if not requested. Natural-log probabilities (nats),
        summed over answer tokens. Arrays of the caller's library, on the device of the arguments.

    Raises
    ------
    ValueError
        A shape, range or value that breaks a rule above; both or neither of logits and hidden.
    TypeError
        An argument of the wrong kind or element type.
    BackendUnavailableError
        The requested backend cannot run here.

    Notes
    -----
    A row without a finite entry gives NaN and lse -inf; NaN or +inf in a row gives NaN; other rows are not affected.
    log p is never positive. A row has the same bits whatever else is in the call, for any ``num_threads``; only with
    ``backend="numpy"`` may last bits of hidden states depend on the row's place, because NumPy's BLAS promises none.
    Last bits may differ between backends and instruction sets. z is rounded to float32; sums are float32 within a block
    of columns and float64 across blocks. O(V) time a row of logits, O(V D) of hidden states; O(M + A) memory beside the
    result and some blocks per thread. Not differentiable.

    On a device calls are asynchronous, so values are not checked. A target or row out of range gives NaN for its pair;
    pairs not covered by ``cu_answers`` or ``answer_ids`` are in no answer; ids of ``allowed`` that are not columns are
    ignored (unsorted or repeated ones give wrong sums); a temperature that is not positive gives NaN or undefined
    values for its rows; a row with several temperatures has the lse, max and entropy of the highest. Memory outside the
    arguments is never accessed. Sums are float32 within a part of a row and float64 across parts. ``logits`` whose rows
    begin at multiples of 16 bytes are read fastest; other alignments and strides may give other last bits.

    Examples
    --------
    >>> import numpy as np, ragsys_kernels as rk
    >>> logits = np.log(np.array([[1, 3], [1, 1]], np.float32))
    >>> rk.answer_logprobs(logits, targets=[1, 0, 1], rows=[0, 1, 1], cu_answers=[0, 2, 3]).sum.round(3)
    array([-0.981, -0.693])
    """
    op = "answer_logprobs"
    want = validate.names(op, "want", want, _WANT)
    reduce = validate.names(op, "reduce", reduce, _REDUCE)
    arrays = {
        "logits": logits, "hidden": hidden, "weight": weight, "bias": bias, "targets": targets, "rows": rows,
        "cu_answers": cu_answers, "answer_ids": answer_ids, "temperature": temperature, "allowed": allowed,
    }  # fmt: skip
    num_slots = None
    if partials is not None:
        source = {name: arrays[name] for name in ("logits", "hidden", "weight", "bias", "allowed")}
        scale = validate.positive(op, "logit_scale", logit_scale)
        source |= {"softcap": softcap, "logit_scale": None if scale == 1 else scale}
        validate.for_partials(op, partials, source)
        if vocab_size is None:
            raise ValueError(f"{op}: vocab_size must be given with partials, got None")
        V, T = count(op, "vocab_size", vocab_size), None
        arrays["partials"], num_slots = partials.ref, len(partials.ref)
    if num_answers is not None:
        num_answers = validate.offset(op, "num_answers", num_answers)
        if answer_ids is None:
            raise ValueError(f"{op}: num_answers must come with answer_ids, got {num_answers} without")
    call = Call(op, arrays, backend, num_threads, check_values)
    with call.current:
        if partials is None:
            form, T, V = validate.source(op, logits, hidden, weight, bias, call.place)
            V = validate.vocabulary(op, vocab_size, V)
        given = GivenPairs(
            targets, rows, T, V, cu_answers, answer_ids, num_answers, temperature, ignore_index, out_of_range
        )
        by_row = [name for name in ("lse", "max", "entropy") if name in want]
        if partials is None:
            scales: dict[str, Any] = {"logit_scale": logit_scale, "softcap": softcap}
            pairs = call.pairs(given)
            if pairs is not None:
                if by_row and rows is not None and call.checked is not None:
                    validate.one_temperature(op, by_row[0], call.checked["rows"])
                ids = call.allowed_ids(allowed, V)
                made = call.results(form, pairs, V, frozenset(want + reduce), ids, **scales)
                return AnswerLogprobs(**{name: call.result(made.get(name)) for name in AnswerLogprobs._fields})
        layout, fields = call.layout(given, num_slots)
        if by_row and layout.slot is not None:
            read = fields if layout.begin is None else call.checked
            if read is not None:
                validate.one_temperature(op, by_row[0], read["rows"])
            if T is None and layout.begin is not None:
                raise ValueError(f"{op}: rows must be None where want names {by_row[0]!r} of partials on a device")
        rank, entropy = "rank" in want, "entropy" in want
        if partials is None:
            ids = call.allowed_ids(allowed, V)
            problem = validate.problem(op, form, fields, V, allowed=ids, entropy=entropy, rank=rank, **scales)
            found = call.run(problem)
        else:
            found = validate.given_partials(op, partials, fields, entropy=entropy, rank=rank, place=call.place)
        result: AnswerLogprobs = call.result(_finished(found, layout, fields["rows"], want, reduce))
        return result


def _finished(
    partials: Partials, layout: Layout, rows: Any, want: tuple[str, ...], reduce: tuple[str, ...]
) -> AnswerLogprobs:
    made: dict[str, Any] = dict.fromkeys(AnswerLogprobs._fields)
    logps = finish.pair_logps(partials, layout)
    if "logp" in want:
        made["logp"] = finish.narrow(logps)
    for name, values in (("lse", finish.lse), ("max", finish.largest), ("entropy", finish.entropy)):
        if name in want:
            made[name] = finish.by_row(values(partials), rows, layout)
    if "rank" in want:
        made["rank"] = finish.pair_ranks(partials, layout, logps)
    if "greedy" in reduce:
        made["greedy"] = finish.per_answer(finish.missed(partials, layout, logps), layout) == 0
    if "sum" in reduce or "mean" in reduce:
        made["sum"] = finish.per_answer(logps, layout)
    if "count" in reduce or "mean" in reduce:
        made["count"] = finish.counts(layout)
    if "mean" in reduce:
        with np.errstate(invalid="ignore"):  # 0 / 0
            made["mean"] = made["sum"] / made["count"]
    for name in ("sum", "count"):
        if name not in reduce:
            made[name] = None
    return AnswerLogprobs(**made)
