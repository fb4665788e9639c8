"""What a test does where a backend cannot run."""

import os

import pytest


def missing(backend, reason):
    """Skip for the reason, or fail if RAGSYS_KERNELS_TEST_BACKENDS names the backend."""
    required = os.environ.get("RAGSYS_KERNELS_TEST_BACKENDS", "").split(",")
    (pytest.fail if backend in required else pytest.skip)(f"backend {backend}: {reason}")
