"""The labels of a plot are beside their points, and cover nothing."""

import numpy as np
import pytest

pytest.importorskip("matplotlib")
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox

from ragsys_kernels.comparison.plot import write_labels


def written(labels, *paths, marks=()):
    """Axes with lines, markers and labels, and the boxes of the labels in pixels."""
    figure = Figure(figsize=(5.6, 4.0), layout="constrained")
    axes = figure.subplots()
    for path in paths:
        axes.plot(*np.transpose(path), linewidth=1)
    for x, y in (*marks, *(label[1:] for label in labels)):
        axes.plot([x], [y], marker="o", markersize=6, linestyle="none")
    axes.set_xlim(0, 1)
    axes.set_ylim(1, 0)  # as that of likeness
    figure.draw_without_rendering()
    write_labels(axes, labels)
    figure.draw_without_rendering()
    texts = [text for text in axes.texts if isinstance(text, Annotation)]
    assert [text.get_text() for text in texts] == [label[0] for label in labels]
    return axes, [Bbox(Text.get_window_extent(text).get_points()) for text in texts]


def covers_nothing(axes, boxes):
    for at, box in enumerate(boxes):
        assert not [other for other in boxes[:at] if box.overlaps(other)]
        assert axes.bbox.contains(*box.p0)
        assert axes.bbox.contains(*box.p1)
        for line in axes.lines:
            assert not line.get_path().transformed(axes.transData).intersects_bbox(box, filled=False)
            assert not any(box.contains(*point) for point in axes.transData.transform(line.get_xydata()))


CROWD = [(f"λ 0.{number}", 0.5 + number / 300, 0.5 + number / 200) for number in range(1, 7)]


@pytest.mark.parametrize(
    "labels",
    [
        [("top-k, λ 1", 0.5, 0.5), ("random", 0.5, 0.51)],
        [(text, 0.01 + 0.98 * x, 0.01 + 0.98 * y) for text, x, y in (("λ 0.5", 0, 0), ("λ 0.25", 1, 1), ("λ 1", 0, 1))],
        CROWD,
    ],
    ids=["one upon the other", "in the corners", "a crowd"],
)
def test_labels_cover_no_label_no_marker_no_line_and_stay_inside(labels):
    curve = np.column_stack([np.linspace(0, 1, 200), np.linspace(0, 1, 200) ** 2 + 0.25])
    axes, boxes = written(labels, curve, [(0.4, 0.0), (0.6, 1.0)], marks=[(0.45, 0.5), (0.55, 0.48), (0.5, 0.55)])
    covers_nothing(axes, boxes)


def test_a_label_that_has_room_is_near_and_has_no_line_to_its_point():
    axes, (box,) = written([("random", 0.5, 0.5)])
    assert axes.texts[0].arrow_patch is None
    point = axes.transData.transform((0.5, 0.5))
    assert np.abs(np.clip(point, box.p0, box.p1) - point).max() < 15
    crowded, _ = written(CROWD)
    assert any(text.arrow_patch for text in crowded.texts)


def test_what_has_no_value_is_not_in_the_way():
    axes, _ = written(
        [("random", 0.5, 0.5), ("λ 0.5", np.nan, 0.5)], [(0.1, np.nan), (np.nan, 0.2)], [(np.nan, np.nan)]
    )
    assert axes.texts[0].arrow_patch is None
