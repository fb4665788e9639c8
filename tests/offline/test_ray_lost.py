"""When Ray loses processes and nodes, with a stand-in for Ray; test_ray_engine.py has Ray itself."""

import itertools
import logging
import re
import threading

import numpy as np
import pytest
from fake_ray import Actor, Answer, FakeRay, ObjectLostError, OutOfMemoryError, RayActorError, RayTaskError

import ragsys_kernels as rk
from ragsys_kernels._base import warn
from ragsys_kernels.corpus import folder, versions
from ragsys_kernels.offline import spread
from ragsys_kernels.offline._manifest import ShardRecord
from ragsys_kernels.offline._pipeline import side_by_side
from ragsys_kernels.offline.ray import holders, pool, room
from ragsys_kernels.offline.ray.options import RayOptions


@pytest.fixture
def ray(monkeypatch):
    """Two nodes of 100 bytes and two CPUs."""
    fake = FakeRay(a={"memory": 100, "CPU": 2}, b={"memory": 100, "CPU": 2})
    for module in (holders, pool):
        monkeypatch.setattr(module, "time", fake)
    monkeypatch.setattr(holders, "import_ray", lambda op: fake)
    monkeypatch.setattr(room, "free", fake.free)
    return fake


def holder(does, names=("s0", "s1"), first=4, cpus=1.0):
    return holders._Placed(Actor(does), "docs", names, first, {"memory": 50, "CPU": cpus})


# --- Calls of holders.


@pytest.mark.parametrize("error", [RayActorError, ObjectLostError, OutOfMemoryError])
def test_call_is_made_again_after_its_holder_was_lost(ray, caplog, error):
    """Each of two dies four times."""

    def times(factor):
        deaths = itertools.count()

        def does(method, arguments):
            if method == "node":
                return "a"
            return error("lost") if next(deaths) < 4 else arguments[0] * factor

        return holder(does)

    array = np.arange(3)
    both = [times(1), times(10)]
    found = holders.Asking("op", 9)([(each, "search", (array,)) for each in both])
    assert [each.tolist() for each in found] == [[0, 1, 2], [0, 10, 20]]
    assert [[method for method, _ in each.actor.calls].count("search") for each in both] == [5, 5]
    assert sorted(re.search(r"are lost, time (\d)", line)[1] for line in caplog.messages) == [*"11223344"]


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (5, r"^op: segment s1 of docs must be usable, got: the process that holds it ended 5 times: killed$"),
        (None, r"^op: segments s0 to s1 of docs must be usable together, got: the process .* ended 5 times: killed$"),
    ],
)
def test_segment_that_always_ends_its_holder_ends_the_job_by_name(ray, bad, error):
    def does(method, arguments):
        if method == "node":
            return "a"
        alone = method == "probe"
        return None if alone and arguments[0] != bad else RayActorError("killed")

    lethal = holder(does)
    with pytest.raises(OSError, match=error):
        holders.Asking("op", 9)([(lethal, "search", ())])
    assert [method for method, _ in lethal.actor.calls].count("search") == 5


def test_damaged_segment_is_named_with_what_is_wrong_in_it(ray):
    def does(method, arguments):
        if method == "node":
            return "a"
        return RayTaskError(ValueError("data.npy is short")) if method == "probe" else RayActorError("killed")

    with pytest.raises(OSError, match=r"^op: segment s0 of docs must be usable, got data\.npy is short$"):
        holders.Asking("op", 9)([(holder(does), "search", ())])


def test_deaths_at_other_calls_do_not_count(ray):
    """Nor does a holder that dies often end a job that goes on."""
    calls = itertools.count(1)

    def does(method, arguments):
        return "a" if method == "node" else RayActorError("lost") if next(calls) % 4 else 7

    often = holder(does)
    for _ in range(9):
        assert holders.Asking("op", 9)([(often, "search", ())]) == [7]


def test_holder_says_that_it_is_there_while_it_reads():
    """Any other call may be the first after a restart, which reads or fetches all segments before it answers."""
    asked = holder(lambda *_: None)
    for method in (name for name in vars(spread.Holder) if not name.startswith("_")):
        if callable(getattr(spread.Holder, method)):
            asked.ask(method)
    others = set(asked.actor.groups.values())
    asked.ask("node")
    assert None in others
    assert len(others) == 2  # searches do not hold up what is light
    assert asked.actor.groups["node"] not in others


