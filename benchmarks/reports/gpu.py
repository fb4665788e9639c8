"""What is known about the GPU: the page results/gpu.md, the tables of docs/tested.md (what ran where) and docs/gpu.md,
and the lines of README.md.

    python -m benchmarks.reports.gpu [--compile] [--root FOLDER] [--out FOLDER] [--ledger CSV] [--page FILE] [--changes]

From compiled.csv, static.csv and model.csv of the folder (`gpu/static.py`, `gpu/model.py`: compiled code and public
figures), gpu.csv (`gpu_check.py`: measurements on a GPU, if it has ever run on one) and ledger.csv (the processor).
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.gpu import model, static
from benchmarks.gpu.compiled import is_triton, newest, refused
from benchmarks.gpu.devices import DEVICES, PROCESSORS
from benchmarks.harness.ledger import RESULTS, ROOT, Row, cores, published, read
from benchmarks.reports import gpu_measured, places
from benchmarks.reports.gpu_measured import TITLES
from benchmarks.reports.tables import count, micros, table

NOT_YET = "not yet"


# --- What has been executed where.


def executed(compiled: list[Row], measured: list[Row], processors: list[Row]) -> str:
    """Return the table of docs/tested.md, from what the ledgers hold and which tests there are."""
    names = sorted({row["hardware"].partition(",")[0] for row in processors if row["hardware"]})
    processor = f"x86-64 ({', '.join(names)})" if names else "x86-64"
    tests = {path.name for path in (ROOT / "tests").rglob("*.py")}

    def compiled_for(cuda: bool) -> str:
        archs = {row["arch"] for row in compiled if is_cuda(row["kernel"]) == cuda}
        return ", ".join(arch for arch in ARCHITECTURES if arch in archs) or NOT_YET

    def on_gpu(backend: str) -> str:
        last: dict[str, str] = {}
        for row in measured:
            if row["backend"] == backend:
                last[row["device"]] = max(row["date"], last.get(row["device"], ""))
        return ", ".join(f"{device} ({date})" for device, date in sorted(last.items())) or NOT_YET

    emulated = "thread by thread on the processor, also under Address- and ThreadSanitizer"
    rows = [
        ["`reference`", processor, "", ""],
        ["`cpu`", f"{processor}; AArch64 under qemu", "", ""],
        ["`numpy`", processor, "", ""],
        [
            "`triton`",
            "Triton's interpreter on the processor" if TRITON_TESTS & tests else NOT_YET,
            compiled_for(cuda=False),
            on_gpu("triton"),
        ],
        ["`cuda`", emulated if CUDA_TESTS & tests else NOT_YET, compiled_for(cuda=True), on_gpu("cuda")],
    ]
    header = ["backend", "executed on a processor", "compiled and held to budgets for", "executed on a GPU"]
    lines = [table(header, rows, texts=range(len(header)), tight=True)]
    if not measured:
        lines += ["", "**No kernel has run on a GPU yet**: `make gpu-check` on a machine with one is what is missing."]
    return "\n".join(lines) + "\n"


ARCHITECTURES = tuple(dict.fromkeys(device.arch for device in DEVICES))
# Where each way of execution is tested.
TRITON_TESTS = {"test_triton_selection.py", "test_triton_scoring.py"}
CUDA_TESTS = {"test_cuda_selection.py"}


def is_cuda(kernel: str) -> bool:
    return kernel.startswith("rsk_")


# --- The page.


def bounds(static: list[Row], op: str, cuda: bool) -> str:
    """Return bounds of an op: a line for each shape, a column for each device."""
    shapes: dict[tuple[str, str], dict[str, Row]] = {}
    for row in static:
        if row["op"] == op and is_cuda(row["kernel"]) == cuda:
            shapes.setdefault((row["shape"], row["dtype"]), {})[row["device"]] = row
    unit = next(row["unit"] for row in static if row["op"] == op)
    header = ["shape, dtype", f"floor of a {UNITS[unit]}, moved", f"flops of a {UNITS[unit]}"]
    devices = [device for device in DEVICES if any(device.name in found for found in shapes.values())]
    header += [f"{device.name}, {unit}/s" for device in devices]
    lines = []
    for (shape, dtype), found in shapes.items():
        first = next(iter(found.values()))
        most = max(float(row["bytes"]) / float(row["floor_bytes"]) for row in found.values())
        cells = [f"{count(float(first['floor_bytes']))}B, {most:.2f}x", count(float(first["flops"]))]
        cells += [
            count(float(found[d.name]["bound"])) + _marks(found[d.name]) if d.name in found else "" for d in devices
        ]
        lines.append([f"{shape}, {dtype}", *cells])
    return table(header, lines)


UNITS = {"queries": "query", "rows": "row"}


def _marks(row: Row) -> str:
    return {"products": " ᵖ", "cache": " ᶜ"}.get(row["limit"], "") + (" °" if float(row["waves"] or 0) < 1 else "")


def resources(compiled: list[Row], cuda: bool) -> str:
    """Return registers, shared memory and blocks of every kernel, one column for each architecture."""
    kernels: dict[str, dict[str, Row]] = {}
    for row in compiled:
        if is_cuda(row["kernel"]) == cuda:
            kernels.setdefault(row["kernel"], {})[row["arch"]] = row
    archs = [arch for arch in ARCHITECTURES if any(arch in found for found in kernels.values())]
    lines = [
        [f"`{name}`", *(_resources_of(found[arch]) if arch in found else "" for arch in archs)]
        for name, found in kernels.items()
    ]
    return table(["kernel", *archs], lines)


def compilers(compiled: list[Row]) -> str:
    """Return what each of Triton's compilers made of the kernels: how many, and the most that one of them needs."""
    lines = []
    for compiler in sorted({row["compiler"] for row in compiled if is_triton(row["compiler"])}):
        cells = [compiler]
        for arch in ARCHITECTURES:
            rows = [row for row in compiled if (row["compiler"], row["arch"]) == (compiler, arch)]
            # What AMD keeps in other registers is counted as spilled, without a stack.
            most = {name: max((int(row[name]) for row in rows), default=0) for name in ("registers", "shared", "stack")}
            needs = f"{len(rows)}: {most['registers']} / {count(float(most['shared']))}B / {most['stack']}"
            cells.append("refused" if refused(compiler, arch) else needs)
        lines.append(cells)
    return table(["compiler", *ARCHITECTURES], lines)


