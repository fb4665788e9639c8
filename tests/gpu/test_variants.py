"""Which variant of a GPU kernel RAGSYS_KERNELS_VARIANTS puts in force."""

import pytest

from ragsys_kernels._gpu import variants


@pytest.fixture(autouse=True)
def listed(monkeypatch):
    monkeypatch.setattr(variants, "VARIANTS", {"left": ("plain", "tiled"), "right": ("one", "two")})
    variants.chosen.cache_clear()
    yield
    variants.chosen.cache_clear()


@pytest.mark.parametrize(
    ("text", "left", "right"),
    [("", "plain", "one"), ("left=tiled", "tiled", "one"), (" right=two, left=plain ,", "plain", "two")],
)
def test_the_first_is_the_default(monkeypatch, text, left, right):
    monkeypatch.setenv("RAGSYS_KERNELS_VARIANTS", text)
    assert (variants.variant("left"), variants.variant("right")) == (left, right)


@pytest.mark.parametrize("text", ["left", "left=", "left=two", "middle=one", "left=tiled,right"])
def test_a_name_that_is_not_listed_is_refused(monkeypatch, text):
    monkeypatch.setenv("RAGSYS_KERNELS_VARIANTS", text)
    with pytest.raises(ValueError, match=r"^RAGSYS_KERNELS_VARIANTS must be .*left=plain.*got '"):
        variants.variant("left")
