"""What the package for Node is tested with: problems and the reference's answers, as JSON.

``python tests/helpers/node_fixtures.py > node/test/fixtures.json``
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

import ragsys_kernels as rk

ROWS, DIMS, K = 40, 13, 8
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("mmr", {}),
    ("mmr", {"lambda_d": 0.4}),
    ("mmr", {"lambda_d": 0.5, "metric": "dot"}),
    ("mmr", {"bias": True}),
    ("mmr", {"lambda_d": 0.6, "bias": True, "lambda_b": 0.5}),
    ("mmr", {"lambda_d": 0, "candidates": [31, 4, 17, 8, 25, 39, 0, 12, 6]}),
    ("mmr", {"lambda_d": 1, "candidates": [3, 2, 1]}),
    ("vrsd", {}),
    ("vrsd", {"metric": "dot"}),
    ("vrsd", {"candidates": [31, 4, 17, 8, 25, 39, 0, 12, 6]}),
]
JS_NAMES = {"lambda_d": "lambdaD", "lambda_b": "lambdaB", "logit_scale": "logitScale"}


def grid(rng: np.random.Generator, shape: tuple[int, ...], scale: float = 1.0) -> np.ndarray:
    """Multiples of 1/64, which are short in decimal and exact in float32."""
    return np.round(64 * scale * rng.standard_normal(shape)) / 64


def fixtures() -> dict[str, Any]:
    rng = np.random.default_rng(11)
    query, rows, bias = grid(rng, (DIMS,)), grid(rng, (ROWS, DIMS)), grid(rng, (ROWS,))
    logits, targets = grid(rng, (5, 301), 6), rng.integers(0, 301, 5)
    logits[3] += 10_000
    selections = []
    for op, given in OPTIONS:
        options = {name: value for name, value in given.items() if name not in ("bias", "candidates")}
        if "bias" in given:
            options["bias"] = bias
        if "candidates" in given:
            options["candidates"] = np.array([given["candidates"]])
        k = min(K, len(given.get("candidates", rows)) - 1)
        call = rk.mmr if op == "mmr" else rk.vrsd
        found = call(query[None].astype(np.float32), rows.astype(np.float32), k, backend="reference", **options)
        answers = {
            name: [None if np.isnan(x) else round(float(x), 6) for x in getattr(found, name)[0]]
            for name in ("scores", "relevance", "redundancy")
        }
        js_options = {JS_NAMES.get(name, name): value for name, value in given.items()}
        selections.append({"op": op, "k": k, "options": js_options, "indices": found.indices[0].tolist(), **answers})
    logprobs = []
    for options in ({}, {"temperature": 0.7}, {"logit_scale": 0.25}, {"softcap": 15.0}):
        values = rk.token_logprobs(logits.astype(np.float32), targets, backend="reference", **options)
        js_options = {JS_NAMES.get(name, name): value for name, value in options.items()}
        logprobs.append({"options": js_options, "logprobs": [round(float(x), 6) for x in values]})
    return {
        "query": query.tolist(),
        "rows": rows.tolist(),
        "bias": bias.tolist(),
        "selections": selections,
        "logits": logits.tolist(),
        "targets": targets.tolist(),
        "logprobs": logprobs,
    }


if __name__ == "__main__":
    print(json.dumps(fixtures(), separators=(",", ":")))
