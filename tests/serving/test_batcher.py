"""How waiting queries become calls: cut by their work, in turns, short requests beside long ones, none for nobody."""

import asyncio
import threading

import numpy as np
import pytest
import servers

import ragsys_kernels as rk
from ragsys_kernels import _dispatch
from ragsys_kernels.serving import Limits, batcher, service
from ragsys_kernels.serving.stop import Stop, StoppedError

N, D = 4000, 16
needs_extension = pytest.mark.skipif(_dispatch.why_not("cpu") is not None, reason="only the compiled kernels look")


@pytest.fixture(scope="module")
def corpus():
    return rk.Corpus(np.random.default_rng(2).standard_normal((N, D), dtype=np.float32))


class Calls:
    """The calls of the kernels: they wait for the gate of their thread, and nothing is measured unless a test does."""

    def __init__(self, monkeypatch, seconds_of_an_element=1e-6):
        self.gates = {"kernel": threading.Event(), "long kernel": threading.Event()}
        self.sizes, self.queries, self.stopped = [], [], 0
        answer = batcher.answer

        def gated(block, *arguments):
            name = threading.current_thread().name.rpartition("_")[0]
            self.sizes.append((name, len(block)))
            self.queries.append(np.broadcast_to(block.k, len(block)).tolist())
            assert self.gates[name].wait(servers.HANGS)
            try:
                return answer(block, *arguments)
            except StoppedError:
                self.stopped += 1
                raise

        monkeypatch.setattr(batcher, "answer", gated)
        monkeypatch.setattr(batcher, "_INLINE", 0)
        monkeypatch.setattr(batcher, "_ELEMENT", seconds_of_an_element)
        monkeypatch.setattr(batcher.Batcher, "_measure", lambda *_: None)

    def open(self):
        for gate in self.gates.values():
            gate.set()

    async def begun(self, count):
        while len(self.sizes) < count:
            await asyncio.sleep(0.001)


def asking(client, n=1, *, headers=(), **rules):
    body = {"queries": [{"query_id": i} for i in range(n)], **rules}
    return asyncio.ensure_future(client.post("/v1/select", json=body, headers=dict(headers)))


def run(corpus, use, **options):
    """Return what ``use`` returns, which may not wait for ever."""
    return servers.run({"docs": corpus}, lambda *given: asyncio.wait_for(use(*given), servers.HANGS), **options)


LONG = {"method": "vrsd", "k": 100, "pool": 2000}
SHORT = {"method": "vrsd", "k": 1, "candidates": [1, 2, 3]}


@pytest.mark.parametrize(("rounds", "sizes"), [(0.5, [2] * 10 + [1]), (3.5, [6] * 3 + [3])])
def test_a_long_request_is_cut_by_its_work(corpus, monkeypatch, rounds, sizes):
    """A call has as many queries as two threads work through in their time, and at least one for each."""
    calls, n = Calls(monkeypatch), 21
    calls.open()
    own = N * D * 0.5 + 2000 * (D + 100 * D * 0.75) + 1  # a search, the pool with the query, much of it with each pick
    monkeypatch.setattr(batcher, "_TURN", rounds * own * 1e-6)
    monkeypatch.setattr(batcher, "_LONG_TURN", rounds * own * 1e-6)
    monkeypatch.setattr(batcher, "_SHARED", 0.0)

    async def use(client, _):
        return await asking(client, n, **LONG)

    answer = run(corpus, use, num_threads=2)
    assert calls.sizes == [("long kernel", size) for size in sizes]
    whole = corpus.select(corpus.vectors(np.arange(n)), 100, method="vrsd", pool=2000)
    for result, ids, scores in zip(answer.json()["results"], whole.indices, whole.scores, strict=True):
        assert result["ids"] == ids.tolist()
        assert np.array(result["scores"], np.float32).tobytes() == scores.tobytes()


@pytest.mark.parametrize(
    ("counts", "sizes"),  # of each request, and how much of it the first call takes
    [([(1, 1), (10, 0), (9, 0), (6, 0), (15, 0)], [1, 10, 15, 15]), ([(20, 15), (40, 0)], [15, 15, 15, 15])],
)
def test_a_request_that_fits_a_call_is_not_cut(corpus, monkeypatch, counts, sizes):
    """A call has room for 15 queries; what does not fit one fills it up."""
    calls = Calls(monkeypatch)
    own = 20 * (D + 5 * D * 0.75) + 1
    monkeypatch.setattr(batcher, "_TURN", 15.5 * own * 1e-6)
    monkeypatch.setattr(batcher, "_LONG_TURN", 15.5 * own * 1e-6)
    monkeypatch.setattr(batcher, "_SHARED", 0.0)
    rules = {"method": "vrsd", "k": 5, "candidates": list(range(20))}

    async def use(client, service):
        asked, waiting = [], 0
        for count, called in counts:
            asked.append(asking(client, count, **rules))
            waiting += count - called
            while service.batcher.queued < waiting or not calls.sizes:
                await asyncio.sleep(0.001)
        calls.open()
        return [(await each).status_code for each in asked]

    assert run(corpus, use, num_threads=1) == [200] * len(counts)
    assert [size for _, size in calls.sizes] == sizes


