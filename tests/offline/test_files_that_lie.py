"""Files whose counts, lengths, offsets or shapes are not of what is in them: one error, before memory is taken."""

import struct
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ragsys_kernels as rk
from ragsys_kernels import offline
from ragsys_kernels.offline import sources, text_files

N, D = 12, 4
OFFSETS = np.arange(N + 1, dtype=np.int32) * D
LIES = {
    "far": OFFSETS + 10**8,
    "decreasing": OFFSETS[::-1],
    "negative": OFFSETS - D,
    "beyond": OFFSETS * 2,
    "in the middle": np.where(np.arange(N + 1) == 5, 10**8, OFFSETS),
    "back in the middle": np.where(np.arange(N + 1) == 5, -D, OFFSETS),
}
VECTORS = np.random.default_rng(0).standard_normal((3 * N, D)).astype(np.float32)


def write(path, compression=None, writer=pa.ipc.new_file):
    """Three batches of lists; the offsets of each are the same bytes."""
    lists = pa.ListArray.from_arrays(pa.array(OFFSETS), pa.array(VECTORS[:N].ravel()))
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as file, writer(file, pa.schema([("v", lists.type)]), options=options) as out:
        for begin in range(0, 3 * N, N):
            part = pa.ListArray.from_arrays(pa.array(OFFSETS), pa.array(VECTORS[begin : begin + N].ravel()))
            out.write_batch(pa.record_batch([part], names=["v"]))
    return path


def replace(path, old, new, which=0):
    content = path.read_bytes()
    place = -1
    for _ in range(which + 1):
        place = content.index(old, place + 1)
    assert len(old) == len(new)
    path.write_bytes(content[:place] + new + content[place + len(old) :])


@pytest.mark.parametrize("writer", [pa.ipc.new_file, pa.ipc.new_stream], ids=["file", "stream"])
@pytest.mark.parametrize("lie", LIES)
def test_offsets_of_lists(tmp_path, lie, writer):
    path = write(tmp_path / "x.arrow", writer=writer)
    np.testing.assert_array_equal(sources.vectors(path, "queries").whole(), VECTORS)
    replace(path, OFFSETS.tobytes(), LIES[lie].astype(np.int32).tobytes(), which=1)
    with pytest.raises(ValueError, match=r"^select: queries must be a readable Arrow file, got .*x\.arrow: ") as caught:
        list(sources.vectors(path, "queries").chunks(5))
    assert "\n" not in str(caught.value)


def test_offsets_in_the_middle_cost_their_batch_alone(tmp_path):
    path, bad = write(tmp_path / "x.arrow"), {}
    replace(path, OFFSETS.tobytes(), LIES["in the middle"].astype(np.int32).tobytes(), which=1)
    found = np.concatenate(list(sources.vectors(path, "queries", dims=D).chunks(5, bad=bad)))
    assert sorted(bad) == list(range(N, 2 * N))
    expected = VECTORS.copy()
    expected[N : 2 * N] = 0
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("writer", [pa.ipc.new_file, pa.ipc.new_stream], ids=["file", "stream"])
@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("said", [2**45, 2**62, -7])
def test_lengths_of_what_is_packed(tmp_path, compression, writer, said):
    lists = pa.array([[0.0] * 50] * N, pa.list_(pa.float32()))
    options = pa.ipc.IpcWriteOptions(compression=compression)
    path = tmp_path / "x.arrow"
    with pa.OSFile(str(path), "wb") as file, writer(file, pa.schema([("v", lists.type)]), options=options) as out:
        out.write_batch(pa.record_batch([lists], names=["v"]))
    assert sources.vectors(path, "queries").whole().shape == (N, 50)
    replace(path, struct.pack("<q", N * 50 * 4), struct.pack("<q", said))
    with pytest.raises(ValueError, match=f"^select: queries must be a readable Arrow file, .*unpacks to {said}"):
        list(sources.vectors(path, "queries").chunks(5))


@pytest.mark.parametrize(
    "shape",
    [
        "(-1, 8)", "(8, -1)", "(4611686018427387904, 8)", "(4611686018427387904, 4)", "(99, 8)",
        "(0, 2305843009213693952)", "(9223372036854775808, 0)",
    ],
)  # fmt: skip
@pytest.mark.parametrize("order", ["False", "True"])
def test_shapes(tmp_path, shape, order):
    head = f"{{'descr': '<f4', 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    head += b" " * (-(len(head) + 11) % 64) + b"\n"
    path = tmp_path / "x.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + b"\0" * 320)
    for open_it in (sources.vectors, lambda path, _: sources.candidate_lists(path)):
        with pytest.raises(
            ValueError, match=r"^select: \w+ must be a complete \.npy file, got .*x\.npy: it(s shape)? "
        ):
            open_it(path, "queries")


def test_shapes_of_empty_tensors(tmp_path):
    pytest.importorskip("safetensors")
    head = b'{"v": {"dtype": "F32", "shape": [0, 2305843009213693952], "data_offsets": [0, 0]}}'
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(head)) + head)
    with pytest.raises(ValueError, match=r"^select: v must have a shape that an array can have, got \(0, 2305"):
        sources.vectors(tmp_path / "x.safetensors", "queries")


@pytest.mark.parametrize("content", [b"", b"1,2,3\n", b"\x93NUMPY\x01\x00v\x00{'descr'"])
def test_arrays_that_are_none(tmp_path, content):
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(ValueError, match=r"^select: queries must be a complete \.npy file, got .*x\.npy"):
        sources.vectors(tmp_path / "x.npy", "queries")


