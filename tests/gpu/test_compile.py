"""Every GPU kernel, compiled ahead of time for real architectures and held to its budget; no device is needed.

What each kernel needs is in benchmarks/results/compiled.csv, with a digest of all that decides its machine code, its
compiler, and checksums beside it: the tests check that nothing there is out of date and that all of it keeps to the
budgets, and compile afresh what the file does not vouch for (another compiler, other code that reads machine code),
each configuration for one architecture. RAGSYS_KERNELS_TEST_COMPILE=all compiles everything afresh, as `make
release-check` does, and =sample a few kernels, as `make test-oldest` does; `ragsys-kernels bench --static` brings the
file up to date.
"""

import ast
import functools
import importlib
import importlib.util
import os
import re
from dataclasses import replace
from pathlib import Path

import gpu_budgets
import pytest
from gpu_budgets import Budget

from benchmarks.gpu import compilation, resources
from benchmarks.gpu import compiled as report
from benchmarks.gpu.compilation import Task
from benchmarks.gpu.resources import Compiled
from ragsys_kernels._gpu import compilers, cuda_module

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "csrc" / "cuda").glob("*.cu"))
FOLDERS = [path.parent for path in sorted(Path(cuda_module.__file__).parents[1].glob("*/triton/backend.py"))]
LEDGER = report.LEDGER.path
COMPILE = os.environ.get("RAGSYS_KERNELS_TEST_COMPILE")
ALL = COMPILE == "all"
TABLES = {"triton": gpu_budgets.TRITON, "cuda": gpu_budgets.CUDA}
STALE = f"run `TRITON_VERSIONS='{compilers.OLDEST} {compilers.NEWEST}' make bench-static`"

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
needs_nvcc = pytest.mark.skipif(resources.nvcc() is None, reason="nvcc is not here")


@pytest.fixture(scope="module")
def processes():
    """Processes for all tests of this file, which import Triton once; one where little is compiled."""
    with resources.pool(None if ALL else 1) as executor:
        yield executor


@pytest.fixture(scope="module")
def compiled(processes):
    """Compile a list of tasks; an error of the compiler fails the test."""

    def run(tasks):
        results = list(processes.map(resources.attempt, tasks))
        errors = [result for result in results if isinstance(result, str)]
        assert not errors, "\n".join(errors)
        return [kernel for result in results for kernel in result]

    return run


@pytest.fixture(scope="module")
def tasks(processes):
    """Everything there is to compile, by backend."""
    listed = processes.map(compilation.triton_tasks, compilation.TRITON_MODULES)
    return {"triton": [task for tasks in listed for task in tasks], "cuda": compilation.cuda_tasks(SOURCES)}


@pytest.fixture(scope="module")
def recorded():
    """The rows of the ledger, by backend."""
    found = {"triton": [], "cuda": []}
    for row in report.LEDGER.read():
        found["cuda" if row["kernel"].startswith("rsk_") else "triton"].append(row)
    return found


@needs_triton
@pytest.mark.parametrize("backend", TABLES)
def test_the_ledger_is_up_to_date(tasks, recorded, backend):
    assert report.vouches(LEDGER, LEDGER), f"{STALE}; compiled.csv is not as it was written"
    by_compiler = _by_compiler(recorded[backend])
    for compiler in report.NEEDED if backend == "triton" else by_compiler:
        known = {(row["source"], row["arch"]) for row in by_compiler.get(compiler, [])}
        wanted = {(t.source, t.arch): t.name for t in tasks[backend] if not report.refused(compiler, t.arch)}
        missing = sorted(
            {f"{name} for {arch}" for (source, arch), name in wanted.items() if (source, arch) not in known}
        )
        assert not missing, f"{STALE}; not compiled by {compiler} as they are now: {missing[:20]}"
        assert known <= wanted.keys(), f"{STALE}; some kernels are no more"


def _by_compiler(rows):
    found = {}
    for row in rows:
        found.setdefault(row["compiler"], []).append(row)
    return found


