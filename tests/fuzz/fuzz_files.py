"""Files that lie: `python tests/fuzz/fuzz_files.py --seed 1 --files 2000`.

A case is drawn from (seed, number) alone: one file of a job, in any format that jobs read, whose counts, lengths,
offsets or shapes say something else than is there, or that is cut. The job has to end in one ValueError of one line
that begins with its name, or in a result that is whole: never in a signal, a MemoryError, or a job of -1 rows."""

import ast
import contextlib
import functools
import hashlib
import json
import random
import resource
import shutil
import struct
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
from fuzz_runs import Fuzzer, WrongError, ended, main
from safetensors.numpy import save_file

import ragsys_kernels as rk
from ragsys_kernels import offline
from ragsys_kernels.corpus import folder as saved_folder
from ragsys_kernels.offline import text_files

N, Q, D = 40, 20, 6
OPTIONS = {"k": 2, "pool": 8, "shard_size": 8, "chunk_size": 5, "num_threads": 1}
MEMORY = 512 << 20
LIES = [-1, 0, 1, 2, 8, 255, 10**8, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**61, 2**62, 2**63 - 1, -(2**31), -(2**63)]


@functools.cache
def _kept() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="fuzz-files-")


def _rows() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"corpus": rng.standard_normal((N, D), np.float32), "queries": rng.standard_normal((Q, D), np.float32)}


def _table(argument: str, vectors: np.ndarray, fixed: bool, encoded: bool) -> pa.Table:
    rng = np.random.default_rng(1)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), D) if fixed else pa.array(vectors.tolist())
    names = pa.array([f"{argument} {i}" for i in range(len(vectors))])
    columns = {
        "vector": lists if fixed else lists.cast(pa.list_(pa.float32())),
        "id": names.dictionary_encode() if encoded else names,
        "groups": pa.array(rng.integers(0, 5, len(vectors))),
        "candidates": pa.array([rng.choice(N, 5, replace=False).tolist() for _ in vectors]),
        "text": pa.array([f"The text of {argument} {i}." for i in range(len(vectors))]),
    }
    return pa.table(columns)


@functools.cache
def templates() -> dict[str, Path]:
    """The files of right jobs, by names that say argument and format."""
    home = Path(_kept().name)
    found = {}
    for argument, vectors in _rows().items():
        made = {}
        np.save(home / f"{argument}.npy", vectors)
        np.save(home / f"{argument}-f.npy", np.asfortranarray(vectors))
        np.save(home / f"{argument}-64.npy", vectors.astype(np.float64))
        save_file({"v": vectors, "id": np.arange(len(vectors)) * 3}, home / f"{argument}.safetensors")
        for name in ("", "-f", "-64"):
            made[f"npy{name}"] = home / f"{argument}{name}.npy"
        made["safetensors"] = home / f"{argument}.safetensors"
        for fixed in (True, False):
            kind = "fixed" if fixed else "lists"
            table = _table(argument, vectors, fixed, False)
            for compression in ("none", "zstd", "snappy"):
                made[f"parquet {kind} {compression}"] = path = home / f"{argument}-{kind}-{compression}.parquet"
                pq.write_table(table, path, row_group_size=12, compression=compression, use_dictionary=fixed)
            for compression in (None, "lz4", "zstd"):
                options = pa.ipc.IpcWriteOptions(compression=compression)
                for suffix, writer in ((".arrow", pa.ipc.new_file), (".ipc", pa.ipc.new_stream)):
                    path = home / f"{argument}-{kind}-{compression}{suffix}"
                    made[f"{suffix[1:]} {kind} {compression}"] = path
                    with pa.OSFile(str(path), "wb") as file, writer(file, table.schema, options=options) as out:
                        out.write_table(table, max_chunksize=12)
        made["feather"] = home / f"{argument}.feather"
        encoded = _table(argument, vectors, False, True)
        pa.feather.write_feather(encoded, made["feather"], compression="uncompressed", chunksize=12)
        found.update({f"{argument} {name}": path for name, path in made.items()})
    rng = np.random.default_rng(2)
    np.save(home / "candidates.npy", rng.permuted(np.tile(np.arange(N), (Q, 1)), axis=1)[:, :5])
    np.save(home / "bias.npy", rng.standard_normal(N).astype(np.float32))
    found |= {"candidates npy": home / "candidates.npy", "bias npy": home / "bias.npy"}
    for ids in ("none", "int", "str"):
        given = {"none": None, "int": rng.permutation(N), "str": [f"n{i}" for i in range(N)]}[ids]
        corpus = rk.Corpus(_rows()["corpus"], bias=rng.standard_normal(N).astype(np.float32), ids=given)
        corpus.save(home / f"saved-{ids}")
        found[f"corpus saved {ids}"] = home / f"saved-{ids}"
    with contextlib.suppress(ModuleNotFoundError):
        import faiss

        corpus = rk.Corpus(_rows()["corpus"])
        for kind in ("Flat", "HNSW4,Flat", "IVF3,Flat", "SQ8", "IDMap,Flat", "LSH", "PQ2x4", "NSG8,Flat"):
            with contextlib.suppress(ValueError):
                index = corpus.to_faiss(kind)
                faiss.write_index(index, str(home / f"{kind.replace(',', '-')}.index"))
                found[f"index {kind}"] = home / f"{kind.replace(',', '-')}.index"
    return found


