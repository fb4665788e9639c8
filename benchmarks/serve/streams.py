"""A stream of batches over Arrow Flight: one thread sends, another receives, as the server's clients do."""

from __future__ import annotations

import json
import threading
import time

from pyarrow import flight

from benchmarks.serve.problem import LAMBDA_D, Problem


def exchanged(problem: Problem, port: int, count: int, seconds: float) -> tuple[int, float]:
    """Return how many queries were answered, in how many seconds, in batches of ``count``."""
    shape = problem.shape
    command = {"corpus": "docs", "method": "mmr", "k": shape.K, "lambda_d": LAMBDA_D}
    batches = [problem.batch(begin, count) for begin in range(0, len(problem.queries), count)]
    with flight.FlightClient(f"grpc://127.0.0.1:{port}") as client:
        descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
        writer, reader = client.do_exchange(descriptor)
        writer.begin(batches[0].schema)
        begun = time.perf_counter()

        def send() -> None:
            at = 0
            while time.perf_counter() - begun < seconds or at == 0:
                writer.write_batch(batches[at % len(batches)])
                at += 1
            writer.done_writing()

        sender = threading.Thread(target=send)
        sender.start()
        answered = sum(chunk.data.num_rows for chunk in reader)
        taken = time.perf_counter() - begun
        sender.join()
        writer.close()
    return answered, taken
