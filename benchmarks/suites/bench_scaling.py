"""How time and work grow with each size, the others as in the main shapes; points of those are not timed again."""

import pytest

from benchmarks.suites import peers, selection, shapes
from benchmarks.suites.shapes import Shape

ROUNDS = 7
LAMBDA_D = 0.75

SIZES_OF_POOLS = [Shape("minilm", 384, P, 10) for P in (20, 50, 100, 200, 500, 1000, 2000)]
POOLS = [
    *SIZES_OF_POOLS,
    *(Shape("minilm", 384, 100, K) for K in (1, 2, 4, 6, 10, 20, 50)),
    *(Shape("minilm", D, 100, 10) for D in (48, 96, 192, 384, 768, 1536)),
]
WHOLE = [
    *(Shape("minilm", 384, None, 6, N=N, Q=256) for N in (1_200, 2_400, 4_800, 9_500)),
    *(Shape("glove", 50, None, 6, N=N, Q=256) for N in (6_000, 12_500, 25_000, 50_000, 200_000)),
]
# Up to a million queries, in calls of at most 10,000; bench_threads has the call of 10,000.
STREAMS = [Shape("minilm", 384, 100, 10, Q=Q) for Q in (1, 10, 100, 1_000, 100_000, 1_000_000)]


@pytest.mark.parametrize("shape", [s for s in dict.fromkeys(POOLS) if (s, LAMBDA_D) not in shapes.MMR], ids=str)
def bench_pools(race, problem, shape):
    made = problem(shape)
    others = peers.mmr_peers(made, LAMBDA_D)
    entries = [
        *selection.library("mmr", made, LAMBDA_D),
        selection.ours("mmr", made, LAMBDA_D, dtype="bfloat16"),
        # The slow ones only against the size of the pool, where users meet them.
        *(peer for peer in others if peer.name == "pyversity" or shape in SIZES_OF_POOLS),
        peers.floor(made),
    ]
    race(selection.Selecting("mmr", made, entries, LAMBDA_D, rounds=ROUNDS))


@pytest.mark.parametrize("shape", WHOLE, ids=str)
def bench_whole_corpus(race, problem, shape):
    made = problem(shape)
    entries = [selection.ours("mmr", made, LAMBDA_D), *peers.nearest(made)]
    race(selection.Selecting("mmr", made, entries, LAMBDA_D, rounds=ROUNDS))


@pytest.mark.parametrize("shape", STREAMS, ids=str)
def bench_stream(race, problem, shape):
    made = problem(shape)
    queries = max(made.shape.Q, shapes.HELD_OUT)
    rounds = 5 if queries < 1_000_000 else 1
    entries = [selection.ours("mmr", made, LAMBDA_D)]
    race(selection.Selecting("mmr", made, entries, LAMBDA_D, queries=queries, rounds=rounds))
