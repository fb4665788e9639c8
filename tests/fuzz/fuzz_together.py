"""Queries alone and together: each has the bits, or the words of the error, that it has alone.

    python tests/fuzz/fuzz_together.py --seed 1 --batches 10000

A batch goes by one of the `ENTRANCES`, as one request and as requests of one query each, which come in the same round
as those of other callers. The oracle is the service itself, asked for one query at a time.
"""

import asyncio
import atexit
import base64
import functools
import io
import json
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa
from drawn_queries import FUSED, QUERY, Drawer, Field, N, fields_of, rows
from fuzz_requests import call
from fuzz_runs import Fuzzer, WrongError, main

import ragsys_kernels as rk
from ragsys_kernels.selection import METHODS
from ragsys_kernels.serving import fields, make_service
from ragsys_kernels.serving.http import schemas
from ragsys_kernels.serving.limits import RefusedError
from ragsys_kernels.serving.queries import rules
from ragsys_kernels.serving.ray_serve import answered
from ragsys_kernels.serving.routes import arrow_answers, flight, open_inference, rerank, select_arrow
from ragsys_kernels.serving.routes import rerank_shapes as shapes

RERANK = fields_of(schemas.RerankRequest)
ARROW = [(b"content-type", b"application/vnd.apache.arrow.stream")]
seen: Counter[str] = Counter()  # queries answered and refused, by entrance

Asked = tuple[str, list[tuple[bytes, bytes]], bytes]  # the path, headers and body of a request


class Service:
    """A service in this process, of a corpus of numbered rows and one whose ids are strings, and its loop."""

    def __init__(self) -> None:
        rng = random.Random(0)
        beside = {"groups": np.arange(N) % 5, "costs": np.arange(N) % 3 + 1.0, "bias": rows(rng, 1, N)[0]}
        names = rk.Corpus(rows(rng, N), ids=[f"d{i}" for i in range(N)], **beside)
        self.service = make_service({"docs": rk.Corpus(rows(rng, N)), "names": names}, num_threads=1)
        self._loop, self._life = asyncio.new_event_loop(), self.service.app.router.lifespan_context(self.service.app)
        self._loop.run_until_complete(self._life.__aenter__())
        atexit.register(self._close)

    def _close(self) -> None:
        self._loop.run_until_complete(self._life.__aexit__(None, None, None))
        self._loop.close()

    def post(self, *asked: Asked) -> list[tuple[int, bytes]]:
        """The answers to requests that come in one round."""

        async def use() -> list[tuple[int, bytes]]:
            posts = (call(self.service.asgi, "POST", path, headers, [body]) for path, headers, body in asked)
            return await asyncio.gather(*posts)

        return self._loop.run_until_complete(use())

    def run(self, use: Any) -> Any:
        return self._loop.run_until_complete(use)


service = functools.cache(Service)


def compare(entrance: str, together: list[Any], alone: list[Any], what: Any) -> None:
    for i, (one, other) in enumerate(zip(together, alone, strict=True)):
        if one != other:
            raise WrongError(f"{entrance}: query {i} gets\n  {one}\nand alone\n  {other}\n  {what}")


def count(entrance: str, alone: list[Any]) -> None:
    for each in alone:
        refused = isinstance(each, dict) and each.get("error")
        seen[f"{entrance} {'refused' if refused else 'answered'}"] += 1


def shuffled(rng: random.Random, *callers: list[Asked]) -> list[list[tuple[int, bytes]]]:
    """The answers to requests of several callers, which come in one round in any order."""
    order = [(c, i) for c, asked in enumerate(callers) for i in range(len(asked))]
    rng.shuffle(order)
    answers = dict(zip(order, service().post(*(callers[c][i] for c, i in order)), strict=True))
    return [[answers[c, i] for i in range(len(asked))] for c, asked in enumerate(callers)]


# JSON


def encoded(query: dict[str, Any]) -> dict[str, Any]:
    """A query as JSON has it."""
    vectors = query.get("vectors")
    if not isinstance(vectors, np.ndarray):
        return query
    text = base64.b64encode(vectors.tobytes()).decode()
    return {**query, "vectors": {"b64": text, "shape": list(vectors.shape), "dtype": str(vectors.dtype)}}


def results(answer: tuple[int, bytes]) -> list[dict[str, Any]]:
    """The answers to the queries of a request, or the one error of all of them; errors without the query's number."""
    content = json.loads(answer[1])
    found = content.get("results", [content])
    for each in found:
        each.get("error", {}).pop("index", None)
    return found


