"""Queries have the answers, or the errors, that they have alone; `make fuzz` holds 10,000 batches to that."""

import asyncio
import random

import numpy as np
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("grpc")
import fuzz_runs
import fuzz_together
import servers

import ragsys_kernels as rk
from ragsys_kernels.serving import Limits, batcher, kernel, together
from ragsys_kernels.serving.queries.rules import Rules
from ragsys_kernels.serving.routes import select


def failures(seed, batches):
    return fuzz_runs.run(fuzz_together.FUZZER, fuzz_runs.Share(seed, 0, 1, batches))


@pytest.mark.parametrize("seed", [2, 3, 4])
def test_queries_alone_and_together(seed):
    fuzz_together.seen.clear()
    assert failures(seed, 100) == []
    for entrance in fuzz_together.ENTRANCES:
        assert min(fuzz_together.seen[f"{entrance} {how}"] for how in ("answered", "refused")) > 0


def broken(monkeypatch, module, name, is_bad, error):
    """Let a function fail as it never should, for some of what it is given."""
    function = getattr(module, name)

    def call(*given, **more):
        if is_bad(*given):
            raise error("broken")
        return function(*given, **more)

    monkeypatch.setattr(module, name, call)


@pytest.mark.filterwarnings("ignore::ragsys_kernels.RelevanceRangeWarning")
def test_what_ends_as_none_may_ends_its_own_query_alone(monkeypatch, caplog):
    """Reading a query, the kernels, writing an answer."""
    for module in (batcher, kernel):
        broken(monkeypatch, module, "answer", lambda block, *_: np.isin(block.k, (1, 2, 3)).any(), MemoryError)
    broken(monkeypatch, Rules, "number", lambda _, name, values: name != "k" and 0 in values, ZeroDivisionError)
    for name in ("_single", "_texts"):
        broken(monkeypatch, select, name, lambda block, _: np.isin(block.k, (5, 7)).any(), KeyError)
    for number in range(150, 200):
        fuzz_together.by_json(random.Random(number))
        fuzz_together.by_arrow(random.Random(number))
    assert {record.exc_info[0] for record in caplog.records} == {MemoryError, ZeroDivisionError, KeyError}


@pytest.mark.parametrize("error", [RuntimeError, None], ids=["unexpected", "too large"])
def test_a_request_that_cannot_be_read_fails_alone(monkeypatch, error):
    """Those of one round are read at once: lists are as long there as the longest of them."""
    corpus = rk.Corpus(np.random.default_rng(0).standard_normal((2000, 4)).astype(np.float32))
    good, bad = (
        {"query_id": 1, "candidates": [2, 3, 4], "k": 2},
        {"query_id": 1, "candidates": list(range(1500)), "k": 2},
    )
    if error is not None:
        broken(monkeypatch, together, "read_by", lambda _, queries: bad in queries, error)

    async def use(client, _):
        posts = (client.post("/v1/select", json={"queries": [query]}) for query in [good, good, bad, *[good] * 40])
        return [(answer.status_code, answer.content) for answer in await asyncio.gather(*posts)]

    first, _, odd, *others = servers.run({"docs": corpus}, use, limits=Limits(body_bytes=1 << 16, memory_bytes=1 << 16))
    assert first[0] == 200
    assert set(others) == {first}
    assert odd[0] == (200 if error is None else 500)
