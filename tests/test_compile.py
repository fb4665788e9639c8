"""Every GPU kernel, compiled ahead of time for real architectures and held to its budget; no device is needed."""

import importlib.util
from pathlib import Path

import gpu_budgets
import pytest
from gpu_budgets import Budget

from ragsys_kernels import _resources
from ragsys_kernels._resources import Job

SOURCES = sorted((Path(__file__).parents[1] / "csrc" / "cuda").glob("*.cu"))

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
needs_nvcc = pytest.mark.skipif(_resources.nvcc() is None, reason="nvcc is not here")


@pytest.fixture(scope="module")
def processes():
    """Processes for all tests of this file, which import Triton once."""
    with _resources.pool() as executor:
        yield executor


@pytest.fixture(scope="module")
def lists(processes):
    """What each module says it can launch."""
    return dict(
        zip(_resources.TRITON_MODULES, processes.map(_resources.listed, _resources.TRITON_MODULES), strict=True)
    )


@pytest.fixture(scope="module")
def compiled(processes):
    """Compile a list of jobs; an error of the compiler fails the test."""

    def run(jobs):
        results = list(processes.map(_resources.attempt, jobs))
        errors = [result for result in results if isinstance(result, str)]
        assert not errors, "\n".join(errors)
        return [kernel for result in results for kernel in result]

    return run


def check(kernels, table):
    wrong = [line for kernel in kernels for line in gpu_budgets.violations(kernel, table)]
    assert not wrong, "\n".join(wrong)


@needs_triton
@pytest.mark.parametrize("arch", _resources.ARCHITECTURES)
@pytest.mark.parametrize("module", _resources.TRITON_MODULES, ids=lambda name: name.split(".")[1])
def test_triton_kernels_keep_to_their_budgets(compiled, lists, module, arch):
    check(compiled([Job(arch, module, index) for index in range(len(lists[module]))]), gpu_budgets.TRITON)


@needs_triton
def test_triton_budgets_and_kernels_belong_together(lists):
    names = [compilation.name for found in lists.values() for compilation in found]
    assert len(names) == len(set(names))
    unmatched = [budget.kernels for budget in gpu_budgets.TRITON if not any(map(budget.matches, names))]
    assert not unmatched, f"budgets without a kernel: {unmatched}"
    wrong = [name for name in names if sum(budget.matches(name) for budget in gpu_budgets.TRITON) != 1]
    assert not wrong, f"kernels without a budget, or with several: {wrong}"


@needs_nvcc
@needs_triton  # for its nvdisasm
@pytest.mark.parametrize("arch", _resources.NVIDIA)
def test_cuda_kernels_keep_to_their_budgets(compiled, arch):
    kernels = compiled([Job(arch, path=path) for path in SOURCES])
    check(kernels, gpu_budgets.CUDA)
    unmatched = [b.kernels for b in gpu_budgets.CUDA if not any(b.matches(kernel.name) for kernel in kernels)]
    assert not unmatched, f"budgets without a kernel: {unmatched}"


# --- The checks themselves.

GENEROUS = (Budget("*", 255, 255, 255, 512),)
DEFECTS = {
    "fine": None,
    "spills": "spilled",
    "D mask known at run time only": "global loads of 2 bytes at most",
    "no matrix instructions": "no matrix instructions",
    "too much shared memory": "bytes of shared memory, a block can have",
}


@needs_triton
@pytest.mark.parametrize("arch", _resources.ARCHITECTURES)
def test_defects_are_found(compiled, arch):
    kernels = compiled([Job(arch, "gpu_defects", index) for index in range(len(DEFECTS))])
    assert [kernel.name for kernel in kernels] == list(DEFECTS)
    for kernel, defect in zip(kernels, DEFECTS.values(), strict=True):
        if arch == "gfx942" and kernel.name == "too much shared memory":  # the compiler keeps to 64 KiB, and spills
            defect = "spilled"
        found = gpu_budgets.violations(kernel, GENEROUS)
        assert any(defect in line for line in found) if defect else not found, (kernel, found)


@needs_triton
def test_registers_are_held_to_the_architecture(compiled):
    (kernel,) = compiled([Job("sm_90", "gpu_defects", 0)])
    most = Budget("fine", 0, kernel.registers, 0)
    assert not gpu_budgets.violations(kernel, [most])
    (line,) = gpu_budgets.violations(kernel, [most._replace(sm_90=kernel.registers - 1)])
    assert f"{kernel.registers} registers, budget" in line


@needs_triton
def test_a_kernel_has_exactly_one_budget(compiled):
    (kernel,) = compiled([Job("sm_80", "gpu_defects", 0)])
    for table in ([], [Budget("f*", 255, 255, 255), Budget("*e", 255, 255, 255)], [Budget("other", 255, 255, 255)]):
        (line,) = gpu_budgets.violations(kernel, table)
        assert "budgets, not one" in line


