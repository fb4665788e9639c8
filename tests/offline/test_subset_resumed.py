"""A choice out of a whole data set that was ended goes on from its picks: the same bits, and only by the same call."""

from threading import Event

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import ragsys_kernels as rk
from ragsys_kernels import offline
from ragsys_kernels.cli import _app, app
from ragsys_kernels.offline import picks as own_picks
from ragsys_kernels.selection import continued, cpu

RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((3_000, 16), dtype=np.float32)
ROWS[2_000:] = ROWS[:1_000] + 0.1 * RNG.standard_normal((1_000, 16), dtype=np.float32)
SCORE, SOURCE = RNG.uniform(0, 1, 3_000).astype(np.float32), np.arange(3_000) % 7
COSTS = RNG.uniform(1, 3, 3_000)
K = 40

# Every rule that can go on, with what limits it.
CASES = {
    "mmr": {"lambda_d": 0.5, "lambda_b": 0.0},
    "k-center": {"lambda_d": 0.0},
    "mmr, groups": {"lambda_d": 0.4, "groups": SOURCE, "max_per_group": 7, "min_per_group": 3},
    "mmr, budget": {"lambda_d": 0.4, "costs": COSTS, "budget": 55.0, "max_similarity": 0.6},
    "mmr, some rows": {"lambda_d": 0.4, "allowed": np.arange(0, 3_000, 30), "initial": [5, 7]},
    "mmr, a mask": {"lambda_d": 0.4, "allowed": np.arange(3_000) % 30 == 0},
    "mmr, but for rows": {"lambda_d": 0.4, "exclude": np.arange(0, 3_000, 3)},
    "mmr, targets": {"targets": ROWS[:3], "target_relevance": "max"},
    "vrsd": {"rule": "vrsd", "targets": ROWS[:3]},
    "msd": {"rule": "msd", "lambda_d": 0.5},
    "dpp": {"rule": "dpp", "lambda_d": 0.5},
    "ssd": {"rule": "ssd", "lambda_d": 0.5},
    "sift": {"rule": "sift", "targets": ROWS[:3]},
}


@pytest.fixture(scope="module")
def corpus():
    return rk.Corpus(ROWS, bias=SCORE)


@pytest.fixture
def stages(monkeypatch):
    """Each call of the kernel: what it was told of picks that are known."""
    seen, call = [], cpu._call

    def spy(problem, num_threads, bounds="automatic", stage=None, **sizes):
        seen.append(continued._picks.get())
        seen[-1] = None if seen[-1] is None else seen[-1].copy()
        return call(problem, num_threads, bounds, stage, **sizes)

    monkeypatch.setattr(cpu, "_call", spy)
    return seen


