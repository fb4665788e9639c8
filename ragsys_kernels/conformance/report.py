"""What `conform` found, respect by respect, with the evidence; as text, Markdown or JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .respects import DEFINITION, RESPECTS, SOURCE


@dataclass(frozen=True)
class Evidence:
    """A set that tells the values of a respect apart.

    Attributes
    ----------
    set : str
        Its name; `Report.sets` has its vectors.
    weight : float
        What the argument that weighs got.
    k : int
    expected : dict
        The picks that each value of the respect leads to, all else being as found.
    got : str
        What came back.
    """

    set: str
    weight: float
    k: int
    expected: dict[str, tuple[int, ...]]
    got: str

    def __str__(self) -> str:
        same: dict[tuple[int, ...], list[str]] = {}
        for value, picks in self.expected.items():
            same.setdefault(picks, []).append(value)
        wanted = "; ".join(f"{', '.join(values)}: {shown(picks)}" for picks, values in same.items())
        got = self.got.removeprefix("error: ") if self.got.startswith("error: ") else f"got {self.got}"
        return f"{self.set}, λ {self.weight:g}, k {self.k}: {f'{wanted}. ' if wanted else ''}{got}"


@dataclass(frozen=True)
class Finding:
    """What a function does in one respect.

    Attributes
    ----------
    respect : str
        A key of `RESPECTS`.
    values : tuple of str
        What it may be, by short names: one value if it is told, several if that cannot be told, none if it has no name.
    note : str
        What else is to be said.
    textbook : bool or None
        Whether that is MMR as it is published; None: the definition does not say, or it cannot be told.
    evidence : tuple of Evidence
        One set, or as many as it takes to tell all values apart.
    """

    respect: str
    values: tuple[str, ...]
    note: str
    textbook: bool | None
    evidence: tuple[Evidence, ...]

    @property
    def title(self) -> str:
        return RESPECTS[self.respect].title

    @property
    def value(self) -> str | None:
        return self.values[0] if len(self.values) == 1 else None

    @property
    def says(self) -> str:
        """The finding in words."""
        words = [in_words(self.respect, value) for value in self.values]
        text = words[0] if len(words) == 1 else f"cannot be told: {' | '.join(words)}" if words else ""
        if len(words) == len(RESPECTS[self.respect].values) > 1:
            text = "cannot be told"
        return "; ".join(filter(None, [text, self.note])) or "none of the known ways"


@dataclass(frozen=True)
class Report:
    """Which MMR a function is.

    Attributes
    ----------
    target : str
        What was asked.
    adapter : str
        How.
    findings : tuple of Finding
    matched, asked : int
        Answers that the variant which was found gives too, and all those it was compared with.
    """

    target: str
    adapter: str
    findings: tuple[Finding, ...]
    matched: int
    asked: int

    @property
    def textbook(self) -> bool:
        """Whether it is MMR as it is published, in every respect that the definition speaks of."""
        return self.fits and not self.departures

    @property
    def departures(self) -> tuple[Finding, ...]:
        """What keeps it from being the textbook's MMR."""
        asked = (each for each in self.findings if RESPECTS[each.respect].textbook is not None)
        return tuple(each for each in asked if each.textbook is not True)

    @property
    def verdict(self) -> str:
        """The answer in a sentence."""
        if self.textbook:
            return f"{self.target} is MMR as it is published."
        if not self.fits:
            odd = f"{self.asked - self.matched} of {self.asked}"
            return f"{self.target} is none of the variants of MMR: {odd} answers are not those of the nearest."
        titles = ", ".join(each.title.lower() for each in self.departures)
        return f"{self.target} is not MMR as it is published: {titles}."

    @property
    def fits(self) -> bool:
        """Whether one variant gives all answers."""
        return self.matched == self.asked

    def __getitem__(self, respect: str) -> Finding:
        return next(each for each in self.findings if each.respect == respect)

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as JSON has it."""
        findings = [
            {
                "respect": each.respect,
                "title": each.title,
                "values": list(each.values),
                "says": each.says,
                "textbook": each.textbook,
                "evidence": [_evidence(one) for one in each.evidence],
            }
            for each in self.findings
        ]
        about = {"target": self.target, "adapter": self.adapter, "textbook": self.textbook, "verdict": self.verdict}
        counts = {"answers": self.asked, "of_the_variant": self.matched}
        return {**about, **counts, "definition": DEFINITION, "source": SOURCE, "findings": findings}

    def to_markdown(self) -> str:
        """Return it as a page."""
        definition = f"Definition: {DEFINITION}. {SOURCE}."
        return "\n".join([f"# {self.target}", "", self.verdict, "", *self.table(), "", definition, ""])

    def table(self) -> list[str]:
        """Return the lines of the table in Markdown."""
        lines = ["| respect | what it does | MMR | evidence |", "|---|---|---|---|"]
        for each in self.findings:
            cells = (each.title, each.says, mark(each.textbook), "<br>".join(map(str, each.evidence)))
            lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
        return lines

    def __str__(self) -> str:
        width = max(len(each.title) for each in self.findings)
        lines = [f"{each.title:<{width}}  {mark(each.textbook):<3}  {each.says}" for each in self.findings]
        return "\n".join([*lines, "", self.verdict])


def mark(textbook: bool | None) -> str:
    """Return whether a finding is the textbook's, as tables show it."""
    return {True: "yes", False: "no", None: ""}[textbook]


def shown(picks: Iterable[int]) -> str:
    return " ".join(map(str, picks)) or "nothing"


def in_words(respect: str, value: str) -> str:
    """Return what a value of a respect means."""
    words = RESPECTS[respect].values.get(value)
    if words is None:  # the size of a pool
        return f"the {value.removesuffix('k')} k most relevant" if value.endswith("k") else f"the {value} most relevant"
    return words


def _evidence(evidence: Evidence) -> dict[str, Any]:
    expected = {value: list(picks) for value, picks in evidence.expected.items()}
    return {"set": evidence.set, "weight": evidence.weight, "k": evidence.k, "expected": expected, "got": evidence.got}
