"""Selection out of pools: MMR against pyversity, LangChain and LlamaIndex; VRSD against its rule in NumPy."""

import pytest

from benchmarks.suites import peers, selection, shapes


@pytest.mark.parametrize(("shape", "lambda_d"), shapes.MMR, ids=str)
def bench_mmr(race, problem, shape, lambda_d):
    made = problem(shape)
    entries = [
        *selection.library("mmr", made, lambda_d),
        *(selection.ours("mmr", made, lambda_d, dtype=dtype) for dtype in shapes.DTYPES[1:]),
        *(selection.ours("mmr", made, lambda_d, dtype=dtype, given=True) for dtype in shapes.OF_16_BITS),
        *peers.mmr_peers(made, lambda_d),
        *(peers.floor(made, dtype) for dtype in shapes.DTYPES),
    ]
    race(selection.Selecting("mmr", made, entries, lambda_d))


@pytest.mark.parametrize("shape", shapes.POOLS + shapes.DUPLICATES, ids=str)
def bench_vrsd(race, problem, shape):
    made = problem(shape)
    entries = [
        *(selection.ours("vrsd", made, dtype=dtype) for dtype in shapes.DTYPES),
        peers.vrsd_in_numpy(made),
        *(peers.floor(made, dtype) for dtype in shapes.DTYPES),
    ]
    race(selection.Selecting("vrsd", made, entries))
