"""Commands that reproduce the papers' tables: ``evaluate``, a file for each folder of ``evaluation``."""

from . import aicl, boolq, ragsys, ralm, vrsd  # noqa: F401 -- each adds its commands
