"""The corpus of a job in memory, with its ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

import ragsys_kernels as rk

from .._base.checks import shown
from ..corpus.ids import Ids, make
from ._options import JobSpec
from ._spec import Inputs
from .sources import Column, Usable, load_corpus
from .spread import Spread


@dataclass(frozen=True)
class Held:
    """The corpus of a job in memory, with its ids; arrays that processes of a machine can share.

    ``ids`` are those of a file, for a saved corpus has its own. ``lookup`` finds the rows of candidates that are ids.
    ``usable`` says which rows of the file are left out, for processes that then need not look.
    """

    corpus: rk.Corpus
    ids: Any
    lookup: Ids | None = None
    usable: Usable | None = None

    @classmethod
    def spread(cls, spec: JobSpec, inputs: Inputs, corpus: Spread) -> Held:
        """Return a corpus that lies in several processes."""
        ids = None if corpus.ids.kind == "row" else corpus.ids
        if spec.candidate_ids:
            _lookup(None, inputs)  # which refuses candidates of another type
        return cls(corpus, ids, corpus.ids if spec.candidate_ids else None)

    @classmethod
    def of(cls, spec: JobSpec, inputs: Inputs) -> Held:
        if isinstance(inputs.saved, Spread):
            return cls.spread(spec, inputs, inputs.saved)
        if inputs.own is not None:
            return cls(rk.Corpus(np.zeros((1, inputs.own.dims), np.float32), **inputs.held), None)
        column = inputs.corpus_ids
        ids = None if column is None else column.whole()
        lookup = _lookup(ids, inputs) if spec.candidate_ids else None
        if inputs.saved is not None:
            return cls(inputs.saved, None, lookup)
        if column is not None and lookup is None:  # which has looked
            check_unique("select", ids, column)
        more = {name: column.whole() for name in ("costs", "time") if (column := getattr(inputs, name)) is not None}
        corpus = load_corpus(inputs.corpus, inputs.bias, inputs.groups, {**more, **inputs.held})
        return cls(corpus, None if ids is None else takeable(ids), lookup, inputs.usable.alone())


def _lookup(ids: Any, inputs: Inputs) -> Ids:
    """Return what finds rows by the corpus's ids; refuse ids that occur twice, and candidates of another type."""
    assert inputs.corpus_ids is not None
    assert inputs.candidates is not None
    try:
        found = make("select", ids, inputs.corpus.rows) if inputs.saved is None else inputs.saved.ids
    except (ValueError, TypeError) as error:
        raise type(error)(f"{error} of {inputs.corpus_ids.path}, for candidates to be found by them") from error
    inputs.usable.listed(inputs.candidates, found)
    return found


def check_unique(op: str, ids: pa.ChunkedArray, column: Column) -> None:
    """Refuse an id that is there twice, of any type: a sort of integers, a table of hashes of others (0.2 µs each)."""
    if pa.types.is_integer(ids.type):
        ordered = np.sort(ids.to_numpy())
        once = len(ordered) == 0 or bool((ordered[1:] != ordered[:-1]).all())
    else:
        once = len(ids.unique()) == len(ids)
    if once:
        return
    codes = ids.combine_chunks().dictionary_encode().indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    row = int(order[1:][codes[order][1:] == codes[order][:-1]].min())
    first = int(np.argmax(codes == codes[row]))
    got = f"{shown(ids[row].as_py())} in rows {first} and {row} of {column.path}"
    raise ValueError(f"{op}: ids of the corpus must be unique, got {got}")


def takeable(ids: pa.ChunkedArray) -> pa.Array:
    """Return one array to take from; strings get 64-bit offsets, since the text of all ids may exceed 2 GiB."""
    ids = ids.cast(pa.large_string()) if pa.types.is_string(ids.type) else ids
    return ids.chunk(0) if ids.num_chunks == 1 else ids.combine_chunks()  # which copies a single one too
