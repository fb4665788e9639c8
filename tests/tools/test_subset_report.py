"""The report of parts of a data set: its quick run fills the ledger, and the page has what is in it."""

import numpy as np
import pytest


@pytest.mark.parametrize("peers", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_quick_run_writes_ledger_and_page(module, tmp_path, monkeypatch, peers):
    report, rows = module("reports.subset"), np.random.default_rng(0).standard_normal((2_000, 50), dtype=np.float32)
    rows[1::2] = rows[::2]  # each row twice
    monkeypatch.setattr(report.data, "glove", lambda number: rows[:number])
    if not peers:
        monkeypatch.setattr(report, "_has", lambda distribution: False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("sys.argv", ["subset", "--quick", "--out", str(tmp_path)])
    report.main()
    found = {
        (row["part"], row["task"], row["contender"], row["rows"], row["k"]): row
        for row in report.LEDGER.within(tmp_path).read()
    }
    assert {part for part, *_ in found} == {"picks", "growth", "peers"}
    if peers:
        assert any(key[2] != report.OURS for key in found if key[0] == "peers")
    assert float(found["peers", f"duplicates at {report.THRESHOLD}", report.OURS, "800", "0"]["value"]) == 400
    unit = rows[:800] / np.linalg.norm(rows[:800], axis=1, keepdims=True)
    angles = np.degrees(np.arccos(np.clip(unit.astype(float) @ unit.T.astype(float), -1, 1)))
    chosen = [0]
    while len(chosen) < 20:
        chosen.append(int(angles[chosen].min(axis=0).argmax()))
    radius = float(found["peers", "k-center", report.OURS, "800", "20"]["value"])
    assert radius == pytest.approx(angles[chosen].min(axis=0).max(), abs=0.01)
    assert {row["rounds"] for key, row in found.items() if key[0] == "peers"} == {"1"}
    page = (tmp_path / "subset.md").read_text(encoding="utf-8")
    assert report.ALT in page
    assert (tmp_path / "subset.svg").stat().st_size > 1000
    for rule in ("k-center", "coverage", "GIST", "best by quality", "random"):
        assert rule in page