@needs_triton
@pytest.mark.parametrize("backend", TABLES)
def test_kernels_keep_to_their_budgets(recorded, backend, tasks):
    for compiler, listed in _by_compiler(recorded[backend]).items():
        table = TABLES[backend] if report.newest(listed) else gpu_budgets.of_any_compiler(TABLES[backend])
        wrong = [line for row in listed for line in gpu_budgets.violations(report.compiled_of(row), table)]
        assert not wrong, "\n".join([compiler, *wrong])
    kernels = [report.compiled_of(row) for row in report.newest(recorded[backend])]
    archs = compilation.ARCHITECTURES if backend == "triton" else compilation.NVIDIA
    names = {kernel.name for kernel in kernels}
    wanted = {(name, arch) for name in names for arch in archs}
    wanted -= {(task.name, arch) for task in tasks[backend] for arch in archs} - {
        (task.name, task.arch) for task in tasks[backend]
    }
    wanted -= {(name, "sm_80") for name in names if re.search("_resident_|_streamed_[24]", name)}
    assert {(kernel.name, kernel.arch) for kernel in kernels} == wanted
    unmatched = [budget.kernels for budget in TABLES[backend] if not any(map(budget.matches, names))]
    assert not unmatched, f"budgets without a kernel: {unmatched}"


def _afresh(backend, tasks, recorded, compiled):
    """Compile what the ledger does not vouch for, each configuration for one architecture, and compare with it."""
    here = report.installed() if backend == "triton" else report.nvcc()
    known = {(row["source"], row["arch"], row["compiler"]) for row in recorded[backend]}
    if ALL or not report.vouches(LEDGER, report.READER):
        known = set()
    archs = compilation.ARCHITECTURES if backend == "triton" else compilation.NVIDIA
    order = {name: i for i, name in enumerate(dict.fromkeys(task.name for task in tasks[backend]))}
    part = [task for task in tasks[backend] if ALL or archs[order[task.name] % len(archs)] == task.arch]
    part = [task for task in part if (task.source, task.arch, here) not in known]
    if COMPILE == "sample":
        part = tasks[backend][::31]  # of every architecture in turn
    part = [task for task in part if not report.refused(here, task.arch)]
    if not part:
        pytest.skip(f"nothing has changed since {here} compiled it; `make release-check` compiles all of it")
    listed = _by_compiler(recorded[backend]).get(here) or report.newest(recorded[backend])
    expected = {(row["kernel"], row["arch"]): row for row in listed}
    wrong = [
        line
        for kernel in compiled(part)
        for line in differences(kernel, expected.get((kernel.name, kernel.arch)), here, TABLES[backend])
    ]
    assert not wrong, "\n".join(wrong)


def differences(kernel, row, compiler, table):
    """What is wrong with a kernel compiled afresh, as lines of text.

    Another compiler than the newest of the ledger may take more registers; it spills nothing either, and its code has
    the matrix instructions and the wide loads.
    """
    if row is None:
        return [f"{kernel.name}, {kernel.arch}: {STALE}; it has no row"]
    if row["compiler"] != compiler:
        return gpu_budgets.violations(kernel, gpu_budgets.of_any_compiler(table))
    if report.compiled_of(row) != kernel:
        return [f"{kernel.name}, {kernel.arch}: {STALE}; recorded {row}, compiled {kernel}"]
    return gpu_budgets.violations(kernel, table if report.newest([row]) else gpu_budgets.of_any_compiler(table))


@pytest.mark.slow
@needs_triton
def test_triton_kernels_compiled_afresh(tasks, recorded, compiled):
    _afresh("triton", tasks, recorded, compiled)


@pytest.mark.slow
@needs_nvcc
@needs_triton  # for its nvdisasm
def test_cuda_kernels_compiled_afresh(tasks, recorded, compiled):
    _afresh("cuda", tasks, recorded, compiled)


# Of a multiprocessor, of which each block takes 1 KiB more than it asks for: CUDA C++ Programming Guide.
SHARED_OF_ALL_BLOCKS = {"sm_80": 164 * 1024, "sm_90": 228 * 1024}


