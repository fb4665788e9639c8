"""Random selections by every rule, with budgets, ceilings and other limits, against their replay in float64.

`python tests/fuzz/fuzz_rules.py --seed 1 --selections 100000`

A case is drawn from (seed, number) alone. Its picks must be those that exact arithmetic allows; other threads, some of
the queries, another order of them and a smaller k must not change a bit of them. Then comes another instruction set.
"""

import sys
from typing import Any

import numpy as np
from fuzz_runs import Fuzzer, WrongError, main
from selecting import draw_isa, in_words, of_queries, same, strict

import ragsys_kernels as rk
from ragsys_kernels import testing


def draw(seed: int, number: int) -> tuple[str, dict[str, Any]]:
    """The rule and the arguments of a case."""
    rng = np.random.default_rng([seed, number])

    def now_and_then(share: float = 0.3) -> bool:
        return bool(rng.random() < share)

    method = str(rng.choice([name for name in rk.METHODS if name != "gist"]))
    kind = str(rng.choice(testing.KINDS))
    Q, P, K, D = (int(rng.integers(1, most)) for most in (7, 80, 9, 41))
    dense = now_and_then(0.2)
    problem = testing.selection_problem(
        Q, P, K, D,
        kind=kind,
        dtype=str(rng.choice(("float32", "float16", "bfloat16"), p=(0.7, 0.15, 0.15))),
        dense=dense,
        ragged=not dense and now_and_then(),
        bias=method not in ("vrsd", "sift") and now_and_then(),
        groups=now_and_then(),
        budget=now_and_then(0.4),
        ceiling=now_and_then(0.4),
        seed=int(rng.integers(1 << 31)),
    )  # fmt: skip
    ids = P if dense else 2 * P
    if now_and_then():
        problem["initial"] = np.stack([rng.permutation(ids)[: min(ids, 3)] for _ in range(Q)])
    if kind != "integers" and "lambda_d" in rk.METHODS[method].parameters:
        problem["lambda_d"] = rng.choice((0.0, 0.3, 0.5, 0.75, 0.95, 1.0), Q)
    elif method in ("vrsd", "sift"):
        for name in ("lambda_d", "lambda_b"):
            problem.pop(name, None)
    problem.update(_options(rng, method, Q, D, (Q, P) if dense else (ids,)))
    if method == "coverage" and problem.get("density") and "budget" not in problem:
        problem["density"] = False
    if now_and_then(0.2):
        problem["k"] = rng.integers(1, K + 1, Q)
    if not dense and now_and_then(0.4) and kind != "integers":
        groups = {name: problem.pop(name) for name in ("groups",) if name in problem}
        problem["embeddings"] = rk.Corpus(problem["embeddings"], **groups)
    return method, problem


def _options(rng: np.random.Generator, method: str, Q: int, D: int, shape: tuple[int, ...]) -> dict[str, Any]:
    """What the rule takes of its own."""
    if method == "dpp":
        own = {"quality": rng.uniform(0.5, 2, shape)} if rng.random() < 0.4 else {}
        return {**own, "scale": float(rng.choice((0.5, 1.0, 2.0)))}
    if method == "ssd":
        return {"gamma": float(rng.choice((0.3, 1.0))), "window": [None, 1, 2, 4][rng.integers(4)]}
    if method == "sift":
        return {"noise": float(rng.choice((0.05, 0.3, 1.0))), "min_gain": float(rng.choice((0.0, 0.0, 0.01)))}
    if method != "coverage":
        return {}
    made: dict[str, Any] = {"kind": str(rng.choice(("facility", "cover", "xquad"))), "density": rng.random() < 0.3}
    if made["kind"] == "cover":
        made["gamma"] = float(rng.choice((0.3, 0.5, 1.0)))
    if rng.random() < 0.5:
        made["aspects"] = rng.standard_normal((Q, 5, D)).astype(np.float32)
        if rng.random() < 0.5:
            made["weights"] = rng.uniform(0, 1, (Q, 5))
    return made


def make(method: str, problem: dict[str, Any], threads: int) -> list[np.ndarray]:
    found = getattr(rk, method)(**problem, num_threads=threads, backend="cpu")
    return [np.asarray(field) for field in (*found, found.cost) if field is not None]


def check(method: str, problem: dict[str, Any], rng: np.random.Generator) -> int:
    """Make a case's call and hold it against the rules; return the number of selections that were checked."""
    draw_isa(rng)
    found = make(method, problem, 1)
    testing.check_selection(method, problem, found[:5])
    Q = len(problem["queries"])
    order = rng.permutation(Q)[: int(rng.integers(1, Q + 1))]
    again = make(method, of_queries(problem, order), int(rng.integers(1, 4)))
    same([x[order] for x in found], again, f"for queries {order.tolist()}")
    # Two rules look at how many picks there are to be: a window of all of them, and the best single item.
    if np.ndim(problem["k"]) == 0 and problem["k"] > 1 and not problem.get("density") and method != "ssd":
        less = make(method, {**problem, "k": int(problem["k"]) - 1}, 1)
        same(found[:4], less[:4], "with a smaller k")
    if rng.random() < 0.5:
        return Q
    draw_isa(rng)
    testing.check_selection(method, problem, make(method, problem, 2)[:5])
    return 2 * Q


def run_one(seed: int, number: int) -> int:
    with strict():
        try:
            return check(*draw(seed, number), np.random.default_rng([seed, number, 1]))
        except AssertionError as error:
            raise WrongError(str(error)) from None


def describe(seed: int, number: int) -> str:
    method, problem = draw(seed, number)
    return f"{method}: {in_words(problem)}"


FUZZER = Fuzzer(__file__, "selections", 100_000, run_one, describe)

if __name__ == "__main__":
    sys.exit(main(FUZZER, __doc__))
