"""Ids of any text, among others that they must not be taken for."""

import csv
import json
import sqlite3

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

# What readers cut at, strip, or lose: NUL, ends of lines that are none of a file, blanks, signs of CSV and JSON.
_CHARACTERS = "\0\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\ufeff\xa0\u3000 \t,;|\"'\\{}[]$#-+.e07xa\x1b\x7f\U0001f600"
TEXT = st.text(
    st.one_of(st.sampled_from(_CHARACTERS), st.characters(exclude_categories=["Cs"], exclude_characters="\r\n")),
    min_size=1,
    max_size=6,
)
LONG = "z" * 70_000


def _with_neighbours(texts):
    found = dict.fromkeys(texts)
    for x in texts:
        found.update(dict.fromkeys((x + "\0", x.rstrip("\0"), x.strip(), "\ufeff" + x, *x.splitlines(), *x.split())))
    return [x for x in found if x]


KNOWN = [*_with_neighbours([*(each for each in _CHARACTERS), *(f"x{each}y" for each in _CHARACTERS)]), LONG]
IDS = st.lists(TEXT, min_size=2, max_size=5, unique=True).map(_with_neighbours)


def vectors(count):
    return np.random.default_rng(count).standard_normal((count, 3)).astype(np.float32)


def table(ids):
    return pa.table({"id": pa.array(ids, pa.string()), "vector": vectors(len(ids)).tolist()})


def _parquet(file, ids):
    pq.write_table(table(ids), file)


def _arrow(file, ids):
    with pa.ipc.new_file(file, table(ids).schema) as out:
        out.write_table(table(ids))


def _csv(file, ids):
    with open(file, "w", encoding="utf-8", newline="") as out:
        lines = csv.writer(out, quoting=csv.QUOTE_ALL)
        lines.writerow(("id", "vector"))
        lines.writerows((each, json.dumps(row)) for each, row in zip(ids, vectors(len(ids)).tolist(), strict=True))


def _jsonl(file, ids):
    rows = vectors(len(ids)).tolist()
    lines = [json.dumps({"id": x, "vector": row}, ensure_ascii=False) for x, row in zip(ids, rows, strict=True)]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")


def _sqlite(file, ids):
    file.unlink(missing_ok=True)
    with sqlite3.connect(file) as base:
        base.execute("CREATE TABLE rows (id TEXT, vector BLOB)")
        values = [(x, row.tobytes()) for x, row in zip(ids, vectors(len(ids)), strict=True)]
        base.executemany("INSERT INTO rows VALUES (?, ?)", values)
    base.close()


FILES = {"parquet": _parquet, "arrow": _arrow, "csv": _csv, "jsonl": _jsonl, "sqlite": _sqlite}


def written(folder, form, ids):
    """Return a file of the form with these ids and a vector for each."""
    FILES[form](folder / f"rows.{form}", ids)
    return folder / f"rows.{form}"
