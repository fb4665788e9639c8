"""Ray, imported where it is used, and its errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..._base.extras import needed


def import_ray(op: str) -> Any:
    with needed(op, "ray"):
        import ray
    return ray


def lost(ray: Any) -> tuple[type[Exception], ...]:
    """Return the errors that say that a process or its node was lost, or with it what it had answered."""
    errors = ray.exceptions
    return errors.RayActorError, errors.ObjectLostError, errors.OutOfMemoryError


@contextmanager
def one_line(ray: Any, op: str) -> Iterator[None]:
    """Raise an error of Ray as one line."""
    try:
        yield
    except ray.exceptions.RayError as error:
        raise OSError(f"{op}: Ray failed: {' '.join(str(error).split())}") from error
