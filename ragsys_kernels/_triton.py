"""What a Triton kernel is compiled with ahead of time."""

from __future__ import annotations

from typing import Any, NamedTuple


class Compilation(NamedTuple):
    """A kernel in one configuration that its launcher can choose."""

    name: str
    kernel: Any  # JITFunction
    signature: dict[str, str]
    constexprs: dict[str, object]
    divisible: tuple[str, ...]  # arguments aligned to 16 bytes, or divisible by 16
    num_warps: int
    num_stages: int
    dot16: bool  # multiplies 16-bit tiles: matrix instructions expected
    wide_loads: bool  # 16-byte global loads expected