def _resources_of(row: Row) -> str:
    parts = [row["registers"], count(float(row["shared"])) + "B" if row["shared"] != "0" else "0"]
    if row["threads"] != "0":
        numbers = (int(row[name]) for name in ("threads", "registers", "shared"))
        parts.append(str(PROCESSORS[row["arch"]].blocks_resident(*numbers)))
    kinds = " ".join(part.partition(":")[0] for part in row["matrix"].split())
    return " / ".join(parts) + (f" {kinds}" if kinds else "")


def of_host(rows: list[Row]) -> str:
    """Return the section on what calls cost the host."""
    header = ["call", "by a plan, µs", "without, µs", "torch's copy of an array, µs", "commit", "processor"]
    names = ("planned_us", "unplanned_us", "copy_us")
    cells = [[row["call"], *(f"{float(row[x]):.1f}" for x in names), row["commit"], row["hardware"]] for row in rows]
    text = """\
## Host overhead

Host time of a call on device tensors, with kernel launches that do nothing (`ragsys-kernels bench --host`, no GPU); a
real driver adds some microseconds per launch. *By a plan*: the third and later calls with the same shapes and options
(`ragsys_kernels/_gpu/plans.py`).

"""
    return f"{text}{table(header, cells, texts=(0, 4, 5))}\n\n" if rows else ""


