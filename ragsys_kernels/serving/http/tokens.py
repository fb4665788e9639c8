"""Who may call: bearer tokens, each with a name, a role and quotas, from a file that is read again when it changes.

A line of the file, or of the text that is given instead, is ``TOKEN [name=NAME] [role=read|admin]
[queries_per_second=N] [queries_in_flight=N]``. Empty lines and lines that begin with ``#`` are skipped. Lines with one
name are one caller, whose old token is valid beside the new one while it changes from one to the other.
"""

from __future__ import annotations

import fcntl
import hmac
import math
import os
import re
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..._base import env
from ..._base.files import read
from ..limits import QUOTA, RefusedError, invalid

MOST_BYTES = 1 << 20  # of a file of tokens
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_DEFAULT = "default"  # the name of tokens without one


@dataclass(frozen=True)
class Caller:
    """What the tokens of one name may do."""

    name: str
    role: str = "admin"  # or "read"
    queries_per_second: float | None = None
    queries_in_flight: int | None = None


def parsed(text: str, what: str = "token") -> dict[str, Caller]:
    """Return the callers by their tokens.

    Raises
    ------
    ValueError
        A line is wrong, or there is none. The message has no part of a token.
    """
    found: dict[str, Caller] = {}
    callers: dict[str, Caller] = {}
    for number, line in enumerate(text.split("\n"), 1):
        token, *fields = line.split() or [""]
        if not token or token.startswith("#"):
            continue
        if not (token.isascii() and token.isprintable()):
            raise ValueError(f"serve: {what} must be printable ASCII and not empty, got another in line {number}")
        caller = _caller(fields, f"in line {number} of {what}")
        if callers.setdefault(caller.name, caller) != caller:
            rule = "have the same role and quotas in all lines of one name"
            raise ValueError(f"serve: {what} must {rule}, got others of {caller.name!r} in line {number}")
        if found.setdefault(token, caller) != caller:
            raise ValueError(f"serve: {what} must have each token once, got one again in line {number}")
    if not found:
        raise ValueError(f"serve: {what} must be printable ASCII and not empty, got none")
    return found


def _caller(fields: list[str], where: str) -> Caller:
    """Return the caller whose fields, ``NAME=VALUE``, stand behind a token."""
    given: dict[str, str] = {}
    for field in fields:
        name, equals, value = field.partition("=")
        if not equals or name not in Caller.__dataclass_fields__ or name in given:
            rule = f"be NAME=VALUE with one of {', '.join(Caller.__dataclass_fields__)}, each once"
            raise ValueError(f"serve: what follows a token must {rule}, got another {where}")
        given[name] = value
    name, role = given.get("name", _DEFAULT), given.get("role", "admin")
    if not _NAME.fullmatch(name):
        raise ValueError(f"serve: name must be 1 to 64 letters, digits, '.', '_' and '-', got {name[:70]!r} {where}")
    if role not in ("read", "admin"):
        raise ValueError(f"serve: role must be read or admin, got {role[:70]!r} {where}")
    rate, most = given.get("queries_per_second"), given.get("queries_in_flight")
    return Caller(name, role, rate and _rate(rate, where), most and _count(most, where))  # type: ignore[arg-type]


def _rate(text: str, where: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise ValueError(f"serve: queries_per_second must be a number above 0, got {text[:70]!r} {where}")
    return rate


def _count(text: str, where: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text)):
        raise ValueError(f"serve: queries_in_flight must be a whole number of at least 1, got {text[:70]!r} {where}")
    return int(text)


class _Ledger:
    """The bucket of one caller and its queries in flight, of all workers together where there are several.

    Workers share a file, which a worker locks for the microseconds in which it counts: the lock of one that dies is
    free again. A worker counts what it has in flight in a place of its own, which it clears when it starts.
    """

    def __init__(self, name: str, place: int, workers: int) -> None:
        self._mine = 2 + place
        self._record = struct.Struct(f"{2 + workers}d")
        self._state = [0.0, -math.inf, *[0.0] * workers]  # the bucket's level, and when; queries in flight by worker
        self._file: int | None = None
        if (folder := env.metrics_folder()) is not None:
            self._file = os.open(Path(folder, f"quota-{name}"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with self._held() as state:
            state[self._mine] = 0.0

    def take(self, caller: Caller, queries: int) -> None:
        """Count queries that begin, or refuse them."""
        rate, most, now = caller.queries_per_second, caller.queries_in_flight, time.monotonic()
        if most is not None and queries > most:
            raise invalid("serve", "queries", f"be at most {most} in flight with this token", queries)
        with self._held() as state:
            if most is not None and sum(state[2:]) + queries > most:
                raise _exceeded(f"be at most {most} in flight with this token", 1)
            if rate is not None:
                # A request of more queries than the bucket holds begins when it is full, and leaves a debt.
                full = max(rate, 1.0)
                level, needed = min(full, state[0] + (now - state[1]) * rate), min(queries, full)
                if level < needed:
                    raise _exceeded(f"be at most {rate:g} a second with this token", math.ceil((needed - level) / rate))
                state[:2] = level - queries, now
            state[self._mine] += queries

    def give_back(self, queries: int) -> None:
        """Count queries that have ended."""
        with self._held() as state:
            state[self._mine] -= queries

    @contextmanager
    def _held(self) -> Iterator[list[float]]:
        """Yield the state, to be changed in place."""
        if self._file is None:
            yield self._state
            return
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            found = os.pread(self._file, self._record.size, 0)
            state = list(self._record.unpack(found)) if found else self._state
            yield state
            os.pwrite(self._file, self._record.pack(*state), 0)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)


def _exceeded(rule: str, seconds: int) -> RefusedError:
    return RefusedError(
        429, f"serve: queries must {rule}, got more", "queries", {"retry-after": str(max(1, seconds))}, QUOTA
    )


class Account:
    """A caller, and what it has in flight."""

    __slots__ = ("_ledger", "admin", "caller", "name")

    def __init__(self, caller: Caller, ledger: _Ledger | None) -> None:
        self.caller, self.name, self.admin, self._ledger = caller, caller.name, caller.role == "admin", ledger

    def take(self, queries: int) -> None:
        """Count queries that begin; refuse them with 429 beyond a quota."""
        if self._ledger is not None:
            self._ledger.take(self.caller, queries)

    def give_back(self, queries: int) -> None:
        """Count queries that have ended, of those taken."""
        if self._ledger is not None:
            self._ledger.give_back(queries)


class Tokens:
    """The check of ``Authorization: Bearer TOKEN``.

    Parameters
    ----------
    text : str, optional
        The tokens, in lines as above. None, and no file: every request is taken.
    file : path, optional
        Where they stand, for `read_again`.
    place, workers : int
        Of this process among the workers, which share quotas.
    """

    def __init__(
        self, text: str | None = None, file: str | Path | None = None, place: int = 0, workers: int = 1
    ) -> None:
        self._file, self._place, self._workers = file, place, workers
        self._accounts: list[tuple[bytes, Account]] = []
        self._ledgers: dict[str, _Ledger] = {}  # by name: they stay when the file is read again
        if text is not None:
            self._use(parsed(text))
        elif file is not None:
            self._use(read_from(file))

    @property
    def required(self) -> bool:
        return bool(self._accounts)

    def check(self, headers: Mapping[bytes, bytes]) -> Account | None:
        """Return whose token a request has; None where none is required."""
        if not self._accounts:
            return None
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        account = None
        for expected, each in self._accounts:  # all of them: the time tells nothing of a token
            if hmac.compare_digest(token, expected):
                account = each
        if account is None or scheme.lower() != b"bearer":
            got = "another" if b"authorization" in headers else "none"
            message = f"serve: authorization must be 'Bearer' and a token of this server, got {got}"
            raise RefusedError(401, message, "authorization", {"www-authenticate": "Bearer"})
        return account

    def read_again(self) -> None:
        """Take the tokens that are in the file now; `OSError` or `ValueError`, and those before, where none can be."""
        if self._file is not None:
            self._use(read_from(self._file))

    def _use(self, callers: Mapping[str, Caller]) -> None:
        self._accounts = [(token.encode(), self._account(caller)) for token, caller in callers.items()]

    def _account(self, caller: Caller) -> Account:
        if caller.queries_per_second is None and caller.queries_in_flight is None:
            return Account(caller, None)
        if caller.name not in self._ledgers:
            self._ledgers[caller.name] = _Ledger(caller.name, self._place, self._workers)
        return Account(caller, self._ledgers[caller.name])


def read_from(file: str | Path) -> dict[str, Caller]:
    """Return the callers of a file by their tokens."""
    return parsed(text_of(file), "token_file")


def text_of(file: str | Path) -> str:
    """Return the text of a file of tokens, not yet looked at."""
    return decoded(read(file, MOST_BYTES))


def decoded(content: bytes) -> str:
    """Return the text of a file of tokens."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ValueError("serve: token_file must be printable ASCII and not empty, got other bytes") from None
