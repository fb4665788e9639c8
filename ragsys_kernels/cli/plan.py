"""The command ``plan``: nodes, hours and bytes of a job over a large corpus."""

from __future__ import annotations

from typing import Any

from .. import offline
from ._app import INPUT, RULE, RUN, app, one_line_errors, option
from ._takes import takes


@app.command()
@takes(
    offline.plan,
    rows=option(INPUT, "Rows of the corpus; 1e9 too.", metavar="N"),
    queries=option(INPUT, "Queries of the job; 1e7 too.", metavar="N"),
    dims=option(INPUT, "Dimensions of a row.", metavar="N"),
    dtype=option(INPUT, "Type of the stored rows: float32, float16, bfloat16 or int8."),
    pool=option(RULE, "Rows of the pool that each query's picks come from.", metavar="N"),
    cores=option(RUN, "Cores of a node.", metavar="N"),
    memory=option(RUN, "Memory of a node for the corpus.", metavar="2G"),
    measure=option(
        RUN, "Measure a query on this machine, in seconds, or take the constants of a kind of processor, of int8 rows."
    ),
    processor=option(
        RUN, "With --no-measure, the kind: avx2, avx512 or arm, which has not been measured.", show_default="this one"
    ),
)
def plan(**given: Any) -> None:
    """Say how many nodes, hours and bytes a job over a corpus takes that is spread over a cluster.

    One thread of this machine runs three small jobs over random rows of these dimensions and this type; let nothing
    else run meanwhile. The hours are of cores that do nothing else.
    """
    with one_line_errors("plan"):
        print(offline.plan(**given))