def of_model(compiled: list[Row], counted: list[Row], measured: list[Row]) -> str:
    """Return the section on what the model predicts, beside what was measured; nothing where nothing was counted."""
    if not counted:
        return ""
    lines = []
    for one in model.predictions(compiled, counted, measured):
        form = one.form
        kernels = form.backend + (f", {form.variant}" if form.variant else "")
        us, off = ("", "") if one.measured is None else (micros(one.measured), f"{one.off:+.0%}")
        lines.append([form.name, kernels, micros(one.us), one.limits, us, off, "" if one.understood else "no"])
    header = ("shape, dtype", "kernels", "predicted µs", "bound by", "measured µs", "off", "understood")
    return f"""\
## Predictions of a model, beside what was measured

**Predicted, not measured**, for an H200: {MODEL}

{table(header, lines, texts=(0, 1, 3, 6))}

"""


_US = f"{1e6 * model.LAUNCH:.1f} µs"
MODEL = f"""\
a launch takes as long as what keeps it longest, its bytes from memory or
from the last-level cache, its matrix products, or its warps; a call takes {_US} more for each launch. A warp takes the
cycles that it would take alone, as the compiler schedules its machine code, with latencies that others have measured;
then it waits behind the instructions of the warps that share its scheduler. *Latency*: it waits for results longer
than all of these need to issue their *instructions*. *Measured*: the same kernels on an {model.MEASURED_ON}, replayed
from a CUDA graph; empty where no device has run them. What is more than {model.WITHIN:.0%} off is not *understood*. The
machine code is what the newest compilers make; `benchmarks/gpu/chain.py` has the latencies, `benchmarks/gpu/model.py`
how often each loop runs."""


def page(
    compiled: list[Row],
    static: list[Row],
    measured: list[Row],
    hosts: list[Row] | None = None,
    counted: list[Row] | None = None,
) -> str:
    devices = table(
        [
            "device",
            "memory, B/s",
            "16-bit products, flop/s",
            "float32, flop/s",
            "multiprocessors",
            "last cache, B",
            "out of it, B/s",
        ],
        [
            [
                f"{d.name} ({d.arch})",
                *(count(x) for x in (d.bandwidth, d.matrix16, d.float32)),
                str(d.processors),
                count(d.cache),
                count(d.cache_bandwidth) if d.cache_bandwidth else "not public",
            ]
            for d in DEVICES
        ],
    )
    there = {(row["op"], is_cuda(row["kernel"])) for row in static}
    parts = "\n".join(
        f"### {title}, {'CUDA C++' if cuda else 'Triton'}\n\n{bounds(static, op, cuda)}\n"
        for op, title in TITLES.items()
        for cuda in (False, True)
        if (op, cuda) in there
    )
    known = sorted({row["device"] for row in measured})
    where = (
        f"Measured on: {', '.join(known)}; [tables below](#measured), the rows in `gpu.csv`."
        if known
        else "**Nothing has been measured.**"
    )
    shown = newest(compiled)
    cuda = resources(shown, cuda=True) if any(is_cuda(row["kernel"]) for row in shown) else "Not compiled."
    used = ", ".join(sorted({row["compiler"] for row in shown}))
    return f"""\
# The GPU kernels{": what was measured, and what bounds them" if known else " without a GPU"}

Written by `python -m benchmarks.reports.gpu` from `compiled.csv` and `static.csv`, which
`ragsys-kernels bench --static` makes by compiling every kernel; {used}, where nothing else is said.
{where}

{gpu_measured.section(measured)}{of_host(hosts or [])}{of_model(compiled, counted or [], measured)}\
## Computed bounds, not measurements

How fast an op could be if the device did nothing but move its bytes at the full bandwidth of its memory, or do its
products at the full rate, whichever takes longer. **Every figure here is a computed bound, not a measurement**:
latency, launches, exponentials and the greedy steps take no time in it. *Floor*: one read of the input; *moved*: what
the kernel moves over it, on the device where that is most. Pools are taken to have no rows in common. What a kernel
reads again comes from the last-level cache where the pools of all blocks at work fit in it, and from memory where they
do not. ᵖ: bound by products, ᶜ: by what the last-level cache gives, else by memory. °: so few blocks that the device is
not full, for which the bound is far too good.

Public figures (sources in `benchmarks/gpu/devices.py`):

{devices}

{parts}
## Resources

Registers of a thread / shared memory of a block / blocks that fit on a multiprocessor, then the kind of matrix
instructions. `tests/helpers/gpu_budgets.py` holds them to that, and names those that spill registers, with the reason.

### Triton

{resources(shown, cuda=False)}

Every compiler of Triton that the kernels are held to: kernels compiled: most registers / shared memory / bytes spilled.

{compilers(compiled)}

### CUDA C++

The launcher chooses the threads, and adds shared memory, by the shape: here is the static part.

{cuda}
"""


