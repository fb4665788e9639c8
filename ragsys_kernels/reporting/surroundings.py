"""What the numbers of a report were measured on."""

from __future__ import annotations

import platform
from datetime import datetime, timezone
from typing import Any

from .._base import env
from .._base.extras import installed
from .._info import active
from .._version import __version__

_LIBRARIES = (
    "numpy", "torch", "transformers", "sentence-transformers", "bm25s", "faiss-cpu", "scikit-learn", "rouge-score",
    "matplotlib",
)  # fmt: skip


def surroundings(num_threads: int | None = None) -> dict[str, Any]:
    """Return versions, backend, processors and date."""
    backend, isa = active()
    return {
        "ragsys_kernels": __version__,
        "backend": f"{backend} ({isa})" if isa else backend,
        "Python": platform.python_version(),
        **installed(_LIBRARIES),
        "system": f"{platform.system()} {platform.machine()}",
        "threads": f"{env.num_threads()}, torch's own number" if num_threads is None else num_threads,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }
