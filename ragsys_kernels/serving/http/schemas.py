"""The JSON of ``/v1/select`` and of what tells about the server: models for the OpenAPI document and for clients.

Requests are read by `reading`, column by column; a test holds its fields and rules to those that are documented here.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel, create_model

from ...selection.parameters import BY_NAME, RECENCY, TABLE
from ..fields import LISTS_OF_RERANK, OF_PATH, OF_RERANK, OF_VECTORS, VECTORS
from ..queries.rules import MOST_LISTS

Id = Annotated[int, Field(ge=-(2**63), lt=2**63)] | str
Name = Literal["mmr", "vrsd", "msd", "dpp", "ssd", "sift", "coverage", "gist"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Vector(_Strict):
    """A vector as little-endian bytes in base64."""

    b64: str
    shape: list[int] | None = Field(None, description="[D], the corpus's dimensions")
    dtype: Literal["float32", "float16"] = "float32"


class Vectors(_Strict):
    """Vectors of a query's candidates, or aspects, as little-endian bytes in base64."""

    b64: str
    shape: list[int] = Field(min_length=2, max_length=2, description="[P, D], or [A, D]")
    dtype: Literal["float32", "float16"] = "float32"


def _of_table(*names: str) -> dict[str, Any]:
    """Return fields as the table of parameters has them, which may be null."""
    fields: dict[str, Any] = {}
    for parameter in (BY_NAME[name] for name in names):
        kind: Any = _KINDS.get(parameter.name) or _KINDS.get(parameter.kind)
        bounds: dict[str, float] = {}
        if parameter.by_group:
            kind = Annotated[int, Field(ge=parameter.low)] | dict[str, Annotated[int, Field(ge=0)]]
        elif parameter.kind == "choice":
            kind = Literal[parameter.choices]
        elif parameter.kind in ("number", "count"):
            low, high = parameter.range_of("")
            bounds["gt" if parameter.above else "ge"] = low
            if high < math.inf:
                bounds["le"] = high
        text = "; ".join(filter(None, (parameter.help, parameter.rules_text())))
        default = "" if parameter.default is None else f"; default: {parameter.default_text()}"
        fields[parameter.name] = kind | None, Field(None, description=f"{text}{default}", **bounds)
    return fields


_KINDS: dict[str, Any] = {
    "number": float, "count": int, "flag": bool, "ids": list[Id], "values": list[float],
    "vectors": list[list[float]] | Vectors, "groups": list[Id], "query_groups": Id,
}  # fmt: skip
_PickingFields: Any = create_model(
    "_PickingFields", __base__=_Strict, **_of_table(*(each.name for each in OF_PATH if each.name != "metric"))
)


class _Picking(_PickingFields):
    """What every choice of picks takes."""

    k: int | None = Field(None, ge=1, description="Picks; default 6")
    pool: int | None = Field(100, ge=1, description="Rows retrieved to pick from; null: the whole corpus, exactly")
    unknown: Literal["error", "skip"] | None = Field(
        None, description="Unknown ids fail their query, or are left out; default: the server's"
    )
    cursor: str | None = Field(None, description="Of an answer to the same query: its next page")
    query: list[float] | Vector | None = None
    query_id: Id | None = Field(None, description="An id of the corpus, whose vector is the query")


_MORE = (each.name for each in (*TABLE, *RECENCY) if each not in OF_PATH and each.name not in (*VECTORS, *OF_VECTORS))
_RuleFields: Any = create_model("_RuleFields", __base__=_Picking, **_of_table(*_MORE))


class Hits(_Strict):
    """What a retriever found; without scores, best first."""

    ids: list[Id]
    scores: list[float] | None = None


class Rule(_RuleFields):
    """What to pick, and how."""

    lists: list[Hits] | None = Field(
        None,
        min_length=1,
        max_length=MOST_LISTS,
        description="Of several retrievers, to fuse into candidates and relevance",
    )
    fusion: Literal["rrf", "minmax", "zscore"] | None = Field(None, description="How lists are fused; default: rrf")
    fusion_weights: list[float] | None = Field(None, description="Of each of the lists; default: 1")
    method: Name | None = Field(None, description="Default: mmr")
    metric: Literal["cosine", "dot"] | None = Field(None, description="Of vectors, default: cosine; or the corpus's")


_QueryFields: Any = create_model("_QueryFields", __base__=Rule, **_of_table(*VECTORS, *OF_VECTORS))


