"""The figures of the paper's Table 1, whose model is GPT-J-6B."""

from __future__ import annotations

from typing import NamedTuple


class Printed(NamedTuple):
    """A row of the table; k and the tokens of a prompt are means."""

    k: float
    precision: float
    recall: float
    f1: float
    tokens: int


_ROWS = {
    "ag-news": (
        (0, 0.6569, 0.5932, 0.5849, 60), (1, 0.9015, 0.9017, 0.9016, 125), (3, 0.9008, 0.8997, 0.8989, 252),
        (5, 0.8963, 0.8930, 0.8917, 380), (3, 0.8545, 0.8499, 0.8486, 220), (1.87, 0.9080, 0.9096, 0.9067, 175),
    ),
    "jigsaw": (
        (0, 0.5689, 0.6238, 0.5769, 103), (1, 0.5760, 0.6989, 0.5505, 195), (3, 0.6092, 0.7180, 0.6254, 335),
        (5, 0.6078, 0.7248, 0.6217, 431), (3, 0.5906, 0.6942, 0.5977, 289), (3.46, 0.6194, 0.6983, 0.6303, 359),
    ),
    "sst-2": (
        (0, 0.7503, 0.5022, 0.3379, 30), (1, 0.8703, 0.8703, 0.8703, 61), (3, 0.9140, 0.9137, 0.9137, 121),
        (5, 0.9245, 0.9230, 0.9230, 181), (3, 0.8556, 0.8479, 0.8470, 106), (4.12, 0.9302, 0.9304, 0.9302, 154),
    ),
}  # fmt: skip
_METHODS = ("0-shot", "static k=1", "static k=3", "static k=5", "QPP-AICL", "SAICL")
TABLE = {name: dict(zip(_METHODS, (Printed(*row) for row in rows), strict=True)) for name, rows in _ROWS.items()}
