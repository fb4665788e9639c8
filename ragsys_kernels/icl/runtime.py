"""Threads and messages of torch and transformers for the time of a block."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

from .._base.extras import needed


@contextmanager
def torch_threads(op: str, number: int | None) -> Iterator[None]:
    """Set torch's own number of threads for the time of the block; None leaves it."""
    if number is None:
        yield
        return
    if number < 1:
        raise ValueError(f"{op}: num_threads must be at least 1, got {number}")
    with needed(op, "lm", "torch"):
        import torch
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep back the bars and notes that transformers prints while it loads, if it is installed."""
    if importlib.util.find_spec("transformers") is None:
        yield
        return
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with redirect_stderr(io.StringIO()):  # the bar of GGUF files cannot be switched off
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