@pytest.mark.parametrize("head", [b"(" * 900, b"{" * 9000, b"1" * 9000, b"\xff" * 40, b"{'descr': '<f4'}", b""])
def test_headers_that_are_none(tmp_path, head):
    path = tmp_path / "x.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head)
    with pytest.raises(ValueError, match=r"^select: queries must be a complete \.npy file, got .*x\.npy: ") as caught:
        sources.vectors(path, "queries")
    assert "\n" not in str(caught.value)


def parquet_of(path, rows, said):
    """A file that says everywhere that it has another number of rows, of as many bytes in Thrift."""
    pq.write_table(pa.table({"v": VECTORS[np.arange(rows) % len(VECTORS)].tolist(), "text": ["a"] * rows}), path)
    content = path.read_bytes()
    length = struct.unpack("<I", content[-8:-4])[0]
    old, new = (bytes([2 * n & 0x7F | 0x80, 2 * n >> 7]) for n in (rows, said))
    footer = content[-8 - length : -8]
    assert old in footer
    path.write_bytes(content[: -8 - length] + footer.replace(old, new) + content[-8:])
    return path


def test_rows_of_parquet(tmp_path):
    path = parquet_of(tmp_path / "x.parquet", 1000, 8191)
    with pytest.raises(ValueError, match=r"^select: queries must be a readable Parquet file, got .*x\.parquet: "):
        np.concatenate(list(sources.vectors(path, "queries").chunks(50)))
    with pytest.raises(ValueError, match=r"^show: texts must be a readable \.parquet file, got .*x\.parquet: "):
        text_files.read("show", "texts", path)


def test_rows_that_are_the_same_are_there(tmp_path):
    rows = np.ones((50_000, D), np.float32)
    pq.write_table(pa.table({"v": list(rows), "n": np.zeros(len(rows), int)}), tmp_path / "x.parquet")
    assert (tmp_path / "x.parquet").stat().st_size * 4 < rows.size
    np.testing.assert_array_equal(sources.vectors(tmp_path / "x.parquet", "queries").whole(), rows)
    numbers = sources.numbers("query_groups", int, None, "n", tmp_path / "x.parquet")
    assert not numbers.whole().any()


def test_text_that_is_no_utf8(tmp_path):
    made = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(struct.pack("<2i", 0, 2)), pa.py_buffer(b"\xff\xfe")]
    )
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": made, "id": made}), path)
    with pytest.raises(ValueError, match=r"^show: texts must be a readable \.parquet file, got .*UTF8"):
        text_files.read("show", "texts", path)
    with pytest.raises(ValueError, match=r"^select: corpus must be a readable Parquet file, got .*UTF8"):
        sources.ids(path, "corpus").whole()


def test_tensors(tmp_path):
    save_file = pytest.importorskip("safetensors.numpy").save_file
    for old, new in ((b"[3,4]", b"[9,4]"), (b"[0,48]", b"[8,48]"), (b"[0,48]", b"[0,96]"), (b"[3,4]", b"[-3,4]"[:5])):
        save_file({"v": np.ones((3, 4), np.float32)}, tmp_path / "x.safetensors")
        replace(tmp_path / "x.safetensors", old, new)
        with pytest.raises(ValueError, match=r"^select: queries must be a readable safetensors file, got "):
            sources.vectors(tmp_path / "x.safetensors", "queries")


INDEX = """
import resource, sys
from ragsys_kernels.corpus import faiss_index
import faiss
before, limit = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, faiss.get_deserialization_vector_byte_limit()
try:
    faiss_index.read("select", sys.argv[1], "it")
except ValueError as error:
    print(error)
assert faiss.get_deserialization_vector_byte_limit() == limit
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_arrays_of_an_index_are_not_longer_than_its_file(tmp_path):
    faiss = pytest.importorskip("faiss")
    if not hasattr(faiss, "set_deserialization_vector_byte_limit"):
        pytest.skip("this FAISS has no limits")
    faiss.write_index(rk.Corpus(VECTORS).to_faiss(), str(tmp_path / "x.index"))
    replace(tmp_path / "x.index", struct.pack("<q", VECTORS.size), struct.pack("<q", 2**28))
    ran = subprocess.run(
        [sys.executable, "-c", INDEX, str(tmp_path / "x.index")], capture_output=True, text=True, check=True
    )
    error, kilobytes = ran.stdout.splitlines()
    assert error.startswith("select: index must be a readable FAISS index file, got it: ")
    assert int(kilobytes) < 100_000


def test_an_index_that_shows_its_lies_when_it_is_tried(tmp_path):
    faiss = pytest.importorskip("faiss")
    np.save(tmp_path / "x.npy", VECTORS)
    job = {"corpus": tmp_path / "x.npy", "queries": tmp_path / "x.npy", "k": 2, "pool": 4, "out": tmp_path / "out"}

    def refused(index, why):
        faiss.write_index(index, str(tmp_path / "x.index"))
        with pytest.raises(
            ValueError, match=rf"^select: index must be one of the corpus, got .*x\.index: {why}"
        ) as caught:
            offline.select(**job, index=tmp_path / "x.index")
        assert "\n" not in str(caught.value)

    index = rk.Corpus(VECTORS).to_faiss("IVF2,Flat")
    index.nprobe = 0
    refused(index, "index must be one that can be searched, got IndexIVFFlat: ")
    unit = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)
    index = faiss.IndexIDMap(faiss.IndexFlatIP(D))
    index.add_with_ids(unit, np.where(np.arange(len(unit)) < 30, np.arange(len(unit)), 2**40 + np.arange(len(unit))))
    refused(index, "index must have numbers of the corpus's rows, below N = 36, got 10995")