@needs_triton
@pytest.mark.slow
def test_two_queries_with_pools_of_16_bit_rows_share_a_multiprocessor(tasks, compiled):
    """The picks of one then run under the loads of the other, which go past the registers, several slices ahead."""
    name = "gram tile 128 mmr plain float16"
    part = [task for task in tasks["triton"] if task.name == name and task.arch in SHARED_OF_ALL_BLOCKS]
    for kernel in compiled(part):
        assert not kernel.spills
        assert 2 * kernel.threads * -(-kernel.registers // 8) * 8 <= 64 * 1024
        assert 2 * (kernel.shared + 1024) <= SHARED_OF_ALL_BLOCKS[kernel.arch]
        assert kernel.shared >= 3 * 128 * 64 * 2  # slices in flight
        assert (
            len(re.findall(r"cp\.async\.cg\.shared\.global[^;]*, 0x10", kernel.asm))
            >= 3 * 128 * 64 // 8 // kernel.threads
        )


@needs_triton
@pytest.mark.parametrize("op", ["selection", "scoring"])
def test_every_triton_kernel_is_listed(processes, op):
    defined, listed, names = processes.submit(_defined, op).result()
    assert len(names) == len(set(names))  # on each architecture
    assert defined <= listed


def _defined(op):
    """Kernels in the Triton files of an op, those that are listed, and the names of their configurations."""
    import triton

    listed = importlib.import_module(f"benchmarks.gpu.{op}_kernels").ahead_of_time()
    package = f"ragsys_kernels.{op}.triton"
    folder = Path(importlib.import_module(package).__file__).parent
    defined = set()
    for path in folder.glob("*.py"):
        found = vars(importlib.import_module(f"{package}.{path.stem}"))
        defined |= {x.__name__ for x in found.values() if isinstance(x, triton.runtime.JITFunction)}
    return (
        {name for name in defined if name.endswith("_kernel")},
        {compilation.kernel.__name__ for compilation in listed},
        [(compilation.name, arch) for compilation in listed for arch in compilation.archs],
    )


# --- What the interpreter does not show. Each kernel is compiled with the most features that it has.

MODULES = pytest.mark.parametrize("module", compilation.TRITON_MODULES, ids=["selection", "scoring"])


@pytest.fixture(scope="module")
def fullest(processes):
    """Approximate instructions and 32-bit products in addresses, by kernel, of a module."""

    @functools.cache
    def of(module):
        return processes.submit(_fullest, module).result()

    return of


def _fullest(module):
    most = {}
    for found in importlib.import_module(module).ahead_of_time():
        if "sm_90" not in found.archs:
            continue
        size = len(found.signature), found.constexprs.get("SOFTCAP", False)
        if found.kernel not in most or size > most[found.kernel][0]:
            most[found.kernel] = size, found
    made = {found.kernel.__name__: resources.compile_for(found, "sm_90") for _, found in most.values()}
    return {name: (ptx_approximations(found.asm), narrow_products(found.ir)) for name, found in made.items()}


def ptx_approximations(ptx):
    """Instructions of float32 that are off by an ulp or more where IEEE 754 has one result."""
    found = set(re.findall(r"\b((?:sqrt|rsqrt|rcp|div)\.(?:approx|full))(?:\.ftz)?\.f32\b", ptx))
    # tanh of a soft cap has an approximate inverse, and two fused products that mend it (`scoring/triton/scale.py`).
    if found == {"div.full"} and len(re.findall(r"\bfma\.rn", ptx)) >= 2 * ptx.count("div.full"):
        return []
    return sorted(found)


def narrow_products(ir):
    """Products of two run-time numbers in 32 bits that are part of an address: lines of Triton's IR."""
    made = {name: (op, line) for name, op, line in re.findall(r"^\s*(%[\w#]+)(?::\d+)? = ([\w.]+)(.*)$", ir, re.M)}

    def constant(name):
        op, line = made.get(name, ("", ""))
        return op == "arith.constant" or (op == "tt.splat" and constant(*re.findall(r"%[\w#]+", line)))

    def products(name, seen):
        op, line = made.get(name, ("", ""))
        if name in seen or op not in PARTS_OF_ADDRESSES:
            return []
        seen.add(name)
        operands = re.findall(r"%[\w#]+", line.partition(" : ")[0])
        here = op == "arith.muli" and not re.search(r"\bi64\b|xi64\b", line) and not any(map(constant, operands))
        return [f"{name} = {op}{line}"] * here + [found for one in operands for found in products(one, seen)]

    seen = set()
    return [found for op, line in made.values() if op == "tt.addptr" for found in products(line.split()[1], seen)]


PARTS_OF_ADDRESSES = {
    *("arith.addi", "arith.subi", "arith.muli", "arith.extsi", "arith.extui", "arith.select"),
    *("tt.splat", "tt.broadcast", "tt.expand_dims"),
}


@pytest.mark.slow
@needs_triton
@MODULES
def test_roots_and_quotients_are_rounded_rightly(fullest, module):
    wrong = {kernel: approximate for kernel, (approximate, _) in fullest(module).items() if approximate}
    assert not wrong


@pytest.mark.slow
@needs_triton
@MODULES
def test_addresses_are_computed_in_64_bits(fullest, module):
    wrong = {kernel: narrow for kernel, (_, narrow) in fullest(module).items() if narrow}
    assert not wrong


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.parent.name)
def test_launches_say_whether_products_and_sums_are_fused(folder):
    """Triton warns, at the first launch on a GPU, where they leave it to its default, which will change."""
    launched = 0
    for path in folder.glob("*.py"):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(function, ast.FunctionDef):
                continue
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and call.args and ast.unparse(call.args[0]).endswith("_kernel"):
                    assert ast.unparse(call.func) in ("launch", "plans.launch"), f"{path.name}:{call.lineno}"
                    launched += 1
                    named = {keyword.arg for keyword in call.keywords}
                    text = ast.unparse(function)
                    spread = None in named and ("'enable_fp_fusion'" in text or ".options(" in text)
                    assert "enable_fp_fusion" in named or spread, f"{path.name}:{call.lineno}"
    assert launched


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
@pytest.mark.slow
@pytest.mark.parametrize("arch", compilation.ARCHITECTURES)
def test_defects_are_found(compiled, arch):
    kernels = compiled([Task(arch, "", "", "gpu_defects", index) for index in range(len(DEFECTS))])
    assert [kernel.name for kernel in kernels] == list(DEFECTS)
    for kernel, wanted in zip(kernels, DEFECTS.values(), strict=True):
        if arch == "gfx942" and kernel.name == "too much shared memory":  # the compiler keeps to 64 KiB, and spills
            wanted = "spilled"
        found = gpu_budgets.violations(kernel, GENEROUS)
        assert any(wanted in line for line in found) if wanted else not found, (kernel, found)


