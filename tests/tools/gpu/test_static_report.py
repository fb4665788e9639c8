"""Occupancy, bounds, the pages made of them, and the table of what has been executed where."""

from pathlib import Path

import pytest

from benchmarks.gpu import compilation, compiled, devices
from benchmarks.gpu import static as report
from benchmarks.gpu.compilation import Task
from benchmarks.gpu.resources import Compiled
from benchmarks.harness import ledger
from benchmarks.reports import gpu, gpu_measured, places

ROOT = Path(__file__).parents[3]


# (architecture, threads, registers, shared memory) -> blocks of a multiprocessor, counted by hand.
OCCUPANCY = {
    "full of threads": ("sm_90", 256, 32, 0, 8),
    "registers": ("sm_90", 256, 128, 0, 2),  # 64 K registers, 32 K a block
    "registers come in eights of a thread": ("sm_80", 128, 168, 0, 3),
    "one more takes a block away": ("sm_80", 128, 169, 0, 2),
    "most registers there are": ("sm_100", 256, 255, 0, 1),
    "shared memory": ("sm_80", 128, 32, 40 * 1024, 4),  # 41 KiB each of 164
    "all the shared memory": ("sm_90", 128, 32, 227 * 1024, 1),
    "too much shared memory": ("sm_90", 128, 32, 227 * 1024 + 1, 0),
    "blocks": ("sm_90", 32, 16, 0, 32),
    "too many threads": ("sm_90", 2048, 16, 0, 0),
    "waves": ("gfx942", 64, 32, 0, 32),
    "vector registers": ("gfx942", 256, 128, 0, 4),  # 4 waves of each SIMD, which has one of each block
    "local data share": ("gfx942", 256, 32, 32 * 1024, 2),
}


@pytest.mark.parametrize("case", OCCUPANCY.values(), ids=OCCUPANCY)
def test_blocks_of_a_multiprocessor(case):
    arch, threads, registers, shared, blocks = case
    assert devices.PROCESSORS[arch].blocks_resident(threads, registers, shared) == blocks


def test_every_architecture_has_a_device():
    assert {device.arch for device in devices.DEVICES} == set(devices.PROCESSORS) == set(compilation.ARCHITECTURES)


@pytest.fixture
def compiling(monkeypatch):
    monkeypatch.setattr(compiled, "at_hand", lambda: {"triton 3.9.0": None})  # which need not be there
    return compiled


def case_of(**changed):
    given = {
        "op": "mmr", "shape": "P100", "dtype": "float16", "words": ("gram", "128"), "unit": "queries", "units": 10,
        "programs": 10, "floor": 1e6, "once": 2e6, "again": 4e6, "working_set": 1e5, "flops": 1e6, "matrix": True,
    }  # fmt: skip
    return report.Case(**{**given, **changed})


def test_bound_by_memory():
    device = devices.DEVICES[1]
    found = case_of().bounds(device, 2)
    assert found["bound"] == pytest.approx(10 * device.bandwidth / 2e6)
    assert (found["bytes"], found["floor_bytes"], found["flops"], found["limit"]) == (2e5, 1e5, 1e5, "memory")
    assert found["waves"] == 10 / (2 * device.processors)
    assert found["what"] == "computed bound, not a measurement"


def test_bound_by_products():
    device = devices.DEVICES[1]
    for matrix, rate in ((True, device.matrix16), (False, device.float32)):
        found = case_of(flops=1e15, matrix=matrix).bounds(device, 2)
        assert found["bound"] == pytest.approx(10 * rate / 1e15)
        assert found["limit"] == "products"


def test_what_does_not_fit_in_the_cache_is_read_again():
    device = devices.DEVICES[1]
    fits = case_of(programs=1000, working_set=device.cache / device.processors / 2)
    assert fits.bounds(device, 2)["bytes"] == 2e5
    assert fits.bounds(device, 3)["bytes"] == 6e5


def test_bound_by_the_cache():
    by_name = {device.name: device for device in devices.DEVICES}
    for name in ("H100 SXM", "MI300X"):
        found = case_of(cached=1e12, again=0).bounds(by_name[name], 2)
        assert found["bound"] == pytest.approx(10 * by_name[name].cache_bandwidth / 1e12)
        assert (found["limit"], found["bytes"]) == ("cache", 2e5)
    assert case_of(cached=1e12).bounds(by_name["B200"], 2)["limit"] == "memory"
    # What fits there is read from it again.
    found = case_of(again=1e12, working_set=1).bounds(by_name["H100 SXM"], 2)
    assert found["bound"] == pytest.approx(10 * by_name["H100 SXM"].cache_bandwidth / 1e12)