CU = """
extern "C" __global__ void narrow(const float* x, float* y) { y[threadIdx.x] = x[3 * threadIdx.x]; }
extern "C" __global__ void wide(const float4* x, float* y) {
  __shared__ float sums[64];
  float4 v = x[threadIdx.x];
  sums[threadIdx.x] = v.x + v.y + v.z + v.w;
  __syncthreads();
  y[threadIdx.x] = sums[63 - threadIdx.x];
}
extern "C" __global__ void indexed(const float* x, float* y, int n) {
  float values[64];
  for (int i = 0; i < 64; i++) values[(i * n) & 63] = x[i];
  y[threadIdx.x] = values[n & 63] + values[threadIdx.x & 63];
}
extern "C" __global__ void __launch_bounds__(1024) spilling(const float* x, float* y, int n) {
  float v[128];
#pragma unroll
  for (int i = 0; i < 128; i++) v[i] = x[i * 1024 + threadIdx.x];
  for (int step = 0; step < n; step++) {
#pragma unroll
    for (int i = 0; i < 128; i++) v[i] = v[i] * v[(i + 37) % 128] + v[(i + 1) % 128];
  }
#pragma unroll
  for (int i = 0; i < 128; i++) y[i * 1024 + threadIdx.x] = v[i];
}
"""


@needs_nvcc
@needs_triton
@pytest.mark.parametrize("arch", _resources.NVIDIA)
def test_defects_of_cuda_kernels_are_found(compiled, tmp_path, arch):
    path = tmp_path / "kernels.cu"
    path.write_text(CU)
    kernels = {kernel.name: kernel for kernel in compiled([Job(arch, path=path)])}
    table = [Budget("*", 128, 128, 128, wide_loads=True)]
    found = {name: "; ".join(gpu_budgets.violations(kernel, table)) for name, kernel in kernels.items()}
    assert not found["wide"]
    assert kernels["wide"].shared == 256
    assert kernels["wide"].loads == {16: 1}
    assert "global loads of 4 bytes at most" in found["narrow"]
    assert "256 bytes of stack" in found["indexed"]
    assert "spilled" in found["spilling"]


@needs_nvcc
def test_a_warning_of_nvcc_is_an_error(tmp_path):
    path = tmp_path / "kernels.cu"
    path.write_text('extern "C" __global__ void rsk_unused(float* y) { int n = 3; y[0] = 1; }')
    with pytest.raises(_resources.CompileError, match='"n" was declared but never referenced'):
        _resources.compile_cu(path, "sm_90")


@needs_triton
def test_what_does_not_compile_is_reported(processes):
    assert "arguments missing" in processes.submit(_misdescribed).result()


def _misdescribed():
    import gpu_defects

    compilation = gpu_defects.ahead_of_time()[0]
    try:
        _resources.compile_for(compilation._replace(signature={"E": "*fp16"}), "sm_80")
    except _resources.CompileError as error:
        return str(error)


@needs_triton
def test_interpreted_kernels_are_refused(run_python):
    code = """
import sys; sys.path.insert(0, sys.argv[1])
import gpu_defects
from ragsys_kernels import _resources
try:
    _resources.compile_for(gpu_defects.ahead_of_time()[0], "sm_80")
except _resources.CompileError as error:
    print(error)
"""
    assert "unset TRITON_INTERPRET" in run_python(code, Path(__file__).parent, TRITON_INTERPRET="1").stdout


# --- Widths of loads, out of text.


def test_loads_in_ptx():
    ptx = """
        ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
        @%p1 ld.global.L1::evict_last.L2::cache_hint.v2.b64 { %rd1, %rd2 }, [ %rd3 + 0 ], %rd4;
        ld.global.nc.b16 { %rs1 }, [ %rd1 ];
        ld.global.v8.b32 { %r1 }, [ %rd1 + 0 ];
        ld.shared.v4.b32 { %r1 }, [ %r2 ];
        st.global.v4.b32 [ %rd1 + 0 ], { %r1 };
        cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, %r2;
        cp.async.ca.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x4, 0x4;
    """
    assert _resources.ptx_loads(ptx) == {16: 3, 2: 1, 32: 1, 4: 1}


def test_loads_in_sass():
    sass = """
        LDG.E.128 R8, [R2.64] ;
        @P0 LDG.E.64.CONSTANT R20, desc[UR4][R8.64] ;
        LDG.E.U16 R1, [R2.64] ;
        LDG.E.S8 R1, [R2.64] ;
        LDG.E R1, [R2.64+0x4] ;
        LDGSTS.E.BYPASS.128 [R1], [R2.64] ;
        LDG.E.ENL2.256 R4, R8, desc[UR4][R8.64] ;
    """
    assert _resources.sass_loads(sass) == {16: 2, 8: 1, 2: 1, 1: 1, 4: 1, 32: 1}
