"""What a test does where a backend cannot run."""

import os

import pytest


def missing(backend, reason, *others):
    """Skip for the reason, or fail if RAGSYS_KERNELS_TEST_BACKENDS names the backend (or one of the others)."""
    required = os.environ.get("RAGSYS_KERNELS_TEST_BACKENDS", "").split(",")
    (pytest.skip if {backend, *others}.isdisjoint(required) else pytest.fail)(f"backend {backend}: {reason}")
