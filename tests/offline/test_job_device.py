"""Jobs whose corpus is on a device."""

from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from jobs import spec_of

import ragsys_kernels as rk
from ragsys_kernels import _dispatch, offline
from ragsys_kernels._base import arrays as _arrays
from ragsys_kernels.offline import _device, _spec, _worker


@pytest.mark.parametrize("bad", [False, True])
@pytest.mark.parametrize("candidates", [False, True])
def test_job_on_a_device(tmp_path, monkeypatch, candidates, bad):
    """Tensors go there and picks come back; here the device is the host. ``bad``: two queries cannot be used."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    arrays = {
        "corpus": rng.standard_normal((60, 8), np.float32),
        "queries": rng.standard_normal((25, 8), np.float32),
        "bias": rng.standard_normal(60).astype(np.float32),
        "groups": rng.integers(0, 5, 60),
        "query_groups": rng.integers(0, 5, 25),
    }
    if candidates:
        arrays["candidates"] = np.stack([rng.permutation(60)[:20] for _ in range(25)])
    if bad:
        arrays["queries"][[3, 17], [0, 5]] = np.nan, np.inf
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    files = {name: tmp_path / f"{name}.npy" for name in arrays}
    given = {"k": 3, "chunk_size": 10, "on_error": "skip"}
    offline.select(**files, out=tmp_path / "host", **given)
    seen = []

    class Tensors(_device.Selector):
        def __init__(self, corpus, device):
            super().__init__(corpus, None)
            self._place = _arrays.Torch("cpu")
            seen.append(device)

        def select(self, *args, **options):
            picks = super().select(*args, **options)
            assert all(type(column) is np.ndarray for column in picks)
            return picks

    real = rk.Corpus._select

    def select(corpus, request, pool, index):
        assert isinstance(request.queries, torch.Tensor)
        assert isinstance(request.query_groups, torch.Tensor)
        assert candidates == isinstance(request.candidates, torch.Tensor)
        # What comes from the host has been looked at there, before it was moved.
        assert request.check_values is (True if candidates else None)
        assert candidates or torch.isfinite(request.queries).all()
        assert request.backend == "triton"
        return real(corpus, request.changed(backend="auto"), pool, index)

    for module in (_spec, _worker):
        monkeypatch.setattr(module, "Selector", Tensors)
    monkeypatch.setattr(_spec, "check_options", lambda *_: None)
    monkeypatch.setattr(offline.job, "check_options", lambda *_: None)
    monkeypatch.setattr(rk.Corpus, "_select", select)
    summary = offline.select(**files, out=tmp_path / "device", device="cuda", **given)
    assert summary.skipped == 2 * bad
    assert (summary.backend, summary.instruction_set, seen) == ("triton", "", ["cuda"])
    host, device = (pq.read_table(sorted((tmp_path / name).glob("part-*.parquet"))) for name in ("host", "device"))
    errors = [[pq.read_table(path).to_pylist() for path in sorted((tmp_path / f"{name}.job").glob("_errors-*"))]
              for name in ("host", "device")]  # fmt: skip
    assert errors[0] == errors[1]
    assert bool(errors[0]) == bad
    if not candidates:  # what a search on the host finds is proven there alone
        host = host.drop_columns("certified")
    assert device.equals(host)


def test_device_that_is_not_there(tmp_path):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one")
    np.save(tmp_path / "x.npy", np.eye(8, dtype=np.float32))
    files = {"corpus": tmp_path / "x.npy", "queries": tmp_path / "x.npy", "out": tmp_path / "out"}
    with pytest.raises(rk.BackendUnavailableError, match="device must be one of this machine, got 'cuda'"):
        offline.select(**files, device="cuda")
    with pytest.raises(ValueError, match=r"device must be None, .*, got 'tpu'"):
        offline.select(**files, device="tpu")
    (tmp_path / "x.index").write_bytes(b"")
    with pytest.raises(ValueError, match=r"select: index must be left out with a device, got .*x.index"):
        offline.select(**files, device="cuda", index=tmp_path / "x.index")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("named", "runnable", "expected"),
    [("", "triton cuda", "triton"), ("", "cuda", "cuda"), ("", "", "triton"), ("cuda", "triton cuda", "cuda")],
)
def test_auto_is_the_backend_that_would_run(monkeypatch, named, runnable, expected):
    monkeypatch.setenv("RAGSYS_KERNELS_BACKEND", named)
    monkeypatch.setattr(_dispatch, "why_not", lambda name: None if name in runnable.split() else "missing")
    spec = spec_of(corpus="", queries="", device="cuda")
    assert (spec.settled().request.backend, spec.settled().instruction_set) == (expected, "")
    assert replace(spec, request=spec.request.changed(backend="triton")).settled().request.backend == "triton"
