"""Quotas: caps that differ by group or level, and how many picks a group is to have at least.

One cap for all groups of one level is `Constraints.max_per_group`, which every kernel has. What is asked beyond that is
a `Quotas`, which the compiled kernels (``Quotas`` in csrc/cpu/selection/args.h) and the reference take.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from .. import _dispatch
from .._base.checks import count, shown, whole
from .._base.warn import warn
from .request import Request

NO_CAP = int(np.iinfo(np.int64).max)
BACKENDS = ("cpu", "reference")
_BLOCK, _NAMED = 1 << 14, 3  # rows that are looked at together; names of groups that a warning has
# Whether the groups of a corpus, by the id of their array, have a number: one that few rows have takes all of them.
_HELD: dict[int, dict[int, bool]] = {}
_MOST_HELD = 1 << 12


@dataclasses.dataclass(slots=True, eq=False)
class Quotas:
    """Caps and minima by the numbers of groups; in each level those that have one of their own ascend."""

    groups: np.ndarray  # (L, N) int64
    offsets: np.ndarray  # (L + 1,) int64: which of `numbers` are of a level
    numbers: np.ndarray  # (G,) int64, groups
    caps: np.ndarray  # (G,) int64
    others: np.ndarray  # (L,) int64: the cap of a level's other groups
    minima: np.ndarray | None = None  # (G,) int64, with one level
    asked: Any = None  # ``min_per_group``: an integer, or of each name the number of the group and the minimum
    names: Any = None  # the strings that groups are numbers of; None: groups are integers
    # Of a whole call: candidates, filter and size of its pools before ``min_relevance`` left out items, if it did.
    pools: tuple[Any, Any, int] | None = None

    def take(self, queries: np.ndarray | slice, dense: tuple[int, int] | None) -> Quotas:
        """Return the quotas of some of the queries; ``dense`` is the shape (Q, P) of dense pools, else None."""
        if dense is None:
            return self
        levels = len(self.groups)
        groups = self.groups.reshape(levels, *dense)[:, queries].reshape(levels, -1)
        return dataclasses.replace(self, groups=np.ascontiguousarray(groups), pools=None)

    def caps_of(self, level: int) -> tuple[dict[int, int], int]:
        """Return the caps of groups that have one of their own in a level, and that of the others."""
        own = slice(self.offsets[level], self.offsets[level + 1])
        return dict(zip(self.numbers[own].tolist(), self.caps[own].tolist(), strict=True)), int(self.others[level])

    def least(self) -> dict[int, int]:
        """Return the minima of groups that have one."""
        if self.minima is None:
            return {}
        of = zip(self.numbers.tolist(), self.minima.tolist(), strict=True)
        return {group: least for group, least in of if least}

    def labels(self, numbers: np.ndarray) -> list[Any]:
        """Return the names of groups, or integers as they are."""
        found: list[Any] = (numbers if self.names is None else np.asarray(self.names[numbers])).tolist()
        return found


def read(request: Request, groups: np.ndarray, of_levels: bool, names: Any, candidates: np.ndarray | None) -> Quotas:
    """Return the quotas that a request describes, or raise the error that names the bad argument.

    ``groups``: (L, N), numbers of the strings ``names`` where these are not None. ``of_levels``: whether they were
    given with an axis of levels. ``candidates``: (Q, P) rows, or None.
    """
    op = request.op
    caps = _caps(op, request.max_per_group, len(groups), of_levels, names)
    minima: dict[int, int] = {}
    asked = _asked(op, request.min_per_group, names)
    if asked is not None:
        if len(groups) > 1:
            raise ValueError(f"{op}: min_per_group must come with groups of one level, got {len(groups)}")
        if isinstance(asked, dict):
            minima = {number: least for number, least in asked.values() if number is not None and least}
        else:
            minima = dict.fromkeys(np.unique(_of_pools(groups[0], candidates)).tolist(), asked)
        _check_caps(op, asked, *caps[0])
    own = [{number: cap for number, cap in level.values() if number is not None} for level, _ in caps]
    others = [rest for _, rest in caps]
    numbers = [np.array(sorted({*level, *minima}), np.int64) for level in own]
    of_own = [[x.get(n, rest) for n in some.tolist()] for x, rest, some in zip(own, others, numbers, strict=True)]
    return Quotas(
        groups,
        np.cumsum([0, *map(len, numbers)]),
        np.concatenate(numbers),
        np.concatenate([np.array(x, np.int64) for x in of_own]),
        np.array(others, np.int64),
        np.array([minima.get(n, 0) for n in numbers[0].tolist()], np.int64) if minima else None,
        asked,
        np.array(list(names), object) if isinstance(names, dict) else names,
    )


def check(op: str, caps: Any, minima: Any, names: Any) -> None:
    """Refuse caps and minima that groups of one level cannot have, which are the strings ``names``, or integers."""
    [cap] = _caps(op, caps, 1, False, names)
    asked = _asked(op, minima, names)
    if asked is not None:
        _check_caps(op, asked, *cap)


def warn_of_unknown(op: str, request: Request, corpus: Any) -> None:
    """Warn of caps and minima for names that no row of a corpus has: a misspelt one caps no pick."""
    if request.groups is not None or corpus.groups is None or corpus.device != "cpu":
        return  # groups of the call may be those of a few candidates
    for name in ("max_per_group", "min_per_group"):
        given = getattr(request, name)
        if isinstance(given, Mapping) and (unknown := _unknown(corpus, list(given))):
            some = ", ".join(map(shown, unknown[:_NAMED])) + (", ..." if len(unknown) > _NAMED else "")
            warn(f"{op}: {name} names groups that no row of the corpus has: {some}", UserWarning)


def _unknown(corpus: Any, keys: list[Any]) -> list[Any]:
    """Return the names that no row has; names of the wrong type are refused elsewhere."""
    if corpus.group_names is not None:
        keys = [key for key in keys if isinstance(key, str)]
        return [key for key, number in zip(keys, _numbers(corpus.group_names, keys), strict=True) if number is None]
    place = id(corpus.groups)
    if place not in _HELD:
        _HELD[place] = {}
        weakref.finalize(corpus.groups, _HELD.pop, place, None)
    held = _HELD[place]
    if len(held) > _MOST_HELD:
        held.clear()
    integers = [int(key) for key in keys if isinstance(key, (int, np.integer)) and not isinstance(key, bool)]
    left = [key for key in integers if key not in held]
    for begin in range(0, len(corpus.groups) if left else 0, _BLOCK):  # groups that there are turn up soon
        block = corpus.groups[begin : begin + _BLOCK]
        held.update({key: True for key in left if (block == key).any()})
        if not (left := [key for key in left if key not in held]):
            break
    held.update(dict.fromkeys(left, False))
    return [key for key in integers if held.get(key) is False]


def with_integers(op: str, name: str, given: Any) -> Any:
    """Return a mapping whose names are text with the integers that they are; of other names, and values, the same.

    JSON and command lines have no other names. Text is of an integer only as Python writes it, so that no two are.
    """
    if not isinstance(given, Mapping):
        return given
    found = {_integer(key): value for key, value in given.items()}
    if len(found) < len(given):
        raise ValueError(f"{op}: {name} must name each group once, got integers and text of them")
    return found


def _integer(key: Any) -> Any:
    try:
        return number if isinstance(key, str) and str(number := int(key)) == key else key
    except ValueError:
        return key


def by_number(given: Any, names: Any) -> Any:
    """Return a mapping by the numbers of groups that some item has; another value as it is."""
    if names is None or not isinstance(given, Mapping):
        return given
    numbers = _numbers(names, list(given))
    return {number: x for number, x in zip(numbers, given.values(), strict=True) if number is not None}


def _asked(op: str, given: Any, names: Any) -> Any:
    """Return ``min_per_group``, checked, as `Quotas.asked` has it."""
    if given is None or isinstance(given, Mapping):
        return None if given is None else _by_name(op, "min_per_group", given, names)
    return count(op, "min_per_group", given)


def _of_pools(groups: np.ndarray, candidates: np.ndarray | None) -> np.ndarray:
    """Return the groups of candidates; those that are no rows are refused elsewhere."""
    return groups if candidates is None else groups[candidates[(candidates >= 0) & (candidates < len(groups))]]


_Own = dict[Any, tuple[int | None, int]]  # of each name the number, None if no item has it, and the value


def _caps(op: str, given: Any, levels: int, of_levels: bool, names: Any) -> list[tuple[_Own, int]]:
    """Return, of each level, the caps of single groups, and that of the others."""
    each = [given] * levels
    if of_levels and (isinstance(given, (list, tuple)) or getattr(given, "ndim", 0) > 0):
        each = list(given)
        if len(each) != levels:
            rule = f"have one value for each of {levels} levels of groups"
            raise ValueError(f"{op}: max_per_group must {rule}, got {len(each)}")
    found: list[tuple[_Own, int]] = []
    for cap in each:
        if isinstance(cap, Mapping):
            found.append((_by_name(op, "max_per_group", cap, names), NO_CAP))
        else:
            found.append(({}, NO_CAP if cap is None else count(op, "max_per_group", cap)))
    return found


def _by_name(op: str, name: str, given: Mapping[Any, Any], names: Any) -> _Own:
    """Return what a mapping says of groups."""
    kinds: Any = (int, np.integer) if names is None else str
    values: dict[Any, int] = {}
    for key, value in given.items():
        if not isinstance(key, kinds) or isinstance(key, bool):
            kind = "integers" if names is None else "strings"
            raise TypeError(f"{op}: {name} must name groups by {kind}, as groups are, got {shown(key)}")
        number = whole(op, name, value, "an integer for each group")
        if number < 0:
            raise ValueError(f"{op}: {name} must be at least 0 for each group, got {number} for {shown(key)}")
        values[int(key) if names is None else key] = number
    return dict(zip(values, zip(_numbers(names, list(values)), values.values(), strict=True), strict=True))


def _numbers(names: Any, keys: list[Any]) -> list[int | None]:
    """Return the numbers of groups, None for what no item has."""
    if names is None:
        return [key if -(2**63) <= key < 2**63 else None for key in keys]
    if isinstance(names, dict):
        return [names.get(key) for key in keys]
    return [None if number < 0 else number for number in names.rows_of(keys, unknown="pad").tolist()] if keys else []


def _check_caps(op: str, asked: Any, own: _Own, rest: int) -> None:
    """Refuse a minimum that the cap of its group does not leave room for."""
    if isinstance(asked, dict):
        pairs = [(least, own[name][1] if name in own else rest, name) for name, (_, least) in asked.items()]
    else:
        pairs = [(asked, rest, None), *((asked, cap, name) for name, (_, cap) in own.items())]
    for least, cap, name in pairs:
        if least > cap:
            of_group = "" if name is None else f" for {shown(name)}"
            raise ValueError(f"{op}: min_per_group must be at most max_per_group, got {least} above {cap}{of_group}")


def refuse(op: str, where: str) -> NoReturn:
    """Refuse quotas where no kernel has them."""
    raise _dispatch.BackendUnavailableError(
        f"{op}: max_per_group must be one integer, of groups of one level, {where}; 'cpu' and 'reference' take others"
    )