FINE = Compiled("a", "sm_90", 128, 60, 0, 0, 0, {"wgmma": 1}, {16: 1}, dot16=True, wide_loads=True)


def test_a_kernel_has_exactly_one_budget_of_its_architecture():
    (line,) = gpu_budgets.violations(FINE, [Budget("a", 255, 59, 255)])
    assert "60 registers, budget 59" in line
    assert not gpu_budgets.violations(FINE, [Budget("a", 0, 60, 0)])
    for table in ([], [Budget("a*", 255, 255, 255), Budget("*a", 255, 255, 255)], [Budget("other", 255, 255, 255)]):
        (line,) = gpu_budgets.violations(FINE, table)
        assert "budgets, not one" in line


def test_what_is_compiled_afresh_is_held_to_the_ledger_whatever_the_compiler():
    table = [Budget("*", 64, 64, 64)]
    oldest, newest = report.NEEDED

    def found(compiler, recorded=newest, **changed):
        row = {name: str(value) for name, value in report.row_of(Task("sm_90", "a", ""), FINE, recorded).items()}
        return "; ".join(differences(replace(FINE, **changed), row, compiler, table))

    assert not found(newest)
    assert not found(oldest, oldest)
    assert "recorded" in found(newest, registers=61)
    assert "recorded" in found(oldest, oldest, registers=61)
    assert not found("triton 3.7.1", registers=255)  # which another compiler may take
    assert "256 registers" in found("triton 3.7.1", registers=256)
    for changed, said in (
        ({"spills": 4}, "4 spilled"),
        ({"stack": 8}, "8 bytes of stack"),
        ({"shared": 1 << 20}, "of shared memory"),
        ({"matrix": {}}, "no matrix instructions"),
        ({"loads": {2: 8}}, "global loads of 2 bytes"),
    ):
        assert said in found("triton 3.7.1", **changed)


