"""Partials of one shard of the vocabulary, for those who put shards together themselves."""

from __future__ import annotations

from .._base.checks import count, flag
from .._base.types import ArrayLike, OutOfRange, ScoringBackend
from .._gpu.plans import planned
from . import validate
from ._call import Call
from ._namespace import namespace
from .problem import GivenPairs, Partials


@planned("logprob_partials")
def logprob_partials(
    logits: ArrayLike | None = None,
    hidden: ArrayLike | None = None,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    *,
    targets: ArrayLike | None = None,
    vocab_size: int,
    first_column: int = 0,
    rows: ArrayLike | None = None,
    cu_answers: ArrayLike | None = None,
    answer_ids: ArrayLike | None = None,
    temperature: float | ArrayLike = 1.0,
    logit_scale: float = 1.0,
    softcap: float | None = None,
    allowed: ArrayLike | None = None,
    ignore_index: int | None = -100,
    out_of_range: OutOfRange = "raise",
    entropy: bool = False,
    rank: bool = False,
    target_logits: ArrayLike | None = None,
    k: int | None = None,
    check_values: bool | None = None,
    backend: ScoringBackend = "auto",
    num_threads: int | None = None,
) -> Partials:
    """Sum over one shard of the vocabulary; `merge_partials` puts the sums of all shards together.

    The shard's columns are the vocabulary from ``first_column`` on; shards may differ in size. Call it for every shard
    with the same targets and options, and pass the merged partials to `answer_logprobs`::

        parts = [rk.logprob_partials(hidden, weight=w, first_column=c, targets=t, vocab_size=V) for c, w in shards]
        rk.answer_logprobs(partials=rk.merge_partials(parts), targets=t, vocab_size=V, reduce=("sum",))

    Ranks need the z of the targets of all shards first: ``target`` of merged partials, or another source. A second call
    with ``rank=True, target_logits=merged.target`` then counts.

    For the most probable tokens, which need no targets, pass ``k``, and the merged partials to `top_logprobs`::

        parts = [rk.logprob_partials(hidden=h, weight=w, first_column=c, vocab_size=V, k=20) for c, w in shards]
        rk.top_logprobs(partials=rk.merge_partials(parts), k=20)

    Parameters
    ----------
    logits : (T, V_shard), or hidden (T, D) with weight (V_shard, D) and bias (V_shard,)
        As for `answer_logprobs`.
    targets : (M,) integers
        Columns of the whole vocabulary, in [0, vocab_size). None with ``k``: slot i is then ``rows[i]``, or row i, with
        a temperature for all or each slot (R,); there are no answers.
    vocab_size : int
        Of the whole vocabulary; columns of the shard beyond it are padding and never enter.
    first_column : int
        Where the shard begins.
    allowed : (n,) integers, optional
        Sorted ids of the whole vocabulary.
    entropy, rank : bool
        Whether to compute ``weighted`` and ``rank``.
    target_logits : (M',) floating point, optional
        z of each target, in the order of ``Partials.target``; ranks count what exceeds it.
    k : int, optional
        Keep the k largest z of each slot, with their ids in the whole vocabulary.
    rows, cu_answers, answer_ids, temperature, logit_scale, softcap, ignore_index, out_of_range, check_values, backend,
    num_threads
        As for `answer_logprobs`. Answers matter for a temperature (A,) only.

    Returns
    -------
    Partials
        ``ref``, ``max``, ``sum``, ``weighted`` of each slot (R,), ``top``, ``top_ids`` (R, k), and ``target``, ``rank``
        of each target (M',). Slots
        are the distinct (row, temperature) pairs with a target that counts, by row and from high to low temperature.
        Targets are in order of their slots, within a slot as they were given. Arrays of the caller's library, on the
        device of the arguments. On a device R is M, or T if that is less and there is one temperature; slots without a
        pair come last and have sum 0; M' is M, and pairs that do not count come last (with ``rows`` None: keep their
        place) at -inf.

    Raises
    ------
    ValueError, TypeError, BackendUnavailableError
        As for `answer_logprobs`; ``rank`` without ``target_logits`` where a target is in another shard (on a device
        its rank counts every finite column instead).

    Notes
    -----
    Merged shards equal the whole up to rounding, because block boundaries differ. The same shards have the same bits.
    """
    op = "logprob_partials"
    arrays = {
        "logits": logits, "hidden": hidden, "weight": weight, "bias": bias, "targets": targets, "rows": rows,
        "cu_answers": cu_answers, "answer_ids": answer_ids, "temperature": temperature, "allowed": allowed,
        "target_logits": target_logits,
    }  # fmt: skip
    k = None if k is None else count(op, "k", k)
    if targets is None:
        if k is None:
            raise ValueError(f"{op}: targets must be given, or k, got neither")
        for name in ("cu_answers", "answer_ids", "target_logits"):
            if arrays[name] is not None:
                raise ValueError(f"{op}: {name} must come with targets, got it without")
    call = Call(op, arrays, backend, num_threads, check_values)
    with call.current:
        form, T, V = validate.source(op, logits, hidden, weight, bias, call.place)
        total = count(op, "vocab_size", vocab_size)
        first = validate.offset(op, "first_column", first_column)
        if targets is None:
            fields = call.slots(rows, T, temperature, next(iter(form.values())))
        else:
            given = GivenPairs(
                targets, rows, T, total, cu_answers, answer_ids, None, temperature, ignore_index, out_of_range
            )
            fields = call.layout(given)[1]
        problem = validate.problem(
            op,
            form,
            fields,
            max(0, min(V, total - first)),
            first_column=first,
            vocab_size=total,
            allowed=call.allowed_ids(allowed, total),
            logit_scale=logit_scale,
            softcap=softcap,
            target_logits=validate.target_logits(op, target_logits, len(fields["columns"]), call.place),
            entropy=flag(op, "entropy", entropy),
            rank=flag(op, "rank", rank),
            top=k or 0,
        )
        found = call.run(problem)
        if k is not None and first:
            found = found._replace(top_ids=namespace(found.top_ids).where(found.top_ids < 0, -1, found.top_ids + first))
        result: Partials = call.result(found)
        return result