@pytest.mark.parametrize("case", CASES)
def test_picks_that_are_taken_over_leave_every_bit_as_it_is(corpus, case, stages):
    options = CASES[case]
    whole = corpus.subset(K, **options)
    number = int(whole.lengths[0])
    assert number > 10
    for known in (0, 1, number // 2, number):
        picks = np.full(K, -1, np.int64)
        picks[:known] = whole.indices[0, :known]
        stages.clear()
        with continued.continuing(picks):
            found = corpus.subset(K, num_threads=2, **options)
            assert not continued.awaited()
        assert (stages[0][:known] == whole.indices[0, :known]).all()
        assert (stages[0][known:] == -1).all()
        for ours, other in zip(found[:5], whole[:5], strict=True):
            assert ours.tobytes() == other.tobytes()
        assert picks.tolist() == whole.indices[0].tolist()  # as they are made, another thread sees them


@pytest.mark.parametrize("rule", ["mmr", "vrsd", "msd"])
@pytest.mark.parametrize("bounds", ["coded", "pruned", "dense"])
def test_hundreds_of_picks_are_taken_over_by_all_threads(corpus, rule, bounds, monkeypatch):
    run, work = cpu.run, []

    def bounded(problem, num_threads):
        selection, products = run(problem, num_threads, bounds, shared_items=64)
        work.append(products)
        return selection

    monkeypatch.setattr(cpu, rule, bounded)
    options = {"rule": rule, "targets": ROWS[:3], "exclude": np.arange(0, 3_000, 7)}
    whole = corpus.subset(600, **options)
    for known, num_threads in ((256, 1), (255, 3), (257, 3), (590, 3), (600, 3)):
        picks = np.full(600, -1, np.int64)
        picks[:known] = whole.indices[0, :known]
        with continued.continuing(picks):
            found = corpus.subset(600, num_threads=num_threads, **options)
        for ours, other in zip(found[:5], whole[:5], strict=True):
            assert ours.tobytes() == other.tobytes()
    assert (work[-1][2] > 0) == (bounds == "coded")


def test_picks_that_are_taken_over_are_not_chosen_again(corpus):
    """The kernel follows them, whatever they are: it is not their values that lead to them."""
    picks = np.full(K, -1, np.int64)
    picks[:3] = 17, 4, 2_999
    with continued.continuing(picks):
        found = corpus.subset(K, lambda_d=0.5).indices[0]
    assert found[:3].tolist() == [17, 4, 2_999]
    with continued.continuing(np.full(K, -1, np.int64)):
        pass
    assert corpus.subset(K, lambda_d=0.5).indices[0, 0] == np.argmax(SCORE)  # later calls know nothing of it


@pytest.fixture
def files(tmp_path):
    np.save(tmp_path / "rows.npy", ROWS)
    return tmp_path


def ended_after(monkeypatch, number, seconds=0.0, error=KeyboardInterrupt):
    """Let the next choice end after so many picks, as an interrupt does that comes after a few seconds."""
    subset = rk.Corpus.subset

    def ended(self, k, **options):
        picks = continued._picks.get()
        made = subset(self, k, **options).indices[0]
        picks[number:] = -1
        assert (picks[:number] == made[:number]).all()
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(rk.Corpus, "subset", ended)
        patch.setattr(own_picks, "_KEEP", seconds)
        yield


def choose(files, out="out.parquet", **options):
    return offline.subset(files / "rows.npy", files / out, **{"k": K, "lambda_d": 0.3, **options})


def interrupted(monkeypatch, files, number=15, **options):
    for _ in ended_after(monkeypatch, number):
        with pytest.raises(KeyboardInterrupt):
            choose(files, **options)
    assert (files / "out.parquet.picks").is_file()
    assert not (files / "out.parquet").exists()


def test_an_interrupted_choice_goes_on_from_its_picks(files, monkeypatch, stages):
    interrupted(monkeypatch, files)
    told = []
    stages.clear()
    summary = choose(files, progress=lambda *done: told.append(done))
    assert (stages[0] >= 0).sum() == 15
    assert told[0] == (15, K)
    assert told[-1] == (K, K)
    assert summary.earlier == 15
    assert ", 15 of them chosen before, mmr" in str(summary)
    assert not (files / "out.parquet.picks").exists()
    choose(files, "other.parquet")
    assert pq.read_table(files / "out.parquet").equals(pq.read_table(files / "other.parquet"))


@pytest.mark.parametrize(("made", "kept"), [(0, 15), (7, 15), (15, 15), (16, 16)])
def test_picks_added_to_others_are_kept_however_soon_it_is_interrupted(files, monkeypatch, made, kept):
    """And while picks are taken over none of them is lost."""
    interrupted(monkeypatch, files)
    for _ in ended_after(monkeypatch, made, seconds=1e9):
        with pytest.raises(KeyboardInterrupt):
            choose(files)
    rows = own_picks.unsealed((files / "out.parquet.picks").read_bytes())["rows"]
    assert choose(files).earlier == kept
    assert rows == pq.read_table(files / "out.parquet")["row"].to_pylist()[:kept]


def test_picks_that_are_taken_over_are_not_told_as_if_made_now(files, monkeypatch):
    """The kernel takes them over one after the other; the command says so, and what is done never falls below them."""
    interrupted(monkeypatch, files)
    subset, told, looked = rk.Corpus.subset, [], Event()

    def slow(self, k, **options):
        picks = continued._picks.get()
        known = picks.copy()
        for made in (0, 7, 20):
            picks[:] = -1
            picks[:made] = range(made)
            for _ in range(2):
                looked.clear()
                assert looked.wait(60)
        picks[:] = known
        return subset(self, k, **options)

    class Lines(_app._Lines):
        def report(self, done, total):
            told.append((done, self._first))
            looked.set()
            super().report(done, total)

    monkeypatch.setattr(rk.Corpus, "subset", slow)
    monkeypatch.setattr(_app, "_Lines", Lines)
    monkeypatch.setattr(own_picks, "_LOOK", 0.001)
    monkeypatch.setattr(own_picks, "_KEEP", 0.0)
    given = {"corpus": files / "rows.npy", "out": files / "out.parquet", "k": K, "lambda-d": 0.3}
    done = CliRunner().invoke(app, ["subset", *(f"--{name}={value}" for name, value in given.items())])
    assert done.exit_code == 0, done.stderr
    assert done.stderr.startswith(f"notice: subset: goes on from 15 of {K} picks, kept in {files}/out.parquet.picks\n")
    said = [*dict.fromkeys(each for each in done.stderr.splitlines() if "took over" in each)]
    assert said[:2] == [f"notice: subset: took over {made} of 15 kept picks" for made in (0, 7)]
    assert {first for _, first in told[1:]} == {15}
    assert {15, 20, K} <= {made for made, _ in told} <= {*range(15, K + 1)}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"k": K + 1}, r"k: before 40, now 41"),
        ({"lambda_d": 0.4}, r"lambda_d: before 0\.3, now 0\.4"),
        ({"rule": "msd"}, r"rule: before 'mmr', now 'msd'"),
        ({"dtype": "float16"}, r"dtype: before float32, now float16; corpus: before \w+, now \w+"),
    ],
)
def test_picks_of_another_call_are_not_taken_over(files, monkeypatch, stages, changes, said):
    interrupted(monkeypatch, files)
    rule = "out must have beside it the picks of a call of the same inputs, options and version to resume"
    with pytest.raises(ValueError, match=rf"^subset: {rule}, or overwrite be given, got \S+\.picks with {said}$"):
        choose(files, **changes)
    stages.clear()
    choose(files, overwrite=True, **changes)
    assert (stages[0] == -1).all()
    assert not (files / "out.parquet.picks").exists()