class Case:
    """A file, and the lies in it."""

    def __init__(self, seed: int, number: int) -> None:
        self.dice = random.Random(f"{seed} {number}")
        self.name = self.dice.choice(sorted(templates()))
        self.argument, self.format = self.name.split(" ")[:2]
        self.path = templates()[self.name]
        self.skip = self.dice.random() < 0.4
        self.done: list[str] = []
        if self.path.is_dir():
            self.files = {each.name: each.read_bytes() for each in self.path.iterdir()}
        else:
            self.files = {self.path.name: self.path.read_bytes()}
        for _ in range(self.dice.choice((1, 1, 1, 2))):
            name = self.dice.choice(sorted(self.files))
            content = self.files[name]
            try:
                lied = self._lie(name, content)
            except (ValueError, SyntaxError, struct.error, KeyError, IndexError, TypeError):  # lied about before
                continue
            self.files[name] = lied
        if self.path.is_dir() and self.dice.random() < 0.8:
            self._restate()

    def lie(self, about: int) -> int:
        lies = [*LIES, about + 1, about - 1, about * 2, -about, about // 2, about + 2**32]
        return self.dice.choice([each for each in lies if each != about])

    def _lie(self, name: str, content: bytes) -> bytes:
        if self.dice.random() < 0.1:
            length = self.dice.randrange(len(content) + 1)
            self.done.append(f"{name} cut to {length} bytes")
            return content[:length]
        if name.endswith(".npy") and self.dice.random() < 0.7:
            return self._npy(name, content)
        if name.endswith(".safetensors") and self.dice.random() < 0.8:
            length = struct.unpack("<Q", content[:8])[0]
            header = json.loads(content[8 : 8 + length])
            self._edit(header, name)
            text = json.dumps(header).encode()
            return struct.pack("<Q", len(text)) + text + content[8 + length :]
        if name.endswith(".json"):
            description = json.loads(content)
            description.pop("sha256")
            self._edit(description, name)
            return saved_folder.content_of(description)
        if name.endswith(".parquet") and self.dice.random() < 0.7:
            return self._varint(name, content)
        width = self.dice.choice((4, 4, 8))
        place = self.dice.randrange(max(1, len(content) // width)) * width
        if self.dice.random() < 0.5:  # headers
            place = self.dice.randrange(max(1, min(400, len(content)) // 4)) * 4
        if len(content) < place + width:
            return content
        return self._number(name, content, place, width)

    def _number(self, name: str, content: bytes, place: int, width: int) -> bytes:
        before = int.from_bytes(content[place : place + width], "little", signed=True)
        value = self.lie(before) % (1 << 8 * width)
        self.done.append(f"{name}: {width} bytes at {place}, {before} -> {value}")
        return content[:place] + value.to_bytes(width, "little") + content[place + width :]

    def _npy(self, name: str, content: bytes) -> bytes:
        length = struct.unpack("<H", content[8:10])[0]
        header = ast.literal_eval(content[10 : 10 + length].decode())
        shape = list(header["shape"])
        if self.dice.random() < 0.8:
            place = self.dice.randrange(len(shape))
            shape[place] = self.lie(shape[place])
        elif self.dice.random() < 0.5:
            shape.insert(self.dice.randrange(len(shape) + 1), self.lie(1))
        else:
            header["descr"] = self.dice.choice(
                ("<f8", "<f2", ">f4", "|O", "<i8", "<U1000000000", "|V1000000000", "(9,)<f4")
            )
        header["shape"] = tuple(shape)
        self.done.append(f"{name} says {header}")
        text = repr(header).encode()
        text += b" " * (-(len(text) + 11) % 64) + b"\n"
        return content[:8] + struct.pack("<H", len(text)) + text + content[10 + length :]

    def _edit(self, said: Any, name: str) -> None:
        """Change one number of what JSON says."""
        numbers = list(_numbers(said))
        place, key = self.dice.choice(numbers)
        value = self.lie(int(place[key]))
        self.done.append(f"{name} says {key}: {place[key]} -> {value}")
        place[key] = value

    def _varint(self, name: str, content: bytes) -> bytes:
        """Put a lie in the place of a number of Thrift's compact protocol, in the footer or a page's header."""
        length = struct.unpack("<I", content[-8:-4])[0]
        begin = len(content) - 8 - length
        footer = self.dice.random() < 0.8
        places = range(begin, len(content) - 8) if footer else range(4, begin)
        if self.dice.random() < 0.7:  # where numbers of rows and values are, or look as if they were
            places = [each for each in places if content[each] in _COUNTS] or places
        place = self.dice.choice(places)
        end = place
        while content[end] & 0x80 and end < len(content) - 9:
            end += 1
        before = content[place : end + 1]
        value = self.lie(_unzigzag(before))
        text = _zigzag(value)
        if not footer:
            text = text[: len(before)] if self.dice.random() < 0.5 else text
        self.done.append(f"{name}: number at {place}, {_unzigzag(before)} -> {value}")
        length += len(text) - len(before) if footer else 0
        return content[:place] + text + content[end + 1 : -8] + struct.pack("<I", length) + content[-4:]

    def _restate(self) -> None:
        """Let the description of a saved corpus fit its files."""
        try:
            description = json.loads(self.files["corpus.json"])
            description.pop("sha256")
            for name, said in description["files"].items():
                said["sha256"] = hashlib.sha256(self.files[name]).hexdigest()
                if self.dice.random() < 0.9:
                    said["bytes"] = len(self.files[name])
            self.files["corpus.json"] = saved_folder.content_of(description)
        except (ValueError, KeyError, TypeError, AttributeError):
            return
        self.done.append("with checksums that fit")

    def make(self, folder: Path) -> Path:
        folder.mkdir()
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        return folder if self.path.is_dir() else folder / self.path.name


def _numbers(said: Any) -> Any:
    for key in said if isinstance(said, dict) else range(len(said)):
        if isinstance(said[key], (dict, list)):
            yield from _numbers(said[key])
        elif isinstance(said[key], (int, float)):
            yield said, key


def _zigzag(value: int) -> bytes:
    value = (value << 1 ^ value >> 63) & (2**64 - 1)
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _unzigzag(varint: bytes) -> int:
    value = sum((byte & 0x7F) << 7 * i for i, byte in enumerate(varint))
    return value >> 1 ^ -(value & 1)


_COUNTS = {_zigzag(each)[0] for each in (12, 4, 8, N, Q)}  # rows of a group and of all


def little_memory() -> None:
    """A file of some KB needs some MB: what its header says must not be taken."""
    templates()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def run_one(seed: int, number: int) -> int:
    case = Case(seed, number)
    home = Path(_kept().name) / f"case-{seed}-{number}"
    home.mkdir()
    try:
        path = case.make(home / "lies")
        with warnings.catch_warnings(), mock.patch("os.fsync"):
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", rk.PoolSizeWarning)
            _judge(case, path, home / "out")
    finally:
        shutil.rmtree(home)
    return 1


def _judge(case: Case, path: Path, out: Path) -> None:
    known = templates()
    job: dict[str, Any] = {"corpus": known["corpus npy"], "queries": known["queries npy"], **OPTIONS, "out": out}
    job[case.argument] = path
    if case.argument == "candidates" or (case.argument == "queries" and case.dice.random() < 0.4):
        table = case.argument == "queries" and "candidates" in _columns(case.path)
        if case.argument == "candidates" or table:
            job |= {"candidates": path, "pool": None}
        if table:
            job["candidate_column"] = "candidates"
    for argument, column in (("corpus", "vector_column"), ("queries", "query_vector_column")):
        if "vector" in _columns(case.path) and case.argument == argument:
            job[column] = "vector"
    if case.argument == "corpus" and "groups" in _columns(case.path) and case.dice.random() < 0.3:
        job |= {"group_column": "groups", "max_per_group": 1}
    if case.skip:
        job["on_error"] = "skip"
    made, _ = ended("select", lambda: offline.select(**job), (ValueError,))
    if made is not None:
        if not (made.complete and made.queries > 0 and made.k == 2):
            raise WrongError(f"it is {made!r}")
        rows = sum(pq.read_metadata(file).num_rows for file in out.glob("part-*"))
        if rows != made.queries or offline.verify(out):
            raise WrongError(f"it has {rows} rows of {made.queries}: {offline.verify(out)}")
    if case.format == "saved":
        _load(path)
    if case.format == "parquet":
        ended("show", lambda: _texts(path), (ValueError,))


def _load(path: Path) -> None:
    for verify in (False, True):
        corpus, _ = ended("Corpus", lambda verify=verify: rk.Corpus.load(path, verify=verify), (ValueError,))
        if corpus is None:
            continue
        found = corpus.search(_rows()["queries"], 3)
        names = corpus.ids[found.indices]
        corpus.rows_of(names, unknown="pad")
        corpus.rows_of(np.array(["n1", "x"], object) if corpus.ids.kind == "str" else [3, 10**6], unknown="pad")


def _texts(path: Path) -> list[str]:
    table = text_files.read("show", "texts", path, ("text",))
    return text_files.texts("show", "texts", table, "text", path)


@functools.cache
def _columns(path: Path) -> tuple[str, ...]:
    return ("vector", "candidates", "groups") if path.suffix in (".parquet", ".arrow", ".ipc", ".feather") else ()


def describe(seed: int, number: int) -> str:
    case = Case(seed, number)
    return f"{case.name}{' skip' if case.skip else ''}: {'; '.join(case.done)}"


FUZZER = Fuzzer(__file__, "files", 2_000, run_one, describe, little_memory)

if __name__ == "__main__":
    sys.exit(main(FUZZER, __doc__))
