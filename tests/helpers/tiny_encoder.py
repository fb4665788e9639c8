"""A deterministic encoder without a model, and small question sets in the form of VRSD's, for the tests."""

from __future__ import annotations

import functools
import hashlib
import json
import random

import numpy as np

TEXT = (
    "sun moon star planet orbit light heat water ice rain cloud wind rock soil plant leaf root seed animal bird fish "
    "cell blood heart lung bone force mass energy wave sound metal magnet current circuit"
)
WORDS = TEXT.split()


class TinyEncoder:
    """Each word has a fixed random vector; a text is their sum, of unit length, a little changed by the text itself."""

    def __init__(self, dims: int = 24, name: str = "tiny", fail_after: int | None = None) -> None:
        self.dims, self.name = dims, name
        self.fingerprint = f"{name}-{dims}"
        self.calls: list[list[str]] = []
        self._left = fail_after

    def encode(self, texts):
        if self._left is not None and len(self.calls) >= self._left:
            raise KeyboardInterrupt
        self.calls.append(list(texts))
        rows = []
        for text in texts:
            parts = [*text.lower().replace("->", " ").split(), f"whole {text}"]
            rows.append(sum(_vector(part, self.dims) * (0.3 if " " in part else 1) for part in parts))
        vectors = np.stack(rows)
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@functools.cache
def _vector(word: str, dims: int):
    seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "little")
    return np.random.default_rng(seed).standard_normal(dims)


def write_sets(folder, items=(30, 12, 8), seed=0):
    """ARC-DA, OpenBookQA and Puzzle of random words, as files in the layout of the data folder."""
    rng = random.Random(seed)

    def words(number):
        return " ".join(rng.choices(WORDS, k=number))

    arc = lambda i: {"question": f"{words(6)} {i}?", "answers": [words(2), words(1)]}  # noqa: E731
    open_book = lambda i: {  # noqa: E731
        "question": {
            "stem": f"{words(5)} {i}",
            "choices": [{"text": words(2), "label": label} for label in "ABCD"],
        },
        "answerKey": "ABCD"[i % 4],
    }
    puzzle = lambda i: {"messages": [{"content": f"{words(9)} {i}"}, {"content": words(5)}]}  # noqa: E731
    splits = ("train", "test", "dev")
    files = {
        **{f"arc_da/ARC{split}.jsonl": [arc(i) for i in range(n)] for split, n in zip(splits, items, strict=True)},
        **{
            f"openbookqa/OpenBookQA{split}.jsonl": [open_book(i) for i in range(n)]
            for split, n in zip(splits, items, strict=True)
        },
        "puzzle/puzzle.jsonl": [puzzle(i) for i in range(30)],
    }
    for name, rows in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder
