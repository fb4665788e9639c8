"""Arrow Flight: streams of batches have the bits of calls in process, in their order; errors and the token."""

import json
import threading
import time

import numpy as np
import pyarrow as pa
import pytest
import servers
from pyarrow import flight

import ragsys_kernels as rk
from ragsys_kernels.serving import Limits

N, D = 150, 8
RNG = np.random.default_rng(24)
ROWS = RNG.standard_normal((N, D), dtype=np.float32)
NAMES = [f"doc-{i}" for i in range(N)]
CORPUS = rk.Corpus(ROWS)
TOKEN = "of-the-tests"


@pytest.fixture(scope="module")
def client():
    """A client of a server whose queue is short, so that streams meet its end."""
    corpora = {"docs": CORPUS, "names": rk.Corpus(ROWS, ids=NAMES)}
    limits = Limits(queue=700, queries=600, body_bytes=1 << 20)
    with (
        servers.Thread(corpora, flight=True, token=TOKEN, limits=limits, grace=5) as server,
        flight.connect(server.flight) as connected,
    ):
        yield connected


def opened(client, token=TOKEN, **rules):
    options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())])
    return client.do_exchange(flight.FlightDescriptor.for_command(json.dumps(rules).encode()), options)


def batch_of(vectors, **columns):
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), D)
    return pa.record_batch({"vector": vectors, **{name: pa.array(x) for name, x in columns.items()}})


def first_answer(stream, batch):
    writer, reader = stream
    writer.begin(batch.schema)
    writer.write_batch(batch)
    return reader.read_chunk()


def exchanged(client, batches, **rules):
    """All answers to a stream that is written without waiting for any."""
    writer, reader = opened(client, **rules)

    def write():
        writer.begin(batches[0].schema)
        for batch in batches:
            writer.write_batch(batch)
        writer.done_writing()

    thread = threading.Thread(target=write)
    thread.start()
    answers = reader.read_all()
    thread.join()
    writer.close()
    return answers


def test_a_stream_has_the_bits_of_calls_in_process(client):
    """More queries than the queue holds, in batches from 1 to more than are answered at once."""
    sizes = [1, 1500, 3, 800, 64]
    vectors = [RNG.standard_normal((size, D), dtype=np.float32) for size in sizes]
    answers = exchanged(client, [batch_of(x) for x in vectors], corpus="docs", k=4, pool=30, lambda_d=0.25)
    picks = CORPUS.select(np.concatenate(vectors), 4, pool=30, lambda_d=0.25)
    assert answers["query_id"].to_pylist() == list(range(sum(sizes)))
    assert answers["ids"].to_pylist() == picks.indices.tolist()
    for name in ("scores", "relevance", "redundancy"):
        flat = answers[name].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        expected = getattr(picks, name).ravel()
        assert np.array_equal(flat.view("i4")[~np.isnan(expected)], expected.view("i4")[~np.isnan(expected)])


def test_a_client_may_wait_for_each_answer_before_it_writes_on(client):
    writer, reader = opened(client, corpus="names", method="vrsd", k=2)
    vectors = RNG.standard_normal((6, D), dtype=np.float32)
    writer.begin(batch_of(vectors[:2], id=["a", "b"]).schema)
    for begin in (0, 2, 4):
        writer.write_batch(batch_of(vectors[begin : begin + 2], id=[f"{begin}", "x"]))
        answer = reader.read_chunk().data.to_pydict()
        assert answer["query_id"] == [f"{begin}", "x"]
        rows = CORPUS.select(vectors[begin : begin + 2], 2, method="vrsd", pool=100).indices
        assert answer["ids"] == [[NAMES[row] for row in each] for each in rows]
    writer.done_writing()
    with pytest.raises(StopIteration):
        reader.read_chunk()
    writer.close()


def test_lists_of_ids_among_the_rules_hold_for_all_batches(client):
    vectors = RNG.standard_normal((1030, D), dtype=np.float32)
    exclude = [*range(40), 77]
    parts = [batch_of(vectors[:1028]), batch_of(vectors[1028:])]
    answers = exchanged(client, parts, corpus="docs", k=3, pool=20, exclude=exclude)
    expected = CORPUS.select(vectors, 3, pool=20, exclude=exclude)
    assert answers["ids"].to_pylist() == expected.indices.tolist()


def test_candidates_come_with_their_vectors_where_no_corpus_is_named(client):
    rows = pa.FixedSizeListArray.from_arrays(pa.array(ROWS[:9].ravel()), D)
    columns = {"vector": ROWS[:1].tolist(), "candidates": [[f"d{i}" for i in range(9)]]}
    batch = pa.record_batch({**columns, "vectors": pa.ListArray.from_arrays([0, 9], rows)})
    answer = exchanged(client, [batch], k=2, exclude=["d0", "gone"], unknown="skip")
    assert answer["skipped"].to_pylist() == [["gone"]]
    expected = rk.mmr(ROWS[:1], ROWS[:9], 2, candidates=np.arange(1, 9)[None])
    assert answer["ids"].to_pylist() == [[f"d{i}" for i in expected.indices[0]]]
    with pytest.raises(flight.FlightServerError, match=r"corpus must be one of .*, got none, and no vectors"):
        exchanged(client, [batch_of(RNG.standard_normal((2, D), dtype=np.float32))])


@pytest.mark.parametrize(
    ("rules", "column", "words"),
    [
        ({"corpus": "other"}, "vector", "corpus must be one of 'docs', 'names'"),
        ({"corpus": "docs", "k": 0}, "vector", "k must be within"),
        ({"corpus": "docs", "lamda": 0}, "vector", "must be one of"),
        ({"corpus": "docs", "exclude": ["doc-1"]}, "vector", "exclude must be integers of 64 bits"),
        ({"corpus": "docs", "cursor": "n"}, "vector", "cursor must be left out"),
        ({"corpus": "docs"}, "embedding", "one column of"),
    ],
)
def test_bad_streams_end_with_the_error_alone(client, rules, column, words):
    batch = batch_of(ROWS[:2]).rename_columns([column])
    with pytest.raises(flight.FlightServerError, match=words) as caught:
        first_answer(opened(client, **rules), batch)
    assert "Traceback" not in str(caught.value)
    assert json.loads(caught.value.extra_info)["status"] == 422


def test_the_token_and_the_size_of_batches_are_checked(client):
    for token, vectors, error, words in [
        ("of-others", ROWS, flight.FlightUnauthenticatedError, "token"),
        (TOKEN, np.zeros((40_000, D), np.float32), flight.FlightServerError, "at most 1048576 bytes"),
    ]:
        with pytest.raises(error, match=words):
            first_answer(opened(client, token, corpus="docs"), batch_of(vectors))


def test_an_answer_counts_as_memory_until_the_client_has_read_it():
    with servers.Thread({"docs": CORPUS}, flight=True) as server, flight.connect(server.flight) as connected:
        load, batch = server.service.load, batch_of(RNG.standard_normal((4000, D), dtype=np.float32))
        writer, reader = connected.do_exchange(flight.FlightDescriptor.for_command(b'{"k": 150, "pool": null}'))

        def write():
            writer.begin(batch.schema)
            for _ in range(2):
                writer.write_batch(batch)
            writer.done_writing()

        writing = threading.Thread(target=write)
        writing.start()
        for _ in range(5):  # answers of 24 MB in all: more than there is room for between server and client
            servers.until(lambda: load.bytes > 20 * 4000 * 150)
            time.sleep(0.1)
        assert len(reader.read_all()) == 8000
        writing.join()
        servers.until(lambda: not load.bytes)
        writer.close()
