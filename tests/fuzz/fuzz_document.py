"""Requests that schemathesis makes of the OpenAPI document, sound and unsound: the answers are as it describes them.

python tests/fuzz/fuzz_document.py --examples 300
"""

from __future__ import annotations

import argparse
import sys

import hypothesis
import numpy as np
import schemathesis
from schemathesis import GenerationMode, checks
from schemathesis.specs.openapi import checks as described

import ragsys_kernels as rk
from ragsys_kernels.serving import Limits, make_service

CHECKS = [
    checks.not_a_server_error,
    described.status_code_conformance,
    described.content_type_conformance,
    described.response_schema_conformance,
]


def service():
    """Return a small service, ready without its lifespan."""
    rng = np.random.default_rng(0)
    corpus = rk.Corpus(rng.standard_normal((64, 8), dtype=np.float32), groups=np.arange(64) % 9)
    made = make_service({"docs": corpus}, limits=Limits(body_bytes=1 << 20, queries=8))
    made.status = "ready"
    return made


def check(asgi, examples: int) -> int:
    """Check every operation with so many requests; return how many operations there are."""
    count = 0
    for found in schemathesis.openapi.from_asgi("/openapi.json", asgi).get_all_operations():
        operation = found.ok()
        count += 1

        @hypothesis.given(
            operation.as_strategy(GenerationMode.POSITIVE) | operation.as_strategy(GenerationMode.NEGATIVE)
        )
        @hypothesis.settings(
            max_examples=examples,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        def answered(case):
            case.validate_response(case.call(), checks=CHECKS)

        answered()
    return count


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--examples", type=int, default=300)
    count = check(service().asgi, parser.parse_args().examples)
    print(f"{count} operations answer as their document says", file=sys.stderr)


if __name__ == "__main__":
    main()
