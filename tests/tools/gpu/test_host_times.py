"""The times of the host in calls on a device, with a driver that launches nothing."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from benchmarks.gpu import host
from ragsys_kernels._base import env as _env

pytestmark = pytest.mark.skipif(_env.triton_interpreter(), reason="Triton compiles nothing in its interpreter")


# Triton takes seconds to compile what the others launch.
@pytest.mark.parametrize("kind", ["by CUDA C++", pytest.param("", marks=pytest.mark.slow)])
def test_the_time_of_the_host_has_rows(tmp_path, monkeypatch, kind):
    calls = {name: call for name, call in host.calls().items() if kind in name}
    monkeypatch.setattr(host, "calls", lambda: calls)
    rows = host.measure(repeats=5)
    host.LEDGER.within(tmp_path).update(rows)
    found = host.LEDGER.within(tmp_path).read()
    assert [row["call"] for row in found] == list(calls)
    for row in found:
        assert 0 < float(row["planned_us"]) < np.inf
        assert float(row["copy_us"]) > 0