@pytest.mark.parametrize(("share", "on_loop"), [(1.01, True), (0.99, False)])
def test_a_call_is_on_the_loop_if_one_thread_is_quick_enough(corpus, monkeypatch, share, on_loop):
    """Several may be quicker, but calls on the loop have one."""
    threads, answer = [], batcher.answer
    own = 20 * (D + 5 * D * 0.75) + 1
    monkeypatch.setattr(batcher, "answer", lambda *given: threads.append(threading.get_ident()) or answer(*given))
    monkeypatch.setattr(batcher, "_SERIAL", 0.0)
    monkeypatch.setattr(batcher, "_CALL", 0.0)
    monkeypatch.setattr(batcher, "_ELEMENT", 1e-6)
    monkeypatch.setattr(batcher, "_INLINE", share * 15 * own * 1e-6)

    async def use(client, service):
        threads.clear()  # those that warmed the kernels up
        await asking(client, 15, method="vrsd", k=5, candidates=list(range(20)))
        return threading.get_ident()

    loop = run(corpus, use, num_threads=4)
    assert [thread == loop for thread in threads] == [on_loop]


def test_what_queries_share_is_shared_by_as_many_as_weigh_more(corpus, monkeypatch):
    """Else a search of a large corpus would be made for each query of others' requests."""
    calls = Calls(monkeypatch)
    calls.open()
    monkeypatch.setattr(batcher, "_TURN", 1e-9)
    monkeypatch.setattr(batcher, "_LONG_TURN", 1e-9)
    own = N * D * 0.5 + 10 * (D + 2 * D * 0.75) + 1
    fits = int(batcher._SHARED * 2.5 * N * D / own)

    async def use(client, _):
        await asking(client, 200, method="vrsd", k=2, pool=10)

    run(corpus, use, num_threads=1)
    assert calls.sizes[0] == ("long kernel", fits)
    assert 1 < fits < 200


@pytest.mark.parametrize("rules", [SHORT, {**LONG, "k": 1, "pool": 10}], ids=["other rules", "a search"])
def test_short_requests_are_answered_beside_long_ones(corpus, monkeypatch, rules):
    calls = Calls(monkeypatch, 1e-9)
    monkeypatch.setattr(batcher, "_TURN", 1e-3)
    calls.gates["kernel"].set()

    async def use(client, _):
        long = asking(client, 100, **LONG)
        await calls.begun(1)
        short = await asyncio.wait_for(asking(client, **rules), servers.HANGS)
        assert not long.done()
        calls.open()
        return [short.status_code, (await long).status_code]

    assert run(corpus, use, num_threads=1) == [200, 200]
    assert calls.sizes[0][0] == "long kernel"
    assert [size for size in calls.sizes if size[0] == "kernel"] == [("kernel", 1)]


def test_a_query_does_not_wait_behind_those_of_a_large_caller_with_the_same_rules(corpus, monkeypatch):
    calls = Calls(monkeypatch, 1e-9)
    monkeypatch.setattr(batcher, "_TURN", 2e-2)
    calls.gates["kernel"].set()

    async def use(client, _):
        long = asking(client, 100, **LONG)
        await calls.begun(1)
        assert (await asyncio.wait_for(asking(client, **LONG), servers.HANGS)).status_code == 200
        assert not long.done()
        calls.open()
        await long

    run(corpus, use, num_threads=1)


def test_long_requests_with_the_same_rules_take_turns(corpus, monkeypatch):
    """Their queries differ in k, by which they are told apart."""
    calls = Calls(monkeypatch)
    monkeypatch.setattr(batcher, "_TURN", 1e-9)
    monkeypatch.setattr(batcher, "_LONG_TURN", 1e-9)
    monkeypatch.setattr(batcher, "_SHARED", 0.0)

    async def use(client, service):
        asked = []
        for k, count in ((5, 8), (6, 3), (7, 2)):
            asked.append(asking(client, count, method="vrsd", k=k, candidates=list(range(20))))
            while service.batcher.queued < sum((7, 3, 2)[: len(asked)]):  # one is in the first call
                await asyncio.sleep(0.001)
        calls.open()
        await asyncio.gather(*asked)

    run(corpus, use, num_threads=1)
    assert [k for [k] in calls.queries] == [5, 5, 6, 7, 5, 6, 7, 5, 6, 5, 5, 5, 5]


