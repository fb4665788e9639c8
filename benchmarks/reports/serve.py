"""The page of the service, and its plot, from the ledger: ``python -m benchmarks.reports.serve``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import ledger
from benchmarks.harness.ledger import Row
from benchmarks.reports.style import BLUE, ORANGE, figure, save
from benchmarks.reports.tables import met, table, wanted
from benchmarks.serve import measures
from benchmarks.serve.measures import ALONE, BYTES, EMPTY, IDS, LEDGER, ONE, SIXTEEN


class Found:
    """The rows of the machine that was measured last, without those of changes that are in no commit."""

    def __init__(self, rows: Sequence[Row]) -> None:
        rows = ledger.published(rows)
        if not rows:
            raise SystemExit("error: the ledger of the service has no row of a commit: run `make bench-serve` first")
        self.last = max(rows, key=lambda row: row["date"])
        machine = ("hardware", "backend", "isa", "shape")
        self.rows = [row for row in rows if all(row[name] == self.last[name] for name in machine)]

    def of(self, measure: str, contender: str = "served", setting: str | None = None) -> list[Row]:
        return [
            row
            for row in self.rows
            if (row["measure"], row["contender"]) == (measure, contender) and setting in (None, row["setting"])
        ]

    def numbers(self, column: str, measure: str, contender: str = "served", setting: str | None = None) -> list[float]:
        return [float(row[column]) for row in self.of(measure, contender, setting) if row[column]]


@dataclass(frozen=True)
class Bar:
    """What must be at most the limit, or at least; without values it was not measured."""

    text: str
    values: Callable[[Found], list[float]]
    limit: float
    shown: str  # a format of the value and of the limit
    at_least: bool = False

    def row(self, found: Found) -> list[str]:
        values = self.values(found)
        asked = wanted(self.shown.format(self.limit), self.at_least)
        if not values:
            return [self.text, "not measured", asked, ""]
        worst = (min if self.at_least else max)(values)
        return [self.text, self.shown.format(worst), asked, met(worst, self.limit, self.at_least)]


def _of(column: str, measure: str, contender: str = "served", setting: str | None = None) -> Any:
    return lambda found: found.numbers(column, measure, contender, setting)


def _bars() -> list[Bar]:
    bars = []
    for who in (IDS, BYTES):
        bars += [
            Bar(f"one {who}, {ONE}: median", _of("p50_us", "latency", who, ONE), 300, "{:,.0f} µs"),
            Bar(f"one {who}, {ONE}: median / empty handler's", _of("ratio", "latency", who, ONE), 2.2, "{:.2f}"),
            Bar(
                f"one {who}, {SIXTEEN}: requests/s / empty handler's",
                _of("ratio", "rate", who, SIXTEEN), 0.55, "{:.0%}", True,
            ),
        ]  # fmt: skip
    return [
        *bars,
        Bar("64 queries a request, Arrow: queries/s / in process", _of("ratio", measures.BATCHED), 0.8, "{:.0%}", True),
        Bar("Flight, batches of 1,000: queries/s / in process", _of("ratio", measures.FLIGHT), 0.85, "{:.0%}", True),
        Bar("99th percentile at half the saturated rate", _half, 5, "{:.2f} ms"),
        Bar("answers that differ from those in process", _of("value", "differing"), 0, "{:.0f}"),
        Bar("overload: errors but 429 and 503", _of("value", "overload"), 0, "{:.0f}"),
        Bar("overload: memory, second half / first half", _of("ratio", "overload: memory"), 1.1, "{:.2f}"),
        Bar("2 s after overload: median / before it", _of("ratio", "overload: afterwards"), 1.5, "{:.2f}"),
        Bar("a worker killed: failed calls of clients with retries", _of("value", "killed worker"), 0, "{:.0f}"),
        Bar("malformed requests: fuzzers that failed", _failed, 0, "{:.0f}"),
    ]


def _half(found: Found) -> list[float]:
    return [p99 / 1000 for p99 in found.numbers("p99_us", "load", BYTES, "0.5")]


def _failed(found: Found) -> list[float]:
    codes = found.numbers("value", "malformed")
    return [float(sum(code != 0 for code in codes))] if codes else []


def page(found: Found) -> str:
    """Return the page in Markdown."""
    last = found.last
    parts = [
        "# The service",
        f"Written by `make bench-serve` from `serve.csv`. {last['hardware']} ({last['isa']}), {last['date']}, commit "
        f"{last['commit']}. The server has one core, the load another. {last['shape']}: MMR out of pools of candidate "
        "ids, λ = 0.75, in JSON; the empty handler, on the same uvicorn, reads the same bodies and answers with two "
        "bytes. They take turns; medians over the rounds.",
        "## Bars",
        table(["", "measured", "wanted", "met"], [bar.row(found) for bar in _bars()]),
        "## One query a request",
        table(["", "", "median, µs", "99 %, µs", "requests/s", "processor, µs a request"], _one(found), (0, 1)),
        "## Many queries a request",
        table(
            ["", "queries/s", "in process, one thread", "share", "processor, µs a query", "in process"], _many(found)
        ),
        "## Latency against load",
        "![Median and 99th percentile of the latency against the rate of requests](serve.svg)",
        "Requests come at a constant rate, one query each, whether the last was answered or not; a time is counted "
        "from when the request was due.",
        table(["of the saturated rate", "requests/s", "median, µs", "99 %, µs"], _load(found)),
        "## Under stress",
        table(["", "", "measured", "requests", "seconds", ""], _stress(found), (0, 1, 2, 5)),
    ]
    return "\n\n".join(parts) + "\n"


def _one(found: Found) -> list[list[str]]:
    rows = []
    for setting in (ONE, SIXTEEN):
        for who in (EMPTY, IDS, BYTES):
            for row in found.of("rate", who, setting):
                numbers = (row[name] for name in ("p50_us", "p99_us", "value", "cpu_us"))
                rows.append([setting, who, *(_whole(number) for number in numbers)])
    return rows


def _many(found: Found) -> list[list[str]]:
    rows = []
    for measure in (measures.BATCHED, measures.IN_JSON, measures.FLIGHT):
        for row in found.of(measure):
            ((alone, cpu),) = ((each["value"], each["cpu_us"]) for each in found.of(measure, ALONE))
            share = f"{float(row['ratio']):.0%}"
            times = (f"{float(each):.1f}" for each in (row["cpu_us"], cpu))
            rows.append([measure, _whole(row["value"]), _whole(alone), share, *times])
    return rows


def _load(found: Found) -> list[list[str]]:
    rows = found.of("load", BYTES)
    return [[f"{float(row['setting']):.0%}", *(_whole(row[x]) for x in ("value", "p50_us", "p99_us"))] for row in rows]


def _stress(found: Found) -> list[list[str]]:
    rows = []
    for measure in ("differing", "overload", "overload: memory", "overload: afterwards", "killed worker", "malformed"):
        for row in found.of(measure):
            measured = f"{_whole(row['value'])} {row['unit']}"
            counts = (_whole(row[name]) if row[name] else "" for name in ("requests", "seconds"))
            rows.append([measure, row["setting"], measured, *counts, row["note"]])
    return rows


def _whole(number: str | float) -> str:
    return f"{float(number):,.0f}"


def plot(found: Found) -> Any:
    """Draw the median and the 99th percentile against the rate of requests."""
    drawn, axes = figure(3.2)
    rows = sorted(found.of("load", BYTES), key=lambda row: float(row["setting"]))
    rates = [float(row["value"]) for row in rows]
    for column, label, colour in (("p99_us", "99th percentile", ORANGE), ("p50_us", "median", BLUE)):
        times = [float(row[column]) / 1000 for row in rows]
        axes.plot(rates, times, color=colour, marker="o", markersize=3.5, linewidth=1.8, label=label)
        for place, row in zip(zip(rates, times, strict=True), rows, strict=True):
            if row["setting"] == "0.5":
                axes.annotate(f"{place[1]:.2g}", place, (0, 6), textcoords="offset points", ha="center", color=colour)
    axes.set(yscale="log", xlabel="requests/s, one query each", title="Latency, ms; one core")
    axes.yaxis.set_major_formatter("{x:g}")  # of powers of ten the exponents are too small to read
    axes.set_xlim(left=0)
    axes.grid(which="major")
    axes.legend(loc="upper left")
    return drawn


def draw(out: Path) -> None:
    """Draw the plot of the rows that there are into a folder."""
    save(plot(Found(LEDGER.read())), out / "serve.svg")


def main() -> None:
    found = Found(LEDGER.read())
    (ledger.RESULTS / "serve.md").write_text(page(found), encoding="utf-8")
    draw(ledger.RESULTS)


if __name__ == "__main__":
    main()
