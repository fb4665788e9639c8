"""In-Context RALM on texts."""

from __future__ import annotations

from typing import Annotated, Any

from ragsys_kernels.cli._app import RUN, option

from ._options import Dtype, Model, command, names_of


@command(
    "ralm",
    model=Model,
    dtype=Dtype,
    encoder=Annotated[
        str,
        option(
            RUN,
            "Encoders for dense retrieval, separated by commas: minilm, mpnet, folders, names on the Hugging Face hub; "
            "or none. The first also serves MMR and the trained ranker.",
        ),
    ],
    ranker=Annotated[
        str | None,
        option(
            RUN,
            "Second model, usually a smaller one, that ranks the documents too; named as --model.",
            show_default="none",
        ),
    ],
    text=option(
        RUN,
        "Text to predict: wikitext; ag-news, whose training articles are retrieved from; python, modules of the "
        "standard library; or a folder of texts, every fifth of which is predicted from the others.",
    ),
    bm25=Annotated[str, option(RUN, "Retriever: lucene, or pyserini, BM25 with the paper's parameters and stems.")],
    quick=option(RUN, "Take fewer and shorter windows and a larger stride, which takes minutes."),
    windows=...,
    window=...,
    stride=...,
    query_tokens=...,
    dense_query_tokens=...,
    document_tokens=...,
    passage_words=...,
    candidates=...,
    seed=option(RUN, "Seed of the passages taken at random."),
)
def evaluate_ralm(
    windows: Annotated[
        int | None,
        option(RUN, "Number of windows, evenly spread over the text.", metavar="N", show_default="250, quick 100"),
    ] = None,
    window: Annotated[
        int | None, option(RUN, "Number of tokens of a window.", metavar="N", show_default="1024, quick 384")
    ] = None,
    stride: Annotated[
        int | None,
        option(
            RUN,
            "Number of tokens between retrievals, a divisor of the 32 that a window predicts.",
            metavar="N",
            show_default="4, quick 32",
        ),
    ] = None,
    query_tokens: Annotated[
        int | None, option(RUN, "Number of tokens of BM25's queries.", metavar="N", show_default="32")
    ] = None,
    dense_query_tokens: Annotated[
        int | None, option(RUN, "Number of tokens of the encoders' queries.", metavar="N", show_default="64")
    ] = None,
    document_tokens: Annotated[
        int | None, option(RUN, "Largest number of tokens of a document.", metavar="N", show_default="256, quick 64")
    ] = None,
    passage_words: Annotated[
        int | None,
        option(RUN, "Largest number of words of a passage.", metavar="N", show_default="100, quick 50"),
    ] = None,
    candidates: Annotated[
        int | None, option(RUN, "Number of documents that are ranked.", metavar="N", show_default="16")
    ] = None,
    **given: Any,
) -> dict[str, Any]:
    """In-Context RALM: what a document before a text is worth to a language model, by how it is chosen.

    Perplexity of WikiText-103 test, or of another text, without documents, with BM25's, reranked, by an oracle and
    others, against stride, query length and number of documents. Writes report.html and report.md. A run that was
    stopped is resumed when it is run again. Needs the extra evaluate; smollm2 needs its package.
    """
    sizes = {
        "windows": windows, "window": window, "stride": stride, "query": query_tokens,
        "dense_query": dense_query_tokens, "document": document_tokens,
        "passage": passage_words, "candidates": candidates,
    }  # fmt: skip
    given["sizes"] = {name: size for name, size in sizes.items() if size is not None}
    return {**given, "encoder": _encoders(given["encoder"])}


def _encoders(text: str) -> str | list[str] | None:
    names = names_of(text) or []
    if names == ["none"]:
        return None
    return names[0] if len(names) == 1 else names
