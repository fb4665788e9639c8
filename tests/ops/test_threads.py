"""The same bits for any number of threads, in any process and whatever else runs or is in the batch."""

import signal
import sys
import threading
import time

import numpy as np
import pytest
from selection_calls import METHODS, methods, same

import ragsys_kernels as rk
from ragsys_kernels import testing
from ragsys_kernels.scoring import _call
from ragsys_kernels.selection import cpu


def large(method, **options):
    """Q P D K = 150 x 70 x 90 x 8 is 7.5 million multiply-adds: enough for threads to be used."""
    return testing.selection_problem(150, 70, 8, 90, kind="clustered", bias=method == "mmr", groups=True, **options)


@methods
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_bits_do_not_depend_on_the_number_of_threads(compiled, monkeypatch, dtype, method):
    problem = large(method, dtype=dtype)
    one = METHODS[method](**problem, backend="cpu", num_threads=1)
    for threads in (2, 7, 1000):
        same(METHODS[method](**problem, backend="cpu", num_threads=threads), one)
        monkeypatch.setenv("RAGSYS_KERNELS_NUM_THREADS", str(threads))
        same(METHODS[method](**problem, backend="cpu"), one)


THREADS = """
import threading, time
import ragsys_kernels as rk
from ragsys_kernels import testing

def threads_of_process():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("Threads:"))

problem = testing.selection_problem(400, 400, 30, 128, seed=1)
rk.mmr(**problem, backend="cpu", num_threads=1)  # what the first call loads is loaded
before, most, done = threads_of_process(), 0, threading.Event()
hangs = time.monotonic() + 60

def watch():
    global most
    while not done.is_set():
        most = max(most, threads_of_process())

watcher = threading.Thread(target=watch)
watcher.start()
while most - before <= 1 and time.monotonic() < hangs:  # until the watcher has looked during a call
    rk.mmr(**problem, backend="cpu", num_threads=5)
done.set()
watcher.join()
while threads_of_process() > before and time.monotonic() < hangs:  # which a joined thread leaves a moment later
    time.sleep(0.01)
print(most - before, threads_of_process() - before)
"""


def test_threads_are_used_and_none_outlives_the_call(compiled, run_python):
    """In a process of its own: threads of other tests end when they like."""
    most, left = map(int, run_python(THREADS).stdout.split())
    assert 1 < most <= 1 + 4  # the watcher, and up to four threads beside the calling one
    assert left == 0


FORK = """
import os, sys, warnings
import numpy as np
import ragsys_kernels as rk
from ragsys_kernels import testing
from ragsys_kernels.scoring import _call
from ragsys_kernels.selection import cpu

warnings.simplefilter("ignore", DeprecationWarning)
problem = testing.selection_problem(150, 70, 8, 90, seed=3)
corpus = rk.Corpus(problem["embeddings"])
expected = rk.mmr(**problem, backend="cpu", num_threads=3)
found = corpus.search(problem["queries"], 9, backend="cpu", num_threads=3)
children = []
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        again = rk.mmr(**problem, backend="cpu", num_threads=3)
        good = all((a == b).all() for a, b in zip(again, expected))
        good = good and (corpus.search(problem["queries"], 9, backend="cpu", num_threads=3)[0] == found[0]).all()
        os._exit(0 if good else 1)
    children.append(pid)
assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0, 0]
assert all((a == b).all() for a, b in zip(rk.mmr(**problem, backend="cpu", num_threads=3), expected))
print("done")
"""


def test_works_in_a_forked_child_of_a_process_that_ran_threads(compiled, run_python):
    assert run_python(FORK).stdout == "done\n"