def test_picks_of_other_rows_or_damaged_ones_are_not_taken_over(files, monkeypatch):
    interrupted(monkeypatch, files)
    kept = (files / "out.parquet.picks").read_bytes()
    np.save(files / "rows.npy", ROWS[::-1])
    with pytest.raises(ValueError, match=r"overwrite be given, got \S+ with corpus: before \w+, now \w+$"):
        choose(files)
    np.save(files / "rows.npy", ROWS)
    for bad in (kept[:-20], kept.replace(b'"lambda_d": "0.3"', b'"lambda_d": "0.4"'), b"", b"[]\n"):
        assert bad != kept
        (files / "out.parquet.picks").write_bytes(bad)
        with pytest.raises(ValueError, match=r"^subset: out must have .* the picks of a call as it wrote them"):
            choose(files)
    (files / "out.parquet.picks").write_bytes(kept)
    choose(files)


def test_picks_are_kept_while_they_are_made(files, monkeypatch):
    """By another thread, and where the call is ended without a word the file is there."""
    kept = []
    monkeypatch.setattr(own_picks, "_KEEP", 0.0)
    monkeypatch.setattr(own_picks, "_LOOK", 0.001)
    subset = rk.Corpus.subset

    def slow(self, k, **options):
        picks = continued._picks.get()
        picks[:10] = np.arange(10)
        while not (files / "out.parquet.picks").is_file():
            pass
        kept.append(own_picks.unsealed((files / "out.parquet.picks").read_bytes())["rows"])
        picks[:] = -1
        return subset(self, k, **options)

    monkeypatch.setattr(rk.Corpus, "subset", slow)
    choose(files)
    assert kept == [[*range(10)]]
    assert not (files / "out.parquet.picks").exists()


@pytest.mark.parametrize("options", [{"rule": "coverage"}, {"rule": "gist", "lambda_b": 0.0}])
def test_rules_that_do_not_choose_pick_by_pick_keep_none(files, options, monkeypatch):
    monkeypatch.setattr(own_picks, "_KEEP", 0.0)
    told = []
    choose(files, progress=lambda *done: told.append(done), **options)
    assert told == [(0, K), (K, K)]


def test_what_is_called_back_is_a_function(files):
    both = {"corpus": files / "rows.npy", "queries": files / "rows.npy", "out": files / "o"}
    for call in (
        lambda: choose(files, progress=np.arange(3)),
        lambda: rk.duplicates(ROWS[:9], 0.9, progress=np.arange(3)),
        lambda: offline.dedupe(files / "rows.npy", files / "o.parquet", threshold=0.9, progress=3),
        lambda: offline.select(
            corpus=files / "rows.npy", queries=files / "rows.npy", out=files / "o", k=3, progress="x"
        ),
        lambda: offline.select(**both, k=3, stop=[1]),
    ):
        with pytest.raises(TypeError, match=r"^\w+: (progress|stop) must be a function, got "):
            call()


@pytest.mark.parametrize("rule", ["mmr", "coverage", "gist"])
@pytest.mark.parametrize("keeps", [True, False])
def test_command_says_whether_it_goes_on_from_what_is_kept(files, monkeypatch, rule, keeps):
    """Nothing is kept by coverage and GIST, whatever lies there, nor by others in the first seconds."""

    def ended(*_, **__):
        if continued._picks.get() is not None:
            continued._picks.get()[:5] = range(5)
        raise KeyboardInterrupt

    if rule != "mmr":
        (files / "out.parquet.picks").touch()
    monkeypatch.setattr(rk.Corpus, "subset", ended)
    monkeypatch.setattr(own_picks, "_KEEP", 0.0 if keeps else 30.0)
    given = {"corpus": files / "rows.npy", "out": files / "out.parquet", "k": K, "rule": rule}
    done = CliRunner().invoke(app, ["subset", *(f"--{name}={value}" for name, value in given.items())])
    assert done.exit_code == 130
    said = "interrupted; run it again to resume" if keeps and rule == "mmr" else "interrupted, nothing was written"
    assert done.stderr.splitlines()[-1] == f"error: subset: {said}"
