"""What to take, in words, by a rule that the report states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .settings import RANDOM, TOP, Setting
from .table import Figures, usefulness


class Advice(NamedTuple):
    """A recommendation."""

    setting: str  # the name of the method to take
    words: str
    rule: str


def advise(settings: Sequence[Setting], found: Figures, *, max_loss: float, level: float) -> Advice:
    """Recommend a method from its figures.

    With judgements: what is certainly more useful than top-k, the most useful of these; else what is certainly less
    alike while its usefulness is certainly not below ``1 - max_loss`` times that of top-k. Without judgements relevance
    takes the place of usefulness, which no method can raise above that of top-k.
    """
    measure = usefulness(found)
    others = [setting for setting in settings if setting.name != TOP and setting.rule != RANDOM]
    sure = f'"Certainly" means by intervals that hold for all {len(others)} methods together, at {level:.0%}.'
    if measure is None:
        rule = (
            f"Rule without judgements: the method with the least similar picks of those that certainly keep at least "
            f"{1 - max_loss:.0%} of top-k's relevance and certainly lower the mean cosine between picks by more than "
            f"{max_loss:.0%}; if there is none, top-k. {sure}"
        )
        return _least_alike(others, found, "relevance", "relevance", max_loss, rule)
    word = {"ndcg": "nDCG", "alpha_ndcg": "α-nDCG"}[measure]
    base = found[TOP][measure].mean.mean
    rule = (
        f"Rule: the method with the highest {word} of those certainly above top-k; if there is none, the method with "
        f"the least similar picks of those that certainly keep at least {1 - max_loss:.0%} of top-k's {word} and "
        f"certainly lower the mean cosine between picks by more than {max_loss:.0%}; if there is none, top-k. {sure}"
    )
    better = [each for each in others if found[each.name][measure].certain.low > 0]
    if better:
        best = max(better, key=lambda each: found[each.name][measure].mean.mean)
        gain = found[best.name][measure].difference
        words = (
            f"Take **{best.label}**. Its {word} is {found[best.name][measure].mean.mean:.3f}, top-k's {base:.3f}: "
            f"{gain.signed()}. {len(better)} of {len(others)} methods are certainly above top-k."
        )
        return Advice(best.name, words, rule)
    return _least_alike(others, found, measure, word, max_loss, rule)


def _least_alike(others: list[Setting], found: Figures, measure: str, word: str, max_loss: float, rule: str) -> Advice:
    top = found[TOP]
    base, alike = top[measure].mean.mean, top["similarity"].mean.mean
    affordable = [each for each in others if base > 0 and found[each.name][measure].certain.low >= -max_loss * base]
    gain = -max_loss * max(alike, 0)
    chosen = [each for each in affordable if found[each.name]["similarity"].certain.high < gain]
    if not chosen:
        lost = [each for each in others if found[each.name][measure].certain.high < 0]
        words = (
            f"Take **top-k** (MMR with λ = 1). No method certainly makes the picks less alike by {max_loss:.0%} and "
            f"keeps {1 - max_loss:.0%} of top-k's {word}, {base:.3f}; {len(lost)} of {len(others)} methods certainly "
            f"lose {word}."
        )
        return Advice(TOP, words, rule)
    best = min(chosen, key=lambda each: found[each.name]["similarity"].mean.mean)
    mine = found[best.name]
    words = (
        f"Take **{best.label}**. Its picks are less alike: a mean cosine of {mine['similarity'].mean.mean:.3f} between "
        f"them, top-k's {alike:.3f} ({mine['similarity'].difference.signed()}). Its {word} is "
        f"{mine[measure].mean.mean:.3f}, top-k's {base:.3f} ({mine[measure].difference.signed()})."
    )
    if measure != "relevance":
        words += f" No method has a {word} that is certainly above top-k's: what is gained is diversity alone."
    return Advice(best.name, words, rule)
