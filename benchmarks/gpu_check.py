"""The one command for a machine with a GPU: all its tests, then all ops timed against their floors and peers.

    make gpu-check                            # installs what is needed, then runs this file
    python benchmarks/gpu_check.py [--look] [--only tests|times] [--ledger CSV]

``--look`` only looks for a GPU. What could not be run is listed at the end with the reason. Status 0: all tests passed
and all times were taken; 1: a test failed or a result was wrong; 2: there is no GPU here, and nothing was recorded.
"""

from __future__ import annotations

import argparse
import glob
import shutil
import subprocess
import sys
from pathlib import Path

NO_GPU = 2
ROOT = Path(__file__).resolve().parents[1]

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


def run_tests() -> bool:
    """Run all tests marked gpu; pytest says which were skipped, and why. Return whether none failed."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-rs", str(ROOT / "tests")]
    print("$", *command, flush=True)
    return subprocess.run(command, cwd=ROOT).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--look", action="store_true", help="only look for a GPU")
    parser.add_argument("--only", choices=("tests", "times"))
    parser.add_argument("--ledger", type=Path, default=ROOT / "benchmarks" / "results" / "gpu.csv")
    arguments = parser.parse_args()

    reason = why_no_driver() or (None if arguments.look else why_no_gpu())
    if reason is not None:
        print(f"gpu-check: no GPU here: {reason}. Nothing was run, nothing was recorded.", file=sys.stderr)
        return NO_GPU
    if arguments.look:
        return 0

    good, absent = True, []
    if arguments.only != "times":
        good = run_tests()
        if shutil.which("compute-sanitizer") is None:
            absent.append("compute-sanitizer: not installed; it comes with the CUDA toolkit")
    if arguments.only != "tests":
        sys.path[0] = str(ROOT)  # where the package `benchmarks` is; it was the folder of this file
        from benchmarks.gpu import bench

        outcome = bench.run(arguments.ledger)
        absent += outcome.absent
        for line in outcome.wrong:
            print(f"WRONG: {line}")
        good = good and not outcome.wrong
        print(f"{outcome.rows} rows in {arguments.ledger}, device {outcome.device}")
        from benchmarks.reports import gpu

        gpu.main([])
    for line in absent:
        print(f"not run: {line}")
    print("gpu-check: " + ("all that could run is right" if good else "FAILED"))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