FIRST_CALL = """
import importlib.abc, os, sys, threading, time, warnings
import numpy as np
import ragsys_kernels as rk

warnings.simplefilter("ignore", DeprecationWarning)
importing, forking = threading.Event(), threading.Event()
os.register_at_fork(before=forking.set)  # before what the package does there

class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1] and threading.current_thread() is not threading.main_thread():
            importing.set()
            forking.wait(60)  # with the lock of this module

sys.meta_path.insert(0, Slow())

def call():
    x = np.eye(4, dtype=np.float32)
    return rk.mmr(x, x, 2).indices[0].tolist(), rk.Corpus(x).search(x, 1).indices.ravel().tolist()

thread = threading.Thread(target=call)
thread.start()
assert importing.wait(60)
child = os.fork()
if child == 0:
    grandchild = os.fork()  # a child can fork in turn
    good = call() == ([0, 1], [0, 1, 2, 3]) and (grandchild == 0 or os.waitpid(grandchild, 0)[1] == 0)
    os._exit(0 if good else 1)
end = time.monotonic() + 60
while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < end:
    time.sleep(0.01)
if ended[0] == 0:
    os.kill(child, 9)
thread.join()
print(ended[0] == child and ended[1] == 0)
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("module", ["corpus", "selection.cpu"])
def test_a_child_forked_during_another_threads_first_call_works(compiled, run_python, module):
    assert run_python(FIRST_CALL, f"ragsys_kernels.{module}").stdout == "True\n"


@methods
def test_concurrent_calls_from_python_threads_are_right(backend, method):
    queries = 60 if backend == "cpu" else 6
    problems = [testing.selection_problem(queries, 40, 6, 48, kind="clustered", seed=seed) for seed in range(6)]
    expected = [METHODS[method](**problem, backend=backend, num_threads=1) for problem in problems]
    errors = []

    def work(i):
        try:
            for _ in range(5 if backend == "cpu" else 1):
                same(METHODS[method](**problems[i], backend=backend, num_threads=2), expected[i])
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(problems))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]


def test_errors_of_concurrent_calls_stay_in_their_thread(compiled):
    good, bad = large("mmr"), large("mmr")
    bad["queries"][140, 3] = np.nan
    expected, seen = rk.mmr(**good, backend="cpu"), []

    def work():
        for _ in range(10):
            with pytest.raises(ValueError, match="NaN or inf in row 140"):
                rk.mmr(**bad, backend="cpu", num_threads=2)
            seen.append(None)

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(10):
        same(rk.mmr(**good, backend="cpu", num_threads=2), expected)
    thread.join()
    assert len(seen) == 10


@pytest.mark.parametrize("backend", ["cpu", "numpy", "reference"])
def test_indices_of_scoring_that_change_during_a_call_are_those_of_its_start(compiled, monkeypatch, backend):
    """Kernels index by what has been checked: a number out of range, written meanwhile, would be read out of bounds."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((6, 40), np.float32), rng.standard_normal((90, 40), np.float32)
    answers = {"targets": np.array([3, 5, 39, 7]), "rows": np.array([0, 2, 3, 5]), "cu_answers": np.array([0, 1, 4])}
    labels = {"label_ids": np.array([3, 5, 39]), "cu_labels": np.array([0, 1, 3]), "rows": np.array([0, 2, 2])}
    rows = np.array([5, 0])
    calls = [
        lambda: rk.answer_logprobs(x, **answers, backend=backend),
        lambda: rk.answer_logprobs(hidden=x, weight=w, **answers, allowed=allowed, want=("rank",), backend=backend),
        lambda: rk.label_posteriors(x, **labels, backend=backend),
        lambda: rk.top_logprobs(x, k=3, rows=rows, backend=backend),
    ]
    allowed = np.arange(0, 90, 2)
    indices = (*answers.values(), *labels.values(), rows, allowed)
    original = [array.copy() for array in indices]
    want = [call() for call in calls]
    run = _call.Call.run

    def changed(self, problem):
        for array in indices:
            array[...] = 1
        return run(self, problem)

    monkeypatch.setattr(_call.Call, "run", changed)
    for call, expected in zip(calls, want, strict=True):
        for array, first in zip(indices, original, strict=True):
            array[...] = first
        for got, field in zip(call(), expected, strict=True):
            np.testing.assert_array_equal(got, field)


@methods
def test_k_that_changes_during_a_call_is_that_of_its_start(compiled, monkeypatch, method):
    """More picks than there is room for would be written beyond it."""
    problem = testing.selection_problem(4, 20, 5, 11)
    k = np.array([3, 1, 4, 2])
    problem["k"] = k
    want = METHODS[method](**problem)
    run = getattr(cpu, method)

    def changed(*arguments, **options):
        k[...] = 1
        return run(*arguments, **options)

    monkeypatch.setattr(cpu, method, changed)
    same(METHODS[method](**problem), want)
    assert k.tolist() == [1, 1, 1, 1]


@methods
def test_other_python_threads_run_during_a_call(compiled, monkeypatch, method):
    """The lock is released: another thread counts while the kernel works, which it could not otherwise but just before
    and after. Calls become longer until it has the time."""
    ticks, inside, done, kernel = [], [], threading.Event(), compiled.select

    def count():
        while not done.wait(0.001):
            ticks.append(None)

    def counted(*arguments):
        before = len(ticks)
        found = kernel(*arguments)
        inside.append(len(ticks) - before)
        return found

    monkeypatch.setattr(compiled, "select", counted)
    counter = threading.Thread(target=count)
    counter.start()
    try:
        for queries in 50 * 2 ** np.arange(7):
            problem = testing.selection_problem(queries, 2000, 40, 256, N=2000, seed=4)
            METHODS[method](**{**problem, "metric": "dot"}, backend="cpu", num_threads=1)  # all products are computed
            if inside[-1] >= 50:
                break
    finally:
        done.set()
        counter.join()
    assert inside[-1] >= 50, f"times that another thread ran during each call: {inside}"


class InterruptError(Exception):
    pass


