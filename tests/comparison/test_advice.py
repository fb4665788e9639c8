"""The recommendation at the thresholds of its rules (docs/compare.md), by figures made by hand."""

import pytest

from ragsys_kernels.comparison.advice import advise
from ragsys_kernels.comparison.settings import settings
from ragsys_kernels.comparison.table import Figure
from ragsys_kernels.reporting.statistics import Interval

SETTINGS = settings(["vrsd", "sift"], biased=False)  # and top-k and random


def figure(mean, difference=(0.0, 0.0), certain=None):
    """A figure with the ends of its difference from top-k: the usual interval, and the one of all methods together."""

    def interval(ends):
        return Interval(sum(ends) / 2, *ends)

    return Figure(Interval(mean, mean, mean), interval(difference), interval(certain or difference), 100)


def figures(measure="relevance", base=0.8, alike=0.6, **methods):
    """Of top-k, and of methods: (mean, low of its certain interval) of a measure, (mean, high) of the similarity."""
    found = {"top-k": {measure: figure(base), "similarity": figure(alike)}}
    for name, ((mean, low), (similarity, high)) in methods.items():
        found[name] = {
            measure: figure(mean, certain=(low, low + 0.001)),
            "similarity": figure(similarity, certain=(high - 0.001, high)),
        }
    return found


def advised(found, max_loss=0.05):
    return advise(SETTINGS, found, max_loss=max_loss, level=0.95)


NO_GAIN = (0.6, 0.0)
COSTLY = ((0.1, -0.7), (0.1, -0.5))


def test_the_most_useful_of_those_certainly_above_top_k():
    above = figures("ndcg", 0.5, vrsd=((0.52, 0.001), NO_GAIN), sift=((0.56, 0.001), NO_GAIN), random=COSTLY)
    told = advised(above)
    assert told.setting == "sift"
    assert "Its nDCG is 0.560, top-k's 0.500" in told.words
    assert "2 of 3 methods" not in told.words  # random picks are none of the methods
    assert "2 of 2 methods are certainly above top-k" in told.words
    assert told.rule == (
        "Rule: the method with the highest nDCG of those certainly above top-k; if there is none, the method with the "
        "least similar picks of those that certainly keep at least 95% of top-k's nDCG and certainly lower the mean "
        "cosine between picks by more than 5%; if there is none, top-k. "
        '"Certainly" means by intervals that hold for all 2 methods together, at 95%.'
    )


@pytest.mark.parametrize(("low", "expected"), [(1e-9, "vrsd"), (0.0, "top-k"), (-1e-9, "top-k")])
def test_above_is_without_zero(low, expected):
    found = figures("ndcg", 0.5, vrsd=((0.6, low), NO_GAIN), sift=COSTLY, random=COSTLY)
    assert advised(found).setting == expected


def test_certainly_is_for_all_methods_together():
    found = figures("ndcg", 0.5, vrsd=((0.6, -0.01), NO_GAIN), sift=COSTLY, random=COSTLY)
    found["vrsd"]["ndcg"] = figure(0.6, difference=(0.05, 0.15), certain=(-0.01, 0.2))
    assert advised(found).setting == "top-k"
    found["vrsd"]["similarity"] = figure(0.1, difference=(-0.6, -0.4), certain=(-0.9, -0.02))
    assert advised(found).setting == "top-k"


def test_random_picks_and_top_k_itself_are_never_recommended():
    found = figures("ndcg", 0.5, vrsd=COSTLY, sift=COSTLY, random=((0.9, 0.3), (0.1, -0.5)))
    found["top-k"]["ndcg"] = figure(0.5, (0.1, 0.2))
    told = advised(found)
    assert told.setting == "top-k"
    assert told.words.startswith("Take **top-k** (MMR with λ = 1).")
    cheap = figures(vrsd=COSTLY, sift=COSTLY, random=((0.8, 0.0), (0.1, -0.5)))
    assert advised(cheap).setting == "top-k"


