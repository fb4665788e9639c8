"""The table of arguments on docs/parameters.md is that of the package."""

from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "parameters.md"

pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="the tests run outside of the source tree")


def test_page_has_the_table_as_it_is(module):
    parameters = module("reports.parameters")
    page = PAGE.read_text(encoding="utf-8")
    assert page.count(parameters.HEAD) == page.count(parameters.WHERE) == 1
    assert parameters.written(page) == page, "python -m benchmarks.reports.parameters writes it again"
    assert set(parameters.NOTES) <= {each.name for each in parameters.ALL}
    assert "| `lambda_b` | Weight of relevance against the bias; 1 ignores the bias; *not of vrsd and sift* | " in page
    rows = dict(line.split(" | ")[:2] for line in parameters.where().splitlines()[2:])
    assert rows["| jobs, Ray, the command line"] == "`initial`, `allowed`, `exclude`, `quality`, `aspects`, `weights`"
    assert rows["| `/v1/path`, of MMR's"].startswith("`bias`, `lambda_d`")
    assert "| a number above 0; of coverage above 0 and at most 1 | 1 for ssd, 0.5 for coverage |" in page


def test_other_lines_stay(module):
    parameters = module("reports.parameters")
    page = f"above\n\n{parameters.HEAD}| `old` | row | | |\n\n| a | b |\nbelow\n"
    assert parameters.written(page) == f"above\n\n{parameters.table()}\n| a | b |\nbelow\n"
    page = f"{page}{parameters.WHERE}| old | row |\nbelow\n"
    assert parameters.written(page).endswith(f"| a | b |\nbelow\n{parameters.where()}below\n")
