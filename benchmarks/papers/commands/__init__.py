"""The commands of ``python -m benchmarks.papers``, a file for each paper."""

from . import aicl, boolq, ragsys, ralm, vrsd  # noqa: F401 -- each adds its commands
from ._options import app

__all__ = ["app"]
