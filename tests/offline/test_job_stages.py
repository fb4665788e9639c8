"""The stages of a job, which run at the same time, and its workers."""

import pickle
import threading
import time
from dataclasses import asdict

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_files import contents
from jobs import spec_of

from ragsys_kernels.offline import _manifest, _worker, sinks
from ragsys_kernels.offline._pipeline import ahead


def test_stages_run_at_the_same_time():
    """Each stage waits for the other: one after the other they would wait for ever."""
    meeting = threading.Barrier(2, timeout=120)

    def items():
        for item in range(5):
            meeting.wait()
            yield item

    stage = ahead(items(), 1)
    first = threading.Thread(target=meeting.wait)
    first.start()
    seen = []
    for item in stage:
        seen.append(item)
        if item < 4:
            meeting.wait()
    first.join()
    assert seen == list(range(5))


@pytest.mark.parametrize("depth", [1, 3])
def test_stage_keeps_few_items(depth):
    made = []

    def items():
        for item in range(100):
            made.append(item)
            yield item

    stage = ahead(items(), depth)
    next(stage)
    deadline = time.monotonic() + 120
    while len(made) <= depth and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.05)
    assert len(made) == depth + 1
    stage.close()


def test_error_in_a_stage_ends_all():
    ended = []

    def first():
        try:
            yield from range(1000)
        finally:
            ended.append("first")

    def second(items):
        try:
            for item in items:
                if item == 3:
                    raise KeyError("three")
                yield item
        finally:
            items.close()
            ended.append("second")

    seen, before = [], threading.active_count()
    stage = ahead(second(ahead(first(), 2)), 2)
    with pytest.raises(KeyError, match="three"):
        seen.extend(iter(stage.__next__, None))
    assert (seen, ended, threading.active_count()) == ([0, 1, 2], ["first", "second"], before)


def test_worker_makes_any_shard_in_another_process(job):
    """What other engines build on: a description that can be sent, shards by their number, twice at the same time."""
    spec = pickle.loads(pickle.dumps(spec_of(**job.options).absolute().settled()))
    worker = _worker.Worker(spec)
    job.out.mkdir()
    folder = pickle.loads(pickle.dumps(_manifest.JobFolder(sinks.Folder(job.out), "key")))
    records = []
    threads = [threading.Thread(target=lambda: records.append(worker.write_shard(5, folder))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert contents(job.out)["part-00005.parquet"] == job.expected["part-00005.parquet"]
    assert len(set(map(str, map(asdict, records)))) == 1
    assert list(folder.records()) == [(".part-00005.json", records[0])]
    tables = [part.picks for part in worker.tables(130, 470)]
    direct = pq.read_table(job.done).slice(130, 340)
    assert pa.concat_tables(tables).equals(direct.cast(tables[0].schema))
