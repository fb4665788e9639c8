"""The messages between the parent and its workers, for `workers`; ``reload`` is the number of a reload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .limits import RefusedError


@dataclass(frozen=True)
class Refusal:
    """Why a reload failed."""

    status: int  # of HTTP
    reason: str
    code: str | None = None  # None: that of the status
    argument: str | None = "name"  # of the request

    @classmethod
    def of(cls, error: RefusedError) -> Refusal:
        return cls(error.status, str(error), error.code, error.argument)


# From the parent to a worker.


@dataclass(frozen=True)
class Serve:
    """Accept connections."""


@dataclass(frozen=True)
class Close:
    """Close the address: no other worker needs it open."""


@dataclass(frozen=True)
class Load:
    """Load a corpus beside the one in service."""

    reload: int
    name: str
    folder: str
    own: bool  # it is the folder that the corpus has
    verify: bool  # against its checksums
    compared: set[str]  # segments whose bytes need not be compared again


@dataclass(frozen=True)
class Swap:
    """Put the loaded corpus in service."""

    reload: int


@dataclass(frozen=True)
class Drop:
    """Free the loaded corpus: the reload has failed."""

    reload: int


@dataclass(frozen=True)
class Remove:
    """Take a corpus out of service."""

    reload: int
    name: str


@dataclass(frozen=True)
class Count:
    """Count a reload in the metrics of all workers."""

    name: str
    outcome: str


@dataclass(frozen=True)
class Answer:
    """The outcome of the oldest reload that this worker has asked for and that has no answer yet."""

    outcome: dict[str, Any] | Refusal  # name, rows and version of the corpus


ToWorker = Serve | Close | Load | Swap | Drop | Remove | Count | Answer


# From a worker to the parent.


@dataclass(frozen=True)
class Ready:
    """The corpora are loaded; the worker waits for `Serve`."""

    versions: dict[str, str]  # of each corpus


@dataclass(frozen=True)
class Drained:
    """The worker ends, and has answered all requests that came before; it still takes others until `Close`."""


@dataclass(frozen=True)
class Failed:
    """The worker cannot start, and ends."""

    reason: str


@dataclass(frozen=True)
class Reload:
    """A request asks for a reload, in all workers."""

    name: str
    folder: str | None  # from which; None: its own


@dataclass(frozen=True)
class Unload:
    """A request asks to take a corpus out of service, in all workers."""

    name: str


@dataclass(frozen=True)
class Loaded:
    """The corpus of a `Load` is loaded."""

    reload: int
    corpus: dict[str, Any]  # its name, rows and version
    compared: set[str]  # segments whose bytes this worker knows to be as they were saved


@dataclass(frozen=True)
class NotLoaded:
    """The corpus of a `Load` could not be loaded."""

    reload: int
    refusal: Refusal


@dataclass(frozen=True)
class Swapped:
    """The corpus of a `Swap` is in service, or that of a `Remove` is not any more."""

    reload: int
