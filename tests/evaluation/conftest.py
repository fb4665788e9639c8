"""Reports without their figures, which take longer than what they show."""

import pytest

from ragsys_kernels.evaluation import report


@pytest.fixture
def figures():
    """A test that asks for this draws."""


@pytest.fixture(autouse=True)
def undrawn(request, monkeypatch):
    if "figures" not in request.fixturenames:
        monkeypatch.setattr(report, "draw", lambda *_: b"")