def test_case_wants_one_kernel():
    case = case_of()
    assert case.kernel(["gram 128 fp16", "gram 64 fp16", "stream 128"]) == "gram 128 fp16"
    for names in ([], ["gram 1280"], ["gram 128 a", "gram 128 b"]):
        with pytest.raises(SystemExit, match="not one kernel"):
            case.kernel(names)


def test_only_what_changed_is_compiled(compiling, tmp_path, monkeypatch):
    done = []

    def compile_all(tasks, processes, triton):
        for task in tasks:
            done.append(task.source)
            yield task, [Compiled(task.name, task.arch, 32, 16, 0, 0, 0)]

    tasks = [Task("sm_90", f"kernel {name}", f"{name}1") for name in "abc"]
    monkeypatch.setattr(compiling, "tasks", lambda processes: tasks)
    monkeypatch.setattr(compiling.resources, "compile_all", compile_all)
    path = tmp_path / "compiled.csv"
    assert [row["kernel"] for row in compiling.refresh(path)] == ["kernel a", "kernel b", "kernel c"]
    # The last compiles to what the first does, and still has a row of its own.
    tasks[:] = [Task("sm_90", "kernel a", "a1"), Task("sm_90", "kernel b", "b2"), Task("sm_90", "kernel d", "a1")]
    rows = compiling.refresh(path)
    assert done == ["a1", "b1", "c1", "b2", "a1"]
    assert [row["kernel"] for row in rows] == ["kernel a", "kernel b", "kernel d"]
    assert [row["source"] for row in rows] == ["a1", "b2", "a1"]
    # What was edited by hand, or compiled and read by other code, is compiled again.
    path.write_text(path.read_text().replace(",16,", ",15,"))
    done.clear()
    assert {row["registers"] for row in compiling.refresh(path)} == {"16"}
    assert done == ["a1", "b2", "a1"]
    other = tmp_path / "resources.py"
    other.write_text("# other code")
    monkeypatch.setattr(compiling, "READER", other)
    done.clear()
    for _ in range(2):
        compiling.refresh(path)
        assert done == ["a1", "b2", "a1"]
    monkeypatch.setattr(compiling.resources, "compile_all", lambda tasks, *_: [(task, "no") for task in tasks])
    tasks[0] = Task("sm_90", "kernel a", "a2")
    with pytest.raises(SystemExit, match=r"not everything compiles:\ntriton 3\.9\.0: no"):
        compiling.refresh(path)
    assert [row["kernel"] for row in compiling.read(path)] == ["kernel b", "kernel d"]


def test_every_compiler_has_rows_of_its_own(compiling, tmp_path, monkeypatch):
    """Those by a compiler that is not at hand stay, of the kernels that are as they were."""
    done = []

    def compile_all(tasks, processes, triton):
        for task in tasks:
            done.append((task.name, triton))
            yield task, [Compiled(task.name, task.arch, 32, 16 if triton is None else 20, 0, 0, 0)]

    def rows():
        return [(row["kernel"], row["compiler"], row["registers"]) for row in compiling.refresh(path)]

    tasks = [Task("sm_90", f"kernel {name}", f"{name}1") for name in "ab"]
    monkeypatch.setattr(compiling, "tasks", lambda processes: tasks)
    monkeypatch.setattr(compiling.resources, "compile_all", compile_all)
    path = tmp_path / "compiled.csv"
    newest, oldest, folder = "triton 3.9.0", "triton 3.6.0", Path("3.6.0")
    monkeypatch.setattr(compiling, "at_hand", lambda: {oldest: folder, newest: None})
    every = [(f"kernel {name}", *by) for name in "ab" for by in ((oldest, "20"), (newest, "16"))]
    assert rows() == every
    assert sorted(done, key=str) == [
        ("kernel a", None),
        ("kernel a", folder),
        ("kernel b", None),
        ("kernel b", folder),
    ]
    assert compiling.newest(compiling.read(path)) == [row for row in compiling.read(path) if row["compiler"] == newest]
    monkeypatch.setattr(compiling, "at_hand", lambda: {newest: None})
    done.clear()
    assert rows() == every
    assert not done
    tasks[1] = Task("sm_90", "kernel b", "b2")
    assert rows() == [*every[:2], every[3]]
    assert done == [("kernel b", None)]
    # What is refused is not compiled, and has no row.
    monkeypatch.setattr(compiling, "at_hand", lambda: {oldest: folder, newest: None})
    monkeypatch.setitem(compiling.compilers.REFUSED, ((3, 6), "sm_90"), "its code is wrong")
    assert rows() == [every[1], every[3]]


