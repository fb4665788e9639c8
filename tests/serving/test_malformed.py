"""Malformed requests; `make fuzz` sends 20,000, and those that schemathesis makes of the OpenAPI document."""

import asyncio

import pytest

pytest.importorskip("fastapi")
import fuzz_protocols
import fuzz_requests


def test_fuzzed_requests_are_refused_and_leave_nothing():
    seen = asyncio.run(fuzz_requests.fuzz(7, 300))
    assert {200, 422} < set(seen)


def test_changed_requests_of_other_protocols_get_answers_of_bad_requests():
    seen = asyncio.run(fuzz_protocols.fuzz(1, 700))
    assert seen[200] > 5
    assert seen[422] > 200
