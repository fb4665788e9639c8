"""Commands over files: ``select`` and ``bias``."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from ragsys_kernels import offline
from ragsys_kernels.cli._app import (
    CLUSTER,
    COLUMNS,
    INPUT,
    RULE,
    RUN,
    TEXTS,
    WeightDtype,
    app,
    finishing,
    notices,
    one_line_errors,
    option,
    progress_bar,
)
from ragsys_kernels.icl.quality import TEMPLATE


class Method(str, Enum):
    mmr = "mmr"
    vrsd = "vrsd"


class Metric(str, Enum):
    cosine = "cosine"
    dot = "dot"


class OnError(str, Enum):
    raise_ = "raise"
    skip = "skip"


class Fingerprint(str, Enum):
    sampled = "sampled"
    full = "full"


class Engine(str, Enum):
    local = "local"
    ray = "ray"


class Dtype(str, Enum):
    float32 = "float32"
    float16 = "float16"
    bfloat16 = "bfloat16"
    int8 = "int8"


def _pool(text: str) -> int | str:
    if text == "all" or text.lstrip("-").isdigit():
        return text if text == "all" else int(text)
    raise typer.BadParameter("must be a number or 'all'")


@app.command()
def select(
    corpus: Annotated[
        str,
        option(
            INPUT,
            "Vectors to choose from, (N, D): .npy, .parquet or a folder of it, .arrow, .feather, .safetensors, a saved "
            "Hugging Face data set; a path or a URL (s3://...).",
            metavar="FILE",
        ),
    ],
    queries: Annotated[str, option(INPUT, "Query vectors, (Q, D), in any of these formats.", metavar="FILE")],
    out: Annotated[
        str,
        option(INPUT, "Folder or URL for the result: new, empty, or of this job, which then goes on.", metavar="DIR"),
    ],
    candidates: Annotated[
        str | None,
        option(
            INPUT,
            "Corpus rows to choose from for each query: (Q, P) integers, padded with -1, or a column of integer lists.",
            metavar="FILE",
            show_default="the --pool most relevant rows",
        ),
    ] = None,
    index: Annotated[
        str | None,
        option(
            INPUT,
            "FAISS index file over the corpus, which finds the --pool rows of each query; needs the extra faiss.",
            metavar="FILE",
            show_default="exact search",
        ),
    ] = None,
    bias: Annotated[
        str | None, option(INPUT, "Quality of each corpus row: (N,) floats. MMR only.", metavar="FILE")
    ] = None,
    groups: Annotated[str | None, option(INPUT, "Group of each corpus row: (N,) integers.", metavar="FILE")] = None,
    query_groups: Annotated[
        str | None,
        option(INPUT, "Group of each query, whose rows it is not given: (Q,) integers.", metavar="FILE"),
    ] = None,
    overwrite: Annotated[bool, option(INPUT, "Start anew where --out has an earlier job.", "--overwrite")] = False,
    vector_column: Annotated[str | None, option(COLUMNS, "Corpus vectors.", show_default="the only float list")] = None,
    id_column: Annotated[str | None, option(COLUMNS, "Corpus ids.", show_default="id, else row numbers")] = None,
    bias_column: Annotated[str | None, option(COLUMNS, "Bias, in --bias or else in the corpus file.")] = None,
    group_column: Annotated[str | None, option(COLUMNS, "Groups, in --groups or else in the corpus file.")] = None,
    query_vector_column: Annotated[
        str | None, option(COLUMNS, "Query vectors.", show_default="the only float list")
    ] = None,
    query_id_column: Annotated[str | None, option(COLUMNS, "Query ids.", show_default="id, else row numbers")] = None,
    query_group_column: Annotated[
        str | None, option(COLUMNS, "Query groups, in --query-groups or else in the queries file.")
    ] = None,
    candidate_column: Annotated[
        str | None, option(COLUMNS, "Candidate rows.", show_default="the only integer list")
    ] = None,
    method: Annotated[
        Method, option(RULE, "mmr: relevance with bias against redundancy; vrsd: similarity of the picks' sum.")
    ] = Method.mmr,
    k: Annotated[int, option(RULE, "Picks of each query.", metavar="N")] = 6,
    pool: Annotated[
        Any,
        option(
            RULE,
            "Choose from this many of the most relevant rows; 'all' is exact over the whole corpus.",
            parser=_pool,
            metavar="N|all",
            show_default="100",
        ),
    ] = None,
    lambda_d: Annotated[
        float | None, option(RULE, "Weight of relevance against redundancy, 0 to 1. MMR only.", show_default="0.75")
    ] = None,
    lambda_b: Annotated[
        float | None, option(RULE, "Weight of similarity against bias, 0 to 1. MMR only.", show_default="0.95")
    ] = None,
    max_per_group: Annotated[
        int | None, option(RULE, "Largest number of picks from one group.", metavar="N", show_default="no limit")
    ] = None,
    metric: Annotated[Metric, option(RULE, "Similarity; cosine normalises the vectors.")] = Metric.cosine,
    dtype: Annotated[
        Dtype, option(RUN, "How the corpus is held in memory: float32, float16, bfloat16, int8.", metavar="DTYPE")
    ] = Dtype.float32,
    device: Annotated[
        str | None,
        option(RUN, "cuda or cuda:N, where the corpus is held and selection runs.", show_default="the CPU"),
    ] = None,
    backend: Annotated[
        str, option(RUN, "auto, cpu or reference, with --device triton or cuda; see the command show-config.")
    ] = "auto",
    num_threads: Annotated[int | None, option(RUN, "Threads.", metavar="N", show_default="one per core")] = None,
    chunk_size: Annotated[int, option(RUN, "Queries in memory at a time.", metavar="N")] = 4096,
    shard_size: Annotated[
        int, option(RUN, "Queries in each Parquet file of the result: what a kill may cost.", metavar="N")
    ] = 100_000,
    on_error: Annotated[
        OnError,
        option(
            RUN,
            "A query that cannot be used: raise ends the job; skip gives it empty lists and notes it in _errors-*.",
        ),
    ] = OnError.raise_,
    fingerprint: Annotated[
        Fingerprint | None,
        option(
            RUN,
            "How inputs are known again: by size, time and samples of the content, or by all of the content.",
            show_default="as the job began, sampled",
        ),
    ] = None,
    quiet: Annotated[bool, option(RUN, "Print warnings and errors only.", "--quiet")] = False,
    engine: Annotated[
        Engine, option(CLUSTER, "Where the shards are made: in this process, or on Ray; needs the extra ray.")
    ] = Engine.local,
    workers: Annotated[
        int | None, option(CLUSTER, "Ray actors that select.", metavar="N", show_default="as many as fit")
    ] = None,
    cpus_per_worker: Annotated[
        float | None, option(CLUSTER, "CPUs of each, and its threads.", metavar="X", show_default="1")
    ] = None,
    gpus_per_worker: Annotated[
        float | None, option(CLUSTER, "GPUs that Ray keeps for each.", metavar="X", show_default="1 with --device")
    ] = None,
    ray_address: Annotated[
        str | None,
        option(CLUSTER, "Cluster to run on.", show_default="RAY_ADDRESS, else a Ray of this machine's own"),
    ] = None,
) -> None:
    """Select for every query of a file and write the picks as Parquet files.

    Each row has query_id and lists: ids (the picks, best first), the scores at which they were picked, their relevance,
    and their redundancy: the largest similarity with an earlier pick; NaN with vrsd, which looks at the picks' sum
    instead. Memory: the corpus and a few chunks. Killed or stopped at any moment and run again, the job goes on; see
    also the commands job status and job verify.

    Exit codes: 0 complete, 1 error, 2 usage; 130 after SIGINT and 143 after SIGTERM, which first finish the shard at
    hand; a second signal stops at once.
    """
    with (
        one_line_errors("select", "interrupted; run it again to go on"),
        notices(quiet),
        progress_bar(quiet) as progress,
        finishing(f"the shard at hand of at most {shard_size} queries") as stop,
    ):
        summary = offline.select(
            corpus=corpus,
            queries=queries,
            out=out,
            candidates=candidates,
            index=index,
            bias=bias,
            groups=groups,
            query_groups=query_groups,
            vector_column=vector_column,
            id_column=id_column,
            bias_column=bias_column,
            group_column=group_column,
            query_vector_column=query_vector_column,
            query_id_column=query_id_column,
            query_group_column=query_group_column,
            candidate_column=candidate_column,
            method=method.value,
            k=k,
            pool=pool,
            lambda_d=lambda_d,
            lambda_b=lambda_b,
            max_per_group=max_per_group,
            metric=metric.value,
            dtype=dtype.value,
            device=device,
            backend=backend,
            num_threads=num_threads,
            chunk_size=chunk_size,
            shard_size=shard_size,
            on_error=on_error.value,
            fingerprint=None if fingerprint is None else fingerprint.value,
            overwrite=overwrite,
            progress=progress,
            stop=stop,
            engine=engine.value,
            workers=workers,
            cpus_per_worker=cpus_per_worker,
            gpus_per_worker=gpus_per_worker,
            ray_address=ray_address,
        )
    if not quiet:
        print(summary)
    if not summary.complete:
        raise typer.Exit(stop.exit_code)


@app.command()
def bias(
    pairs: Annotated[Path, option(INPUT, "Questions and answers: .parquet, .csv with a header, or .jsonl.")],
    model: Annotated[
        str, option(INPUT, "Causal language model: a name on the Hugging Face hub, a folder, or a .gguf file.")
    ],
    out: Annotated[
        Path,
        option(INPUT, "Result: .npy (N,) for select --bias, or .parquet with the input's columns and the bias."),
    ],
    cache: Annotated[
        Path | None,
        option(
            INPUT,
            "File of scores to use and to keep.",
            show_default="a hidden file beside --out until the job is complete",
        ),
    ] = None,
    overwrite: Annotated[bool, option(INPUT, "Replace a file at --out.", "--overwrite")] = False,
    question_column: Annotated[str, option(TEXTS, "Questions.")] = "question",
    answer_column: Annotated[str, option(TEXTS, "Answers.")] = "answer",
    bias_column: Annotated[
        str | None, option(TEXTS, "Name of the new column of a .parquet result.", show_default="bias")
    ] = None,
    template: Annotated[
        str,
        option(
            TEXTS,
            "Text of a demonstration, with {question} and, at its end, {answer}; before that is the prompt.",
            show_default=r"Q: {question}\nA: {answer}",
        ),
    ] = TEMPLATE,
    dtype: Annotated[WeightDtype, option(RUN, "How the weights are held in memory.")] = WeightDtype.float32,
    batch_tokens: Annotated[int, option(RUN, "Most tokens in one forward pass.", metavar="N")] = 512,
    backend: Annotated[str, option(RUN, "auto, cpu, numpy or reference; see the command show-config.")] = "auto",
    num_threads: Annotated[
        int | None, option(RUN, "Threads of torch and of the kernels.", metavar="N", show_default="one per core")
    ] = None,
    quiet: Annotated[bool, option(RUN, "Print warnings and errors only.", "--quiet")] = False,
) -> None:
    """Score every (question, answer) pair of a file with a language model: the quality bias of RAGSys.

    The bias is the mean log-probability of the answer's tokens given the question. A stopped job goes on when it is run
    again. Needs the extra lm.
    """
    with (
        one_line_errors("bias", "interrupted; run it again to go on"),
        progress_bar(quiet, "pairs", "loading the model", "scoring") as progress,
    ):
        summary = offline.bias(
            pairs=pairs,
            model=model,
            out=out,
            cache=cache,
            overwrite=overwrite,
            question_column=question_column,
            answer_column=answer_column,
            bias_column=bias_column,
            template=template,
            dtype=dtype.value,
            batch_tokens=batch_tokens,
            backend=backend,
            num_threads=num_threads,
            progress=progress,
        )
    if not quiet:
        print(summary)
