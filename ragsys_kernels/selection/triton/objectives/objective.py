"""What a rule is in regime a: four functions that the kernel calls, and what they are told.

A rule keeps a state: a tuple of tensors and numbers, whose kinds stay the same from pick to pick. A tensor has a number
for each slot, or of a rule that is ``ranked`` a row of RANK numbers, a power of two with room for all picks and initial
items that have a say in the next.

    start(items, free, RANK) -> state                  before anything is taken
    value(state, items, free, taken, first) -> w, state
                                                       what each slot is worth as the next pick
    take(state, items, similarity, pick, taken, INITIAL) -> state
                                                       a slot is taken, as ``pick`` marks it; ``similarity`` of all to
                                                       it; ``taken`` with it; INITIAL: it is an initial item
    outputs(state, items, w, first) -> score, redundancy
                                                       of each slot, should it be the pick

``free`` may be picked, ``taken`` are picks and initial items, ``first``: there are none yet. At the start ``free`` is
what may be picked before budgets, caps and ceilings act. The kernel does all else: products and norms, who may be
picked, arg-max and ties, groups and caps, budgets and ceilings, padding.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Items(NamedTuple):
    """What a rule may know: of each slot, and of the query."""

    v: Any  # relevance with bias
    length: Any  # of the vector; 1 unless the rule asks for lengths
    lambda_d: Any
    # The rows: a slot's begins at ``rows + offset`` if ``valid``; vector = factor * row.
    rows: Any
    offset: Any
    factor: Any
    valid: Any
    D: Any
    gram: Any  # the similarities of all slots [SLOTS, SLOTS] if the rule asks for them
    far: Any  # how far apart items of similarity 0 are: 1 for unit vectors, else 0
    quality: Any  # of each slot if it is given
    number: Any  # options of the rule
    second: Any
    window: Any


class Objective(NamedTuple):
    """A rule; each function is compiled with ``@triton.jit``."""

    start: Any
    value: Any
    take: Any
    outputs: Any
    lengths: bool = False  # asks for the lengths of the vectors
    initial: bool = False  # asks for the relevance of initial items where the call gives that of the pool
    cosine: bool = False  # relevance is the cosine with the query, even where vectors are taken as given
    whole: bool = False  # asks for the similarities of all slots, so that their matrix is made whatever the type
    redundant: bool = False  # has a redundancy of its own, where others give the largest similarity if that is kept
    ranked: bool = False  # keeps rows of RANK numbers

    def constexprs(self) -> dict[str, Any]:
        """Return the arguments of the kernel that make it this rule's."""
        functions = {"START": self.start, "VALUE": self.value, "TAKE": self.take, "OUTPUTS": self.outputs}
        flags = {"LENGTHS": self.lengths, "INITIAL_RELEVANCE": self.initial, "COSINE": self.cosine}
        return {**functions, **flags, "WHOLE": self.whole, "REDUNDANT": self.redundant}