def test_tritons_in_folders_are_at_hand(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "installed", lambda: "triton 3.9.0")
    monkeypatch.setattr(compiled, "TRITONS", tmp_path / "none")
    assert compiled.at_hand() == {"triton 3.9.0": None}
    monkeypatch.setattr(compiled, "TRITONS", tmp_path)
    for version in ("3.6.0", "3.9.0"):
        (tmp_path / version).mkdir()
    assert compiled.at_hand() == {"triton 3.6.0": tmp_path / "3.6.0", "triton 3.9.0": None}


# --- What is generated and kept.


def read(name):
    return ledger.read(ledger.RESULTS / f"{name}.csv")


def test_static_report_is_up_to_date(compiling):
    pytest.importorskip("triton")
    kernels = [compiling.compiled_of(row) for row in compiling.newest(read("compiled"))]
    made = [{name: ledger.text(row[name]) for name in report.LEDGER.columns} for row in report.rows_of(kernels)]
    assert made == read("static")


def test_every_bound_is_labelled():
    rows = read("static")
    assert rows
    assert {row["what"] for row in rows} == {report.LABEL}
    page = (ROOT / "benchmarks" / "results" / "gpu.md").read_text(encoding="utf-8")
    assert "**Every figure here is a computed bound, not a measurement**" in page


def test_page_is_up_to_date():
    page = gpu.page(*(read(name) for name in ("compiled", "static", "gpu", "host", "model")))
    assert page == (ROOT / "benchmarks" / "results" / "gpu.md").read_text(encoding="utf-8")


def test_table_of_the_readme_is_up_to_date():
    text = gpu.executed(*(read(name) for name in ("compiled", "gpu", "ledger")))
    assert places.filled("executed", text) in (ROOT / places.PLACES["executed"]).read_text(encoding="utf-8")


def test_table_names_the_devices_that_were_measured():
    rows = [
        {"backend": "triton", "device": "NVIDIA H100", "date": "2030-01-02"},
        {"backend": "triton", "device": "NVIDIA H100", "date": "2030-01-01"},
    ]
    text = gpu.executed([{"kernel": "gram", "arch": "sm_90"}], rows, [])
    lines = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("|")}
    assert lines["`triton`"].endswith("| sm_90 | NVIDIA H100 (2030-01-02) |")
    assert lines["`cuda`"].endswith("| not yet | not yet |")
    assert "No kernel has run" not in text
    assert "No kernel has run" in gpu.executed([], [], [])


def measured_row(**given):
    row = {
        "op": "mmr", "backend": "", "shape": "N2000003-D384-P100-K10-Q2000", "dtype": "float16",
        "device": "NVIDIA H100", "contender": "ragsys_kernels",
        "us": "200", "spread": "", "host_us": "50", "graph_us": "", "floor_us": "100",
        "bytes": "1.6e8", "floor_bytes": "1.5e8", "flops": "1e9", "driver": "580", "clocks_mhz": "1980 3201",
        "power_limit_w": "700", "commit": "abc", "versions": "triton 3.6.0", "date": "2030-01-02",
    }  # fmt: skip
    return {**row, **given}


def test_measurements_are_shown_with_their_floor_and_their_peers():
    rows = [
        measured_row(backend="triton", spread="0.012", graph_us="190"),
        measured_row(backend="triton", contender="ragsys_kernels, gram=tiled", us="160"),
        measured_row(contender="torch", us="900"),
        measured_row(contender="torch, one Gram matrix", us="500"),
        measured_row(contender="ragsys_kernels on the CPU", backend="cpu", us="1"),
        measured_row(contender="copy of as many bytes", us="100"),
        measured_row(op="answer_logprobs", shape="T512-V151936-D1024", backend="triton", flops="3e11", bytes="2e9"),
        measured_row(op="answer_logprobs", shape="T512-V151936-D1024", contender="matrix product", us="150"),
        measured_row(op="answer_logprobs", shape="T512-V151936-D1024", contender="Liger", us="600"),
        measured_row(op="answer_logprobs", shape="T1-V151936-D1024", backend="cuda", flops="3e8", bytes="2e8"),
        measured_row(op="answer_logprobs", shape="T1-V151936-D1024", contender="matrix product", us="90"),
    ]
    text = gpu_measured.section(rows)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if "|" in line]
    table = {(line[0], line[1]): line[2:] for line in lines}
    shape = "N2000003-D384-P100-K10-Q2000, float16"
    best = "torch, one Gram matrix 2.5x"
    assert table[shape, "triton"] == [
        "200", "1.2%", "50.0", "190", "10 M queries", "800 GB/s", "50%", "", best, ""
    ]  # fmt: skip
    assert table[shape, "triton, gram=tiled"][0] == "160"
    long, short = (table[f"T{T}-V151936-D1024, float16", name] for T, name in ((512, "triton"), (1, "cuda")))
    assert long[4:] == ["2.56 M rows", "1.5 PFLOP/s", "", "75%", "", "Liger 3.0x"]
    assert short[5:] == ["1 TB/s", "", "45%", "", ""]
    assert len(table) == 2 + 4  # a header with its rule, twice the same
    assert "Commit abc, 2030-01-02. Driver 580;" in text
    assert "power limit 700 W. triton 3.6.0." in text
    assert gpu_measured.section([]) == ""
    page = gpu.page([], [], rows)
    assert page.startswith("# The GPU kernels: what was measured")
    assert "## Measured" in page
    assert "Nothing has been measured" not in page


