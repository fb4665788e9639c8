"""The GPU as the driver describes it, and what is installed; needs no library, and changes no setting."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from typing import Any

_ASKED = (
    "name", "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "power.limit", "power.draw",
    "temperature.gpu", "utilization.gpu", "memory.used", "memory.total", "clocks_event_reasons.active",
)  # fmt: skip
_STEADY = ("name", "driver_version", "clocks.max.sm", "clocks.max.mem", "power.limit", "memory.total")
LIBRARIES = (
    "numpy", "torch", "triton", "cupy-cuda13x", "cupy-cuda12x", "pytest", "pytest-xdist", "pytest-timeout",
    "hypothesis", "pybind11", "pyarrow", "liger-kernel", "cut-cross-entropy", "trl", "flash-attn",
)  # fmt: skip


def state() -> dict[str, str]:
    """Return what nvidia-smi says of the first GPU, or why it says nothing."""
    command = ["nvidia-smi", "--id=0", f"--query-gpu={','.join(_ASKED)}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"nvidia-smi": str(error)}
    values = [value.strip() for value in answer.stdout.strip().split(",")]
    if answer.returncode or len(values) != len(_ASKED):
        return {"nvidia-smi": (answer.stdout + answer.stderr).strip()[:500]}
    return dict(zip(_ASKED, values, strict=True))


def moving() -> dict[str, str]:
    """Return of this what changes under work: clocks, power, temperature."""
    return {name: value for name, value in state().items() if name not in _STEADY}


def columns() -> dict[str, str]:
    """Return the columns of a ledger that say in which state the device is, empty where its driver does not say."""
    said = state()
    clocks = [said[name] for name in ("clocks.max.sm", "clocks.max.mem") if name in said]
    power = said.get("power.limit", "")
    return {"driver": said.get("driver_version", ""), "clocks_mhz": " ".join(clocks), "power_limit_w": power}


def versions() -> dict[str, Any]:
    found = {"python": platform.python_version(), "system": platform.platform()}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
