"""What guards the tools of a checkout and not the package: `make test-tools`."""

import importlib

import pytest


@pytest.fixture
def module():
    """A module of the benchmarks, by its name there."""
    return lambda name: importlib.import_module(f"benchmarks.{name}")
