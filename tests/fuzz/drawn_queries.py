"""Queries of the service, drawn: every field absent, null, empty, given or bad.

Which fields there are, and what they may be, is read from the service's own tables and its OpenAPI document, so that a
new field is drawn as soon as it is in them.
"""

import random
from typing import Any, NamedTuple

import numpy as np
from fuzz_requests import ODD

from ragsys_kernels.selection.parameters import BY_GROUP
from ragsys_kernels.serving.fields import LACKS, OF_VECTORS
from ragsys_kernels.serving.http import schemas
from ragsys_kernels.serving.queries import rules
from ragsys_kernels.serving.queries.cursors import encoded

N, D = 40, 6  # rows and dimensions of the corpora
_BASES = ("query", "vector", "query_id", "vectors")
FUSED = ("lists", "fusion", "fusion_weights")
_BAD = {"integer": [0, -1, 10**6], "number": [-2.0, 7.5, 1e39], "string": ["n?"], "choice": ["x"], "boolean": [3]}


class Field(NamedTuple):
    """A field, and what it may be as JSON schema says it."""

    name: str
    schema: dict[str, Any]

    @property
    def kind(self) -> str:
        if self.schema.get("type") == "array":
            if self.schema["items"].get("type") == "array":
                return "vectors"
            return "ids" if "anyOf" in self.schema["items"] else "floats"
        return "choice" if "enum" in self.schema else str(self.schema.get("type", "object"))


def fields_of(model: Any) -> dict[str, Field]:
    """The fields of a model; of those that may be several things, the first."""
    return {
        name: Field(name, next(kind for kind in schema.get("anyOf", [schema]) if kind.get("type") != "null"))
        for name, schema in model.model_json_schema()["properties"].items()
    }


QUERY = fields_of(schemas.Query)
assert QUERY.keys() == rules.FIELDS


def rows(rng: random.Random, n: int, d: int = D) -> np.ndarray:
    return np.array([rng.gauss(0, 1) for _ in range(n * d)], np.float32).reshape(n, d)


