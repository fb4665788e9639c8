"""Texts of picks, vectors of texts and MMR at every λ, as the service answers them."""

import asyncio
import base64
import threading
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import servers

import ragsys_kernels as rk
from ragsys_kernels import offline
from ragsys_kernels.serving import Limits, TextFile
from ragsys_kernels.serving import service as services
from ragsys_kernels.serving.encoder import LocalEncoder
from ragsys_kernels.serving.queries.cursors import encoded
from ragsys_kernels.serving.stop import Stop
from ragsys_kernels.serving.texts import Texts

N, D = 300, 16
RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((N, D), dtype=np.float32)
IDS = 7 * np.arange(N) - 40
WORDS = [f"Nº {i}: <b>&amp;</b> 𝔘\x00\n" + "é" * (i * 37 % 411) for i in IDS.tolist()]


def post(corpus, *asked, **options):
    """What the service says to requests, (path, body)."""
    return servers.posted({"docs": corpus}, *asked, **options)


def write(path, ids=IDS, words=WORDS, kind="string", size=41):
    """The texts in an order of their own."""
    order = np.random.default_rng(1).permutation(len(ids))
    table = pa.table(
        {
            "id": [ids[i] for i in order],
            "text": pa.array([words[i] for i in order]).cast(
                pa.type_for_alias(kind) if isinstance(kind, str) else kind
            ),
        }
    )
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=size)
    else:
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table, max_chunksize=size)
    return TextFile(str(path))


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
@pytest.mark.parametrize("kind", ["string", "large_string", pa.dictionary(pa.int32(), pa.string())])
def test_each_id_has_its_own_text_whatever_the_order_of_the_file(tmp_path, name, kind):
    corpus, file = rk.Corpus(ROWS, ids=IDS), write(tmp_path / name, kind=kind)
    order = np.random.default_rng(2).permutation(N)[:120]
    asked = [int(each) for each in [*IDS[order], 5, IDS[0], IDS[0]]]
    known = dict(zip(IDS.tolist(), WORDS, strict=True))
    whole, cut = post(
        corpus,
        ("/v1/texts", {"ids": asked}),
        ("/v1/texts", {"ids": asked, "chars": 30}),
        texts={"docs": file},
    )
    expected = [None if each == 5 else {"text": known[each], "chars": len(known[each])} for each in asked]
    assert whole.json() == {"texts": expected}
    assert cut.json()["texts"] == [each and {**each, "text": each["text"][:30]} for each in expected]


def test_strings_folders_and_rows_without_ids(tmp_path):
    names = [f"d{i}" for i in range(N)]
    for part in range(3):
        write(tmp_path / f"{part}.parquet", names[part::3], WORDS[part::3])
    write(tmp_path / "_no.parquet", names, ["no"] * N)
    corpus = rk.Corpus(ROWS, ids=names)
    [answer] = post(corpus, ("/v1/texts", {"ids": ["d7", "d0", "x"]}), texts={"docs": TextFile(str(tmp_path))})
    assert [each and each["text"] for each in answer.json()["texts"]] == [WORDS[7], WORDS[0], None]
    pq.write_table(pa.table({"body": WORDS}), tmp_path / "rows.parquet", row_group_size=50)
    file = TextFile(str(tmp_path / "rows.parquet"), "body")
    [answer] = post(rk.Corpus(ROWS), ("/v1/texts", {"ids": [299, 3]}), texts={"docs": file})
    assert [each["text"] for each in answer.json()["texts"]] == [WORDS[299], WORDS[3]]


def test_picks_have_their_texts_on_request(tmp_path):
    corpus, file = rk.Corpus(ROWS, ids=IDS), write(tmp_path / "a.parquet")
    vectors = base64.b64encode(ROWS[:9].tobytes()).decode()
    queries = [
        {"query_id": int(IDS[3])},
        {"query_id": 5},
        {"query": ROWS[0].tolist(), "vectors": {"b64": vectors, "shape": [9, D]}, "k": 3},
        {"query_id": int(IDS[8]), "k": 2, "method": "vrsd"},
    ]
    plain, whole, cut, false = post(
        corpus,
        *(
            ("/v1/select", {"corpus": "docs", "k": 5, "queries": queries, **more})
            for more in ({}, {"texts": True}, {"texts": 12}, {"texts": False})
        ),
        texts={"docs": file},
    )
    assert false.content == plain.content
    known = dict(zip(IDS.tolist(), WORDS, strict=True))
    for answer, chars in ((whole, None), (cut, 12)):
        for number, (found, expected) in enumerate(zip(answer.json()["results"], plain.json()["results"], strict=True)):
            given = found.pop("texts", None)
            assert found == expected
            if number == 1:
                assert given is None
            elif number == 2:  # of its own candidates the server knows no text
                assert given == [None] * 3
            else:
                words = [known[each] for each in found["ids"]]
                assert given == [{"text": each[:chars], "chars": len(each)} for each in words]


