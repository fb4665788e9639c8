import pytest


@pytest.fixture
def nowhere(monkeypatch):
    """No data folder but that of the test."""
    from ragsys_kernels.icl.datasets import _files

    monkeypatch.delenv("RAGSYS_KERNELS_DATA", raising=False)
    monkeypatch.setattr(_files, "_BESIDE", ())
