"""``/v1/select``: the picks and bits of calls in process, whatever was batched with a query."""

import asyncio
import re
import shutil
import threading

import numpy as np
import orjson
import pyarrow as pa
import pytest
import servers

import ragsys_kernels as rk
from ragsys_kernels import offline
from ragsys_kernels.corpus import faiss_index
from ragsys_kernels.serving import Limits, create_app
from ragsys_kernels.serving.routes import select, select_arrow

RNG = np.random.default_rng(20)
N, D = 300, 24
METHODS = ["mmr", "vrsd", "msd", "dpp", "ssd", "sift", "coverage"]


@pytest.fixture(scope="module", params=["cosine", "dot"])
def corpus(request):
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((N, D), dtype=np.float32)
    return rk.Corpus(rows, bias=rng.uniform(-2, 0, N).astype("f4"), groups=rng.integers(0, 40, N), metric=request.param)


def some_query(rng, corpus):
    """A query as the JSON has it, and what the call in process that it stands for returns: ids, values, certificate.

    Its candidates are rows of the corpus, or come with their vectors.
    """
    own = rng.random() < 0.4
    method, dims = str(rng.choice(METHODS if own else ["mmr", "vrsd"])), int(rng.choice([D, 16])) if own else D
    query, call = {"method": method, "k": int(rng.integers(1, 9))}, {"num_threads": 1}
    if method not in ("vrsd", "sift"):
        for name in ("lambda_d",) if own else ("lambda_d", "lambda_b"):
            query[name] = call[name] = float(np.float32(rng.uniform()))
    vector = rng.standard_normal(dims, dtype=np.float32)
    if rng.random() < 0.5:
        query["query"] = vector.tolist() if rng.random() < 0.5 else servers.encoded(vector)
    elif own or rng.random() < 0.5:
        query["query"], vector = servers.encoded(vector.astype("f2")), vector.astype("f2").astype("f4")
    else:
        query["query_id"] = int(rng.integers(N))
        vector = corpus.vectors(np.array([query["query_id"]]))[0].astype(np.float32)
    kind, ids, count = rng.random(), range(N), int(rng.integers(1, 60))
    if own:
        vectors = rng.standard_normal((count, dims)).astype(rng.choice(["f4", "f2"]))
        query["vectors"], call["candidates"] = servers.encoded(vectors), np.arange(count)[None]
        query["metric"] = call["metric"] = str(rng.choice(["cosine", "dot"]))
        mixed = rng.permutation(count).tolist()
        ids = [range(count), [10**6 + i for i in mixed], [f"doc {i}" for i in mixed]][int(3 * kind)]
        if kind >= 1 / 3:
            query["candidates"] = ids
    elif kind < 0.4:
        rows = rng.choice(N, count, replace=False)
        query["candidates"], call["candidates"] = rows.tolist(), rows[None]
    else:
        query["pool"] = call["pool"] = int(rng.integers(1, 80)) if kind < 0.8 else None
    if "candidates" in call and rng.random() < 0.3:
        scores = rng.uniform(size=count).astype(np.float32)
        query["relevance"], call["relevance"] = scores.tolist(), scores[None]
    for name, share in (("initial", 4), ("exclude", 20), ("allowed", 200)):
        if rng.random() < 0.25:
            places = rng.choice(len(ids), int(rng.integers(1, min(share, len(ids)) + 1)), replace=False)
            query[name], call[name] = [ids[place] for place in places], places[None]
    if not own and rng.random() < 0.2:
        query["max_per_group"] = call["max_per_group"] = int(rng.integers(1, 3))
    if own:
        picks = getattr(rk, method)(vector[None], vectors, query["k"], **call)
    else:
        picks = corpus.select(vector[None], query["k"], method=method, **call)
    return query, answer_of(picks, ids)


def answer_of(picks, ids):
    """What an answer has to the bit."""
    n, certified = int(picks.lengths[0]), getattr(picks, "certified", None)
    values = [np.asarray(field[0, :n]).tobytes() for field in picks[1:4]]
    return [ids[row] for row in picks.indices[0, :n]], values, None if certified is None else bool(certified[0])


def told(result):
    """What a result of the JSON has."""
    values = [np.array(result[name], np.float32).tobytes() for name in ("scores", "relevance", "redundancy")]
    return result["ids"], values, result["certified"]  # null among the values: NaN


@pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")
def test_answers_have_the_bits_of_calls_in_process(corpus):
    rng = np.random.default_rng(5)
    asked = [[some_query(rng, corpus) for _ in range(size)] for size in (1, 1, 1, 2, 3, 7, 20) * 8]

    def body(queries):
        """Some of the rules of a query alone stand beside it: those of two requests then meet in a call."""
        given = [dict(query) for query, _ in queries]
        beside = ("k", "lambda_d", "lambda_b", "method", "pool") if len(given) == 1 and rng.random() < 0.7 else ()
        return {"queries": given, **{name: given[0].pop(name) for name in beside if name in given[0]}}

    async def use(client, service):
        bodies = [body(queries) for queries in asked]
        return await asyncio.gather(*(client.post("/v1/select", json=body) for body in bodies))

    answers = servers.run({"docs": corpus}, use)
    certified = set()
    for queries, answer in zip(asked, answers, strict=True):
        assert answer.status_code == 200
        for (query, expected), result in zip(queries, answer.json()["results"], strict=True):
            assert told(result) == expected, (query, result)
            certified.add(result["certified"])
    assert certified == ({True, False, None} if corpus.metric == "cosine" else {True, None})


@pytest.mark.parametrize("name", ["allowed", "exclude"])
def test_each_query_of_a_long_request_has_its_own_filter(corpus, name):
    """A request of several blocks: the filter stays with its query, wherever that stands."""
    rng = np.random.default_rng(9)
    masks = rng.random((N, N)) < 0.3
    lists = [np.flatnonzero(mask if name == "allowed" else ~mask).tolist() for mask in masks]
    body = {"k": 4, "queries": [{"query_id": i, name: each} for i, each in enumerate(lists)]}
    results = [told(result) for result in servers.posted({"docs": corpus}, ("/v1/select", body))[0].json()["results"]]
    vectors = corpus.vectors(np.arange(N)).astype(np.float32)
    for query in (0, 1, 43, 44, 255, 256, 257, N - 1):
        picks = corpus.select(vectors[query : query + 1], 4, allowed=masks[query])
        assert results[query] == answer_of(picks, range(N))
    for (ids, *_), mask in zip(results, masks, strict=True):
        assert len(ids) == 4
        assert mask[ids].all()


@pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")
@pytest.mark.parametrize(
    ("scale", "method"), [("as-is", "mmr"), ("minmax", "vrsd"), ("zscore", "dpp"), ("rank", "mmr")]
)
def test_relevance_on_a_scale_has_the_bits_of_calls_in_process(corpus, scale, method):
    rng = np.random.default_rng(8)
    sizes = [int(n) for n in rng.integers(1, 40, 30)]
    ids = [rng.choice(N, n, replace=False) for n in sizes]
    scores = [rng.uniform(0, 9, n).astype(np.float32).round(1) for n in sizes]
    query = {"query_id": 3, "k": 4, "method": method, "relevance_scale": scale}
    queries = [{**query, "candidates": x.tolist(), "relevance": y.tolist()} for x, y in zip(ids, scores, strict=True)]

    async def use(client, _):
        alone = [client.post("/v1/select", json={"queries": [query]}) for query in queries]
        together = client.post("/v1/select", json={"queries": [{**query, "candidates": [1]}, *queries]})
        *alone, together = await asyncio.gather(*alone, together)
        return [answer.json()["results"][0] for answer in alone], together.json()["results"]

    alone, (first, *together) = servers.run({"docs": corpus}, use)
    if scale == "as-is":
        assert first["ids"] == [1]
    else:
        assert first["error"]["argument"] == "relevance_scale"
    vector = corpus.vectors(np.array([3])).astype(np.float32)
    for x, y, one, other in zip(ids, scores, alone, together, strict=True):
        call = {"candidates": x[None], "relevance": y[None], "relevance_scale": scale, "method": method}
        expected = answer_of(corpus.select(vector, 4, num_threads=1, **call), range(N))
        assert told(one) == told(other) == expected