def by_json(rng: random.Random) -> None:
    def batch() -> tuple[list[dict[str, Any]], Callable[[list[dict[str, Any]]], Asked]]:
        draw = Drawer(rng, QUERY, rules.FIELDS)
        queries = [encoded(draw.query()) for _ in range(300 if rng.random() < 0.005 else rng.choice([2, 3, 5, 9]))]
        few = rng.sample(sorted(rules.FIELDS - rules._OWN - {"query", "query_id"}), rng.choice([0, 0, 1, 2]))
        common = {name: draw.drawn(QUERY[name], rng.choice(["given", "null", "empty"]), {}) for name in few}
        common = {**draw.rule(), "pool": rng.choice([5, 8, 100]), **common}
        if draw.corpus is not None:
            common["corpus"] = draw.corpus

        def asked(some: list[dict[str, Any]]) -> Asked:
            return "/v1/select", [], json.dumps({**common, "queries": some}).encode()

        return queries, asked

    queries, asked = batch()
    others, asked_by_others = batch()
    singles = [asked([query]) for query in queries]
    answers = [service().post(single)[0] for single in singles]
    alone = [results(answer)[0] for answer in answers]
    count("json", alone)
    [whole] = service().post(asked(queries))
    compare("json", results(whole) if len(results(whole)) > 1 else results(whole) * len(queries), alone, asked(queries))
    middle = rng.randrange(1, len(queries))
    parts = [asked(queries[:middle]), asked(queries[middle:])]
    in_round, in_parts, _ = shuffled(rng, singles, parts, [asked_by_others([query]) for query in others])
    compare("json in a round", in_round, answers, (asked(queries), asked_by_others(others)))
    found = [each for part in in_parts for each in results(part)]
    if len(found) == len(queries):  # else a part is refused whole, as above
        compare("json in two parts", found, alone, (asked(queries), asked_by_others(others)))
    for query, answer in zip(queries, alone, strict=True):
        less = {name: x for name, x in query.items() if x is not None or name == "pool"}
        compare("json without null", results(service().post(asked([less]))[0]), [answer], asked([query]))


# Arrow


def column_type(field: Field, texts: bool, rng: random.Random) -> pa.DataType:
    plain, others = (pa.string(), [pa.string_view()]) if texts else (pa.int64(), [pa.uint64()])
    ids = rng.choice([plain, plain, *others, pa.dictionary(pa.int32(), plain)])
    floats = rng.choice([pa.float32(), pa.float64()])
    lists = rng.choice([pa.list_, pa.large_list])
    if field.name == "lists":
        return lists(pa.struct({"ids": lists(ids), "scores": lists(floats)}))
    if field.kind == "vectors":
        return lists(lists(floats))
    if field.name in ("query", "vectors", "query_id", "query_groups"):
        return {"query": lists(floats), "vectors": lists(pa.list_(pa.float32()))}.get(field.name, ids)
    return {"ids": lists(ids), "floats": lists(floats), "integer": pa.int64(), "number": pa.float64()}[field.kind]


def table_and_rules(rng: random.Random) -> tuple[pa.Table, dict[str, Any]]:
    """Queries in columns, and the rules for all of them."""
    names = set(select_arrow._COLUMNS) - {"id"}
    draw = Drawer(rng, QUERY, names, typed=True)
    queries = [draw.query() for _ in range(rng.choice([2, 3, 5, 9]))]
    columns = {}
    for name in rng.sample(sorted(QUERY), len(QUERY)):
        if any(name in query for query in queries):
            values = [query.get(name) for query in queries]
            values = [x.tolist() if isinstance(x, np.ndarray) else x for x in values]
            column = pa.array(values, column_type(QUERY[name], draw.texts, rng))
            columns["vector" if name == "query" else name] = column
    few = rng.sample(sorted(rules.SHARED.difference(FUSED)), rng.choice([0, 0, 1, 2]))
    few += [name for name in FUSED[1:] if rng.random() < (0.5 if draw.fuses else 0.01)]
    common = {name: draw.value(QUERY[name], {}) for name in few}
    common = {**draw.rule(), "pool": rng.choice([5, 8, 100]), **common}
    if draw.corpus is not None:
        common["corpus"] = draw.corpus
    return pa.table(columns or {"query_id": [draw.id(1)]}), common


