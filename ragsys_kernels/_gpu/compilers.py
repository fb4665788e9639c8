"""Triton's compilers, one with each torch, and which of them the kernels are not to be compiled with.

torch 2.11 comes with Triton 3.6.0, 2.12 with 3.7.0, 2.13 with 3.7.1, 2.14 with 3.8, 2.15 with 3.9.
"""

from __future__ import annotations

import functools

from .._base import env

# The oldest and the newest that have compiled every kernel, for every architecture of benchmarks/gpu/compilation.py.
OLDEST, NEWEST = "3.6.0", "3.9.0"

# What is wrong with the code that a compiler makes for an architecture, or that it makes none: backend "triton" is
# unavailable there. By major and minor number, and architecture.
REFUSED: dict[tuple[tuple[int, int], str], str] = {}


# The oldest that makes the matrix of float32 rows, which coverage needs, on an architecture: 3.6 makes an empty kernel.
MATRIX_OF_FLOAT32 = {"sm_100": (3, 9)}


def version() -> tuple[int, int]:
    """Return major and minor number of the Triton that is installed."""
    import triton

    return numbers(triton.__version__)


def numbers(text: str) -> tuple[int, int]:
    """Return major and minor number of a version."""
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def why_too_old() -> str | None:
    """Return the reason that no kernel is to be compiled, or interpreted, with the Triton that is installed."""
    if version() >= numbers(OLDEST):
        return None
    return "triton {}.{} is older than {}.{}, the oldest that is tested".format(*version(), *numbers(OLDEST))


def why_not(arch: str) -> str | None:
    """Return the reason that kernels for an architecture are not to be compiled with the Triton that is installed."""
    reason = REFUSED.get((version(), family(arch)))
    return None if reason is None else "triton {}.{} on {}: {}".format(*version(), arch, reason)


def why_no_matrix_of_float32(arch: str) -> str | None:
    """Return the reason that coverage of float32 rows is not to be compiled with the Triton that is installed."""
    oldest = MATRIX_OF_FLOAT32.get(family(arch), (0, 0))
    if version() >= oldest:
        return None
    return "coverage of float32 rows on {} needs triton {}.{}, got {}.{}".format(arch, *oldest, *version())


def is_hopper() -> bool:
    """Return whether torch's current device is of the generation for which tiles were chosen by their times.

    They are an H200's. Elsewhere tiles are those that compile without spills. The interpreter runs the former.
    """
    import torch

    return env.triton_interpreter() or (not torch.version.hip and _generation(torch.cuda.current_device()) == 9)


@functools.cache
def _generation(device: int) -> int:
    import torch

    return int(torch.cuda.get_device_capability(device)[0])


def float32_precision(hopper: bool) -> str:
    """Return how matrices of float32 are multiplied on Hopper: as three bfloat16 parts each, six products that matter.

    These are the float32 products but for less than 2^-23 of them, by matrix units. The interpreter has none, and
    Triton 3.6 makes empty kernels of them for sm_100.
    """
    return "bf16x6" if hopper and not env.triton_interpreter() else "ieee"


def family(arch: str) -> str:
    """Return the architecture for which code was looked at: of its generation on NVIDIA, "sm_86" is "sm_80"."""
    return f"{arch[:-1]}0" if arch.startswith("sm_") else arch


def architecture() -> str:
    """Return the architecture of torch's current device."""
    import torch

    if torch.version.hip:
        return str(torch.cuda.get_device_properties().gcnArchName).partition(":")[0]
    return "sm_{}{}".format(*torch.cuda.get_device_capability())


def summary() -> str:
    """Return which compilers the kernels are held to, and which are refused where."""
    refused = ["{}.{} on {}".format(*triton, arch) for triton, arch in sorted(REFUSED)]
    return f"compiled and checked with Triton {OLDEST} to {NEWEST}; refused: {', '.join(refused) or 'none'}"