def test_what_is_asked_for_is_held_to_the_limits(tmp_path):
    words = [f"{i:06}" + "x" * 3000 for i in range(N)]
    corpus, file = rk.Corpus(ROWS, ids=IDS), write(tmp_path / "a.parquet", words=words)
    limits = Limits(body_bytes=20_000, candidates=50)
    select = {"queries": [{"query_id": int(IDS[3])}], "k": 10}
    many = {"queries": [{"query_id": int(each), "k": 30} for each in IDS[:2]], "texts": 2}
    ids = IDS[:8].tolist()
    cases = [
        ("/v1/texts", {"ids": ids}, 413, "of fewer or shorter texts"),
        ("/v1/texts", {"ids": ids, "chars": 100}, 200, ""),
        ("/v1/texts", {"ids": IDS[:51].tolist()}, 422, "texts: ids must be a list of 0 to 50 ids, integers"),
        ("/v1/texts", {"ids": ["a"]}, 422, "integers in this corpus"),
        ("/v1/texts", {"ids": [True]}, 422, "integers in this corpus"),
        ("/v1/texts", {"ids": [2**63]}, 422, "integers of 64 bits"),
        ("/v1/texts", {"ids": ids, "chars": 0}, 422, "texts: chars must be an integer of at least 1, got 0"),
        ("/v1/texts", {"ids": ids, "file": "/etc/passwd"}, 422, "must be one of chars, corpus, ids"),
        ("/v1/texts", {"ids": ids, "corpus": "other"}, 422, "texts: corpus must be one of 'docs'"),
        ("/v1/select", {**select, "texts": True}, 413, "of fewer or shorter texts"),
        ("/v1/select", {**select, "texts": 1}, 200, ""),
        ("/v1/select", many, 413, "texts must be at most 50, got 60"),
        ("/v1/select", {**select, "texts": "yes"}, 422, "select: texts must be true, or how many characters"),
        ("/v1/select", {**select, "texts": -1}, 422, "select: texts must be true, or how many characters"),
    ]
    answers = post(corpus, *((path, body) for path, body, _, _ in cases), texts={"docs": file}, limits=limits)
    for (path, body, status, message), answer in zip(cases, answers, strict=True):
        assert (answer.status_code, message in answer.text) == (status, True), (path, body, answer.text)
    for path, body in (("/v1/texts", {"ids": ids}), ("/v1/select", {**select, "texts": True})):
        [answer] = post(corpus, (path, body))
        assert answer.status_code == 422
        assert "be left out: corpus 'docs' has no texts here" in answer.text


def test_memory_holds_some_rows_of_a_file_at_a_time(tmp_path):
    """A row group of 40 MB, out of which two texts are read."""
    count, word = 10_000, "x" * 4000
    pq.write_table(pa.table({"text": [f"{i} {word}" for i in range(count)]}), tmp_path / "a.parquet")
    texts = Texts(TextFile(str(tmp_path / "a.parquet")), rk.Corpus(RNG.standard_normal((count, 2), dtype=np.float32)))
    before = pa.total_allocated_bytes()
    peak, done = [0], threading.Event()

    def look():
        while not done.wait(0.001):
            peak[0] = max(peak[0], pa.total_allocated_bytes() - before)

    looking = threading.Thread(target=look)
    looking.start()
    tracemalloc.start()
    found = texts.read([9_990, 3], 20, 1 << 20)
    _, python = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    done.set()
    looking.join()
    assert [each.text[:7] for each in found] == ["9990 xx", "3 xxxxx"]
    assert peak[0] < 24 << 20
    assert python < 1 << 20


