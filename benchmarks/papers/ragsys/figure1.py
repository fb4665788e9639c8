"""Figure 1: how alike the demonstrations are, and what the model makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..report import BLUE, ORANGE, Report
from .results import METRICS, Result, ends, intervals, intervals_of, likeness_of


def add_figure1(report: Report, swept: Sequence[Result], samples: int) -> None:
    curves: dict[float, list[Result]] = {}  # by λ_b, from the most diverse to the most relevant
    for result in sorted(swept, key=lambda result: result.setting.lambda_d):
        curves.setdefault(result.setting.lambda_b, []).append(result)
    best = {weight: max(curve, key=lambda one: float(one.values["DPO"].mean())) for weight, curve in curves.items()}
    report.heading("Figure 1: diversity and DPO")
    place = "the whole corpus" if swept[0].setting.whole else "the pools"
    report.text(
        f"""Selection over {place} by relevance, with weight λ_d, against redundancy: the lower, the more diverse. The
        picks' mean cosine says how alike the demonstrations of a question are. The paper draws one curve, with the bias
        (λ_b = 0.95) and a model of 8 billion parameters, and finds that DPO neither rises nor falls with diversity all
        the way. Here the best mean is {"; ".join(_place(curves[weight], one) for weight, one in best.items())}."""
    )
    report.table(
        ("λ_d", "λ_b", "picks' mean cosine", *METRICS, "DPO minus the best"),
        [
            (
                f"{result.setting.lambda_d:g}",
                "no bias" if result.setting.lambda_b == 1 else f"{result.setting.lambda_b:g}",
                likeness_of(result),
                *(f"{one.mean:.3f}" for name, one in intervals(result, samples).items() if name in METRICS),
                _minus(result, best[result.setting.lambda_b], samples),
            )
            for result in swept
        ],
    )
    caption = "DPO by how alike the picks are, and the metrics by λ_d, with 95 % intervals."
    report.plot("sweep.png", (9.6, 3.4), caption, _plot_sweep, curves, samples)


def _place(curve: Sequence[Result], best: Result) -> str:
    where = "at an end" if best is curve[0] or best is curve[-1] else "between the ends"
    weight = best.setting.lambda_b
    return f"{'without bias' if weight == 1 else f'with λ_b = {weight:g}'} at λ_d = {best.setting.lambda_d:g}, {where}"


def _minus(result: Result, best: Result, samples: int) -> str:
    if result is best:
        return "best"
    return intervals_of({"DPO": result.values["DPO"] - best.values["DPO"]}, result.pairs, samples)["DPO"].marked()


def _named(curve: Sequence[Result], likeness: Sequence[float], means: Sequence[float]) -> Iterator[tuple[Any, ...]]:
    """Yield where the names of a curve's points go; those that lie on one another have one name, such as 0 to 0.25."""
    width, height = (0.1 * (max(values) - min(values)) for values in (likeness, means))
    begin = 0
    for at in range(1, len(curve) + 1):
        if at < len(curve) and abs(likeness[at] - likeness[begin]) <= width and abs(means[at] - means[begin]) <= height:
            continue
        names = dict.fromkeys(f"{curve[i].setting.lambda_d:g}" for i in (begin, at - 1))
        yield likeness[begin], means[begin], " to ".join(names)
        begin = at


def _plot_sweep(figure: Any, curves: Mapping[float, Sequence[Result]], samples: int) -> None:
    first, second = figure.subplots(1, 2)
    for (weight, curve), colour in zip(curves.items(), (BLUE, ORANGE), strict=False):
        found = [intervals(result, samples) for result in curve]
        label = "without bias" if weight == 1 else f"λ_b = {weight:g}"
        likeness = [float(np.nanmean(result.likeness)) for result in curve]
        of_dpo = [rows["DPO"] for rows in found]
        means = [one.mean for one in of_dpo]
        first.errorbar(likeness, means, yerr=ends(of_dpo), fmt="o-", color=colour, label=label, elinewidth=0.8)
        for x, y, name in _named(curve, likeness, means):
            first.annotate(name, (x, y), (3, 4), textcoords="offset points", fontsize=7)
        for metric, style in zip(METRICS[:3], ("o-", "s--", "^:"), strict=True):
            of_metric = [rows[metric] for rows in found]
            second.errorbar(
                [result.setting.lambda_d for result in curve],
                [one.mean for one in of_metric],
                yerr=ends(of_metric),
                fmt=style,
                color=colour,
                label=f"{metric}, {label}",
                elinewidth=0.6,
                markersize=4,
            )
    first.set_xlabel("picks' mean cosine (λ_d beside the points)")
    first.set_ylabel("DPO")
    second.set_xlabel("λ_d")
    first.legend(loc="best")
    second.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, columnspacing=1, fontsize=7)
    for axes in (first, second):
        axes.grid()
