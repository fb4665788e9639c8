"""Notes, their vectors, and the service over them: what the scripts serve_*.py share.

The service is the one whose URL RAGSYS_SERVICE has, or one that is started here and ends with the script. It needs the
extra ``serve``.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen
from zlib import crc32

import numpy as np

import ragsys_kernels as rk

NOTES = {
    101: "solar panels turn sunlight into power",
    102: "solar panels turn light into power",
    103: "solar panels turn sunshine into power",
    104: "wind turbines turn moving air into power",
    105: "a dam turns falling water into power",
    106: "a cat sleeps in the sun",
}
QUESTION = "what does solar light turn into power"
FOUND, K = 5, 3  # what the store searches for, and what is picked of it


def embed(texts):
    """Count words, so that no model has to be loaded; unit vectors."""
    counts = [np.bincount([crc32(word.encode()) % 64 for word in text.split()], minlength=64) for text in texts]
    vectors = np.array(counts, np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def rows():
    """Return id, text and vector of each note."""
    return [(id, text, embed([text])[0].tolist()) for id, text in NOTES.items()]


def save(folder):
    """Write the corpus of the service: the vectors and ids that the stores have."""
    rk.Corpus(embed(NOTES.values()), ids=np.array(list(NOTES))).save(folder)


@contextlib.contextmanager
def service():
    """Yield the URL of the service."""
    if url := os.environ.get("RAGSYS_SERVICE"):
        yield url
        return
    with tempfile.TemporaryDirectory() as folder:
        save(f"{folder}/notes")
        command = [sys.executable, "-m", "ragsys_kernels.cli", "serve", "--corpus", f"notes={folder}/notes"]
        log = Path(folder, "log")
        with open(log, "wb") as file:
            server = subprocess.Popen([*command, "--port", "0"], stdout=file, stderr=file)
        try:
            while "listening on " not in log.read_text():
                if server.poll() is not None:
                    raise SystemExit(log.read_text())
                time.sleep(0.05)
            url = log.read_text().partition("listening on ")[2].split()[0]
            while not _ready(url):
                time.sleep(0.05)
            yield url
        finally:
            server.terminate()
            server.wait()


def _ready(url):
    try:
        return urlopen(f"{url}/health/ready").status == 200
    except URLError:
        return False


def best_together(url, query, found):
    """Return the ids of K of the found that are best together, best first."""
    body = {"k": K, "lambda_d": 0.5, "queries": [{"query": query.tolist(), "candidates": found}]}
    request = Request(f"{url}/v1/select", json.dumps(body).encode(), {"content-type": "application/json"})
    with urlopen(request) as answer:
        return json.load(answer)["results"][0]["ids"]


def show(found, texts):
    """Print what search found first, and the texts of the picks."""
    print("search:", *(f"  {NOTES[each]}" for each in found[:K]), sep="\n")
    print("MMR:", *(f"  {text}" for text in texts), sep="\n")


if __name__ == "__main__":
    question = embed([QUESTION])[0]
    with service() as running:
        nearest = sorted(NOTES, key=lambda id: -float(embed([NOTES[id]])[0] @ question))[:FOUND]
        show(nearest, [NOTES[id] for id in best_together(running, question, nearest)])