# top-k: relevance 0.8, similarity 0.6; of each 5 %: 0.04 and 0.03.
@pytest.mark.parametrize(
    ("low", "high", "max_loss", "expected"),
    [
        (-0.04, -0.0301, 0.05, "vrsd"),  # keeps 95 % exactly
        (-0.0401, -0.0301, 0.05, "top-k"),
        (-0.04, -0.03, 0.05, "top-k"),  # not more than 5 % less alike
        (-0.04, -0.0299, 0.05, "top-k"),
        (-0.0801, -0.0601, 0.1, "top-k"),
        (-0.08, -0.0601, 0.1, "vrsd"),
        (-0.08, -0.06, 0.1, "top-k"),
        (0.0, -1e-9, 0.0, "vrsd"),
        (-1e-9, -1e-9, 0.0, "top-k"),
    ],
)
def test_less_alike_at_a_price(low, high, max_loss, expected):
    found = figures(vrsd=((0.77, low), (0.5, high)), sift=COSTLY, random=COSTLY)
    found["top-k"]["relevance"] = figure(0.8)
    told = advised(found, max_loss)
    assert told.setting == expected
    if expected == "top-k":
        lost = 1 + (low + 0.001 < 0)  # SIFT, and VRSD where all of its interval is below 0
        assert f"{lost} of 2 methods certainly lose relevance" in told.words
        assert f"{1 - max_loss:.0%} of top-k's relevance, 0.800" in told.words
    else:
        assert "a mean cosine of 0.500 between them, top-k's 0.600" in told.words
        assert "diversity alone" not in told.words  # which only judgements tell


def test_the_least_alike_of_the_affordable():
    found = figures(vrsd=((0.79, 0.0), (0.4, -0.1)), sift=((0.78, 0.0), (0.3, -0.1)), random=COSTLY)
    assert advised(found).setting == "sift"
    found["sift"]["relevance"] = figure(0.7, certain=(-0.2, 0.0))
    told = advised(found)
    assert told.setting == "vrsd"
    assert told.rule.startswith("Rule without judgements: the method with the least similar picks of those that ")
    assert (
        "at least 95% of top-k's relevance and certainly lower the mean cosine between picks by more than 5%"
        in told.rule
    )
    found["vrsd"]["relevance"] = figure(0.7, certain=(-0.2, -0.1))
    assert "1 of 2 methods certainly lose relevance" in advised(found).words  # SIFT's interval reaches 0


def test_picks_that_are_not_alike_need_only_be_less_so():
    found = figures(alike=-0.2, vrsd=((0.8, 0.0), (-0.3, -1e-9)), sift=COSTLY, random=COSTLY)
    assert advised(found).setting == "vrsd"
    found["vrsd"]["similarity"] = figure(-0.3, certain=(-0.1, 0.0))
    assert advised(found).setting == "top-k"


def test_a_share_of_nothing_recommends_nothing():
    for base in (0.0, -0.1):
        found = figures(base=base, vrsd=((base, 0.0), (0.1, -0.5)), sift=COSTLY, random=COSTLY)
        assert advised(found).setting == "top-k"


def test_with_judgements_but_none_above_what_is_gained_is_diversity():
    found = figures("ndcg", 0.5, vrsd=((0.5, -0.02), (0.4, -0.1)), sift=COSTLY, random=COSTLY)
    told = advised(found)
    assert told.setting == "vrsd"
    assert "No method has a nDCG that is certainly above top-k's: what is gained is diversity alone." in told.words


def test_subtopics_come_before_single_documents():
    found = figures("alpha_ndcg", 0.5, vrsd=((0.6, 0.05), NO_GAIN), sift=((0.4, -0.2), NO_GAIN), random=COSTLY)
    for name, ndcg in {"top-k": (0.5, 0.0), "vrsd": (0.4, -0.2), "sift": (0.7, 0.1), "random": (0.1, -0.4)}.items():
        found[name]["ndcg"] = figure(ndcg[0], (ndcg[1], ndcg[1] + 0.01))
    told = advised(found)
    assert told.setting == "vrsd"
    assert "Its α-nDCG is 0.600" in told.words