def rows_of(table: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    return [{name: x for name, x in row.items() if name != "query_id"} for row in table.to_pylist()]


def stream_of(table: pa.Table) -> bytes:
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def in_url(value: Any) -> Any:
    if isinstance(value, dict):
        return json.dumps(value)
    return ",".join(map(str, value)) if isinstance(value, list) else "all" if value is None else value


def by_arrow(rng: random.Random) -> None:
    table, common = table_and_rules(rng)
    other, of_other = table_and_rules(rng)

    def asked(some: pa.Table, common: dict[str, Any] = common) -> Asked:
        url = urlencode({name: in_url(x) for name, x in common.items()})
        return f"/v1/select?{url}", ARROW, stream_of(some)

    def told(answer: tuple[int, bytes], n: int) -> list[dict[str, Any]]:
        if answer[1][:1] == b"{":
            return [json.loads(answer[1])] * n
        return rows_of(pa.ipc.open_stream(answer[1]).read_all())

    n = len(table)
    singles = [asked(table.slice(i, 1)) for i in range(n)]
    answers = [service().post(each)[0] for each in singles]
    alone = [told(answer, 1)[0] for answer in answers]
    count("arrow", alone)
    what = (common, table.to_pydict(), table.schema)
    compare("arrow", told(service().post(asked(table))[0], n), alone, what)
    in_round, _ = shuffled(rng, singles, [asked(other, of_other)])
    compare("arrow in a round", in_round, answers, what)
    if "vectors" in table.column_names:  # without the column the ids of the answers may be of another type
        return
    for i, answer in enumerate(alone):
        row = table.slice(i, 1)
        less = row.select([name for name in row.column_names if not row.column(name).null_count])
        if less.column_names:
            compare("arrow without null", told(service().post(asked(less))[0], 1), [answer], what)


def by_handle(rng: random.Random) -> None:
    """Arrow Flight, whose streams are read here, and handles of Ray Serve; rules may have lists of ids."""
    table, common = table_and_rules(rng)
    lists = Drawer(rng, QUERY, fields.ID_LISTS, typed=True)
    lists.texts = common.get("corpus") == "names"
    if "corpus" in common and "vectors" not in table.column_names:
        few = rng.sample(sorted(fields.ID_LISTS), rng.choice([0, 1, 2]))
        common |= {name: lists.value(QUERY[name], {}) for name in few}
    held, is_flight = service().service, rng.random() < 0.5

    async def ask(some: pa.Table) -> list[dict[str, Any]]:
        try:
            if not is_flight:
                return rows_of(await answered(held, some, common))
            given = dict(common)
            served = held.corpora.without(given.pop("corpus", None))
            found = []
            for asked, _ in flight._read(stream_of(some), 0, given, served, held.limits, flight._PART):
                await held.batcher.answer(asked)
                found += rows_of(arrow_answers.batch_of(asked))
            return found
        except (RefusedError, ValueError) as error:
            return [{"error": str(error)}] * len(some)

    async def together() -> list[Any]:
        return await asyncio.gather(*(ask(table.slice(i, 1)) for i in range(len(table))), ask(table))

    alone = [service().run(ask(table.slice(i, 1)))[0] for i in range(len(table))]
    count("handle", alone)  # by either
    *singles, whole = service().run(together())
    compare("flight or handle", whole, alone, (common, table.to_pydict()))
    compare("flight or handle in a round", [each for [each] in singles], alone, (common, table.to_pydict()))


# Tensors


def tensor(name: str, array: np.ndarray) -> dict[str, Any]:
    kinds = {"O": "BYTES", "i": "INT64", "f": "FP32"}
    return {
        "name": name,
        "shape": list(array.shape),
        "datatype": kinds[array.dtype.kind],
        "data": array.ravel().tolist(),
    }


def by_tensors(rng: random.Random) -> None:
    """A tensor has a row for each query: nothing is absent or null, and a list that is all padding is empty."""
    n, names = rng.choice([2, 3, 5]), open_inference._INPUTS
    draw = Drawer(rng, QUERY, names, typed=True)
    wide = {name: rng.randrange(1, 9) for name in ("candidates", "initial", "allowed", "exclude")}
    wide["aspects"] = wide["weights"] = rng.choice([1, 2, 5])
    beside = (*fields.OF_CANDIDATES, "vectors")
    wide |= dict.fromkeys(beside, wide["candidates"])
    padding: Any = "" if draw.texts else -1
    arrays: dict[str, np.ndarray] = {}
    chosen = [name for name in draw.names if name != "candidates"] + ["candidates"] * (draw.own or rng.random() < 0.5)
    for name in [*(["vectors"] if draw.own else []), *chosen]:
        field = QUERY[name]
        if names[name] == 3:
            arrays[name] = rows(rng, n * wide[name]).reshape(n, wide[name], -1)
        elif name in ("groups", "query_groups"):
            shape = (n, wide["candidates"])[: names[name]]
            array = np.array([draw.id(rng.randrange(3)) for _ in range(np.prod(shape))])
            arrays[name] = array.astype(object if draw.texts else np.int64).reshape(shape)
        elif field.kind == "ids":
            most = wide["candidates"] if draw.own and name != "candidates" else N
            array = np.full((n, wide[name]), padding, object if draw.texts else np.int64)
            for row in array:
                size = rng.randrange(min(wide[name], most) + 1) if rng.random() < 0.8 else 0
                row[:size] = [draw.id(i) for i in rng.sample(range(most), size)]
                if size and rng.random() < draw.wild:
                    row[0] = draw.id(N + 7)
            arrays[name] = array
        elif names[name] == 2:
            numbers = rows(rng, n, wide[name])
            arrays[name] = (
                np.abs(numbers) + 0.1
                if name in ("quality", "weights", "costs") and rng.random() > draw.wild
                else numbers
            )
        else:
            values = [draw.bad(field, {}) if rng.random() < draw.wild else draw.value(field, {}) for _ in range(n)]
            arrays[name] = np.array(values)
    if draw.own or rng.random() < 0.6:
        arrays["vector"] = rows(rng, n)
        arrays["vector"][:, 0] = [np.float32(3e38) * 10 if rng.random() < draw.wild / 2 else 1 for _ in range(n)]
    else:
        arrays["query_id"] = np.array([draw.id(rng.randrange(N)) for _ in range(n)], object if draw.texts else np.int64)
    few = rng.sample(open_inference._RULES, rng.choice([0, 1, 2]))
    parameters = {**draw.rule(), "pool": rng.choice([5, 8, 100]), **{name: draw.value(QUERY[name], {}) for name in few}}

    def asked(queries: slice, trimmed: bool = False) -> Asked:
        some = {name: array[queries] for name, array in arrays.items()}
        for name, array in list(some.items()) if trimmed else ():
            if name in fields.ID_LISTS:
                kept = int((array[0] != padding).sum())  # padding is at the end
                some[name] = array[:, :kept]
                for other in beside if name == "candidates" else ():
                    if other in some:
                        some[other] = arrays[other][queries][:, :kept]
        with np.errstate(over="ignore"):
            inputs = [tensor(name, array) for name, array in some.items()]
        rule = {name: json.dumps(x) if isinstance(x, dict) else x for name, x in parameters.items()}
        body = json.dumps({"inputs": inputs, "parameters": rule}).replace("Infinity", "1e39")
        return f"/v2/models/{draw.corpus or 'vectors'}/infer", [], body.encode()

    def told(answer: tuple[int, bytes], rows: int) -> list[dict[str, Any]]:
        content = json.loads(answer[1])
        if "error" in content:  # of all: that of the first
            first = {"error": content["error"]}  # without its code, which only an answer of errors alone has
            return [first, *(each for each in alone[1:] if "error" in each)][:rows]
        found = {x["name"]: np.array(x["data"], object).reshape(x["shape"]) for x in content["outputs"]}
        errors, lengths = found.pop("errors"), found.pop("lengths")
        sizes = {"skipped": [len([x for x in row if x not in (-1, "")]) for row in found.get("skipped", ())]}
        return [
            {"error": errors[i]}
            if errors[i]
            else {
                name: array[i] if array.ndim == 1 else array[i, : sizes.get(name, lengths)[i]].tolist()
                for name, array in found.items()
            }
            for i in range(rows)
        ]

    singles = [asked(slice(i, i + 1)) for i in range(n)]
    answers = [service().post(each)[0] for each in singles]
    alone: list[dict[str, Any]] = []
    alone += [told(answer, 1)[0] for answer in answers]
    count("tensors", alone)
    what = asked(slice(None))
    compare("tensors", told(service().post(what)[0], n), alone, what)
    in_round, _ = shuffled(rng, singles, [what])
    compare("tensors in a round", in_round, answers, what)
    trimmed = [service().post(asked(slice(i, i + 1), True))[0] for i in range(n)]
    compare("tensors without padding", [told(each, 1)[0] for each in trimmed], alone, what)


# Rerank shapes


def by_rerank(rng: random.Random) -> None:
    shape = rng.choice(list(shapes._KINDS))
    taken = {name: field for name, field in RERANK.items() if name not in ("model", *shapes._KINDS)}
    bodies, draw = [], Drawer(rng, taken, taken)
    for _ in range(rng.choice([2, 4])):
        body = draw.query()
        if body.get("query_id") is None and body.get("query") is None:
            body["query"] = f"id:{draw.id(3)}"
        ids = [draw.id(i) for i in rng.sample(range(N), rng.randrange(9))]
        bodies.append({"model": draw.corpus, shape: ids, **body})

    def asked(body: dict[str, Any]) -> Asked:
        return rng.choice(rerank._PATHS[:3]), [], json.dumps(body).encode()

    def told(answer: tuple[int, bytes]) -> Any:
        content = json.loads(answer[1])
        if isinstance(content, dict):
            content.pop("id", None)
        return content

    alone = [told(service().post(asked(body))[0]) for body in bodies]
    count("rerank", alone)
    [in_round] = shuffled(rng, [asked(body) for body in bodies])
    compare("rerank in a round", list(map(told, in_round)), alone, bodies)
    less = [{name: x for name, x in body.items() if x is not None} for body in bodies]
    compare("rerank without null", [told(service().post(asked(body))[0]) for body in less], alone, bodies)


# The library


def by_library(rng: random.Random) -> None:
    """`Corpus.select` with ``on_error="skip"``: lists of any length, and a number for each query."""
    n, draw = rng.choice([2, 3, 5, 9]), Drawer(rng, QUERY, (*fields.ID_LISTS, *fields.NUMBERS, "k"), typed=True)
    corpus = service().service.corpora.get("names" if "budget" in draw.names else "docs").corpus
    draw.texts, method = False, rng.choice(sorted(METHODS))
    given: dict[str, Any] = {"queries": rows(rng, n), "k": 4}
    lacks = {"lambda_d", "lambda_b"} - set(METHODS[method].parameters)
    lacks |= {"initial", "budget", "max_similarity"} if method == "gist" else set()
    for name in (name for name in draw.names if name not in lacks):
        field = QUERY[name]
        states = [rng.choices(("given", "empty", "bad"), (6, 2, 10 * draw.wild))[0] for _ in range(n)]
        values = [
            draw.drawn(field, "given" if state == "empty" and field.kind != "ids" else state, {}) for state in states
        ]
        given[name] = values if field.kind == "ids" else np.array(values)
    if rng.random() < draw.wild:
        given["queries"][rng.randrange(n)] = np.nan
    options = {"method": method, "pool": rng.choice([None, 5, 8]), "on_error": "skip", "num_threads": 1}
    if method == "mmr" and "candidates" not in given and rng.random() < 0.2:
        options["pool"] = "certified"

    def told(queries: slice) -> list[dict[str, Any]]:
        own = {name: x if isinstance(x, int) else x[queries] for name, x in given.items()}
        try:
            found = corpus.select(**own, **options)
        except (ValueError, TypeError) as error:
            return [{"error": str(error)}] * len(range(n)[queries])
        proven = [None] * n if found.certified is None else found.certified.tolist()
        picks = [[field[q, :length].tobytes() for field in found[:4]] for q, length in enumerate(found.lengths)]
        every = enumerate(zip(picks, proven, strict=False))
        return [{"error": found.errors[q]} if q in found.errors else {"picks": each} for q, each in every]

    alone = [told(slice(i, i + 1))[0] for i in range(n)]
    count("library", alone)
    compare("library", told(slice(None)), alone, (options, given))


ENTRANCES: dict[str, tuple[Callable[[random.Random], None], int]] = {
    "json": (by_json, 8),
    "arrow": (by_arrow, 5),
    "handle": (by_handle, 2),
    "tensors": (by_tensors, 3),
    "rerank": (by_rerank, 2),
    "library": (by_library, 5),
}


def run_one(seed: int, number: int) -> int:
    rng = random.Random(f"{seed} {number}")
    [name] = rng.choices(list(ENTRANCES), [share for _, share in ENTRANCES.values()])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ENTRANCES[name][0](rng)
    return 1


FUZZER = Fuzzer(__file__, "batches", 10_000, run_one, lambda seed, number: f"batch {number} of seed {seed}")

if __name__ == "__main__":
    sys.exit(main(FUZZER, __doc__ or ""))
