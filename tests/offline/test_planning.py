"""What a job over a large corpus takes: the model, its constants, and the lines that say it."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels import _info, offline
from ragsys_kernels.offline import planning

KNOWN = planning.Constants((4e-5, 3e-9, 3e-11, 1e-7, 2e-9), 5e8, "made up")


@pytest.fixture
def stubbed(monkeypatch):
    """A machine whose constants are KNOWN, and what was asked of it."""
    asked = []
    monkeypatch.setattr(planning, "measured", lambda *given: asked.append(given) or KNOWN)
    return asked


@pytest.mark.parametrize(("memory", "nodes"), [("256G", 1), ("64G", 2), (108_000_000, 1000), (107_999_999, 1001)])
def test_a_plan_is_what_the_page_says(stubbed, memory, nodes):
    """By the formulas of docs/planning.md, written again."""
    N, Q, D, P = 10**9, 10**7, 96, 50
    found = offline.plan(1e9, 1e7, dims=D, pool=P, cores=32, memory=memory)
    assert stubbed == [(D, "int8", P)]
    assert (found.row_bytes, found.corpus_bytes, found.nodes) == (108, 108 * N, nodes)
    a, b, c, d, e = KNOWN.seconds
    seconds = a + b * N + c * N * D + d * nodes * P * (1 + math.log(N / (nodes * P))) + e * P * D
    assert found.query_seconds == pytest.approx(seconds, rel=1e-12)
    assert found.hours == pytest.approx(Q * seconds / (nodes * 32 * 3600), rel=1e-12)
    assert found.query_bytes == nodes * (4 * D + 12 * P) + P * (108 + 9) + 16 * 6
    assert found.build_hours == pytest.approx(4 * N * D / 5e8 / nodes / 3600, rel=1e-12)


@pytest.mark.parametrize("dtype", planning.BYTES)
@pytest.mark.parametrize("dims", [24, 52, 53, 96])
def test_bytes_of_a_row_are_those_of_a_corpus(dtype, dims):
    """Its arrays; ids are integers."""
    corpus = rk.Corpus(np.random.default_rng(0).standard_normal((10, dims), np.float32), dtype=dtype)
    arrays = [x for x in (corpus.data, corpus.scales, corpus.codes) if x is not None]
    assert planning.row_bytes(dtype, dims) == sum(x.nbytes for x in arrays) / 10 + 8


def test_constants_are_found_again():
    """Of times that the model makes; of a term that is left out the others take the part."""
    sizes = [planning.Size(n, d, h, p) for n, d, h, p in (
        (20_000, 96, 2, 100), (120_000, 96, 2, 100), (20_000, 768, 2, 100), (20_000, 96, 24, 30), (40_000, 384, 2, 300),
    )]  # fmt: skip

    def timed(size):
        trial = object.__new__(planning.Trial)
        trial.size, trial.least, trial.built = size, KNOWN.of(size), 4 * size.rows * size.dims / 5e8
        return trial

    found = planning.fitted([timed(size) for size in sizes])
    np.testing.assert_allclose(found.seconds, KNOWN.seconds, rtol=1e-6)
    assert found.build == pytest.approx(5e8)
    one_width = [timed(planning.Size(n, 96, h)) for n, h in ((100_000, 1), (25_000, 1), (25_000, 8))]
    found = planning.fitted(one_width, (0, 2, 3))
    large = planning.Size(10**9, 96, 7)
    assert found.seconds[1] == found.seconds[4] == 0
    assert found.of(large) == pytest.approx(KNOWN.of(large), rel=1e-6)


def test_this_machine_is_measured(monkeypatch):
    """By trials of the asked rows, whose bytes are counted."""
    monkeypatch.setattr(planning, "_ELEMENTS", 1 << 15)
    monkeypatch.setattr(planning, "_TURNS", 1)
    made, trials = [], planning.trials
    monkeypatch.setattr(planning, "trials", lambda *given: made.extend(trials(*given)) or made)
    found = offline.plan(1e6, 1e3, dims=16, dtype="float16", pool=20)
    assert [(one.size.dims, one.size.pool, one.size.holders) for one in made] == [(16, 20, 1), (16, 20, 1), (16, 20, 8)]
    assert all(0 < one.least < math.inf and one.built > 0 for one in made)
    assert 0 < found.query_seconds < math.inf
    assert found.constants.where == f"measured here, {' '.join(_info.active())}"
    for one in made:  # of so few rows the files' headers are a part, and pools of a chunk have many in common
        assert 0.5 < one.bytes / planning.QUERIES / one.size.network(one.row_bytes) < 1.1


def test_the_table_has_kinds_of_processors(stubbed):
    found = offline.plan(1e9, 1e7, dims=96, memory=256 * 10**9, measure=False, processor="avx512")
    assert stubbed == []
    assert found.constants is planning.TABLE["avx512"]
    assert "measured here" not in str(found)
    assert set(planning.TABLE) == {"avx2", "avx512", "arm"}
    with pytest.raises(
        ValueError, match=r"^plan: processor must be one that was measured, got 'arm': measure on such "
    ):
        offline.plan(1e9, 1e7, measure=False, processor="arm")


def test_the_default_of_the_table_is_this_machine(monkeypatch):
    monkeypatch.setattr(planning.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(_info, "active", lambda: ("cpu", "avx2"))
    assert offline.plan(10, 1, pool=5, measure=False).constants is planning.TABLE["avx2"]
    monkeypatch.setattr(_info, "active", lambda: ("reference", ""))
    with pytest.raises(ValueError, match=r"^plan: processor must be one of 'avx2', 'avx512', 'arm', got ''"):
        offline.plan(10, 1, pool=5, measure=False)
    monkeypatch.setattr(planning.platform, "machine", lambda: "aarch64")
    with pytest.raises(ValueError, match=r"^plan: processor must be one that was measured, got 'arm'"):
        offline.plan(10, 1, pool=5, measure=False)


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"rows": 0}, "rows must be an integer, at least 1, got 0"),
        ({"rows": 1.5}, "rows must be an integer, at least 1, got 1.5"),
        ({"queries": math.inf}, "queries must be "),
        ({"queries": "many"}, "queries must be "),
        ({"dims": 0}, "dims must be "),
        ({"pool": 1001}, "pool must be at most rows, 1000, got 1001"),
        ({"cores": 0}, "cores must be "),
        ({"memory": "little"}, "memory must be a number of bytes, such as 2G, got 'little'"),
        ({"memory": 395}, "memory must be at least 396, the bytes of a row, got 395"),
        ({"dtype": "binary"}, "dtype must be one of 'float32', 'float16', 'bfloat16', 'int8', got 'binary'"),
        ({"dtype": "float32", "measure": False, "processor": "avx512"}, "dtype must be 'int8' with measure=False"),
        ({"processor": "avx512"}, "processor must come with measure=False, got 'avx512'"),
        ({"measure": False, "processor": "sparc"}, "processor must be one of 'avx2', 'avx512', 'arm', got 'sparc'"),
        ({"measure": "no"}, "measure must be "),
    ],
)
def test_bad_arguments_are_named(stubbed, given, rule):
    with pytest.raises((ValueError, TypeError), match="^" + re.escape(f"plan: {rule}")):
        offline.plan(**{"rows": 1000, "queries": 10, **given})
    assert stubbed == []


def test_the_command_prints_the_plan(command, stubbed, tmp_path):
    result = command(tmp_path, "plan", "--rows", "1e9", "--queries", "1e7", "--dims", "96", "--memory", "64G")
    assert result.returncode == 0
    assert result.stdout == f"{offline.plan(1e9, 1e7, dims=96, memory='64G')}\n"
    assert result.stdout.splitlines()[:2] == [
        "1,000,000,000 rows of 96 x int8: 108 bytes a row, 108 GB",
        "nodes: 2, of 64 cores and 64G (68,719,476,736 bytes) for the corpus",
    ]
    result = command(tmp_path, "plan", "--rows", "1e9", "--queries", "1e7", "--no-measure", "--processor", "arm")
    assert result.returncode == 1
    assert result.stderr.startswith("error: plan: processor must be one that was measured, got 'arm'")
    result = command(tmp_path, "plan", "--rows", "1e9", "--queries", "1e7", "--processor", "avx2")
    assert result.stderr == "error: plan: processor must come with --no-measure, got 'avx2'\n"


@pytest.mark.parametrize("kind", [kind for kind, found in planning.TABLE.items() if found is not None])
def test_the_page_has_what_the_command_says(command, tmp_path, kind):
    """Its tables of a large job: the same nodes of the same memory, hours and bytes."""
    page = (Path(__file__).parents[2] / "docs" / "planning.md").read_text()
    section = page.partition(f"<!-- planning-{kind}:begin -->")[2].partition(":end -->")[0]
    of_all = "--rows", "1e9", "--queries", "1e7", "--memory", "256G", "--no-measure", "--processor", kind
    node = re.search("on nodes with (.*):\n", section)[1]
    rows = [[x.strip() for x in line.split("|")[1:8]] for line in section.partition(node)[2].splitlines()[4:-1]]
    assert len(rows) == 3
    for dims, row, _, nodes, query, hours, _ in rows:
        said = command(tmp_path, "plan", "--dims", dims, *of_all).stdout
        assert f": {row} bytes a row, " in said
        assert f"nodes: {nodes}, of {node}\n" in said
        assert f"network: {query} bytes a query" in said
        assert float(re.search("hours: ([0-9]+) for 10,000,000 queries", said)[1]) == pytest.approx(float(hours), abs=1)


@pytest.mark.parametrize("memory", [3_000_000, "3M", "3MB", "3 MiB"])
def test_a_plan_has_the_memory_as_given_and_in_bytes(memory):
    found = offline.plan(10**6, 1, dims=16, memory=memory, measure=False, processor="avx2")
    size = memory if isinstance(memory, int) else 3 * 2**20
    assert (found.memory, found.memory_given) == (size, memory)
    given = f"{memory} ({size:,} bytes)" if isinstance(memory, str) else f"{size:,} bytes"
    assert f", of 64 cores and {given} for the corpus\n" in str(found)