LEDGERS = ("compiled", "static", "host", "model")


def write(folder: Path, root: Path, ledger: Path | None = None, page_only: Path | None = None) -> None:
    """Write the page from the ledgers of a folder, and the tables of docs/tested.md and docs/gpu.md below the root.

    ``ledger`` has the measurements in place of the folder's. ``page_only``: write the page to this file, with rows of
    any commit, and nothing else.
    """
    compiled, static, hosts, counted = (read(folder / f"{name}.csv") for name in LEDGERS)
    if not compiled:
        raise SystemExit("error: nothing has been compiled: run `ragsys-kernels bench --static` first")
    rows = read(ledger or folder / "gpu.csv")
    if page_only is not None:
        page_only.write_text(page(compiled, static, rows, hosts, counted), encoding="utf-8")
        return
    measured = published(rows)
    text = page(compiled, static, measured, published(hosts), counted)
    (folder / "gpu.md").write_text(text, encoding="utf-8")
    for part, filled in parts(compiled, measured).items():
        places.fill(root, part, filled)


def parts(compiled: list[Row], measured: list[Row]) -> dict[str, str]:
    """Return the generated parts of README.md and docs/."""
    return {
        "executed": executed(compiled, measured, published(read(RESULTS / "ledger.csv"))),
        "gpu-speed": gpu_measured.usual(measured),
        "gpu-headline": gpu_measured.headline(measured),
    }


def changed(root: Path, texts: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of files that generated parts change, as a diff has them."""
    for part, text in texts.items():
        name = places.PLACES[part]
        before = (root / name).read_text(encoding="utf-8").partition(f"<!-- {part}:begin -->\n")[2]
        before = before.partition(f"<!-- {part}:end -->")[0]
        yield from difflib.unified_diff(before.splitlines(), text.splitlines(), name, name, lineterm="", n=0)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compile", action="store_true", help="compile the kernels that have changed first")
    parser.add_argument("--processes", type=int, help="that compile at a time (default: one for each core)")
    parser.add_argument("--root", type=Path, default=ROOT, help="folder that has docs/tested.md")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the ledgers and for the page")
    parser.add_argument("--ledger", type=Path, help="measurements on a GPU (default: gpu.csv of that folder)")
    parser.add_argument("--changes", action="store_true", help="write nothing; print the lines that would change")
    parser.add_argument("--page", type=Path, help="write only the page, to this file, with rows of any commit")
    given = parser.parse_args(arguments)
    if given.compile:
        static.write(given.out, given.processes or cores())
        model.refresh(given.out, read(given.out / "compiled.csv"), given.processes or cores())
    if given.changes:
        rows = read(given.ledger or given.out / "gpu.csv")
        for line in changed(given.root, parts(read(given.out / "compiled.csv"), rows)):
            print(line)
        return
    write(given.out, given.root, given.ledger, given.page)


if __name__ == "__main__":
    main()
