"""``ragsys-kernels show-config``."""

from __future__ import annotations

import ragsys_kernels as rk

from ._app import app


@app.command()
def show_config() -> None:
    """Print versions, the backends with the reason why each can or cannot run, and the instruction set."""
    rk.show_config()
