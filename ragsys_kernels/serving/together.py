"""Small requests that arrive together are read, answered and written as one.

Most of the work for a small request is done once per column, however many queries the column has. Requests with equal
rules that arrive in the same round of the event loop share this work. Each gets the answer that it would get alone.
"""

from __future__ import annotations

import asyncio
from typing import Any

from .asked import BLOCK, Asked
from .batcher import Batcher, Pending, Ticket
from .corpora import Served
from .limits import Limits, RefusedError, gone
from .queries.reading import read_by
from .queries.rules import Rules, rules_of


class Party(Pending):
    """Requests that go together: their queries end to end, and then what was asked and picked."""

    def __init__(self, rules: Rules) -> None:
        super().__init__()
        self.rules = rules
        self.queries: list[Any] = []
        self.begins: list[int] = []  # where the queries of each request begin
        self.failed: dict[int, Exception] = {}  # why a request could not be read, by where it begins
        self.members = 0  # requests whose clients have not gone
        self.asked = Asked(rules.served, 0)
        self.ticket: Ticket | None = None
        self.texts: list[bytes] | None = None  # the answers as JSON, once one of the requests has written them

    def read(self) -> None:
        """Read the queries of all requests at once, or if that fails of each, so that one does not fail the others."""
        whole = self.queries
        try:
            self.asked = read_by(self.rules, whole)
            return
        except Exception:
            if len(self.begins) == 1:
                raise
        served = self.rules.served
        self.asked = Asked(served, len(whole), strings=served.named)
        for begin, end in zip(self.begins, [*self.begins[1:], len(whole)], strict=True):
            try:
                self.asked.extend(read_by(self.rules, whole[begin:end]), begin)
            except Exception as error:
                self.failed[begin] = error.kept() if isinstance(error, RefusedError) else error

    def leave(self) -> None:
        """Note that a client has disconnected; end when no client is left."""
        self.members -= 1
        if not self.members:
            self.end(gone())
            if self.ticket is not None:
                self.ticket.end(gone())

    def answered(self) -> None:
        """Take what the kernels have picked."""
        assert self.ticket is not None
        self.end(self.ticket.error)


class Together:
    """Gathers the requests of a round of the event loop."""

    def __init__(self, batcher: Batcher, limits: Limits) -> None:
        self._batcher, self._limits = batcher, limits
        self._parties: dict[Rules, Party] = {}
        self._round: list[Party] = []  # all of this round; those in `_parties` take more queries
        self._gathered = 0  # queries of the round

    def join(self, queries: list[Any], common: dict[str, Any], served: Served) -> tuple[Party, int, int]:
        """Return the party of a request, which is answered after this round, and where its queries begin and end.

        All requests have the server's own deadline: those with another do not come here.
        """
        self._batcher.check_room(self._gathered + len(queries))
        rules = rules_of("select", common, served, self._limits)
        party = self._parties.get(rules)
        if party is None or len(party.queries) + len(queries) > BLOCK:
            if not self._round:
                asyncio.get_running_loop().call_soon(self._go)
            party = self._parties[rules] = Party(rules)
            self._round.append(party)
        begin = len(party.queries)
        party.begins.append(begin)
        party.queries += queries
        party.members += 1
        self._gathered += len(queries)
        return party, begin, len(party.queries)

    def _go(self) -> None:
        """Close the parties of a round: read what they ask, and give it to the kernels."""
        parties, self._round, self._gathered = self._round, [], 0
        self._parties.clear()
        for party in parties:
            if party.done:  # all clients have gone
                continue
            try:
                party.read()
                party.ticket = self._batcher.submit(party.asked, look=False, callers=len(party.begins))
            except Exception as error:
                party.end(error.kept() if isinstance(error, RefusedError) else error)
            else:
                party.ticket.then(party.answered)
        self._batcher.look()
        for party in parties:
            if party.ticket is not None and not party.done:  # only now: most have been answered, and need no timer
                loop = asyncio.get_running_loop()
                party.ticket.expire_at(loop, loop.time() + self._limits.timeout_ms / 1000)
