"""A request in the form that all routes share: its queries in blocks, and later their picks and errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..selection.problem import Selection
from .corpora import Served
from .kernel import Block, argument_of
from .limits import FAILED, Limits, RefusedError

if TYPE_CHECKING:
    import pyarrow as pa

# Queries that are read as one block, and answered by one call, at most.
BLOCK = 256
_PICK = 96  # bytes of a pick in an answer: its id, three numbers and a part of the cursor


@dataclass(slots=True)
class Asked:
    """The queries of a request, in blocks; their picks, once the kernels have made them; and errors by position."""

    served: Served
    count: int
    blocks: list[Block] = field(default_factory=list)
    picks: Sequence[Selection] = ()  # of each block
    errors: dict[int, RefusedError] = field(default_factory=dict)
    nbytes: int = 0
    ids: pa.Array | None = None  # names of the queries in a table of answers; None: their numbers
    strings: bool = False  # whether ids of picks are strings
    skips: bool = False  # whether unknown ids are left out, in all blocks
    nearest: bool = False  # whether a table of answers says what is nearest, in all blocks
    unmet: bool = False  # whether it says which groups lack picks
    chars: int | None = None  # characters to return of the text of each pick; 0: all, None: no texts

    def add(self, block: Block, positions: Sequence[int], limits: Limits) -> None:
        """Add a block, unless all of them would fill the memory; ``positions`` are those of its queries."""
        self.nbytes += block.nbytes
        if self.nbytes > limits.memory_bytes:
            rule = f"take at most {limits.memory_bytes} bytes with all lists as long as the longest of {BLOCK}"
            raise RefusedError(413, f"select: queries must {rule}, got more", "queries")
        block.positions = positions
        self.blocks.append(block)

    def extend(self, other: Asked, begin: int) -> None:
        """Add the queries of another request, which stand here from ``begin`` on."""
        for block in other.blocks:
            block.positions = [begin + position for position in block.positions]
        self.blocks += other.blocks
        self.errors |= {begin + position: error for position, error in other.errors.items()}
        self.nbytes += other.nbytes

    def take(self, parts: Sequence[tuple[Block, Selection]]) -> None:
        """Take the blocks as they were answered, and their picks; what could not be answered is its query's error."""
        self.blocks, self.picks = [block for block, _ in parts], [picked for _, picked in parts]
        for block, picked in parts:
            picked.unmet = block.unmet_of(picked)
            for q, message in (picked.errors or {}).items():
                status = 500 if message == FAILED else 422
                self.errors[block.positions[q]] = RefusedError(status, block.named(q, message), argument_of(message))

    def fail(self, why: RefusedError) -> None:
        """Give this error to all queries that have none yet."""
        self.blocks, self.picks = [], ()
        self.errors = {i: self.errors.get(i, why) for i in range(self.count)}

    def answered(self) -> Iterator[tuple[Block, Selection]]:
        """Return each block with its picks."""
        return zip(self.blocks, self.picks, strict=True)

    def skipped(self) -> dict[int, list[Any]]:
        """Return the unknown ids that were left out, by the position of their query."""
        return {b.positions[q]: ids for b in self.blocks for q, ids in (b.skipped or {}).items()}

    def lacking(self) -> dict[int, dict[str, int]]:
        """Return which groups lack picks, by the position of their query; nothing of queries with an error."""
        found = {b.positions[q]: each for b, picks in self.answered() for q, each in enumerate(picks.unmet or ())}
        return {position: each for position, each in found.items() if position not in self.errors}

    def raise_error(self) -> None:
        """Raise the error of the first query that has one, where a request has one answer for all."""
        for error in self.errors.values():
            raise error

    @property
    def answer_bytes(self) -> int:
        """Bytes of the answer, at most and roughly: its picks as arrays and as JSON."""
        picks = 0
        for block in self.blocks:
            candidates = block.request.candidates
            width = block.served.rows if candidates is None else candidates.shape[1]
            picks += block.size * min(block.most, width)
        return _PICK * picks

    @property
    def status(self) -> int:
        """The status of the answer: 200, or `status_of` the errors if no query has picks."""
        return 200 if len(self.errors) < self.count else status_of(self.errors.values())


def status_of(errors: Iterable[RefusedError]) -> int:
    """Return the status if no query has picks: 500 if the server itself failed on one of them, else 422."""
    return max(error.status for error in errors)
