"""Run the kernels of an installed wheel on every instruction set of the processor, beside the reference."""

import os
import platform
import subprocess
import sys
from importlib.metadata import version

CHILD = "RAGSYS_KERNELS_SMOKE_CHILD"


def compare() -> None:
    import numpy as np

    import ragsys_kernels as rk

    rng = np.random.default_rng(0)
    queries = rng.standard_normal((8, 48), dtype=np.float32)
    pool = rng.standard_normal((8, 40, 48), dtype=np.float32)
    for rule, parameters in ((rk.mmr, {"lambda_d": 0.6}), (rk.vrsd, {})):
        found, wanted = (rule(queries, pool, k=7, backend=name, **parameters) for name in ("cpu", "reference"))
        np.testing.assert_array_equal(found.indices, wanted.indices)
    logits, targets = rng.standard_normal((5, 1003), dtype=np.float32), np.arange(5)
    found, wanted = (rk.token_logprobs(logits, targets, backend=name) for name in ("cpu", "reference"))
    np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=2e-6)


def main() -> None:
    if os.environ.get(CHILD):
        compare()
        return
    import ragsys_kernels
    from ragsys_kernels import _C

    for isa in _C.SUPPORTED_ISAS:
        env = os.environ | {CHILD: "1", "RAGSYS_KERNELS_ISA": isa}
        start = [*os.environ.get("RAGSYS_KERNELS_SMOKE_PYTHON", sys.executable).split("\n"), "-W", "error"]
        found = subprocess.run([*start, __file__], env=env, capture_output=True, text=True)
        if found.returncode != 0:
            raise SystemExit(f"{isa}: {found.stderr}")
    libc = platform.libc_ver()
    print(
        f"Python {platform.python_version()} | {platform.machine()} | {' '.join(libc)} | NumPy {version('numpy')} | "
        f"{', '.join(_C.SUPPORTED_ISAS)} | {os.path.dirname(ragsys_kernels.__file__)}"
    )


if __name__ == "__main__":
    main()