def test_registers_that_amd_keeps_in_others_are_not_spilled():
    kept = Compiled("a", "gfx942", 256, 411, 0, 4, 0)
    assert not gpu_budgets.violations(kept, GENEROUS)
    assert gpu_budgets.violations(replace(kept, stack=16), GENEROUS)
    assert gpu_budgets.violations(replace(kept, arch="sm_90", registers=200), GENEROUS)


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
@pytest.mark.slow
@pytest.mark.parametrize("arch", compilation.NVIDIA)
def test_defects_of_cuda_kernels_are_found(compiled, tmp_path, arch):
    path = tmp_path / "kernels.cu"
    path.write_text(CU)
    kernels = {kernel.name: kernel for kernel in compiled([Task(arch, path.name, "", path=path)])}
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
    with pytest.raises(resources.CompileError, match='"n" was declared but never referenced'):
        resources.compile_cu(path, "sm_90")


def test_a_compiler_that_dies_is_one_error(tmp_path, monkeypatch):
    """What was compiled beside it, and what is to come, is compiled all the same."""
    code = "def ahead_of_time():\n    import os\n    {}\n"
    for name, line in (("dies", "os._exit(1)"), ("fails", "from benchmarks.gpu.resources import CompileError")):
        (tmp_path / f"{name}_kernels.py").write_text(code.format(line))
    with (tmp_path / "fails_kernels.py").open("a") as file:
        file.write("    raise CompileError('refused')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    tasks = [Task("sm_90", str(i), "", f"{name}_kernels") for i, name in enumerate(("fails", "dies", "fails", "dies"))]
    results = list(resources.compile_all(tasks, 2))
    assert [task for task, _ in results] == tasks
    died = [f"{i}, sm_90: the compiler died" for i in (1, 3)]
    assert [said for _, said in results] == ["refused", died[0], "refused", died[1]]


# --- What is read out of text.


def test_narrow_products_in_ir():
    ir = """
    %c64 = arith.constant 64 : i32
    %q = tt.get_program_id x : i32
    %0 = arith.muli %q, %P : i32
    %1 = tt.addptr %a, %0 : !tt.ptr<f32>, i32
    %2 = tt.splat %0 : i32 -> tensor<64xi32>
    %3 = arith.addi %2, %lanes : tensor<64xi32>
    %4 = arith.extsi %3 : tensor<64xi32> to tensor<64xi64>
    %5 = tt.addptr %b, %4 : tensor<64x!tt.ptr<f32>>, tensor<64xi64>
    """
    assert narrow_products(ir) == ["%0 = arith.muli %q, %P : i32"]
    assert not narrow_products(ir.replace("%q, %P", "%q, %c64"))
    assert not narrow_products(ir.replace("%P : i32", "%P : i64"))
    assert not narrow_products(ir.replace("tt.addptr", "tt.other"))


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
    assert resources.ptx_loads(ptx) == {16: 3, 2: 1, 32: 1, 4: 1}


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
    assert resources.sass_loads(sass) == {16: 2, 8: 1, 2: 1, 1: 1, 4: 1, 32: 1}


def test_pairs_that_are_refused_are_of_architectures_that_are_compiled_for():
    assert {arch for _, arch in compilers.REFUSED} <= set(compilation.ARCHITECTURES)
