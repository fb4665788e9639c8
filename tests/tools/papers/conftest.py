"""Reports without their figures and the commit, which take longer than what they show."""

import pytest

from benchmarks.papers import report


@pytest.fixture
def figures():
    """A test that asks for this draws, and asks Git for the commit."""


@pytest.fixture(autouse=True)
def undrawn(request, monkeypatch):
    if "figures" not in request.fixturenames:
        monkeypatch.setattr(report, "draw", lambda *_: b"")
        monkeypatch.setattr(report, "_origin", dict)