@pytest.mark.parametrize("dead", [Answer("a", None), RayActorError("restarting")], ids=["waits for a node", "restarts"])
def test_holder_is_not_waited_for_longer_than_said(ray, dead):
    lost = holder(lambda method, arguments: dead if method == "node" else RayActorError("lost"))
    ray.lost.add("b")
    ray.reserved["a"] = {"memory": 60}
    with pytest.raises(OSError, match=r"^op: segments s0 to s1 of docs must be held again within 9 s") as raised:
        holders.Asking("op", 9)([(lost, "search", ())])
    assert 9 <= ray.now < 12
    assert "it needs 50 bytes of memory and 1 CPUs, free are at-a (a): 40 bytes of memory and 2 CPUs" in str(
        raised.value
    )


def test_error_of_a_holder_is_the_call_s(ray):
    bad = holder(lambda method, arguments: RayTaskError(ValueError("select: no")))
    with pytest.raises(ValueError, match=r"^select: no$"):
        holders.Asking("op", 9)([(bad, "search", ())])
    assert len(bad.actor.calls) == 1


# --- What is told.


def looked(watch, ray, seconds):
    for _ in range(seconds):
        ray.now += 1
        watch.look()


def test_lost_node_is_told_with_what_it_held(ray, caplog):
    watch = holders.Watch(ray, holders.Asking("op", 60), [holder(lambda *_: "a", ["r0", "r1"]), holder(lambda *_: "b")])
    looked(watch, ray, 2)
    assert not caplog.records
    ray.lost.add("b")
    looked(watch, ray, 1)
    (line,) = caplog.messages
    assert line == (
        "op: node at-b (b) is lost, with segments s0 to s1 of docs, which Ray starts again on a node with room"
    )
    ray.resources["c"] = {}
    looked(watch, ray, 5)
    assert caplog.messages[1:] == ["op: node at-c (c) has come"]


def test_silent_holder_is_told_of_within_seconds_and_less_and_less_often(ray, caplog):
    silent = holder(lambda *_: Answer("a", 30))
    watch = holders.Watch(ray, holders.Asking("op", 60), [silent, holder(lambda *_: "b")])
    looked(watch, ray, 29)
    assert [re.search(r"for (\d+) s", line)[1] for line in caplog.messages] == ["5", "10", "20"]
    line = caplog.messages[0]
    assert line.startswith(
        "op: 1 of 2 holders have not answered for 5 s or more (segments s0 to s1 of docs, being star"
    )
    assert (
        "needs up to 50 bytes of memory and 1 CPUs, and free are at-a (a): 100 bytes of memory and 2 CPUs; at-b" in line
    )
    assert line.endswith("; after 60 s without the job ends, and can be resumed")
    assert len(silent.actor.calls) == 1  # one question at a time
    looked(watch, ray, 9)
    assert caplog.messages[3:] == ["op: segments s0 to s1 of docs answer, on at-a (a)"]


# --- Workers.


def record(index):
    return ShardRecord(index=index, file="f", first_row=0, rows=1, sha256="", skipped=0, short=0)


def working(ray, *workers, size=2, wait=60.0, starved=()):
    """Return a pool whose workers are these, one after the other, and its watch's lines."""
    made = [Actor(does) for does in workers]
    left = iter(made)
    states = iter(starved)
    watch = type("", (), {"look": lambda _: None, "starved": lambda _: next(states, False)})()
    return pool.Pool(ray, lambda: next(left), size, RayOptions(wait=wait), watch), made


def able(method, arguments):
    return "a" if method == "node" else record(*arguments)


def test_shards_of_a_lost_worker_are_made_by_others(ray, caplog):
    deaths = itertools.count()

    def dies_at_3(method, arguments):
        return RayActorError("killed") if arguments == (3,) and next(deaths) < 4 else able(method, arguments)

    shards, made = working(ray, *[dies_at_3] * 6)
    assert sorted(each.index for each in shards.write(range(9))) == list(range(9))
    assert caplog.messages == [
        f"select: the worker at shard 3, on at-a (a), is lost, time {n} of at most 5; another makes the shard: killed"
        for n in (1, 2, 3, 4)
    ]
    assert [actor.calls[-1] == ("write", (3,)) for actor in made].count(True) >= 4  # the dead are asked no more


def test_shard_that_always_ends_its_worker_ends_the_job(ray):
    def dies_at_1(method, arguments):
        return RayActorError("killed\nby the system") if arguments == (1,) else able(method, arguments)

    shards, _ = working(ray, *[dies_at_1] * 9)
    with pytest.raises(
        OSError, match=r"^select: shard 1 must be made by a worker, got 5 .* at it: killed by the system$"
    ):
        list(shards.write([1, 0]))


