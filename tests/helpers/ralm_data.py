"""Small WikiText and BoolQ files in the layout of the data folder, for the tests."""

from __future__ import annotations

import csv
import io
import json
import random

TEXT = (
    "the capital of France is Paris in north why do cats purr they are content what a city river stone light heat "
    "water ice rain cloud wind rock soil plant leaf root seed animal bird fish"
)
WORDS = TEXT.split()


def article(rng, title, lines=3, length=24):
    """Rows of an article as WikiText has them: a title between empty rows, headings, lines of text."""
    rows = ["", f" = {title} = \n", ""]
    for number in range(lines):
        if number == 1:
            rows += ["", " = = Section = = \n", ""]
        rows.append(" " + " ".join(rng.choices(WORDS, k=length)) + " . \n")
    return rows


def write_csv(path, rows):
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows([row] for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.getvalue())


def write(folder, seed=0, test=6, valid=5, passages=12):
    """``wikitext103/{test,valid}.txt`` and ``boolq/BoolQdev.jsonl`` of random words."""
    rng = random.Random(seed)
    for split, number in (("test", test), ("valid", valid)):
        rows = [row for i in range(number) for row in article(rng, f"{split.title()} {i}")]
        write_csv(folder / "wikitext103" / f"{split}.txt", rows)
    items = [
        {
            "question": "why",
            "title": f"Passage {i}",
            "answer": True,
            "passage": " ".join(rng.choices(WORDS, k=rng.randint(8, 30))),
        }
        for i in range(passages)
    ]
    (folder / "boolq").mkdir()
    (folder / "boolq" / "BoolQdev.jsonl").write_text("".join(json.dumps(item) + "\n" for item in [*items, items[0]]))
    return folder
