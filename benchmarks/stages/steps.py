"""The steps of the stages, each in the order in which they are worth their time."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.race import SHARE
from benchmarks.stages.stage import DONE, REFUSED, ROOT, Step, checked, helpful, last_line, python, vital
from ragsys_kernels._base import sources

TESTS = Path("tests", "gpu", "test_gpu.py")
SHAPES_SECONDS = 150.0  # kept for the times of the first stage
BENCH_SECONDS = 40.0  # the first shape takes so long, with all that is compiled for it
CLOSING_SECONDS = 20.0  # for the start of a process with a budget, and what it has begun when that is used up
PICKS_SECONDS = 60.0 + CLOSING_SECONDS  # before a race
RACE_LEAST_SECONDS = 15.0  # a shape, and the end of the process
RACE_CLOSING_SECONDS = 4.0
SANITIZERS_SECONDS = 120.0
HEADLINE_SMALL = ("--queries", 8, "--rows", 211, "--dims", 24, "--batch", 4)
PROCESSES = 8  # of the tests: each compiles kernels of its own
SANITIZERS = ("memcheck", "synccheck", "racecheck")
SECTIONS = ("SpeedOfLight", "LaunchStats", "Occupancy", "MemoryWorkloadAnalysis", "WarpStateStats")


@dataclass(frozen=True)
class Given:
    """What a run is asked for."""

    out: Path
    ledger: Path
    budget: float  # seconds of a stage
    match: str = ""  # shapes that are timed
    backends: str = "triton,cuda"
    compiling: bool = True  # torch.compile among the contenders
    small: bool = False  # small problems and few runs, to see that everything works


def calls(given: Given, command: str, seconds: float | None = None) -> list[str]:
    """A command of `calls.py`; one that has a budget ends by itself before its time is up."""
    options = ["--small"] if given.small else []
    if seconds is not None:
        options += ["--budget", f"{max(seconds - CLOSING_SECONDS, 1):.0f}"]
    return python("-m", "benchmarks.stages.calls", command, "--backends", given.backends, *options)


def build() -> Step:
    """The extension, in place; nothing is installed. One that is of the sources that are here stays as it is.

    `make race-pack` makes it on another machine.
    """
    built = ROOT / "ragsys_kernels" / f"_C{sysconfig.get_config_var('EXT_SUFFIX')}"
    if sources.is_of(built, sources.of_extension(ROOT)):
        command = python("-c", f"print({f'{built.name} is of the sources that are here'!r})")
    else:
        command = python("setup.py", "-q", "build_ext", "--force", "--inplace")
    return Step("build", lambda seconds: {"setup.py": command}, 300, environment={"RAGSYS_KERNELS_REQUIRE_EXT": "1"})


def config(given: Given) -> Step:
    return Step("config", lambda seconds: {"show_config": calls(given, "config")}, 90)


def host(given: Given) -> Step:
    """What the processor does for calls, beside a copy of torch's."""
    return Step("host", lambda seconds: {"host": python("-m", "benchmarks.gpu.host", "--out", given.out)}, 40, helpful)


def bench(given: Given, seconds: float, *options: str) -> list[str]:
    """A run of the bench that ends by itself a little before its time is up."""
    more = [*options, *(["--match", given.match] if given.match else []), *(["--small"] if given.small else [])]
    more += [
        "--backends",
        given.backends,
        "--ledger",
        str(given.ledger),
        "--budget",
        f"{max(seconds - CLOSING_SECONDS, 1):.0f}",
    ]
    return python("-m", "benchmarks.gpu.bench", *more)


# --- Does it work?


