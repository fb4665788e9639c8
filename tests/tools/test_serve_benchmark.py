"""The benchmark of the service: its page from rows, and that it counts what it is there to count."""

import shutil
from pathlib import Path

import pytest
from backends import needs

pytest.importorskip("fastapi")
ROOT = Path(__file__).parents[2]
pytestmark = [
    needs("matplotlib"),
    pytest.mark.skipif(not (ROOT / "benchmarks").is_dir(), reason="the tests run outside of the source tree"),
]


@pytest.fixture
def parts(module):
    return [module(name) for name in ("reports.serve", "serve.bits", "serve.measures")]


def rows(measures, **shared):
    """A row of each kind, none of which meets its bar but that of `overload`."""
    every = {"shape": "s", "hardware": "h", "backend": "cpu", "isa": "avx2", "commit": "abc", "date": "2026-01-01"}
    every |= {"value": 7, "p50_us": 400, "p99_us": 9000, "cpu_us": 5, "requests": 10, "seconds": 1, "unit": "u"}
    three, two = (measures.EMPTY, measures.IDS, measures.BYTES), (measures.ONE, measures.SIXTEEN)
    kinds = [(kind, who, where) for kind in ("latency", "rate") for who in three for where in two]
    kinds += [(kind, who, "1") for kind in (measures.BATCHED, measures.FLIGHT) for who in ("served", measures.ALONE)]
    kinds += [("load", measures.BYTES, f"{part:g}") for part in measures.LOADS]
    kinds += [(kind, "served", "x") for kind in ("differing", "overload: memory", "overload: afterwards", "malformed")]
    kinds += [("killed worker", "served", "x")]
    made = [{**every, "measure": kind, "contender": who, "setting": where} for kind, who, where in kinds]
    for row in made:
        row["ratio"] = 0.1 if row["measure"] in ("rate", measures.BATCHED, measures.FLIGHT) else 9
    made += [{**every, "measure": "overload", "contender": "served", "setting": "x", "value": 0}]
    return [measures.LEDGER.texts({**row, **shared}) for row in made]


def test_page_says_which_bars_are_met(parts, tmp_path):
    serve, _, measures = parts
    found = serve.Found([*rows(measures), *rows(measures, commit="abc-dirty", date="2027-01-01")])
    page = serve.page(found)
    bars = page.partition("## Bars")[2].partition("## One")[0]
    assert "not measured" not in page
    assert bars.count("| yes |") == 1
    assert bars.count("| **no** |") == len(serve._bars()) - 1
    assert "9.00 ms" in bars  # the 99th percentile at half of the saturated rate
    serve.save(serve.plot(found), tmp_path / "plot.svg")
    assert "99th percentile" in (tmp_path / "plot.svg").read_text()
    assert "not measured" in serve.page(serve.Found(rows(measures)[:6]))


def test_an_answer_that_differs_in_one_bit_is_counted(parts):
    import numpy as np
    import servers

    import ragsys_kernels as rk

    _, bits, _ = parts
    rng = np.random.default_rng(0)
    corpus = rk.Corpus(rng.standard_normal((50, 8), dtype=np.float32))
    queries = rng.standard_normal((3, 8), dtype=np.float32)
    body = {"k": 4, "pool": 20, "queries": [{"query": bits.in_base64(query)} for query in queries]}

    async def use(client, service):
        return (await client.post("/v1/select", json=body)).json()["results"]

    results = servers.run({"docs": corpus}, use)
    expected = bits.answers(corpus.select(queries, 4, pool=20))
    assert [bits.answer(result) for result in results] == expected
    results[1]["scores"][2] = float(np.nextafter(np.float32(results[1]["scores"][2]), np.float32(2)))
    assert [bits.answer(result) == each for result, each in zip(results, expected, strict=True)] == [True, False, True]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("wrk") is None, reason="needs wrk")
def test_quick_run(parts, monkeypatch, capsys):
    from benchmarks.serve import __main__ as command

    monkeypatch.setattr("sys.argv", ["bench-serve", "--quick", "--only", "load", "bits"])
    monkeypatch.setattr("os.sched_setaffinity", lambda *_: None)  # other tests stay where they are
    command.main()
    printed = capsys.readouterr().out
    assert printed.count("query in bytes") == 5
    assert all(" 0 queries" in line for line in printed.splitlines() if line.startswith("differing"))
