"""Commands over files: ``select`` and ``bias``."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import offline
from ..icl.quality import TEMPLATE
from ._app import (
    CLUSTER,
    COLUMNS,
    INPUT,
    RESUMABLE,
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
from ._options import (
    BadRows,
    Bias,
    BiasColumn,
    CandidateColumn,
    CandidateIds,
    Candidates,
    IdColumn,
    K,
    OfBadRows,
    OfDuplicates,
    OnDuplicate,
    Queries,
    QueryIdColumn,
    QueryVectorColumn,
    Quiet,
    VectorColumn,
)


class Method(str, Enum):
    mmr = "mmr"
    vrsd = "vrsd"
    msd = "msd"
    dpp = "dpp"
    ssd = "ssd"
    sift = "sift"
    coverage = "coverage"
    gist = "gist"


class Kind(str, Enum):
    facility = "facility"
    cover = "cover"
    xquad = "xquad"


class Metric(str, Enum):
    cosine = "cosine"
    dot = "dot"


class OnError(str, Enum):
    raise_ = "raise"
    skip = "skip"


class Scale(str, Enum):
    as_is = "as-is"
    minmax = "minmax"
    zscore = "zscore"
    rank = "rank"


class UnknownIds(str, Enum):
    error = "error"
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
    binary = "binary"


def _pool(text: str) -> int | str:
    if text in ("all", "certified") or text.lstrip("-").isdigit():
        return text if text.isalpha() else int(text)
    raise typer.BadParameter("must be a number, 'all' or 'certified'")


@app.command()
def select(
    queries: Queries,
    out: Annotated[
        str,
        option(INPUT, "Folder or URL of the result: new, empty, or of the same job, which is resumed.", metavar="DIR"),
    ],
    corpus: Annotated[
        str | None,
        option(
            INPUT,
            "Vectors to choose from, of shape (N, D): path or URL (s3://...) of .npy, .parquet or a folder of it, "
            ".arrow, .feather, .jsonl, .csv, .fvecs, .fbin, .safetensors, a saved Hugging Face data set, a folder of "
            "corpus build, or a pattern of several files.",
            metavar="FILE",
            show_default="none, where candidates come with their vectors",
        ),
    ] = None,
    candidates: Candidates = None,
    candidate_ids: CandidateIds = False,
    unknown_ids: Annotated[
        UnknownIds,
        option(
            INPUT,
            "What ids of --candidates do that the corpus does not have: error, as --on-error says, or skip, which "
            "picks from the others and counts them.",
        ),
    ] = UnknownIds.error,
    index: Annotated[
        str | None,
        option(
            INPUT,
            "FAISS index over the corpus that retrieves the --pool rows of each query, or a folder of indexes over "
            "consecutive rows; needs the extra faiss.",
            metavar="FILE",
            show_default="exact search",
        ),
    ] = None,
    bias: Bias = None,
    groups: Annotated[
        str | None,
        option(
            INPUT, "Group of each corpus row, such as its source: integers or strings of shape (N,).", metavar="FILE"
        ),
    ] = None,
    costs: Annotated[
        str | None,
        option(INPUT, "What each corpus row costs, such as its tokens: numbers of shape (N,).", metavar="FILE"),
    ] = None,
    query_groups: Annotated[
        str | None,
        option(
            INPUT,
            "Group of each query, integers or strings of shape (Q,); no query gets rows of its own group.",
            metavar="FILE",
        ),
    ] = None,
    bad_rows: OfBadRows = BadRows.raise_,
    on_duplicate: OfDuplicates = OnDuplicate.error,
    overwrite: Annotated[bool, option(INPUT, "Discard an earlier job at --out and start anew.", "--overwrite")] = False,
    vector_column: VectorColumn = None,
    id_column: IdColumn = None,
    bias_column: BiasColumn = None,
    group_column: Annotated[
        str | None, option(COLUMNS, "Column of the groups, in the file of --groups, else in that of --corpus.")
    ] = None,
    cost_column: Annotated[
        str | None, option(COLUMNS, "Column of the costs, in the file of --costs, else in that of --corpus.")
    ] = None,
    query_vector_column: QueryVectorColumn = None,
    query_id_column: QueryIdColumn = None,
    query_group_column: Annotated[
        str | None,
        option(COLUMNS, "Column of the query groups, in the file of --query-groups, else in that of --queries."),
    ] = None,
    candidate_column: CandidateColumn = None,
    candidate_vector_column: Annotated[
        str | None,
        option(
            COLUMNS, "Column of lists of vectors, those of the candidates, whose ids may then be any: without --corpus."
        ),
    ] = None,
    relevance_column: Annotated[
        str | None,
        option(COLUMNS, "Column of lists of numbers, the relevance of the candidates instead of their cosine."),
    ] = None,
    relevance_scale: Annotated[
        Scale,
        option(RULE, "What is made of that relevance, for each query: its range, its z-scores, or its ranks."),
    ] = Scale.as_is,
    method: Annotated[
        Method,
        option(
            RULE,
            "Rule: mmr weighs relevance and bias against redundancy, vrsd looks at the sum of the picks, msd at all "
            "distances, dpp and ssd at volume, sift at what is left unknown, coverage at what is left uncovered, gist "
            "at the least distance.",
        ),
    ] = Method.mmr,
    k: K = 6,
    pool: Annotated[
        Any,
        option(
            RULE,
            "Number of most relevant rows to choose from; 'all' selects from the whole corpus, exactly, and so does "
            "'certified', of mmr with cosines, by pools that grow until the picks are proven.",
            parser=_pool,
            metavar="N|all|certified",
            show_default="100",
        ),
    ] = None,
    lambda_d: Annotated[
        float | None,
        option(
            RULE,
            "Weight of relevance against redundancy, from 0 to 1; not of vrsd and sift.",
            show_default="0.75 for mmr and msd, 0.25 for gist, else 0.5",
        ),
    ] = None,
    lambda_b: Annotated[
        float | None,
        option(RULE, "Weight of similarity against bias, from 0 to 1; not of vrsd and sift.", show_default="0.95"),
    ] = None,
    max_per_group: Annotated[
        int | None, option(RULE, "Most picks from one group.", metavar="N", show_default="no limit")
    ] = None,
    budget: Annotated[
        float | None,
        option(
            RULE, "Most that the picks of a query cost together; with --costs.", metavar="X", show_default="no limit"
        ),
    ] = None,
    max_similarity: Annotated[
        float | None,
        option(RULE, "Most that a pick is similar to an earlier one, from -1 to 1.", show_default="no limit"),
    ] = None,
    scale: Annotated[float | None, option(RULE, "Weight of the z-scores of dpp.", show_default="1")] = None,
    gamma: Annotated[
        float | None,
        option(RULE, "Weight of the volume of ssd; exponent of coverage's cover.", show_default="1, 0.5"),
    ] = None,
    window: Annotated[
        int | None, option(RULE, "Number of the last picks that ssd looks at.", metavar="N", show_default="all")
    ] = None,
    noise: Annotated[float | None, option(RULE, "Variance of an observation of sift.", show_default="0.01")] = None,
    min_gain: Annotated[
        float | None, option(RULE, "Least that a pick of sift lowers the variance.", show_default="0")
    ] = None,
    kind: Annotated[Kind | None, option(RULE, "Measure of coverage.", show_default="facility")] = None,
    density: Annotated[
        bool, option(RULE, "With --budget, let coverage pick the largest value per cost.", "--density")
    ] = False,
    eps: Annotated[float | None, option(RULE, "Step of the distances that gist tries.", show_default="0.1")] = None,
    metric: Annotated[
        Metric | None,
        option(
            RULE,
            "Similarity of vectors: cosine normalises them, dot takes them as they are.",
            show_default="that of a saved corpus, else cosine",
        ),
    ] = None,
    dtype: Annotated[
        Dtype | None,
        option(
            RUN,
            "Type of the corpus in memory: float32, float16, bfloat16 or int8.",
            metavar="DTYPE",
            show_default="that of a saved corpus, else float32",
        ),
    ] = None,
    device: Annotated[
        str | None,
        option(RUN, "Device that holds the corpus and selects: cuda or cuda:N.", show_default="the CPU"),
    ] = None,
    backend: Annotated[
        str, option(RUN, "Backend that selects: auto, cpu or reference; with --device also triton or cuda.")
    ] = "auto",
    num_threads: Annotated[
        int | None, option(RUN, "Number of threads.", metavar="N", show_default="one per core")
    ] = None,
    chunk_size: Annotated[int, option(RUN, "Number of queries in memory at a time.", metavar="N")] = 4096,
    shard_size: Annotated[
        int,
        option(
            RUN,
            "Number of queries in each Parquet file of the result: the most that a killed job repeats.",
            metavar="N",
        ),
    ] = 100_000,
    on_error: Annotated[
        OnError,
        option(
            RUN,
            "What happens at a query that cannot be used: raise ends the job, skip writes empty lists for it and the "
            "reason to _errors-*.",
        ),
    ] = OnError.raise_,
    memory: Annotated[
        str | None,
        option(
            RUN,
            "Memory for a saved corpus, which may be larger: its rows are then read for each chunk of queries. "
            "On Ray: for the segments that an actor holds, so that no node needs all.",
            metavar="2G",
            show_default="all of it",
        ),
    ] = None,
    fingerprint: Annotated[
        Fingerprint | None,
        option(
            RUN,
            "How a resumed job recognises its inputs: by size, time and samples of the content, or by all of it.",
            show_default="as the job began, else sampled",
        ),
    ] = None,
    verify: Annotated[
        bool, option(RUN, "Compare a saved corpus with its checksums before the job begins.", "--verify/--no-verify")
    ] = True,
    quiet: Quiet = False,
    engine: Annotated[
        Engine, option(CLUSTER, "Where the shards are made: in this process or on Ray, which needs the extra ray.")
    ] = Engine.local,
    workers: Annotated[
        int | None, option(CLUSTER, "Number of Ray actors that select.", metavar="N", show_default="as many as fit")
    ] = None,
    cpus_per_worker: Annotated[
        float | None, option(CLUSTER, "Number of CPUs, and of threads, of each actor.", metavar="X", show_default="1")
    ] = None,
    gpus_per_worker: Annotated[
        float | None,
        option(
            CLUSTER, "Number of GPUs that Ray reserves for each actor.", metavar="X", show_default="1 with --device"
        ),
    ] = None,
    ray_address: Annotated[
        str | None,
        option(CLUSTER, "Address of the Ray cluster.", show_default="RAY_ADDRESS, else a new Ray on this machine"),
    ] = None,
) -> None:
    """Select for every query of a file and write the picks as Parquet files.

    Each row has query_id and four lists: ids (the picks, best first), scores (the value of each when it was picked),
    relevance, and redundancy (the largest similarity with an earlier pick; NaN with vrsd, which looks at the sum of
    the picks instead). MMR out of pools that it searches for itself adds certified: whether the picks are proven to
    be those of the whole corpus. Memory holds the corpus and a few chunks of queries. A job that was killed or
    stopped is resumed when the same command is run again; see also the commands job status and job verify.

    Exit codes: 0 complete, 1 error, 2 wrong usage, 130 after SIGINT, 143 after SIGTERM. After either signal the current
    shard is finished first; a second signal stops at once.
    """
    with (
        one_line_errors("select", RESUMABLE),
        notices(quiet),
        progress_bar(quiet) as progress,
        finishing(f"the current shard of at most {shard_size} queries") as stop,
    ):
        summary = offline.select(
            corpus=corpus,
            queries=queries,
            out=out,
            candidates=candidates,
            index=index,
            bias=bias,
            groups=groups,
            costs=costs,
            query_groups=query_groups,
            vector_column=vector_column,
            id_column=id_column,
            bias_column=bias_column,
            group_column=group_column,
            cost_column=cost_column,
            query_vector_column=query_vector_column,
            query_id_column=query_id_column,
            query_group_column=query_group_column,
            candidate_column=candidate_column,
            candidate_vector_column=candidate_vector_column,
            relevance_column=relevance_column,
            relevance_scale=relevance_scale.value,
            candidate_ids=candidate_ids,
            unknown_ids=unknown_ids.value,
            method=method.value,
            k=k,
            pool=pool,
            lambda_d=lambda_d,
            lambda_b=lambda_b,
            max_per_group=max_per_group,
            budget=budget,
            max_similarity=max_similarity,
            scale=scale,
            gamma=gamma,
            window=window,
            noise=noise,
            min_gain=min_gain,
            kind=None if kind is None else kind.value,
            density=density,
            eps=eps,
            metric=None if metric is None else metric.value,
            dtype=None if dtype is None else dtype.value,
            device=device,
            backend=backend,
            num_threads=num_threads,
            chunk_size=chunk_size,
            shard_size=shard_size,
            memory=memory,
            on_error=on_error.value,
            bad_rows=bad_rows.value,
            on_duplicate=on_duplicate.value,
            fingerprint=None if fingerprint is None else fingerprint.value,
            verify=verify,
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
    pairs: Annotated[Path, option(INPUT, "File of questions and answers: .parquet, .csv with a header, or .jsonl.")],
    model: Annotated[
        str, option(INPUT, "Causal language model: a name on the Hugging Face hub, a folder, or a .gguf file.")
    ],
    out: Annotated[
        Path,
        option(INPUT, "File of the result: .npy for select --bias, or .parquet with the input's columns and the bias."),
    ],
    cache: Annotated[
        Path | None,
        option(
            INPUT,
            "File that keeps the scores, also for later jobs.",
            show_default="a hidden file beside --out until the job is complete",
        ),
    ] = None,
    overwrite: Annotated[bool, option(INPUT, "Replace an existing file at --out.", "--overwrite")] = False,
    question_column: Annotated[str, option(TEXTS, "Column of the questions.")] = "question",
    answer_column: Annotated[str, option(TEXTS, "Column of the answers.")] = "answer",
    bias_column: Annotated[
        str | None, option(TEXTS, "Column of the bias in a .parquet result.", show_default="bias")
    ] = None,
    template: Annotated[
        str,
        option(
            TEXTS,
            "Text of a demonstration, with {question} and, at its end, {answer}; the prompt is what precedes {answer}.",
            show_default=r"Q: {question}\nA: {answer}",
        ),
    ] = TEMPLATE,
    dtype: Annotated[WeightDtype, option(RUN, "Type of the model's weights in memory.")] = WeightDtype.float32,
    batch_tokens: Annotated[int, option(RUN, "Most tokens in one forward pass.", metavar="N")] = 512,
    backend: Annotated[str, option(RUN, "Backend of the log-probabilities: auto, cpu, numpy or reference.")] = "auto",
    num_threads: Annotated[
        int | None,
        option(RUN, "Number of threads of torch and of the kernels.", metavar="N", show_default="one per core"),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Score every (question, answer) pair of a file with a language model: the quality bias of RAGSys.

    The bias is the mean log-probability of the answer's tokens given the question. A job that was stopped is resumed
    when the same command is run again. Needs the extra lm.
    """
    with (
        one_line_errors("bias", RESUMABLE),
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