def works(given: Given) -> Sequence[Step]:
    return (
        build(),
        config(given),
        Step("picks", lambda seconds: {"picks": calls(given, "picks")}, 150),
        Step(
            "tests",
            lambda seconds: {"pytest": pytest(seconds)},
            max(given.budget - SHAPES_SECONDS, 60),
            judge=tested,
            environment={"RAGSYS_KERNELS_TEST_BACKENDS": given.backends, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        ),
        Step(
            "times",
            lambda seconds: {"bench": bench(given, seconds, "--one-of-each", "--no-compile")},
            SHAPES_SECONDS * 2,
            least=BENCH_SECONDS,
        ),
    )


def pytest(seconds: float) -> list[str]:
    """The GPU tests alone, on eight processes, with the plugins that are named and no others.

    What other packages of this machine warn of is no defect of ours, and their plugins are not asked for.
    """
    options = ["-p", "no:cacheprovider", "-o", "addopts=", "-W", "default", "-ra", "--strict-markers", "--tb=short"]
    if importlib.util.find_spec("xdist") is not None:
        options += ["-p", "xdist", "-n", str(PROCESSES), "--dist", "worksteal"]
    if importlib.util.find_spec("pytest_timeout") is not None:
        options += ["-p", "pytest_timeout", "--timeout", f"{max(seconds / 2, 30):.0f}"]
    # The sanitizers are a step of the next stage.
    return python("-m", "pytest", *options, "--deselect", f"{TESTS}::test_compute_sanitizer", TESTS)


def tested(status: int | None, output: str) -> tuple[str, str]:
    """What pytest says at the end, and why it skipped what it skipped."""
    result, reason = vital(status, output)
    if result != DONE:
        return result, reason
    skipped = re.findall(r"^SKIPPED \[\d+\] \S+ (.*)$", output, re.MULTILINE)
    return result, "; ".join([last_line(output).strip("= "), *dict.fromkeys(skipped)])


# --- Is it right under tools, and where does the time go?


def tools(given: Given) -> Sequence[Step]:
    fifth = given.budget / 5
    variants = ("--one-of-each", "--no-compile", "--variants")
    return (
        build(),
        Step("error of sums", lambda seconds: {"linear": calls(given, "linear")}, fifth, judge=checked),
        Step("soak", lambda seconds: {"soak": calls(given, "soak", seconds)}, fifth, judge=checked),
        sanitizers(given, 1.5 * fifth),
        Step("ceilings", lambda seconds: {"ceilings": python("-m", "benchmarks.gpu.ceilings")}, 60, judge=helpful),
        Step(
            "variants",
            lambda seconds: {"bench": bench(given, seconds, *variants)},
            1.5 * fifth,
            checked,
            least=BENCH_SECONDS,
        ),
        profiler(given),
    )


def sanitizers(given: Given, most: float) -> Step:
    """All tools at once; torch's allocator would hide from them what is out of bounds or never written.

    The kernels of CUDA C++ come first, as those that no compiler of others has made.
    """
    found = tool("compute-sanitizer")
    # Errors of calls of CUDA are not reported: torch and CuPy ask for what a driver may not have, and go on without.
    options = ("--error-exitcode", "9", "--report-api-errors", "no", "--target-processes", "application-only")
    return Step(
        "sanitizers",
        lambda seconds: {
            name: [str(found), "--tool", name, *options, *calls(given, "sanitize")] for name in SANITIZERS
        },
        most,
        judge=sanitized,
        environment={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        absent="" if found else "compute-sanitizer is not here; it comes with the CUDA toolkit",
    )


def sanitized(status: int | None, output: str) -> tuple[str, str]:
    """What is true of any tool; where this one does not know the device, its errors are not the kernels'."""
    if "Device not supported" in output:
        return REFUSED, "Device not supported"
    result, reason = helpful(status, output)
    return result, f"{reason}, in {last_line(output)}" if status is None else reason


def profiler(given: Given) -> Step:
    """Counters of one call of each kind of kernel; the clocks are left as they are."""
    found = tool("ncu")
    options = ["--clock-control", "none", "--profile-from-start", "off", "--target-processes", "application-only"]
    options += ["--nvtx"]
    for section in SECTIONS:
        options += ["--section", section]
    return Step(
        "profile",
        lambda seconds: {"ncu": [str(found), *options, *calls(given, "profile")]},
        given.budget,
        judge=helpful,
        absent="" if found else "ncu is not here; it comes with the CUDA toolkit",
    )


def tool(name: str) -> str | None:
    """Return where a tool of the CUDA toolkit is."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    return shutil.which(name) or shutil.which(name, path=str(Path(home, "bin")))


# --- The ledger.


def ledger(given: Given) -> Sequence[Step]:
    compiling = [] if given.compiling else ["--no-compile"]
    page = ["-m", "benchmarks.reports.gpu", "--ledger", given.ledger, "--page", given.out / "gpu.md"]
    return (
        build(),
        config(given),
        Step(
            "rows",
            lambda seconds: {"bench": bench(given, seconds, "--passes", "2", *compiling)},
            given.budget - 30,
            least=BENCH_SECONDS,
        ),
        Step("page", lambda seconds: {"report": python(*page)}, 60),
    )


# --- The race.


def race(given: Given) -> Sequence[Step]:
    """Every form of every call with a goal: picks are checked while kernels are compiled, then the forms are timed.

    What decides most comes first; torch and tools have the time that is left. The table is printed in any case.
    """
    small = ["--small"] if given.small else []
    match = ["--match", given.match] if given.match else []
    timing = ["-m", "benchmarks.gpu.race", "--ledger", given.ledger, *small]

    def checks(seconds: float) -> dict[str, list[str]]:
        """Picks, and what compiles for the race beside them: neither is timed."""
        found = {"picks": calls(given, "picks", seconds)}
        return found if given.small else {**found, "compiling": python("-m", "benchmarks.gpu.warm", *match)}

    def timed(*more: object) -> Callable[[float], dict[str, list[str]]]:
        def commands(seconds: float) -> dict[str, list[str]]:
            ending = ["--budget", f"{max(seconds - RACE_CLOSING_SECONDS, 1):.0f}"]
            return {"race": python(*timing, *match, *ending, *more)}

        return commands

    headline = python("-m", "benchmarks.gpu.headline", "--parts", "pool,whole", *(HEADLINE_SMALL if small else ()))
    suspects = given.out / "race.json"
    return (
        build(),
        config(given),
        Step("machine", lambda seconds: {"machine": python("-m", "benchmarks.gpu.causes")}, 30, judge=helpful),
        Step("picks", checks, PICKS_SECONDS, judge=checked),
        Step(
            "race",
            timed("--backends", given.backends, "--suspects", suspects),
            given.budget * SHARE,
            least=RACE_LEAST_SECONDS,
        ),
        host(given),
        Step("peers", timed("--peers"), given.budget, judge=helpful, least=RACE_LEAST_SECONDS),
        Step("headline", lambda seconds: {"headline": headline}, 60, judge=helpful, least=BENCH_SECONDS),
        sanitizers(given, max(given.budget / 4, SANITIZERS_SECONDS)),
        Step("table", lambda seconds: {"race": python(*timing, "--table")}, 20, judge=helpful, always=True),
    )


def rest(given: Given) -> Sequence[Step]:
    """What a race of a few minutes has no time for."""
    return tuple(step for step in race(given) if step.name in ("build", "headline", "sanitizers"))


STAGES: Mapping[str, object] = {"race": race, "rest": rest, "works": works, "tools": tools, "ledger": ledger}