def test_worker_that_waits_for_a_node_does_not_hold_up_the_others(ray):
    shards, made = working(ray, lambda *_: Answer("a", None), able)
    assert [each.index for each in shards.write(range(5))] == list(range(5))
    assert made[0].killed
    assert [method for method, _ in made[0].calls] == ["node"]


@pytest.mark.parametrize(("first", "limit"), [(lambda *_: Answer("a", None), 600), (None, 20)], ids=["first", "later"])
def test_workers_are_not_waited_for_longer_than_said(ray, caplog, first, limit):
    def dies(method, arguments):
        return "a" if method == "node" else RayActorError("killed")

    shards, _ = working(ray, first or dies, *[lambda *_: Answer("a", None)] * 2, wait=20.0)
    match = rf"^select: workers must start within {limit} s, got 2 wait for .* 1 CPUs"
    with pytest.raises(OSError, match=match) as raised:
        list(shards.write(range(5)))
    assert "and free are at-a (a): 100 bytes of memory and 2 CPUs" in str(raised.value)
    assert limit < ray.now < limit + 4
    told = [
        float(since[1]) for line in caplog.messages if (since := re.search(r"no worker is at work for (\d+) s", line))
    ]
    assert told == [5 * 2**n for n in range(len(told))]
    assert told[-1] > limit / 3


def test_long_wait_for_a_shard_is_told_and_goes_on(ray, caplog):
    def slow(method, arguments):
        return able(method, arguments) if method == "node" else Answer(record(*arguments), ray.now + 250)

    shards, _ = working(ray, slow, size=1)
    assert len(list(shards.write(range(2)))) == 2
    told = [re.match(r"select: no shard is done since (\d+) s: (.*)", line).groups() for line in caplog.messages]
    assert told == [
        ("61", "workers are at shards 0 on at-a (a); 1 shards are to be begun"),
        ("121", "workers are at shards 0 on at-a (a); 1 shards are to be begun"),
        ("241", "workers are at shards 0 on at-a (a); 1 shards are to be begun"),
        ("61", "workers are at shards 1 on at-a (a); 0 shards are to be begun"),
        ("121", "workers are at shards 1 on at-a (a); 0 shards are to be begun"),
        ("241", "workers are at shards 1 on at-a (a); 0 shards are to be begun"),
    ]


def test_error_of_a_worker_ends_the_others(ray):
    def fails(method, arguments):
        return able(method, arguments) if method == "node" else RayTaskError(ValueError("select: no"))

    shards, made = working(ray, lambda m, a: able(m, a) if m == "node" else Answer(None, 1e9), fails)
    with pytest.raises(ValueError, match=r"^select: no$"):
        list(shards.write(range(5)))
    assert made[0].killed


def test_worker_gives_way_to_a_holder_that_needs_its_cpus(ray, caplog):
    """Its shard is made later; until the holder has been started, no worker takes the CPUs again."""

    def stuck(method, arguments):
        return able(method, arguments) if method == "node" else Answer(None, 1e9)

    started = []

    def late(method, arguments):
        started.append(ray.now)
        return able(method, arguments)

    ray.now = 100.0
    shards, made = working(ray, stuck, late, size=1, starved=[True] * 4)
    assert [each.index for each in shards.write(range(2))] == [0, 1]
    assert made[0].killed
    assert caplog.messages == ["select: a worker ends on at-a (a), for a holder needs its CPUs"]
    assert started[0] >= 102


# --- Room.


def test_holders_reserve_a_cpu_where_there_is_one(ray):
    shares = [type("", (), {"bytes": size})() for size in (60, 50, 40)]

    def reserved(cpus, workers=1):
        return holders._reserved(ray, "op", shares, cpus, (workers, {"CPU": 1}))

    cpus, left = reserved(None)
    assert cpus == 1
    assert left == {"a": {"memory": 40, "CPU": 1}, "b": {"memory": 10, "CPU": 0}}
    assert reserved(None, workers=2)[0] == 0  # for the workers
    assert reserved(0.5)[1] == {"a": {"memory": 40, "CPU": 1.5}, "b": {"memory": 10, "CPU": 1}}
    with pytest.raises(ValueError, match=r"^op: cpus_per_holder must be .*, got 3 of up to 60 bytes with 2 CPUs each"):
        reserved(2)
    shares[2].bytes = 60
    with pytest.raises(
        ValueError, match=r"^op: memory must be what nodes have for actors, got 3 .*, and nodes with 100, 1"
    ):
        reserved(None)