def test_the_most_usual_shapes_are_shown_by_the_faster_backend():
    rows = [
        measured_row(backend="triton"),
        measured_row(backend="cuda", us="160"),
        measured_row(backend="triton", contender="ragsys_kernels, corpus=dense", us="90"),
        measured_row(contender="torch", us="900"),
        measured_row(contender="torch, one Gram matrix", us="480"),
        measured_row(contender="copy of as many bytes", us="80"),
        measured_row(shape="N2000003-D384-P20-K4-Q2000", backend="triton", us="30"),
        measured_row(op="token_logprobs", shape="T512-V151936", dtype="bfloat16", backend="triton", us="50"),
        measured_row(op="token_logprobs", shape="T512-V151936", dtype="bfloat16", us="600", contender="logsumexp"),
        measured_row(device="another", date="2029-01-01", backend="triton", us="1"),
    ]
    lines = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in gpu_measured.usual(rows).splitlines()
        if "|" in line
    ]
    assert lines[2:] == [
        ["MMR, 10 of 100; D = 384, 2,000 queries, float16", "cuda", "160", "12.5 M queries", "50%",
         "torch, one Gram matrix 3.0x"],
        ["log p of 512 rows from logits; 151,936 tokens, bfloat16", "triton", "50.0", "10.2 M rows", "",
         "logsumexp 12.0x"],
    ]  # fmt: skip
    assert gpu_measured.usual(rows).startswith("NVIDIA H100, 2030-01-02, commit abc,")
    assert gpu_measured.usual([]) == "Nothing has been measured on a GPU.\n"
    pools, logits = gpu_measured.headline(rows).removeprefix("On an NVIDIA H100, by time on the device: ").split(". ")
    assert pools.endswith("float16: 12.5 M queries a second, 3.0 times as fast as torch's fastest form")
    assert logits.endswith("bfloat16: 10.2 M rows a second, 12.0 times as fast as torch's fastest form.\n")
    assert gpu_measured.headline([]) == "The kernels have not yet run on a GPU.\n"


# --- The command.


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout whose report says how it was run."""
    pytest.importorskip("typer")
    pytest.importorskip("triton")
    folder = tmp_path / "benchmarks"
    (folder / "reports").mkdir(parents=True)
    for name in ("__init__.py", "conftest.py", "reports/__init__.py"):
        (folder / name).touch()
    code = "import sys; print('compiled'); sys.exit(sys.argv[1:] != ['--compile'] or STATUS)"
    (folder / "reports" / "gpu.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    return folder


def bench(command, checkout, *options, status=0):
    path = checkout / "reports" / "gpu.py"
    path.write_text(path.read_text().replace("STATUS", str(status)))
    return command(checkout.parent, "bench", *options)


def test_command_runs_the_static_report_alone(command, checkout):
    result = bench(command, checkout, "--static")
    assert (result.returncode, result.stdout) == (0, "compiled\n"), result.stderr


def test_command_fails_where_the_static_report_does(command, checkout):
    assert bench(command, checkout, "--static", status=7).returncode == 7


@pytest.mark.parametrize("option", [["--quick"], ["--select", "x"]])
def test_static_goes_with_no_other_option(command, checkout, option):
    result = bench(command, checkout, "--static", *option)
    assert result.returncode == 1
    assert result.stderr == "error: bench: --static must be given alone, got --quick, --select or the other\n"
