"""The layers of the package as a picture: python -m benchmarks.reports.architecture

They are those of the import contract in pyproject.toml, from top to bottom: a module imports what lies below its layer.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "docs" / "architecture.svg"
CONTRACT = "Arrows point down only"

# What each module of the contract is, in one line.
MODULES = {
    "__main__": "python -m ragsys_kernels: the configuration, or the command line",
    "cli": "the command ragsys-kernels: options, progress, one-line errors",
    "comparison": "rules compared on your own corpus: tables, curve, recommendation",
    "conformance": "which MMR a function or a service computes",
    "offline": "resumable jobs over files; corpora built, grown and synced",
    "integrations": "drop-in calls for LangChain, LlamaIndex, Haystack, pyversity and others",
    "serving": "the service: HTTP, Arrow Flight, its client",
    "icl": "in-context learning: encoders, language models, quality, prompts",
    "corpus": "rows normalised once, with bias, groups, costs, ids; search and select",
    "metrics": "the papers' measures",
    "reporting": "pages of text, tables and figures; confidence intervals",
    "similarity": "rules on given similarities",
    "testing": "oracles that replay a selection in float64",
    "torch_ops": "operators for torch.compile",
    "scoring": "log-probabilities: reference, cpu, triton, cuda",
    "selection": "the rules: reference, cpu, triton, cuda",
    "_info": "show_config",
    "_dispatch": "which backend runs, and why another cannot",
    "_gpu": "compilation, launches and limits of GPU kernels",
    "_base": "arrays, checks and the words of errors, files, environment, optional packages",
    "_version": "the version",
}
BELOW = (
    ("csrc/cpu", "C++ kernels by instruction set, as the module _C"),
    ("csrc/cuda", "CUDA C++ kernels, compiled when first used"),
)

WIDTH, LINE, PAD, GAP, LEFT, NAME = 760, 19, 7, 8, 46, 150
STYLE = """
svg { --back: #ffffff; --band: #f3f5f8; --edge: #c9d1db; --ink: #1f2933; --soft: #52606d; --mark: #08519c }
@media (prefers-color-scheme: dark) {
  svg { --back: #16181b; --band: #22262b; --edge: #434a53; --ink: #e4e7eb; --soft: #a9b2bc; --mark: #7db8f0 } }
text { font: 13px system-ui, "DejaVu Sans", Verdana, sans-serif; fill: var(--soft) }
.name { font: 600 12.5px ui-monospace, "DejaVu Sans Mono", monospace; fill: var(--ink) }
.band { fill: var(--band); stroke: var(--edge) } .kernels { fill: none; stroke: var(--edge); stroke-dasharray: 4 3 }
.back { fill: var(--back) } .arrow { stroke: var(--mark); stroke-width: 2; fill: none } .say { fill: var(--mark) }
"""


def layers(root: Path = ROOT) -> list[list[str]]:
    """Return the modules of each layer of the contract, the top layer first."""
    import tomllib

    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = (each for each in settings["tool"]["importlinter"]["contracts"] if each["name"] == CONTRACT)
    return [layer.split(" | ") for layer in contract["layers"]]


def draw(found: list[list[str]]) -> str:
    """Return the picture; a module without a line in `MODULES` is an error."""
    parts, top = [], GAP
    for lines, kind in [
        *(([(name, MODULES[name]) for name in layer], "band") for layer in found),
        (list(BELOW), "band kernels"),
    ]:
        height = len(lines) * LINE + 2 * PAD
        parts.append(
            f'<rect class="{kind}" x="{LEFT}" y="{top}" width="{WIDTH - LEFT - GAP}" height="{height}" rx="5"/>'
        )
        for number, (name, what) in enumerate(lines):
            base = top + PAD + number * LINE + 14
            parts.append(f'<text class="name" x="{LEFT + 12}" y="{base}">{escape(name)}</text>')
            parts.append(f'<text x="{LEFT + NAME}" y="{base}">{escape(what)}</text>')
        top += height + GAP
    middle, end = top // 2, top - 2 * GAP
    parts += [
        f'<path class="arrow" d="M32 {GAP} V{end} M26 {end - 9} L32 {end} L38 {end - 9}"/>',
        f'<text class="say" x="20" y="{middle}" text-anchor="middle" transform="rotate(-90 20 {middle})">'
        "modules import from layers below their own</text>",
    ]
    title = "The layers of ragsys_kernels, from the command line at the top to the kernels at the bottom"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}" '
        f'role="img"><title>{title}</title>\n<style>{STYLE}</style>\n<rect class="back" width="{WIDTH}" '
        f'height="{top}"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


if __name__ == "__main__":
    OUT.write_text(draw(layers()), encoding="utf-8")
