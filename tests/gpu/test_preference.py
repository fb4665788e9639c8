"""Which backend `auto` takes for arrays on a device: by shape, by one table."""

import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels import _dispatch, testing
from ragsys_kernels._base import arrays as _arrays
from ragsys_kernels._gpu import preference
from ragsys_kernels._gpu.preference import Pools

TABLE = {("mmr", "float16"): (Pools(129, 200, 384), Pools(201, 300, 64))}

torch = pytest.importorskip("torch")


@pytest.fixture
def tabled(monkeypatch):
    monkeypatch.setattr(preference, "TABLE", TABLE)


@pytest.mark.parametrize(
    ("call", "first"),
    [
        (("mmr", "float16", 129, 384), "cuda"),
        (("mmr", "bfloat16", 200, 1), "cuda"),
        (("mmr", "float16", 201, 65), "triton"),
        (("mmr", "float16", 300, 64), "cuda"),
        (("mmr", "float16", 128, 64), "triton"),
        (("mmr", "float16", 301, 64), "triton"),
        (("mmr", "float32", 150, 64), "triton"),
        (("vrsd", "float16", 150, 64), "triton"),
        (None, "triton"),
    ],
)
def test_auto_goes_by_the_shape(tabled, monkeypatch, call, first):
    pytest.importorskip("triton")
    can_run = {"triton": True, "cuda": True}
    monkeypatch.setattr(_dispatch, "why_not", lambda name: None if can_run[name] else "it is not installed")
    assert _dispatch.choose("mmr", "selection", "cuda:0", "auto", call)[0] == first
    other = "triton" if first == "cuda" else "cuda"
    assert _dispatch.choose("mmr", "selection", "cuda:0", other, call)[0] == other  # asked for by name
    can_run[first] = False
    assert _dispatch.choose("mmr", "selection", "cuda:0", "auto", call)[0] == other
    with pytest.raises(rk.BackendUnavailableError, match="it is not installed"):
        _dispatch.choose("mmr", "selection", "cuda:0", first, call)


class Cupy:
    """An array as CuPy's look, of another library than torch."""

    def __init__(self, array):
        self.shape, self.dtype = array.shape, array.dtype


@pytest.mark.parametrize("library", [torch.as_tensor, Cupy], ids=["torch", "cupy"])
def test_calls_are_described_alike_whatever_the_library(library):
    problem = testing.selection_problem(2, 8, 3, 5, dtype="float16")
    arrays = {name: library(problem[name]) for name in ("embeddings", "candidates")}
    assert preference.of("mmr", arrays) == ("mmr", "float16", 8, 5)
    dense = {"embeddings": library(np.zeros((2, 7, 6), np.float32)), "candidates": None}
    assert preference.of("vrsd", dense) == ("vrsd", "float32", 7, 6)
    assert preference.of("mmr", {**arrays, "candidates": None}) is None  # the whole corpus
    for bad in ([[1, 2]], 3, library(np.zeros(4, int))):
        assert preference.of("mmr", {**arrays, "candidates": bad}) is None
    assert preference.of("mmr", {**arrays, "embeddings": [[1.0]]}) is None


def test_public_calls_tell_their_shape(place, tabled, monkeypatch):
    asked = []

    def choose(op, family, device, backend, call, lacking):
        asked.append((op, device, call))
        raise rk.BackendUnavailableError("no more is needed")

    monkeypatch.setattr(_dispatch, "choose", choose)
    for on in (torch.as_tensor, np.asarray):
        problem = testing.selection_problem(2, 150, 3, 5)
        problem = {name: on(x) if isinstance(x, np.ndarray) else x for name, x in problem.items()}
        with pytest.raises(rk.BackendUnavailableError):
            rk.mmr(**problem)
    assert asked == [("mmr", "cuda:0", ("mmr", "float32", 150, 5)), ("mmr", "cpu", None)]


def test_bits_of_16_bit_floats_reach_torch_from_another_library(monkeypatch):
    """CuPy's arrays of bfloat16 are given to torch as integers, as which all versions can hand them over."""
    bits = np.array([0x3F80, 0xC000], np.uint16)

    class Array(Cupy):
        def __init__(self, array, dtype):
            super().__init__(array)
            self.array, self.dtype = array, dtype

        def view(self, dtype):
            return self.array.view(dtype)

    monkeypatch.setattr(_arrays, "device_of", lambda x: "cuda:0")
    tensor, dtype = _arrays.Torch("cpu").view("mmr", "queries", Array(bits, "bfloat16"))
    assert dtype == "bfloat16"
    assert tensor.tolist() == [1.0, -2.0]
