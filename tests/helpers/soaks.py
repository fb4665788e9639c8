"""Problems whose calls are repeated until a race would have shown: odd pools and dimensions, caps, initial items."""

import numpy as np

from ragsys_kernels import testing

# Rows that are near one another, so that a similarity that is missed changes a pick: one warp's pool; all warps'; a
# large one.
POOLS = (13, 75, 517)


def problem(op, P, D=37, dtype="float32"):
    """Arguments of ``op`` with every option that has state of its own."""
    arguments = testing.selection_problem(
        3, P, 9, D, kind="clustered", dtype=dtype, bias=op != "vrsd", groups=True, ragged=True, seed=P
    )
    random = np.random.default_rng(P)
    arguments["initial"] = np.stack([random.permutation(len(arguments["embeddings"]))[:3] for _ in range(3)])
    arguments["max_per_group"] = 3
    return {name: x for name, x in arguments.items() if op != "vrsd" or name not in ("lambda_d", "lambda_b")}
