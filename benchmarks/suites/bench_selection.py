"""Selection out of pools: MMR against pyversity, LangChain and LlamaIndex; VRSD against its rule in NumPy."""

import pytest

from benchmarks.suites import selection as contenders
from benchmarks.suites import shapes


@pytest.mark.parametrize(("shape", "lambda_d"), shapes.MMR, ids=str)
def bench_mmr(race, problem, shape, lambda_d):
    made = problem(shape)
    entries = [
        contenders.ours("mmr", made, lambda_d),
        contenders.ours("mmr", made, lambda_d, given=True),
        *(contenders.ours("mmr", made, lambda_d, dtype=dtype) for dtype in shapes.DTYPES[1:]),
        *(contenders.ours("mmr", made, lambda_d, dtype=dtype, given=True) for dtype in shapes.OF_16_BITS),
        *contenders.mmr_peers(made, lambda_d),
        *(contenders.floor(made, dtype) for dtype in shapes.DTYPES),
    ]
    race("mmr", made, entries, lambda_d=lambda_d)


@pytest.mark.parametrize("shape", shapes.POOLS + shapes.DUPLICATES, ids=str)
def bench_vrsd(race, problem, shape):
    made = problem(shape)
    entries = [
        *(contenders.ours("vrsd", made, dtype=dtype) for dtype in shapes.DTYPES),
        contenders.vrsd_in_numpy(made),
        *(contenders.floor(made, dtype) for dtype in shapes.DTYPES),
    ]
    race("vrsd", made, entries)
