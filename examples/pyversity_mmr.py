"""The same call of pyversity and of its drop-in, and the time of each."""

from statistics import median
from time import perf_counter

import numpy as np
import pyversity

from ragsys_kernels.integrations import pyversity as drop_in

rng = np.random.default_rng(0)
centres = rng.standard_normal((10, 384))
embeddings = (centres[rng.integers(0, 10, 100)] + 0.3 * rng.standard_normal((100, 384))).astype(np.float32)
scores = rng.random(100, dtype=np.float32)


def seconds(module):
    times = []
    for _ in range(50):
        start = perf_counter()
        module.diversify(embeddings, scores, k=10, strategy=module.Strategy.MMR, diversity=0.5)
        times.append(perf_counter() - start)
    return median(times)


for module in (pyversity, drop_in):
    found = module.diversify(embeddings, scores, k=10, strategy=module.Strategy.MMR, diversity=0.5)
    print(module.__name__, found.indices.tolist(), f"{1e6 * seconds(module):.0f} µs")