class Drawer:
    """Draws the queries of a batch, over one corpus or with vectors of their own, from some of the fields ``names``.

    ``typed``: nothing of another type, as columns have it.
    """

    def __init__(self, rng: random.Random, fields: dict[str, Field], names: Any, typed: bool = False) -> None:
        self.rng, self.fields, self.typed = rng, fields, typed
        self.own = "vectors" in names and rng.random() < 0.3
        self.corpus = rng.choice([None, "docs", "names"]) if self.own else rng.choice(["docs", "names"])
        self.texts = rng.random() < 0.5 if self.own else self.corpus == "names"
        # What one rule alone has comes with it, and sometimes without: then all queries are refused.
        self.covers = "aspects" in names and rng.random() < 0.2
        without = LACKS["coverage"] if self.covers else {"aspects", "weights"} if rng.random() < 0.95 else {}
        self.fuses = "lists" in names and not self.own and rng.random() < 0.2
        odd = (*OF_VECTORS, *(("candidates", "relevance", "quality") if self.fuses else FUSED))
        others = sorted(set(names).difference(_BASES, without, odd if rng.random() < 0.95 else ()))
        some = rng.sample(others, min(rng.choice([1, 2, 2, 3, 3, 6]), len(others)))
        if self.own and "relevance" not in some and rng.random() < 0.5:  # then not all vectors are read
            some.append("relevance")
        if self.covers:
            some += ["aspects", *(["weights"] if rng.random() < 0.6 else [])]
        if self.own:  # what limits picks comes with what it goes by
            limits = (
                ("groups", "max_per_group"), ("groups", "min_per_group"), ("groups", "query_groups"),
                ("costs", "budget"), ("bias",),
            )  # fmt: skip
            some += (each for pair in limits if rng.random() < 0.25 for each in pair if each in names)
        if self.fuses:
            self.retrievers = rng.choice([1, 2, 3])
            some += ["lists", *(name for name in FUSED[1:] if name in names and rng.random() < 0.5)]
        some = list(dict.fromkeys(some))
        first = {"candidates": 0, "aspects": 1, "lists": 1}  # whose number others have
        self.names = sorted(set(some), key=lambda name: (first.get(name, 2), some.index(name)))
        self.wild = rng.choice([0.0, 0.0, 0.05, 0.2])  # how much is bad

    def rule(self) -> dict[str, Any]:
        """The rule of what is drawn, where it is of one."""
        return {"method": "coverage"} if self.covers else {}

    def id(self, i: int) -> Any:
        return f"d{i}" if self.texts else i

    def query(self) -> dict[str, Any]:
        """The fields of a query; an absent one is not there. Vectors are arrays."""
        rng, found = self.rng, dict[str, Any]()
        if self.own:
            vectors = rows(rng, rng.choice([0, 1, 5, N, N])).astype(rng.choice(["float32", "float32", "float16"]))
            found["vectors"] = None if rng.random() < 0.1 else vectors
            if len(vectors) and rng.random() < 0.25:  # it may be one that is not read
                vectors[rng.randrange(len(vectors))] = np.nan
            if not self.typed and rng.random() < self.wild / 2:
                found["vectors"] = rng.choice([x for x in ODD if isinstance(x, dict)])
        with_vector = found.get("vectors") is not None or rng.random() < 0.6
        for name, is_given in (("query", with_vector), ("query_id", not with_vector)):
            if is_given != (rng.random() < self.wild / 2):
                found[name] = self.value(QUERY[name], found)
            elif rng.random() < 0.2:
                found[name] = None
        for name in self.names:
            usual = 30 if name == "relevance" and self.own else 6
            state = rng.choices(("absent", "null", "empty", "given"), (2, 2, 1, usual))[0]
            value = self.drawn(self.fields[name], "bad" if rng.random() < self.wild else state, found)
            if state == "null" or value is not None:
                found[name] = value
        return found

    def drawn(self, field: Field, state: str, query: dict[str, Any]) -> Any:
        """A value of a field, None where there is none."""
        if state == "given":
            return self.value(field, query)
        if state == "empty":
            return (
                []
                if field.kind in ("ids", "floats", "vectors")
                else None
                if self.typed
                else {"string": ""}.get(field.kind)
            )
        if state == "bad":
            return self.rng.choice(ODD) if not self.typed and self.rng.random() < 0.5 else self.bad(field, query)
        return None

    def value(self, field: Field, query: dict[str, Any]) -> Any:
        """A good one."""
        rng = self.rng
        given = query.get("vectors")
        most = len(given) if isinstance(given, np.ndarray) else N
        if field.name in ("query", "query_id"):
            return rows(rng, 1)[0].tolist() if field.name == "query" else self.id(rng.randrange(N))
        if field.name in ("groups", "query_groups"):
            groups = [self.id(rng.randrange(3)) for _ in range(self.width(query, field.name))]
            return groups if field.name == "groups" else self.id(rng.randrange(4))
        if field.name == "cursor":
            shown = [self.id(i) for i in rng.sample(range(most), min(2, most))]
            return encoded(np.array(shown, object if self.texts else np.int64))
        if field.name == "lists":
            found, scored = [], rng.random() < 0.7
            for _ in range(self.retrievers if self.fuses and rng.random() < 0.9 else 2):
                ids = [self.id(i) for i in rng.sample(range(N), rng.choice([0, 1, 2, 5, 20]))]
                found.append({"ids": ids, "scores": rows(rng, 1, len(ids))[0].tolist()} if scored else {"ids": ids})
            return found
        if field.kind == "vectors":
            return rows(rng, rng.choice([1, 2, 2, 3, 9])).tolist()
        if field.kind == "floats":
            numbers = rows(rng, 1, self.width(query, field.name))[0]
            return (
                np.abs(numbers) + 0.1 if field.name in ("quality", "weights", "costs", "fusion_weights") else numbers
            ).tolist()
        if field.kind == "ids":
            named = field.name == "candidates" and given is not None
            size = most if named else rng.randrange(min(9, most) + 1)
            return [self.id(i) for i in rng.sample(range(N if named else most), size)]
        if field.kind in ("choice", "boolean", "string", "object"):
            return rng.choice(field.schema.get("enum", [True, False] if field.kind == "boolean" else ["x"]))
        low, high = field.schema.get("minimum", 0), field.schema.get("maximum", 9)
        if field.name in BY_GROUP:
            if rng.random() < 0.4:
                return rng.randint(1, 3)
            names = rng.sample([self.id(i) if self.own else i for i in range(6)], rng.choice([0, 1, 1, 2]))
            return {str(name): rng.randint(field.name == "max_per_group", 3) for name in names}
        if field.kind == "integer":
            return rng.randint(int(low), int(high))
        return rng.choice([low, high, rng.uniform(low, high)])

    def bad(self, field: Field, query: dict[str, Any]) -> Any:
        """A value of the right type that breaks a rule."""
        if field.name == "query_groups":
            return self.id(N + 7)
        if field.name in BY_GROUP and self.rng.random() < 0.7:
            return self.rng.choice([{"x?": 1}, {"1": -1}, {"1": True}, {"1": [2]}, {"01": 1}, {"1": None, "2": {}}])
        if field.name == "lists":
            found, ids = self.value(field, query), [self.id(i) for i in range(3)]
            found[-1]["ids"] = self.rng.choice([ids + ids[:1], [*ids, self.id(N + 7)], ids])
            return found
        if field.kind == "ids":
            ids = self.value(field, query)
            return self.rng.choice([[*ids, self.id(N + 7)], [*ids, *ids], [self.id(N + 9)] * 2, ids[1:]])
        if field.kind == "floats":
            width = self.width(query, field.name)
            return self.rng.choice([[1e39] * width, [-0.5] * width, [0.5], self.value(field, query)[1:]])
        if field.kind == "vectors":
            return self.rng.choice([[], rows(self.rng, 2, D + 1).tolist(), [[1e39] * D], [[]]])
        return self.rng.choice(_BAD.get(field.kind, [None]))

    def width(self, query: dict[str, Any], name: str) -> int:
        """How many candidates a query has, as far as it has any; of its weights, how many aspects."""
        if name == "weights":
            return len(query["aspects"]) if isinstance(query.get("aspects"), list) else 2
        if name == "fusion_weights":
            return len(query["lists"]) if isinstance(query.get("lists"), list) else self.retrievers if self.fuses else 2
        given = query.get("candidates") if query.get("vectors") is None else query["vectors"]
        return len(given) if isinstance(given, (list, np.ndarray)) else 3