class Query(_QueryFields):
    """One query: ``query`` or ``query_id``; MMR with ``relevance`` needs neither. Null is as absent, but for pool."""

    vectors: Vectors | None = Field(
        None, description="Of the candidates, whose ids may then be any (default: their places): no corpus is read"
    )


class SelectRequest(Rule):
    """Queries over one corpus. Fields beside ``queries`` are defaults for all of them."""

    corpus: str | None = Field(None, description="May be left out where the server has one")
    texts: bool | Annotated[int, Field(ge=1)] | None = Field(
        None, description="Of each pick its text: true, whole; or its first so many characters"
    )
    queries: list[Query] = Field(min_length=1)


class Text(BaseModel):
    """A text, or where it begins."""

    text: str
    chars: int = Field(description="Characters of the whole text")


class Picks(BaseModel):
    """The picks of a query, in their order."""

    ids: list[int] | list[str]
    scores: list[float | None] = Field(description="The value of each pick when it was made")
    relevance: list[float | None]
    redundancy: list[float | None] = Field(description="The largest similarity to an earlier pick; null for vrsd")
    certified: bool | None = Field(
        None, description="Whether they are proven to be the whole corpus's; null: not known"
    )
    cost: float | None = Field(None, description="Of all picks; with a budget alone")
    nearest: list[int] | None = Field(
        None,
        description="With nearest: the place, from 0, of the earlier pick that each is most similar to; -2 - j for "
        "place j of initial, followed by what a cursor holds; -1: none",
    )
    unmet: dict[str, int] | None = Field(
        None,
        description="With min_per_group: how many picks groups lack, by their names; others do not appear",
    )
    cursor: str | None = Field(
        None, description="Send it with the same query for the next page; null: no more, or GIST"
    )
    skipped: list[int] | list[str] | None = Field(
        None, description='Unknown ids that were left out, if there were any, with "unknown": "skip"'
    )
    texts: list[Text | None] | None = Field(None, description="With texts alone; null where there is none")


class Problem(BaseModel):
    index: int | None = Field(None, description="Of the query")
    code: str = Field(description="Of the kind of error; codes stay as they are, messages do not")
    argument: str | None = None
    message: str


class Failed(BaseModel):
    error: Problem


class ProblemDetails(BaseModel):
    """An error of a whole request as RFC 9457 has it, for clients that accept it."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    argument: str | None
    request_id: str


class SelectResponse(BaseModel):
    """An answer for each query, in their order."""

    results: list[Picks | Failed]


class TextsRequest(_Strict):
    """Ids whose texts are wanted."""

    corpus: str | None = Field(None, description="May be left out where the server has one")
    ids: list[Id]
    chars: int | None = Field(None, ge=1, description="The first so many characters of each; default: all")


class TextsResponse(BaseModel):
    texts: list[Text | None] = Field(description="In the order of the ids; null where there is none")


class EncodeRequest(_Strict):
    """A text, and the corpus that the vector is for."""

    corpus: str | None = Field(None, description="May be left out where the server has one")
    text: str


class EncodeResponse(BaseModel):
    query: Vector = Field(description="As ``query`` takes it")


class PathRequest(_Picking):
    """One query over a corpus, in fields of ``/v1/select``: all that MMR takes but lambda_d."""

    corpus: str | None = Field(None, description="May be left out where the server has one")


class Segment(BaseModel):
    """Picks in their order, and from which lambda_d to which they are MMR's; both ends belong to it."""

    low: float
    high: float
    ids: list[int] | list[str]
    relevance: list[float]
    redundancy: list[float] = Field(description="The largest similarity to an earlier pick")
    nearest: list[int] = Field(description="To which it is, as in picks")


class PathResponse(BaseModel):
    """The segments from lambda_d = 0 to 1."""

    segments: list[Segment]


class CorpusInfo(BaseModel):
    rows: int
    dims: int
    metric: str
    dtype: str
    device: str
    ids: Literal["int64", "string"]
    bias: bool
    groups: bool
    costs: bool
    time: bool
    unknown: Literal["error", "skip"] = Field(description="How to treat an id that is not in it")
    index: str | None = Field(None, description="What finds pools approximately, where they are not searched exactly")
    texts: int = Field(description="Rows that have a text")
    version: str
    loaded: float = Field(description="Seconds since 1970")


