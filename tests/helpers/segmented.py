"""Corpora in segments, each beside the one corpus that has the same rows."""

import json
from pathlib import Path

import numpy as np

import ragsys_kernels as rk
from ragsys_kernels.corpus import versions

# Rows of each segment, by the number of segments; most begin in the middle of a page.
LAYOUTS = {
    "one": [300],
    "two": [1, 299],
    "seven": [11, 1, 90, 2, 37, 158, 1],
    "thirty-two": [1, 2, 3, 40] * 6 + [1] * 7 + [17],
}


class Rows:
    """Embeddings with what belongs to them; ``part`` gives that of some rows as arguments of a corpus."""

    def __init__(self, number, dims=13, seed=0, columns=("bias", "groups", "costs"), ids="int64"):
        rng = np.random.default_rng(seed)
        self.embeddings = rng.standard_normal((number, dims)).astype(np.float32)
        self.columns = {}
        for name, values in (
            ("bias", rng.standard_normal(number)),
            ("groups", rng.integers(0, 9, number)),
            ("costs", rng.integers(1, 9, number).astype(np.float64)),
        ):
            if name in columns:
                self.columns[name] = values
        numbers = rng.permutation(number) * 3 + 1
        if ids is not None:
            self.columns["ids"] = numbers if ids == "int64" else np.array([f"é{i}" for i in numbers], object)

    def part(self, some):
        return {"embeddings": self.embeddings[some], **{name: values[some] for name, values in self.columns.items()}}


def in_segments(path):
    """Return the names that a folder of segments has in the folder of these, sorted."""
    described = json.loads((path / "corpus.json").read_text())
    keys = [described["id_keys"]["name"]] if "id_keys" in described else []
    return sorted([each["name"] for each in described["segments"]] + keys)


def corpus_of(rows, some, **options):
    return rk.Corpus(**rows.part(some), **options)


def in_folder(path, rows, layout, **options):
    """Build a folder of segments, and load it."""
    parts = np.split(np.arange(sum(layout)), np.cumsum(layout)[:-1])
    made = (corpus_of(rows, some, **options) for some in parts)
    versions.build("test", path, lambda _: ((each, each.ids) for each in made), 100, False)
    return rk.Corpus.load(path)


def in_memory(rows, layout, **options):
    """Append segment to segment."""
    first, *others = np.split(np.arange(sum(layout)), np.cumsum(layout)[:-1])
    corpus = corpus_of(rows, first, **options)
    for some in others:
        corpus = corpus.append(**rows.part(some))
    return corpus


def mixed(path, rows, layout, **options):
    """Build a folder of half of the segments, and append the others in memory."""
    half = max(1, len(layout) // 2)
    corpus, begin = in_folder(path, rows, layout[:half], **options), sum(layout[:half])
    for size in layout[half:]:
        corpus, begin = corpus.append(corpus_of(rows, np.arange(begin, begin + size), **options)), begin + size
    return corpus


def check_equal(found, expected, kept):
    """Picks or found rows are those of the one corpus, whose row i is row ``kept[i]``, to the last bit."""
    renumbered = np.where(expected.indices < 0, -1, kept[expected.indices])
    np.testing.assert_array_equal(found.indices, renumbered)
    for name, one, other in zip(found._fields[1:], found[1:], expected[1:], strict=True):
        np.testing.assert_array_equal(one, other, err_msg=name)
    for name in ("certified", "pool_needed", "cost"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)


def is_mapped(array):
    """Whether an array is read from a file as it is used."""
    address = array.ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(each, 16) for each in line.split()[0].split("-"))
        if begin <= address < end:
            return line.endswith(".npy")
    return False
