"""The one command for a machine with a GPU: does it work, is it right under tools, how fast is it.

    GPU_PYTHON=python3 make gpu-check         # with that interpreter as it is; nothing is installed
    make gpu-check                            # in the virtual environment, with what it needs
    python benchmarks/gpu_check.py [--stage race|rest|works|tools|ledger] [--out DIR] [--budget SECONDS] [--match REGEX]

Stages, each within its budget (nine minutes), what is worth most first: *race* (only where it is named: every form of
every call that has a goal, against what it must read), *rest* (only where it is named: the headline and the
compute-sanitizer, which a race of a few minutes does not reach), *works* (build, configuration, small problems, all GPU
tests, eight shapes timed), *tools* (the error of long sums, a soak, compute-sanitizer, ceilings of this machine,
variants of kernels, ncu), *ledger* (all shapes timed twice). They need no network, no .git and no data, and write
STAGE.json, STAGE.log, gpu.csv and gpu.md to one folder. RAGSYS_KERNELS_COMMIT names the commit of a copy without
.git. ``--look`` only looks for a GPU.

Status 0: nothing is wrong; 1: something is (a failed test, a wrong result, a backend that cannot run); 2: there is no
GPU here, and nothing was recorded. What could not be run, or was left out for want of time, is listed with the reason.
"""

from __future__ import annotations

import argparse
import glob
import re
import signal
import sys
from pathlib import Path

NO_GPU = 2
ROOT = Path(__file__).resolve().parents[1]
ALWAYS = ("works", "tools", "ledger")
STAGES = ("race", "rest", *ALWAYS)

# Device files of the drivers: NVIDIA's, its one under Windows' Linux, AMD's. The interpreter that runs `--look` has no
# torch to ask.
_DEVICE_FILES = ("/dev/nvidia[0-9]*", "/dev/dxg", "/dev/kfd")


def why_no_driver() -> str | None:
    if any(glob.glob(pattern) for pattern in _DEVICE_FILES):
        return None
    return f"none of {', '.join(_DEVICE_FILES)} is here"


def why_no_gpu() -> str | None:
    """Return the reason torch cannot work on a GPU, or None if it can."""
    try:
        import torch
    except ImportError as error:
        return f"torch cannot be imported: {error}"
    if torch.cuda.is_available():
        return None
    built = torch.version.cuda or getattr(torch.version, "hip", None)
    return f"torch {torch.__version__} " + ("finds no GPU" if built else "is a build without GPU support")


def own_backends() -> str:
    """Return the backends that must run here: CUDA C++ is not for AMD."""
    import torch

    return "triton" if getattr(torch.version, "hip", None) else "triton,cuda"


def seconds(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
    return value


def pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"must be a regular expression, got {text!r}: {error}") from None
    return text


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--look", action="store_true", help="only look for a GPU")
    parser.add_argument("--stage", choices=STAGES, help="only this one (default: works, tools, ledger)")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu-check", help="folder for all that is found")
    parser.add_argument("--budget", type=seconds, default=540.0, help="seconds of a stage (default: 540)")
    parser.add_argument("--match", type=pattern, default="", help="only shapes whose line this is found in")
    parser.add_argument("--ledger", type=Path, help="file of the times (default: gpu.csv in --out)")
    parser.add_argument("--backends", help="that must run here, with commas (default: all for this GPU)")
    parser.add_argument("--no-compile", action="store_true", help="no torch.compile among those timed")
    parser.add_argument("--small", action="store_true", help="small problems and few runs: shows that the check works")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    given = parsed(arguments)
    reason = why_no_driver() or (None if given.look else why_no_gpu())
    if reason is not None:
        print(f"gpu-check: no GPU here: {reason}. Nothing was run, nothing was recorded.", file=sys.stderr)
        return NO_GPU
    if given.look:
        return 0

    sys.path[0] = str(ROOT)  # where the package `benchmarks` is; it was the folder of this file
    from benchmarks.stages import stage, steps

    out = given.out.resolve()
    asked = steps.Given(
        out=out,
        ledger=given.ledger.resolve() if given.ledger else out / "gpu.csv",
        budget=given.budget,
        match=given.match,
        backends=given.backends or own_backends(),
        compiling=not given.no_compile,
        small=given.small,
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was found is still told
    right = True
    for name in (given.stage,) if given.stage else ALWAYS:
        options = {key: str(value) for key, value in vars(asked).items()}
        right = stage.run(name, steps.STAGES[name](asked), out, given.budget, options) and right
    print(f"All that was found is in {out}.")
    print("gpu-check: " + ("nothing that ran is wrong" if right else "FAILED"))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
