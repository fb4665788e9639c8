"""Some rows of a table with all their columns."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from ._tables import Table, steps

_SIZE = 1 << 14  # rows that are read at a time


def taken(table: Table, rows: np.ndarray) -> Iterator[pa.Table]:
    """Yield some rows, given in ascending order, in steps; what is read is held for one of them."""
    schema = pa.schema([table.field(name) for name in table.schema.names])
    columns = [steps(table.arrays(name, _SIZE, 0, table.rows), _SIZE) for name in schema.names]
    for begin in range(0, table.rows, _SIZE):
        read = [next(column) for column in columns]
        first, end = np.searchsorted(rows, [begin, begin + _SIZE])
        if first < end:
            some = pa.array(rows[first:end] - begin)
            yield pa.Table.from_arrays([values.take(some) for values in read], schema=schema)