def test_files_that_do_not_fit_are_refused_when_the_server_starts(tmp_path):
    corpus = rk.Corpus(ROWS, ids=IDS)

    def refused(match, given, of=corpus, kind=ValueError):
        with pytest.raises(kind, match=match):
            Texts(given, of)

    def table(name="b.parquet", **columns):
        pq.write_table(pa.table(columns), tmp_path / name)
        return TextFile(str(tmp_path / name))

    refused("texts must be an existing file or folder", TextFile("none.parquet"), kind=FileNotFoundError)
    (tmp_path / "a.txt").touch()
    refused(r"texts must be a \.parquet, \.arrow", TextFile(str(tmp_path / "a.txt")))
    (tmp_path / "empty").mkdir()
    refused(r"texts must be a folder of \.parquet files, got none", TextFile(str(tmp_path / "empty")))
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no, PAR1")
    refused("texts must be readable", TextFile(str(tmp_path / "bad.parquet")))
    refused("texts must have one column 'text'", table(id=[1], body=["a"]))
    refused("texts must have text in column 'text', got int64", table(id=[1], text=[2]))
    refused("texts must have one column 'id'", table(text=["a"]))
    refused("texts must have ids in column 'id', got double", table(id=[1.5], text=["a"]))
    refused("texts must have the corpus's ids", table(id=["a"], text=["a"]))
    refused("texts must have ids of the corpus, got none", table(id=[1], text=["a"]))
    refused("texts must have an id once, got -40 twice", table(id=[-40, -33, -40], text=["a", "b", "c"]))
    refused("have a row for each of the corpus's 300, for it has no ids, got 1", table(text=["a"]), rk.Corpus(ROWS))
    with pytest.raises(ValueError, match="texts must be of a corpus that is served, got 'other'"):
        post(corpus, texts={"other": table(id=[1], text=["a"])})


def test_an_id_that_is_twice_in_the_file_is_found_across_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr("ragsys_kernels.serving.texts._IDS", 2)
    table = pa.table({"id": [-40, 1, 2, 3, -40], "text": list("abcde")})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    with pytest.raises(ValueError, match="got -40 twice"):
        Texts(TextFile(str(tmp_path / "a.parquet")), rk.Corpus(ROWS, ids=IDS))


def test_a_file_that_is_damaged_later_is_an_error_of_the_request(tmp_path):
    file = write(tmp_path / "a.parquet")

    async def use(client, _):
        with open(tmp_path / "a.parquet", "r+b") as damaged:
            damaged.seek(4)
            damaged.write(b"\xff" * 400)
        return await client.post("/v1/texts", json={"ids": IDS.tolist()})

    answer = servers.run({"docs": rk.Corpus(ROWS, ids=IDS)}, use, texts={"docs": file})
    assert answer.status_code == 500
    assert "the file of the texts must be readable" in answer.text
    assert str(tmp_path) not in answer.text


def test_a_reload_takes_the_texts_of_new_rows(tmp_path):
    folder = tmp_path / "corpus"
    pq.write_table(pa.table({"id": [1, 2], "vector": ROWS[:2].tolist()}), tmp_path / "rows.parquet")
    offline.build_corpus(tmp_path / "rows.parquet", folder, rows_per_segment=10)
    write(tmp_path / "a.parquet", [1, 2], ["one", "two"])

    async def use(client, service):
        async def found():
            answer = await client.post("/v1/texts", json={"ids": [1, 2, 3]})
            rows = (await client.get("/info")).json()["corpora"]["docs"]["texts"]
            return [each and each["text"] for each in answer.json()["texts"]], rows

        before = await found()
        pq.write_table(pa.table({"id": [3], "vector": ROWS[2:3].tolist()}), tmp_path / "rows.parquet")
        offline.append_corpus(tmp_path / "rows.parquet", folder)
        (tmp_path / "gone.txt").write_text("1\n")
        offline.delete_rows(tmp_path / "gone.txt", folder)
        write(tmp_path / "new.parquet", [2, 3], ["two", "three"])
        (tmp_path / "new.parquet").rename(tmp_path / "a.parquet")
        await service.reload("docs")
        return before, await found()

    before, after = servers.run({"docs": folder}, use, texts={"docs": TextFile(str(tmp_path / "a.parquet"))})
    assert before == (["one", "two", None], 2)
    assert after == ([None, "two", "three"], 2)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("bias", [False, True])
