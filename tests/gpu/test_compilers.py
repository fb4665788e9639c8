"""Which of Triton's compilers are refused, and what a call says then."""

import numpy as np
import pytest

from ragsys_kernels import _dispatch, _info
from ragsys_kernels._base import env as _env
from ragsys_kernels._gpu import compilers, interpreter

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")


@pytest.fixture
def device(monkeypatch):
    """A device of compute capability 8.6 that nobody has, and nothing remembered of the one that is not here."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (8, 6))
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(_env, "triton_interpreter", lambda: False)
    for cached in (_dispatch._why_not_triton, _dispatch._why_no_gpu):
        cached.cache_clear()
    yield
    for cached in (_dispatch._why_not_triton, _dispatch._why_no_gpu):
        cached.cache_clear()


@pytest.fixture
def installed(monkeypatch):
    return lambda version: monkeypatch.setattr(triton, "__version__", version)


@pytest.mark.parametrize("version", ["3.6.0", "3.9.0", "3.10.1", "4.0.0+git1a2b3c"])
def test_triton_that_is_tested_or_newer_is_taken(device, installed, version):
    installed(version)
    assert _dispatch.why_not("triton") is None


@pytest.mark.parametrize(("version", "why"), [("3.6.0", "needs triton 3.9, got 3.6"), ("3.9.1", None)])
def test_coverage_of_float32_rows_where_its_kernel_would_be_empty(installed, version, why):
    installed(version)
    said = compilers.why_no_matrix_of_float32("sm_103")
    assert said is None if why is None else why in said
    assert compilers.why_no_matrix_of_float32("sm_90") is None


@pytest.mark.parametrize("version", ["3.5.1", "2.3.0"])
def test_older_triton_is_refused(device, installed, version):
    installed(version)
    reason = f"triton {version[:3]} is older than 3.6, the oldest that is tested"
    assert _dispatch.why_not("triton") == reason
    assert f"backend triton: unavailable: {reason}" in _info.config()


def test_pair_that_is_refused(device, installed, monkeypatch):
    """By architecture of the generation; an explicit request says why, `auto` goes on to the next backend."""
    installed("3.6.0")
    monkeypatch.setitem(compilers.REFUSED, ((3, 6), "sm_80"), "its code is wrong")
    reason = "triton 3.6 on sm_86: its code is wrong"
    assert _dispatch.why_not("triton") == reason
    text = _info.config()
    assert f"backend triton: unavailable: {reason}" in text
    assert "checked with Triton 3.6.0 to 3.9.0; refused: 3.6 on sm_80" in text
    with pytest.raises(_dispatch.BackendUnavailableError, match=f"requested but cannot run here: {reason}"):
        _dispatch.choose("mmr", "selection", "cuda:0", "triton")
    monkeypatch.setattr(_dispatch, "why_not", lambda name: None if name == "cuda" else reason)
    monkeypatch.setattr(_dispatch, "module_of", lambda family, name: name)
    assert _dispatch.choose("mmr", "selection", "cuda:0", "auto")[0] == "cuda"


def test_the_same_triton_elsewhere_is_not(device, installed, monkeypatch):
    monkeypatch.setitem(compilers.REFUSED, ((3, 6), "sm_80"), "its code is wrong")
    installed("3.7.0")
    assert _dispatch.why_not("triton") is None
    installed("3.6.0")
    assert compilers.why_not("sm_90") is None


def test_architecture_of_a_device_of_amd(device, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "7.0")
    about = type("About", (), {"gcnArchName": "gfx942:sramecc+:xnack-"})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: about, raising=False)
    assert compilers.architecture() == compilers.family("gfx942") == "gfx942"


def test_interpreter_takes_the_number_out_of_an_array(monkeypatch):
    """That of Triton 3.6 is mended: NumPy makes no number of an array of one element."""
    module = pytest.importorskip("triton.runtime.interpreter")
    set_attributes = {}

    def patch(tensor, scope):
        scope.set_attr(tensor, "__index__", "Triton's own")

    monkeypatch.setattr(module, "_patch_lang_tensor", patch)
    scope = type("Scope", (), {"set_attr": lambda self, obj, name, value: set_attributes.update({name: value})})()
    for version, mended in (((3, 7), False), ((3, 6), True)):
        monkeypatch.setattr(compilers, "version", lambda version=version: version)
        interpreter.mend.__wrapped__()
        module._patch_lang_tensor(object, scope)
        assert callable(set_attributes["__index__"]) == mended
    tensor = type("Tensor", (), {"handle": type("Handle", (), {"data": np.array([7])})})()
    assert set_attributes["__index__"](tensor) == 7


@pytest.mark.parametrize(
    ("capability", "hip", "interpreted", "expected"),
    [
        ((9, 0), None, False, True),
        ((8, 0), None, False, False),
        ((10, 0), None, False, False),
        ((12, 0), None, False, False),
        ((9, 4), "6.4", False, False),  # AMD's numbers are others
        ((8, 0), None, True, True),
    ],
)
def test_tiles_of_hopper_are_for_hopper(monkeypatch, capability, hip, interpreted, expected):
    others = {0: (7, 5), 1: capability}
    monkeypatch.setattr(torch.cuda, "get_device_capability", others.pop)  # each device is asked once
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(_env, "triton_interpreter", lambda: interpreted)
    compilers._generation.cache_clear()
    for device in (0, 1, 0, 1):
        monkeypatch.setattr(torch.cuda, "current_device", lambda device=device: device)
        assert compilers.is_hopper() is (interpreted or (expected and device == 1))
    compilers._generation.cache_clear()
    assert compilers.float32_precision(expected) == ("bf16x6" if expected and not interpreted else "ieee")
