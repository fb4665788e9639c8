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
    sure = f"{level:.0%} of all {len(others)} methods together"
    if measure is None:
        rule = (
            f"Rule: without judgements nothing says which picks are useful. Of the methods that, by intervals of the "
            f"differences at {sure}, lower the mean cosine between picks by at least {max_loss:.0%} of top-k's and "
            f"keep at least {1 - max_loss:.0%} of its relevance, the one whose picks are least alike. Otherwise top-k."
        )
        return _least_alike(others, found, "relevance", "relevance", max_loss, rule)
    word = {"ndcg": "nDCG", "alpha_ndcg": "α-nDCG"}[measure]
    base = found[TOP][measure].mean.mean
    rule = (
        f"Rule: if the {word} of a method is above that of top-k, the interval of the difference at {sure} "
        f"excluding 0, the method of highest {word} among these. Otherwise, of the methods that by the same intervals "
        f"lower the mean cosine between picks by at least {max_loss:.0%} of top-k's and keep at least "
        f"{1 - max_loss:.0%} of its {word}, the one whose picks are least alike. Otherwise top-k."
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
