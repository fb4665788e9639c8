"""Small classification sets in the form of AG News', Jigsaw's and SST-2's files, for the tests."""

from __future__ import annotations

import csv
import random

from tiny_encoder import WORDS

AG = ("World", "Sports", "Business", "Sci/Tech")


def write_classification(folder, train=30, test=12, seed=0):
    """Texts of random words, of which the first says the class."""
    rng = random.Random(seed)

    def texts(number, classes):
        labels = [i % classes for i in range(number)]
        return [
            (f"{WORDS[label]} {' '.join(rng.choices(WORDS, k=4))} {rng.randrange(10**6)}", label) for label in labels
        ]

    def table(name, rows, dialect, **options):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w", newline="") as file:
            csv.writer(file, dialect, lineterminator="\n", **options).writerows(rows)

    table("ag_news/train_sample_10k.tsv", [(text, AG[label]) for text, label in texts(train, 4)], "excel-tab")
    table("ag_news/test.csv", [(label + 1, "a title", text) for text, label in texts(test, 4)], "excel")
    for split, number in (("train", train), ("dev", 6), ("test", test)):
        table(f"sst2/{split}.tsv", [("sentence", "label"), *texts(number, 2)], "excel-tab")
    table(
        "jigsaw_toxic/toxic_comments_5000.csv",
        [("", "text", "toxic"), *((i, text, label) for i, (text, label) in enumerate(texts(train, 2)))],
        "excel",
    )
    table(
        "jigsaw_toxic/toxicity_nonfuzzed_testset.csv",
        [("rev_id", "comment", "toxic"), *((7, text, bool(label)) for text, label in texts(test, 2))],
        "excel",
    )
    return folder
