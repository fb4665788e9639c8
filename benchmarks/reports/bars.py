"""The bars of selection: how much faster than its peers, or slower than a floor, the library is to be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.harness.contender import FLOOR, OURS, PRODUCT
from benchmarks.reports.runs import Runs
from benchmarks.reports.tables import factor, met, table, wanted
from benchmarks.suites import shapes
from benchmarks.suites.peers import FAISS
from benchmarks.suites.selection import GIVEN
from benchmarks.suites.shapes import SOURCES, Shape


@dataclass(frozen=True)
class Bar:
    """The time of ``over`` over the time of ``under`` (or µs) must be at least, or at most, the limit."""

    text: str
    cases: tuple[tuple[Shape, float], ...]
    limit: float
    over: tuple[str, str]
    under: tuple[str, str] | None = None
    at_least: bool = False

    def values(self, runs: Runs) -> list[float]:
        races = [runs.race("mmr", *case) for case in self.cases]
        if self.under is None:
            return [race.number("us_per_query", *self.over) for race in races]
        return [race.number("ratio", *self.over) / race.number("ratio", *self.under) for race in races]


def _bars() -> list[Bar]:
    ours, given = (OURS, "float32"), (GIVEN, "float32")
    pool = {(shape.P, shape.D): tuple((shape, lambda_d) for lambda_d in shapes.LAMBDAS) for shape in shapes.POOLS}
    found = []

    def speed_up(peer: str, limits: dict[tuple[int, int], float], who: tuple[str, str], text: str) -> None:
        for (P, D), limit in limits.items():
            found.append(Bar(f"{peer} / {text}, P={P}, D={D}", pool[P, D], limit, (peer, "float32"), who, True))

    limits = {(20, 384): 25, (20, 768): 10, (100, 384): 14, (100, 768): 9, (1000, 384): 7, (1000, 768): 5}
    speed_up("pyversity", limits, ours, "ours")
    speed_up("pyversity", limits, given, "ours, relevance given")
    for dtype in shapes.OF_16_BITS:
        limits = {(100, 384): 18, (100, 768): 15, (1000, 384): 10, (1000, 768): 8}
        speed_up("pyversity", limits, (OURS, dtype), f"ours, {dtype}")
        speed_up("pyversity", limits, (GIVEN, dtype), f"ours, {dtype}, relevance given")
    speed_up("LangChain", {(100, 384): 150, (100, 768): 100}, ours, "ours")
    floor, at = (FLOOR, "float32"), "P=100, D=768"
    found.append(Bar(f"ours, relevance given / {FLOOR}, {at}", pool[100, 768], 1.5, given, floor))
    found.append(Bar(f"ours / {FLOOR}, {at}", pool[100, 768], 2.0, ours, floor))
    for shape in shapes.ONE_QUERY:
        case, at = ((shape, 0.75),), f"one query, P={shape.P}, K={shape.K}, D={shape.D}"
        found.append(Bar(f"{at}: µs", case, 15, ours))
        found.append(Bar(f"{at}: pyversity / ours", case, 1, ("pyversity", "float32"), ours, True))
    for shape, lambda_d in shapes.WHOLE:
        case, at = ((shape, lambda_d),), f"whole corpus, {shape.N:,} {SOURCES[shape.source]} rows, K={shape.K}"
        found.append(Bar(f"{at}: ours / FAISS", case, 0.7 if lambda_d == 0.75 else 1.2, ours, (FAISS, "float32")))
        if lambda_d == 0.75:
            found.append(Bar(f"{at}: ours / {PRODUCT}", case, 1.6, ours, (PRODUCT, "float32")))
    for shape in shapes.THREADS:
        two = (f"{OURS}, 2 threads", "float32")
        found.append(Bar(f"one thread / two, D={shape.D}", ((shape, 0.75),), 1.85, ours, two, True))
    return found


def bars(runs: Runs) -> str:
    rows = []
    for bar in _bars():
        for (_, lambda_d), value in zip(bar.cases, bar.values(runs), strict=True):
            measured, answer = factor(value), met(value, bar.limit, bar.at_least)
            if np.isnan(value):
                measured, answer = "", "not measured"
            rows.append([bar.text, f"{lambda_d}", measured, wanted(f"{bar.limit:g}", bar.at_least), answer])
    return table(["Bar", "λ", "measured", "wanted", "met"], rows)
