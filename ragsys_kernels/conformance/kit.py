"""The kit: asks the sets, fits the variants, collects the evidence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from .adapters import Adapter, CallError
from .fit import Answer, Fit, Stage, refined
from .probe import Edge, again, ask, edges, pool
from .report import Evidence, Finding, Report
from .respects import RESPECTS
from .sets import CORE, ENDS, GIVEN, STAGES
from .variants import Question, Variant


def examine(adapter: Adapter, target: str) -> Report:
    """Return which variant of MMR an adapter's function is."""
    return _Examination(adapter, target).report()


class _Examination:
    def __init__(self, adapter: Adapter, target: str) -> None:
        self._adapter, self._target = adapter, target
        self._answers: dict[str, Answer] = {}
        self._questions: list[Question] = []
        self._stages: dict[str, Stage] = {}  # of each respect, the last that refined it
        first = CORE.questions[0]
        answer = self._answers[first.name] = ask(adapter, first)
        if answer.error is not None:
            size = f"a set of {len(first.rows)} rows with k = {first.k}"
            raise CallError(f"conform: {target} must answer {size}, got {answer.error}")
        self._fit = Fit((Variant(relevance="given") if adapter.takes == "scores" else Variant(),))
        for stage in STAGES:
            self._fit = self._refined(stage)
        self._given: Fit | None = None
        if adapter.takes == "both":
            self._fit = self._refined(GIVEN)
        elif adapter.takes == "either":
            self._given = self._refined(GIVEN)

    def _refined(self, stage: Stage) -> Fit:
        for question in stage.questions:
            if question.name not in self._answers:
                self._answers[question.name] = ask(self._adapter, question)
            self._questions.append(question)
        self._stages.update(dict.fromkeys(stage.refine, stage))
        return refined(self._fit, stage, self._answers)

    def report(self) -> Report:
        whole = self._given or self._fit
        found = tuple(self._findings())
        return Report(self._target, self._adapter.name, found, whole.matched, whole.asked)

    def _findings(self) -> Iterator[Finding]:
        at_edges = edges(self._adapter, self._fit.best)
        at_edges["again"] = again(self._adapter, self._answers)
        chance = at_edges["again"].value == "differs"
        for respect in RESPECTS:
            if respect in at_edges:
                yield self._of_edge(respect, at_edges[respect])
            elif respect == "pool":
                yield self._of_pool()
            else:
                found = self._of_fit(respect)
                if chance and respect in ("ties", "first_ties"):
                    found = replace(found, values=(), note="by chance: asked again, it answers otherwise")
                yield found

    def _of_fit(self, respect: str) -> Finding:
        values, notes = tuple(self._fit.values(respect)), []
        textbook = self._textbook(respect, values)
        if respect in self._fit.nearest:
            notes.append("the nearest: no variant gives all answers")
            textbook = None if textbook else textbook
        failed = {q: self._answers[q.name].error for q in self._stages[respect].questions}
        if respect == "zero_weight" and any(failed.values()):
            ends = [q for q, error in failed.items() if error and q in ENDS.questions]
            notes += [f"λ = {q.weight:g} is an error: {failed[q]}" for q in ends]
            values, textbook = (), False
        elif any(failed.values()):
            name, error = next((q.name, error) for q, error in failed.items() if error)
            notes.append(f"{name}: {error}")
        if respect == "relevance" and self._given is not None:
            used = self._given.values("relevance") == ["given"]
            notes.append("what the caller gives counts instead" if used else "what the caller gives does not count")
        return Finding(respect, values, "; ".join(notes), textbook, self._evidence(respect))

    def _textbook(self, respect: str, values: tuple[str, ...]) -> bool | None:
        allowed = RESPECTS[respect].textbook
        if allowed is None:
            return None
        if respect == "weighs" and "divers" in (self._adapter.weight or "").lower():
            allowed = frozenset({"diversity"})  # as the argument's name says
        right = {value in allowed for value in values}
        return right.pop() if len(right) == 1 else None

    def _evidence(self, respect: str) -> tuple[Evidence, ...]:
        """Return the sets at which other values of a respect than the one that was found lead to other picks.

        Each is the one that tells the most values which those before do not tell.
        """
        best, takes = self._fit.best, self._adapter.takes
        found = getattr(best, respect)
        values = [value for value in RESPECTS[respect].values if value != "given" or takes == "both"]
        if found not in values:
            return ()
        asked = [
            (question, {value: _picks(replace(best, **{respect: value}), question) for value in values})
            for question in self._questions
            if self._answers[question.name].error is None and not (question.scores and takes == "either")
        ]
        told: list[Evidence] = []
        left = {value for value in values if value != found}
        while left:
            question, picks = max(asked, key=lambda each: sum(each[1][value] != each[1][found] for value in left))
            now = {value for value in left if picks[value] == picks[found]}
            if now == left:
                break
            left = now
            told.append(_evidence(question, picks, self._answers[question.name]))
        return tuple(told)

    def _of_pool(self) -> Finding:
        values, best = tuple(self._fit.values("pool")), self._fit.best
        textbook = self._textbook("pool", values)
        if values != ("all",):
            return Finding("pool", values, "", textbook, self._evidence("pool"))
        value, question, answer = pool(self._adapter, best)
        picks = {"all": best.picks(question), "k": replace(best, pool="k").picks(question)}
        evidence = (_evidence(question, picks, answer),)
        if value is None:
            return Finding("pool", values, "of 6; how many more cannot be told", textbook, evidence)
        return Finding("pool", (value,), "", value == "all", evidence)

    def _of_edge(self, respect: str, edge: Edge) -> Finding:
        """Return the finding of an edge; what the function raised or did otherwise is its evidence."""
        values = () if edge.value is None else (edge.value,)
        textbook = self._textbook(respect, values)
        if edge.question is None or edge.answer is None:
            return Finding(respect, values, edge.says, textbook, ())
        note = edge.says if values else f"other than known: {edge.answer}"
        return Finding(respect, values, note, textbook, (_evidence(edge.question, edge.expected or {}, edge.answer),))


@lru_cache(maxsize=1 << 14)
def _picks(variant: Variant, question: Question) -> tuple[int, ...]:
    """Return the picks of a variant: those near the textbook's are asked for again with the next function."""
    return variant.picks(question)


def _evidence(question: Question, expected: dict[str, tuple[int, ...]], answer: Answer) -> Evidence:
    return Evidence(question.name, question.weight, question.k, expected, str(answer))