def test_a_request_that_takes_longer_than_expected_goes_on_beside_short_ones(corpus, monkeypatch):
    measure, answers = batcher.Batcher._measure, batcher._answers
    calls = Calls(monkeypatch, 1e-12)
    calls.gates["kernel"].set()
    monkeypatch.setattr(batcher.Batcher, "_measure", measure)
    monkeypatch.setattr(batcher, "_answers", lambda *given: (answers(*given)[0], 1.0, 1.0))  # second, each call

    async def use(client, _):
        long = asking(client, 600, **{**LONG, "k": 2})
        while calls.sizes[-1:] == [] or calls.sizes[-1][0] == "kernel":
            await asyncio.sleep(0.001)
        short = await asyncio.wait_for(asking(client, **SHORT), servers.HANGS)
        assert not long.done()
        calls.open()
        return [short.status_code, (await long).status_code]

    assert run(corpus, use, num_threads=2) == [200, 200]


def test_a_short_request_stays_short_on_a_busy_machine(corpus, monkeypatch):
    measure, answers = batcher.Batcher._measure, batcher._answers
    calls = Calls(monkeypatch, 1e-12)
    calls.gates["kernel"].set()
    monkeypatch.setattr(batcher.Batcher, "_measure", measure)
    monkeypatch.setattr(batcher, "_answers", lambda *given: (answers(*given)[0], 1.0, 1e-6))  # a second passes in each

    async def use(client, _):
        for _ in range(20):  # behind the gate of long calls one would hang
            assert (await asking(client, **SHORT)).status_code == 200

    run(corpus, use, num_threads=1)
    assert calls.sizes == [("kernel", 1)] * 20


@needs_extension
@pytest.mark.parametrize("how", ["the client goes", "the deadline passes"])
def test_a_call_that_nobody_waits_for_is_stopped(corpus, monkeypatch, how):
    calls = Calls(monkeypatch)

    async def use(client, service):
        long, loop = asking(client, 50, **LONG), asyncio.get_running_loop()
        await calls.begun(1)
        if how == "the client goes":
            long.cancel()
            await asyncio.wait([long])
        else:
            now = loop.time
            monkeypatch.setattr(loop, "time", lambda: now() + 31)
            assert (await long).status_code == 504
        assert service.batcher.queued == 0
        calls.open()
        assert (await asking(client, 3, **LONG)).status_code == 200

    run(corpus, use, num_threads=2, limits=Limits(timeout_ms=30_000))
    assert calls.stopped == 1


@needs_extension
def test_a_call_that_somebody_waits_for_goes_on(corpus, monkeypatch):
    """Two requests share it; one of them ends."""
    calls = Calls(monkeypatch, 1e-12)
    calls.gates["long kernel"].set()

    async def use(client, service):
        first = asking(client, 5, method="msd")
        await calls.begun(1)
        asked = [asking(client, 5, k=k) for k in (3, 4)]
        while service.batcher.queued < 10:
            await asyncio.sleep(0.001)
        calls.gates["kernel"].set()
        await first
        calls.gates["kernel"].clear()
        await calls.begun(2)
        asked[0].cancel()
        await asyncio.wait(asked[:1])
        calls.open()
        return (await asked[1]).status_code

    assert run(corpus, use) == 200
    assert calls.stopped == 0


@needs_extension
def test_kernels_stop_within_a_call_of_one_thread_alone(corpus):
    """One that would take minutes, from another thread; calls of other threads and later ones are as ever."""
    vectors = corpus.vectors(np.zeros(1, np.int64)).astype(np.float32)
    many, stop, found = np.repeat(vectors, 4_000, axis=0), Stop(), []

    def call():
        with stop:
            try:
                corpus.select(many, 200, method="vrsd", pool=2000, num_threads=2)
            except StoppedError as error:
                found.append(error)
        found.append(corpus.select(vectors, 3).indices.tolist())

    thread = threading.Thread(target=call)
    thread.start()
    assert corpus.select(vectors, 3).indices[0, 0] == 0
    stop.set()
    thread.join()
    assert isinstance(found[0], StoppedError)
    assert found[1] == corpus.select(vectors, 3).indices.tolist()


@needs_extension
def test_a_path_ends_with_its_deadline(corpus, monkeypatch):
    """The kernels are stopped, and the thread is free for the next."""
    from ragsys_kernels.serving.routes import explore

    segments, gate, stops = explore.segments_of, threading.Event(), []
    monkeypatch.setattr(service, "Stop", lambda: stops.append(Stop()) or stops[-1])
    monkeypatch.setattr(explore, "segments_of", lambda *given: gate.wait(servers.HANGS) and segments(*given))

    async def use(client, _):
        body = {"query_id": 1, "k": 5, "pool": 500}
        late = asyncio.ensure_future(client.post("/v1/path", json=body, headers={"x-timeout-ms": "30"}))
        await asyncio.to_thread(servers.until, lambda: stops and stops[0].given)  # its deadline has passed
        gate.set()
        return [(await late).status_code, (await client.post("/v1/path", json=body)).status_code]

    assert run(corpus, use) == [504, 200]