def test_a_path_has_the_picks_of_every_lambda(dtype, bias):
    quality = RNG.uniform(-1, 0, N).astype(np.float32) if bias else None
    corpus = rk.Corpus(ROWS, ids=IDS, dtype=dtype, bias=quality)
    query = {"query_id": int(IDS[4]), "exclude": [int(IDS[4])], "pool": 60, "lambda_b": 0.8}
    weights = [0.0, 0.31, 0.5, 0.77, 1.0]
    path, selected = post(
        corpus,
        ("/v1/path", {**query, "k": 6}),
        ("/v1/select", {"k": 6, "queries": [{**query, "lambda_d": each} for each in weights]}),
    )
    segments = path.json()["segments"]
    assert segments[0]["low"] == 0
    assert segments[-1]["high"] == 1
    assert [np.nextafter(each["high"], 2) for each in segments[:-1]] == [each["low"] for each in segments[1:]]
    for weight, picks in zip(weights, selected.json()["results"], strict=True):
        [segment] = [each for each in segments if each["low"] <= np.float32(weight) <= each["high"]]
        assert segment["ids"] == picks["ids"]
        assert segment["relevance"] == pytest.approx(picks["relevance"], abs=1e-3 if dtype == "int8" else 1e-5)
        assert segment["redundancy"] == pytest.approx(picks["redundancy"], abs=1e-3 if dtype == "int8" else 1e-5)


def test_a_path_keeps_to_filters_groups_and_budgets():
    groups, costs = RNG.integers(0, 4, N), RNG.integers(1, 9, N).astype(np.float64)
    corpus = rk.Corpus(ROWS, ids=IDS, groups=groups, costs=costs, bias=RNG.uniform(-1, 0, N))
    ids, scores = IDS.tolist(), RNG.uniform(-1, 1, 40).tolist()
    given = {"query": None, "candidates": ids[:40], "relevance": scores}
    apart = ids[np.argmin(ROWS @ ROWS[7])]
    rules = [
        {"candidates": ids[:40]},
        {"candidates": ids[:40], "allowed": ids[10:90], "exclude": ids[14:40]},
        {"allowed": ids[10:30], "exclude": ids[12:15]},
        {"max_per_group": 1, "k": 4},
        {"budget": 11},
        {"max_similarity": 0.1},
        {"candidates": [*ids[:4], 5], "unknown": "skip"},
        {"initial": IDS[np.argsort(-(ROWS @ ROWS[7]))[:25]].tolist(), "pool": 20},
        {"initial": [apart], "pool": 20, "max_similarity": 0.5},
        {"initial": [*ids[20:50], 5], "candidates": ids[:40], "unknown": "skip", "max_per_group": 30},
        {"initial": ids[3:5], "cursor": encoded(IDS[5:9])},
        given,
        {**given, "candidates": [*ids[:39], 5], "unknown": "skip", "relevance_scale": "zscore", "allowed": ids[5:]},
        {**given, "relevance_scale": "minmax", "exclude": ids[5:9], "initial": ids[35:44], "budget": 20},
    ]
    queries = [{"query": ROWS[7].tolist(), **rule} for rule in rules]
    *paths, selected = post(
        corpus,
        *(("/v1/path", {"k": 5, **query}) for query in queries),
        ("/v1/select", {"k": 5, "lambda_d": 0.6, "queries": queries}),
    )
    for rule, path, picks in zip(rules, paths, selected.json()["results"], strict=True):
        assert path.status_code == 200, (rule, path.text)
        [segment] = [each for each in path.json()["segments"] if each["low"] <= np.float32(0.6) <= each["high"]]
        assert segment["ids"] == picks["ids"], rule
        for name in ("relevance", "redundancy"):
            assert segment[name] == pytest.approx(picks[name], abs=1e-5), (rule, name)


