"""A service is asked over HTTP which MMR it picks by."""

import numpy as np
import pytest

pytest.importorskip("fastapi")
import servers

import ragsys_kernels as rk
from ragsys_kernels import conformance


def test_service_is_asked_over_http(tmp_path, command):
    assert command(tmp_path, "conform", "--vectors", "sets.npy").returncode == 0
    rows = np.load(tmp_path / "sets.npy")
    assert np.array_equal(rows, conformance.vectors())
    again = command(tmp_path, "conform", "--vectors", "sets.npy")
    rule = "vectors must be new, or --overwrite be given for a file, got sets.npy"
    assert (again.returncode, again.stderr) == (2, f"error: conform: {rule}\n")
    assert command(tmp_path, "conform", "--vectors", "sets.npy", "--overwrite").returncode == 0
    rk.Corpus(rows).save(tmp_path / "sets")
    with servers.Thread({"sets": str(tmp_path / "sets")}) as server:
        report = conformance.conform_service(server.url)
        result = command(tmp_path, "conform", "--url", server.url, "--corpus", "sets", "--format", "md")
        wrong = command(tmp_path, "conform", "--url", server.url, "--corpus", "others")
    assert report.textbook
    told = {"ties": "lowest", "zero_row": "zero", "pages": "continues", "more": "shorter", "none": "error"}
    assert {respect: report[respect].value for respect in told} == told
    assert report["nan_row"].says == "a corpus holds no NaN"
    assert "what the caller gives counts instead" in report["relevance"].says
    assert result.returncode == 0
    assert (wrong.returncode, "others" in wrong.stderr) == (2, True)
