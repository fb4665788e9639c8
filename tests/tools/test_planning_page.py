"""The constants of docs/planning.md are those that `plan` takes."""

from pathlib import Path

from benchmarks.reports import places, planning

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_table_of_constants():
    text = "\n".join(planning.constants()) + "\n"
    assert places.filled("planning", text) in (ROOT / places.PLACES["planning"]).read_text(encoding="utf-8")
