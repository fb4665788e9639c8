"""What a test does where a backend cannot run, or a package is missing."""

import os
from importlib.util import find_spec

import pytest


def missing(backend, reason, *others):
    """Skip for the reason, or fail if RAGSYS_KERNELS_TEST_BACKENDS names the backend (or one of the others)."""
    required = os.environ.get("RAGSYS_KERNELS_TEST_BACKENDS", "").split(",")
    (pytest.skip if {backend, *others}.isdisjoint(required) else pytest.fail)(f"backend {backend}: {reason}")


def needs(*packages):
    """Marks tests that need packages; these are not loaded for it, as each process collects the tests of all files."""
    absent = [package for package in packages if find_spec(package) is None]
    return pytest.mark.skipif(bool(absent), reason=f"not installed: {absent}")
