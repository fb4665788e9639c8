"""The rules by name: what each takes beside the arguments that all share, its formula and where it is from."""

from __future__ import annotations

from typing import NamedTuple

from .parameters import OWN


class Method(NamedTuple):
    """A rule of selection."""

    name: str  # of the function, and of ``method=`` elsewhere
    parameters: tuple[str, ...]  # beyond those that all rules share
    formula: str  # what a pick is the argmax of
    source: str


_RULES = {
    "mmr": (
        "λ_d v_i - (1-λ_d) max_j s_ij",
        "Carbonell and Goldstein 1998; with a quality bias RAGSys, Algorithm 1",
    ),
    "vrsd": ("cos(q, e_i + Σ_j e_j)", "VRSD, Algorithm 1"),
    "msd": ("λ_d v_i + (1-λ_d) Σ_j (1 - s_ij)", "Gollapudi and Sharma 2009; AdaGReS, arXiv 2512.25052"),
    "dpp": ("det L_{S+i} / det L_S, L_ij = q_i s_ij q_j", "Chen, Zhang and Zhou 2018, arXiv 1709.05135"),
    "ssd": (
        "λ_d z_i + (1-λ_d) γ |part of [e_i, 1] that the last picks do not span|",
        "Huang et al. 2021, arXiv 2107.05204",
    ),
    "sift": ("u_i² / (d_i + ν)", "Hübotter et al. 2025, arXiv 2410.08020"),
    "coverage": ("λ_d v_i + (1-λ_d) (F(S+i) - F(S))", "Nemhauser et al. 1978; xQuAD: Santos et al. 2010"),
    "gist": (
        "λ_d Σ_i v_i + (1-λ_d) min_ij |e_i - e_j|, of all picks together",
        "Fahrbach et al. 2025, arXiv 2405.18754",
    ),
}
METHODS: dict[str, Method] = {name: Method(name, OWN[name], *text) for name, text in _RULES.items()}