def test_paths_that_would_take_long_are_refused():
    corpus = rk.Corpus(ROWS, ids=IDS)
    query = {"query_id": int(IDS[4])}
    cases = [
        ({"candidates": [query["query_id"]] * 2}, f"repeat an id within a query, got {IDS[4]} twice"),
        ({"k": 51}, "path: k must be within [1, 50], got 51"),
        ({"k": 0}, "path: k must be within [1, 50], got 0"),
        ({"pool": 201}, "path: pool must be within [1, 200], got 201"),
        ({"pool": None}, "path: pool must be at most 200, got the whole corpus"),
        ({"candidates": IDS[:201].tolist()}, "path: candidates must be at most 200, got 201"),
        ({"method": "vrsd"}, "path: method must be one of allowed"),
        ({"lambda_d": 0.5}, "path: lambda_d must be one of allowed"),
        ({"query_id": 5}, "path: query_id must be ids of the corpus, got 5"),
        ({"query": ROWS[0].tolist()}, "path: query must come without query_id, got both"),
        ({"budget": 3}, "path: budget must be left out: the corpus has no costs"),
        (
            {"pool": 195, "initial": IDS[:6].tolist()},
            "path: pool must be at most 200 with initial items, got 195 and 6",
        ),
        ({"relevance": [1.0]}, "path: relevance must come with candidates, got relevance alone"),
        ({"metric": "dot"}, "path: metric must be one of allowed"),
    ]
    answers = post(corpus, *(("/v1/path", {**query, **more}) for more, _ in cases), limits=Limits(path_pool=200))
    for (more, message), answer in zip(cases, answers, strict=True):
        assert (answer.status_code, message in answer.text) == (422, True), (more, answer.text)


def test_what_is_late_when_its_turn_comes_is_not_read(tmp_path, monkeypatch):
    file, its_turn, stops = write(tmp_path / "a.parquet"), threading.Event(), []
    monkeypatch.setattr(services, "Stop", lambda: stops.append(Stop()) or stops[-1])

    async def use(client, service):
        service._lookers.submit(its_turn.wait, servers.HANGS)
        asked = client.post("/v1/texts", json={"ids": [int(IDS[0])]}, headers={"x-timeout-ms": "50"})
        late = asyncio.ensure_future(asked)
        await asyncio.to_thread(servers.until, lambda: stops and stops[0].given)  # its deadline has passed
        its_turn.set()
        return await late

    answer = servers.run({"docs": rk.Corpus(ROWS, ids=IDS)}, use, texts={"docs": file})
    assert answer.status_code == 504


class Model:
    """An encoder of D dimensions in this process."""

    def encode(self, texts):
        if texts == ["no"]:
            raise RuntimeError("out of\nmemory")
        return np.array([[len(text), *ROWS[len(text) % N, 1:]] for text in texts], np.float32)


def test_a_text_is_encoded_in_process(monkeypatch):
    monkeypatch.setattr("ragsys_kernels.icl.encoders.SentenceTransformerEncoder", lambda *_, **__: Model())
    encoder = LocalEncoder("tiny")
    corpus, long = rk.Corpus(ROWS, ids=IDS), "x" * 100_001
    [info, coded, rerank, *refused] = post(
        corpus,
        ("/v1/encode", {"text": "words"}),
        ("/v1/encode", {"text": "words", "corpus": "docs"}),
        ("/rerank", {"query": "words", "documents": IDS[:9].tolist(), "top_n": 3}),
        *(("/v1/encode", {"text": each}) for each in ("", " \n", "no", long, 3)),
        encoder=encoder,
    )
    assert info.json() == coded.json()
    query = coded.json()["query"]
    vector = np.frombuffer(base64.b64decode(query["b64"]), "<f4")
    assert vector.tolist() == Model().encode(["words"])[0].tolist()
    [picked] = post(corpus, ("/v1/select", {"k": 3, "candidates": IDS[:9].tolist(), "queries": [{"query": query}]}))
    assert [each["selection"]["id"] for each in rerank.json()["results"]] == picked.json()["results"][0]["ids"]
    assert [each.status_code for each in refused] == [422, 422, 502, 422, 422]
    assert "encode: encoder must encode the text, got out of memory" in refused[2].text
    [other, none] = [
        post(rk.Corpus(ROWS[:, :5]), ("/v1/encode", {"text": "words"}), **options)[0]
        for options in ({"encoder": LocalEncoder("tiny")}, {})
    ]
    assert "encode: corpus must have the encoder's 16 dimensions for a query of text, got 5" in other.text
    assert "encode: text must be sent to a server with an encoder" in none.text