def test_the_index_of_a_corpus_finds_the_pools(tmp_path, monkeypatch):
    pytest.importorskip("faiss")
    rows = np.random.default_rng(4).standard_normal((900, 16), dtype=np.float32)
    np.save(tmp_path / "v.npy", rows)
    corpus = offline.build_corpus(
        tmp_path / "v.npy", tmp_path / "c", rows_per_segment=300, index="IVF16,Flat", search_parameters="nprobe=2"
    )
    queries = [{"query_id": row, "k": 4, "pool": 30} for row in range(20)]
    (info,) = servers.run({"docs": tmp_path / "c"}, lambda client, _: asyncio.gather(client.get("/info")))
    assert info.json()["corpora"]["docs"]["index"] == "IVF16,Flat (nprobe=2)"
    (answer,) = servers.posted({"docs": corpus}, ("/v1/select", {"queries": queries}))
    picks = corpus.select(corpus.vectors(np.arange(20)).astype(np.float32), 4, pool=30)
    assert [each["ids"] for each in answer.json()["results"]] == picks.indices.tolist()
    assert {each["certified"] for each in answer.json()["results"]} == {None}
    assert (picks.indices != corpus.select(rows[:20], 4, pool=30, index=False).indices).any()
    with monkeypatch.context() as patch:  # a folder that loads, and cannot be searched
        patch.setattr(faiss_index, "set_parameters", lambda *_: None)
        offline.build_corpus(tmp_path / "v.npy", tmp_path / "bad", index="IVF16,Flat", search_parameters="nprobe=0")
    why = "select: search_parameters must be ones of the index.*'nprobe=0'"
    with pytest.raises(ValueError, match=f"^serve: corpus 'other' cannot be served: {why}"):
        create_app({"docs": corpus, "other": tmp_path / "bad"})

    async def reloaded(client, _):
        shutil.rmtree(tmp_path / "c")
        shutil.copytree(tmp_path / "bad", tmp_path / "c")
        return await client.post("/v1/corpora/docs/reload", headers={"x-requested-with": "test"}), await client.post(
            "/v1/select", json={"queries": queries}
        )

    refused, again = servers.run({"docs": tmp_path / "c"}, reloaded)
    assert refused.status_code == 409
    why = f"reload: name must .*; corpus 'docs' stays as it was: {why}"
    assert re.match(why, refused.json()["error"]["message"])
    assert again.json()["results"] == answer.json()["results"]


@pytest.mark.parametrize("kind", ["json", "arrow"])
def test_a_long_request_is_read_and_its_answer_joined_beside_others(monkeypatch, kind):
    """In a thread, and in parts of about a MiB: while one is joined no other request is answered."""
    module, name = (select, "written") if kind == "json" else (select_arrow, "written")
    plain, read, parts, threads = getattr(module, name), select.parsed, [], []
    monkeypatch.setattr(module, name, lambda *given: parts.append(plain(*given)) or parts[-1])
    monkeypatch.setattr(
        select, "parsed", lambda *given: threads.append(threading.current_thread().name) or read(*given)
    )
    corpora = {"docs": rk.Corpus(np.random.default_rng(1).standard_normal((900, 4), dtype=np.float32))}
    count, rules = 1100, {"k": 40, "pool": 50, "lambda_d": 1.0}
    if kind == "json":
        path, headers = "/v1/select", {}
        body = orjson.dumps({"queries": [{"query_id": i % 900} for i in range(count)], **rules})
    else:
        path, headers = "/v1/select?k=40&pool=50&lambda_d=1.0", servers.ARROW
        body = servers.arrow(pa.table({"query_id": np.arange(count) % 900}))
    with servers.Thread(corpora, limits=Limits(timeout_ms=1000 * servers.HANGS)) as server:
        answer = servers.http.post(f"{server.url}{path}", content=body, headers=headers)
    (inside,) = servers.posted(corpora, (path, body, headers))
    assert (answer.status_code, answer.content) == (inside.status_code, inside.content)
    assert int(answer.headers["content-length"]) == sum(map(len, parts[0])) == len(answer.content)
    if kind == "json":
        assert max(map(len, parts[0])) < 1.1 * 2**20 < len(answer.content)
        picks = corpora["docs"].select(corpora["docs"].vectors(np.arange(count) % 900), 40, pool=50, lambda_d=1.0)
        assert [each["ids"] for each in orjson.loads(answer.content)["results"]] == picks.indices.tolist()
        assert threads[0].startswith("parser")