class Info(BaseModel):
    """What a server is, and what it takes."""

    version: str
    backends: dict[str, str]
    corpora: dict[str, CorpusInfo]
    limits: dict[str, Any]
    methods: list[str]
    encoder: str | None = Field(description="Of queries that are texts: its model, or endpoint; null: none")
    workers: int
    connections: str = Field(description="The way of /v1/select: short, or asgi and why; both give the same answers")


class Health(BaseModel):
    status: Literal["live", "starting", "ready", "stopping"]


class Reloaded(BaseModel):
    corpus: str
    rows: int
    version: str


class LoadRequest(_Strict):
    """Which folder to load."""

    folder: str | None = Field(None, description="In that of --load-from; default: the name of the corpus")


class Unloaded(BaseModel):
    corpus: str


class Document(BaseModel):
    """A document as an object: its id is in ``id`` or in ``text``."""

    id: Id | None = None
    text: Id | None = None


_RerankFields: Any = create_model("_RerankFields", **_of_table(*OF_RERANK, *LISTS_OF_RERANK))


class RerankRequest(_RerankFields):
    """What clients of rerank services send; documents in one of three fields, as ids.

    Other fields of such services are ignored; those of ``/v1/select``, and misspelt ones, are refused.
    """

    model: str | None = Field(
        None, description="corpus:rule:lambda_d, as docs:mmr:0.7 or docs:vrsd; its end may be left out"
    )
    query: Id | list[float] | Vector | None = Field(
        None, description="An id (also as id:ID), base64 of a vector, or text where the server has an encoder"
    )
    query_id: Id | None = None
    documents: list[Id | Document] | None = Field(None, description="Cohere, Jina; with property: Weaviate")
    texts: list[Id | Document] | None = Field(None, description="text-embeddings-inference")
    input: list[Id | Document] | None = Field(None, description="Elasticsearch")
    top_n: int | None = Field(None, ge=1, description="Picks; default: all documents")
    unknown: Literal["error", "skip"] | None = Field(
        None, description="How to treat a document that is not in the corpus: fail, or put it last"
    )
    pool_size: int | None = Field(
        None, ge=1, description="Of the pool; if the documents are fewer they are a slice: 422. Header: x-pool-size"
    )
    return_documents: bool | None = None
    return_text: bool | None = None
    property: str | None = None
    method: Name | None = None


class Selected(BaseModel):
    """The true values of a document: null where it was not picked."""

    id: Id
    picked: bool
    score: float | None
    relevance: float | None
    redundancy: float | None


class CohereResult(BaseModel):
    index: int
    relevance_score: float = Field(description="Falls strictly in the order of the picks, within (0, 1]")
    selection: Selected
    document: dict[str, Any] | None = None


class CohereAnswer(BaseModel):
    id: str
    model: str | None
    results: list[CohereResult]
    usage: dict[str, int]
    meta: dict[str, Any]


class TeiResult(BaseModel):
    index: int
    score: float
    selection: Selected
    text: Any | None = None


class ElasticsearchAnswer(BaseModel):
    rerank: list[CohereResult]


class WeaviateScore(BaseModel):
    document: Any
    score: float
    selection: Selected


class WeaviateAnswer(BaseModel):
    scores: list[WeaviateScore]


class RerankAnswer(RootModel[CohereAnswer | list[TeiResult] | ElasticsearchAnswer | WeaviateAnswer]):
    """In the shape of the request."""


class Tensor(BaseModel):
    """A tensor of the Open Inference Protocol: ``data``, or its bytes behind the JSON (``binary_data_size``)."""

    name: str
    datatype: str
    shape: list[int] = Field(min_length=1)
    data: list[Any] | None = None
    parameters: dict[str, Any] | None = None


class WantedTensor(BaseModel):
    name: Literal["ids", "scores", "relevance", "redundancy", "lengths", "errors", "skipped", "nearest", "unmet"]
    parameters: dict[str, Any] | None = None


class InferRequest(BaseModel):
    """Rules for all queries are in ``parameters``: those of ``/v1/select`` that are a number, a word or a flag.

    An object with numbers of groups is JSON text there.
    """

    id: str | None = None
    inputs: list[Tensor] = Field(min_length=1, description="Columns of the queries: vector, query_id, candidates, ..")
    outputs: list[WantedTensor] | None = None
    parameters: dict[str, Any] | None = None


class InferAnswer(BaseModel):
    model_name: str
    model_version: str
    id: Any | None = None
    outputs: list[Tensor]


class Said(BaseModel):
    """An error of the Open Inference Protocol; a missing token is told as everywhere."""

    error: str | Problem
    code: str | None = None