def test_room_that_others_have_is_waited_for_and_then_refused(ray, caplog):
    wanted = [{"memory": 60, "CPU": 0}] * 2
    ray.reserved["b"] = {"memory": 50}
    with pytest.raises(ValueError, match=r"^op: memory must be what nodes have free for actors, got 2 .* at-b .b.: 50"):
        holders._wait_for_room(ray, holders.Asking("op", 20), wanted)
    assert 20 <= ray.now < 21
    assert len(caplog.messages) == 5
    ray.reserved.clear()
    holders._wait_for_room(ray, holders.Asking("op", 20), wanted)
    assert ray.now < 21


def test_starved_is_who_lacks_cpus_alone(ray):
    def starved(cpus, **reserved):
        ray.now, ray.reserved = 0.0, reserved
        watch = holders.Watch(ray, holders.Asking("op", 60), [holder(lambda *_: Answer("a", None), cpus=cpus)])
        looked(watch, ray, 6)
        return watch.starved()

    full, none = {"CPU": 2}, {"memory": 100}
    assert starved(1.0, a=full, b=full)
    assert starved(1.0, a=full, b=none)
    assert not starved(1.0, a=full)
    assert not starved(1.0, a=none, b=none)
    assert not starved(0.0, a=full, b=full)


def test_room_counts_what_fits_on_each_node():
    nodes = {"a": {"CPU": 3, "GPU": 1}, "b": {"CPU": 1.9}}
    assert room.count(nodes, {"CPU": 1, "GPU": 0}) == 4
    assert room.count(nodes, {"CPU": 1, "GPU": 1}) == 1
    assert room.count({"a": {"CPU": 0.3}}, {"CPU": 0.1}) == 3  # 0.3 / 0.1 is below 3


# --- What holders read, and how many chunks at a time.


def test_segments_are_verified_where_they_are_held(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "_SMALL", 0)  # no folder is so small that it is always read
    rows = np.random.default_rng(0).standard_normal((30_000, 8), dtype=np.float32)
    parts = [rk.Corpus(some) for some in np.split(rows, 3)]
    versions.build("build", tmp_path / "c", lambda _: ((each, each.ids) for each in parts), 10_000, False)
    whole = rk.Corpus.load(tmp_path / "c")
    shares = spread.shares("select", tmp_path / "c", whole, 1 << 30)
    name = shares[0].description["segments"][1]["name"]
    file = tmp_path / "c" / "segments" / name / "data.npy"
    content = bytearray(file.read_bytes())
    content[len(content) // 2 + 40] ^= 1  # of a row that is not among those that are looked at in any case
    file.write_bytes(content)
    rk.Corpus.load(tmp_path / "c")  # which the job does, and does not read
    spread.Holder(shares[0], None, None).open()
    bad = spread.Holder(shares[0], None, None, verify=True)
    for call in (bad.open, lambda: bad.ids(np.arange(2)), lambda: bad.probe(1)):
        with pytest.raises(
            ValueError, match=rf"^select: corpus must be usable, got .*/c: .*segment {name}: .*data\.npy"
        ):
            call()
    bad.probe(0)
    bad.probe(2)


def test_chunks_are_side_by_side_and_in_order():
    """The first does not end before the third has begun, nor does the fourth begin before the first has ended."""
    begun, order = threading.Event(), []

    def work(item):
        order.append(("begins", item))
        if item == 2:
            begun.set()
        if item == 0:
            assert begun.wait(60)
        warn.warn(f"item {item}", UserWarning)
        order.append(("ends", item))
        return item * 2

    kept = warn.keep()
    try:
        assert list(side_by_side(work, (each for each in range(9)), 3)) == [2 * each for each in range(9)]
        assert order.index(("ends", 0)) < order.index(("begins", 3))
        assert sorted(message for message, _ in kept) == [f"item {each}" for each in range(9)]
    finally:
        warn._kept.set(None)


def test_error_side_by_side_comes_in_its_place_and_ends_the_items():
    closed = []

    def items():
        try:
            yield from range(99)
        finally:
            closed.append(True)

    def work(item):
        if item == 3:
            raise KeyError(item)
        return item

    for count in (1, 3):
        found = side_by_side(work, items(), count)
        assert [next(found) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(KeyError):
            next(found)
    assert closed == [True] * 2


@pytest.fixture(autouse=True)
def _lines(caplog):
    caplog.set_level(logging.WARNING, "ragsys_kernels")
