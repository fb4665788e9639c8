"""A report: text, tables and plots, written as Markdown and HTML with the configuration they came from."""

from __future__ import annotations

import html
import io
import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ragsys_kernels._base.extras import needed
from ragsys_kernels._base.files import PARTIAL, check_local, csv_of, replacing
from ragsys_kernels._base.types import PathLike
from ragsys_kernels.reporting.pages import Figure, Heading, Notes, Part, Table, Text, document, markdown
from ragsys_kernels.reporting.surroundings import surroundings

_ABOUT = "report.json"  # marks a folder as a report, and lists its files

# Colours of the plots.
BLUE, ORANGE, GREEN, GREY, PALE = "#08519c", "#e08214", "#238b45", "#636363", "#bdbdbd"

_PLOTS = {
    "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False, "font.size": 9,
    "grid.color": "#e6e6e6", "errorbar.capsize": 3,
}  # fmt: skip
_STYLE = """
body { font: 15px/1.55 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 2.5rem auto; padding: 0 1.2rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.2rem; margin-top: 2.2rem; border-bottom: 1px solid #ddd }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums;
  display: block; overflow-x: auto }
th, td { padding: .3rem .7rem; border-bottom: 1px solid #e4e4e4; text-align: right; white-space: nowrap }
.text th, .text td { text-align: left; white-space: normal }
th { border-bottom: 2px solid #999 } th:first-child, td:first-child { text-align: left }
img { max-width: 100% } code { background: #f3f3f3; padding: 0 .25em }
figure { margin: 1.2rem 0 } figcaption { color: #555; font-size: .9rem }
"""


class Report:
    """Parts in the order they are added; `write` makes the folder.

    In texts and cells, `code` and **bold** are marked as in Markdown. ``name`` is that of the evaluation.
    """

    def __init__(self, name: str, title: str) -> None:
        self.name, self.title = name, title
        self._parts: list[Part] = []
        self._files: dict[str, bytes] = {}
        self._settings: dict[str, Any] = {}

    def heading(self, text: str) -> None:
        self._parts.append(Heading(text))

    def text(self, text: str) -> None:
        self._parts.append(Text(" ".join(text.split())))

    def notes(self, lines: Sequence[str]) -> None:
        self._parts.append(Notes(tuple(" ".join(line.split()) for line in lines)))

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = True) -> None:
        """Add a table whose columns but the first hold numbers, or text."""
        self._parts.append(Table(tuple(header), tuple(tuple(row) for row in rows), numbers))

    def plot(self, file: str, size: tuple[float, float], caption: str, plot: Callable[..., None], *of: Any) -> None:
        """Add a figure that ``plot(figure, *of)`` fills, of so many inches in width and height."""
        self._files[file] = draw(lambda figure: plot(figure, *of), *size)
        self._parts.append(Figure(file, caption))

    def values(self, rows: Iterable[Sequence[object]]) -> None:
        """Add ``values.csv``, which the tables are made from; the first row is the header."""
        self._files["values.csv"] = csv_of(rows)

    def configuration(self, settings: Mapping[str, Any], num_threads: int | None = None) -> None:
        """Add a last section with the settings and with what they ran on; both are also in ``report.json``."""
        self._settings = {**_origin(), **settings, **surroundings(num_threads)}
        self.heading("Configuration")
        rows = [(name, f"`{_plain(value)}`") for name, value in self._settings.items()]
        self.table(("setting", "value"), rows, numbers=False)

    def markdown(self) -> str:
        return markdown(self.title, self._parts)

    def html(self) -> str:
        parts = (part.html() for part in self._parts)
        return document(self.title, _STYLE, "\n".join([f"<h1>{html.escape(self.title)}</h1>", *parts]))

    def write(self, out: PathLike) -> Path:
        """Write the folder. Each file is replaced atomically; other files of an earlier report are removed."""
        folder = Path(out)
        before = set(check_free(folder, self.name))
        folder.mkdir(parents=True, exist_ok=True)
        files = {**self._files, "report.md": self.markdown().encode(), "report.html": self.html().encode()}
        about = {"evaluation": self.name, "files": sorted(files), "settings": self._settings}
        said = {_ABOUT: (json.dumps(about, indent=1, default=str) + "\n").encode()}
        # In a new folder this file comes first, so that another process recognises the folder as a report.
        files = {**files, **said} if before else {**said, **files}
        for name, content in files.items():
            with replacing(folder / name) as file:
                file.write(content)
        for name in before - set(files):
            with suppress(FileNotFoundError):
                (folder / name).unlink()
        return folder


def check_free(out: PathLike, name: str) -> list[str]:
    """Refuse a folder that holds anything but an earlier report of the evaluation; return the files of that report."""
    check_local(name, "out", out)
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{name}: out must be a folder, got the file {folder}")
    if not folder.is_dir() or all(path.name.endswith(PARTIAL) for path in folder.iterdir()):
        return []  # or another process writes its first file
    try:
        about = json.loads((folder / _ABOUT).read_text())
        if about["evaluation"] == name:
            return [*map(str, about["files"])]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise FileExistsError(f"{name}: out must be new, empty, or hold an earlier report of the evaluation, got {folder}")


_OWN = ("--out", "--cache", "--data", "--num-threads")  # options about this machine, not about the run


def _origin() -> dict[str, str]:
    """Return the command, without the folders of this machine, and the commit; what is not known is left out."""
    found, words = {}, iter(sys.argv[1:])
    if Path(sys.argv[0]).parent == Path(__file__).parent:
        kept = ["python", "-m", "benchmarks.papers"]
        for word in words:
            if word in _OWN:
                next(words, None)
            elif word != "--quiet" and not word.startswith(tuple(f"{name}=" for name in _OWN)):
                kept.append(word)
        found["command"] = shlex.join(kept)
    root = Path(__file__).parents[2]
    if (root / ".git").exists():  # a checkout
        with suppress(OSError, subprocess.CalledProcessError):
            commit = subprocess.run(
                ["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True, check=True
            )
            found["commit"] = commit.stdout.strip()
    return found


def draw(plot: Callable[[Any], None], width: float, height: float) -> bytes:
    """Return the PNG of a matplotlib figure that `plot` fills, of so many inches."""
    with needed("the report", "evaluate"):
        import matplotlib
        from matplotlib.figure import Figure
    with matplotlib.rc_context(_PLOTS):
        figure = Figure(figsize=(width, height), layout="constrained")
        plot(figure)
        image = io.BytesIO()
        figure.savefig(image, format="png", dpi=150, metadata={"Software": None})
    return image.getvalue()


def panels(figure: Any, titles: Sequence[str], ylabel: str, **options: Any) -> list[Any]:
    """Return axes side by side with these titles; `ylabel` stands at the first."""
    made: list[Any] = [*figure.subplots(1, len(titles), squeeze=False, **options)[0]]
    for axes, title in zip(made, titles, strict=True):
        axes.set_title(title)
    made[0].set_ylabel(ylabel)
    return made


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(inner)}" for name, inner in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_plain, value))
    return str(value)