def long_pools():
    """Some queries, each of seconds."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((40_000, 64), dtype=np.float32)
    return lambda **o: rk.mmr(rows[:4], rows, 39_000, metric="dot", lambda_d=0.1, **o)


def many_pools():
    """Many queries, each of milliseconds."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((2000, 64), dtype=np.float32)
    return lambda **o: rk.vrsd(np.repeat(rows, 2, axis=0), rows, 500, metric="dot", **o)


def long_search():
    rng = np.random.default_rng(0)
    corpus = rk.Corpus(rng.standard_normal((20_000, 256), dtype=np.float32))
    queries = np.broadcast_to(corpus.data[:1], (30_000, 256))
    return lambda **o: corpus.search(queries, 10, **o)


def many_logits():
    logits = np.broadcast_to(np.random.default_rng(0).standard_normal(32_000, dtype=np.float32), (2_000_000, 32_000))
    return lambda **o: rk.token_logprobs(logits, np.zeros(len(logits), np.int64), **o)


def many_states():
    rng = np.random.default_rng(0)
    hidden = np.broadcast_to(rng.standard_normal(512, dtype=np.float32), (400_000, 512))
    weight = rng.standard_normal((4000, 512), dtype=np.float32)
    return lambda **o: rk.answer_logprobs(hidden=hidden, weight=weight, targets=np.zeros(len(hidden), np.int64), **o)


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("prepare", [long_pools, many_pools, long_search, many_logits, many_states])
def test_a_signal_ends_a_call_within_a_second(compiled, prepare, num_threads):
    """A second of processor time of each thread. The signal is sent from within the kernel, which then raises."""
    call, raised, events = prepare(), [], []

    def handler(*_):
        raised.append(None)
        raise InterruptError

    def profile(_, event, function):
        if getattr(function, "__module__", None) == compiled.__name__ and event.startswith("c_"):
            events.append((event, function.__name__, time.process_time()))
            if function.__name__ in ("select", "search", "score_logits", "score_hidden"):
                signal.setitimer(signal.ITIMER_REAL, 0.05 if event == "c_call" else 0)

    previous = signal.signal(signal.SIGALRM, handler)
    sys.setprofile(profile)
    try:
        with pytest.raises(InterruptError):
            call(num_threads=num_threads)
    finally:
        sys.setprofile(None)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert [event for event, *_ in events[-2:]] == ["c_call", "c_exception"], "the kernel ended by itself"
    (_, name, began), (_, same_name, ended) = events[-2:]
    assert name == same_name
    assert ended - began < num_threads
    assert len(raised) == 1
    # The next call is not ended by it.
    rk.mmr(np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32), 2, num_threads=num_threads)


ALONE = """
import os, sys, time
import numpy as np
import ragsys_kernels as rk

def of_others():
    ticks = 0
    for task in os.listdir("/proc/self/task"):
        if int(task) != os.getpid():
            with open(f"/proc/self/task/{task}/stat") as stat:
                ticks += sum(map(int, stat.read().rpartition(")")[2].split()[11:13]))
    return ticks

rng = np.random.default_rng(0)
corpus = rk.Corpus(rng.standard_normal((30_000, 256), dtype=np.float32), metric=sys.argv[1])
queries = rng.standard_normal((256, 256), dtype=np.float32)
before, begin = of_others(), time.thread_time()
while time.thread_time() - begin < 0.5:
    corpus.search(queries, 100, num_threads=1)
    corpus.select(queries[:1], 5, num_threads=1)
print(of_others() - before)
"""


@pytest.mark.parametrize("metric", ["cosine", "dot"])
def test_one_thread_is_one_thread(compiled, run_python, metric):
    """No other thread of the process takes time, the BLAS's neither: hundredths of a second, of at least 50."""
    assert int(run_python(ALONE, metric).stdout) <= 2


def test_a_query_from_16_threads_takes_no_longer_than_from_one(compiled):
    """Each asks one query a call. The time of all over the number of queries, measured until other processes disturb
    it no more."""
    rng = np.random.default_rng(0)
    corpus = rk.Corpus(rng.standard_normal((20_000, 384), dtype=np.float32))
    queries = rng.standard_normal((128, 384), dtype=np.float32)
    expected = corpus.select(queries, 10)

    def per_query(num_threads):
        wrong = []

        def ask(share):
            for q in share:
                found = corpus.select(queries[q : q + 1], 10)
                if not np.array_equal(found.indices[0], expected.indices[q]):
                    wrong.append(q)

        shares = np.array_split(np.arange(len(queries)), num_threads)
        threads = [threading.Thread(target=ask, args=(share,)) for share in shares]
        begin, begin_cpu = time.perf_counter(), time.process_time()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        return np.array([time.perf_counter() - begin, time.process_time() - begin_cpu])

    per_query(1)
    ratios, hangs = [], time.monotonic() + 60
    while not ratios or (min(ratios) > 1.5 and time.monotonic() < hangs):
        ratios.append(float((per_query(16) / per_query(1)).max()))
    assert min(ratios) <= 1.5, f"time from 16 threads to that from one, of wall clock or of processors: {ratios}"
