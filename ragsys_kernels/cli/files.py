"""Commands over files: ``select`` and ``bias``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .. import offline
from ..selection.parameters import BY_NAME
from . import _options
from ._app import (
    CLUSTER,
    COLUMNS,
    INPUT,
    RESUMABLE,
    RULE,
    RUN,
    TEXTS,
    app,
    finishing,
    notices,
    one_line_errors,
    option,
    progress_bar,
    run,
)
from ._options import Quiet
from ._takes import takes


def _pool(text: str) -> int | str:
    if text in ("all", "certified") or text.lstrip("-").isdigit():
        return text if text.isalpha() else int(text)
    raise typer.BadParameter("must be a number, 'all' or 'certified'")


@app.command()
@takes(
    offline.select,
    queries=_options.QUERIES,
    out=option(INPUT, "Folder or URL of the result: new, empty, or of the same job, which is resumed.", metavar="DIR"),
    corpus=option(
        INPUT,
        "Vectors to choose from, of shape (N, D): path or URL (s3://...) of .npy, .parquet or a folder of it, "
        ".arrow, .feather, .jsonl, .csv, .fvecs, .fbin, .safetensors, a saved Hugging Face data set, a folder of "
        "corpus build, or a pattern of several files.",
        metavar="FILE",
        show_default="none, where candidates come with their vectors",
    ),
    candidates=Annotated[
        list[str] | None,
        option(
            INPUT,
            f"{_options.CANDIDATES.help} Given several times, once for each retriever, they are fused.",
            metavar="FILE",
            show_default="the --pool most relevant rows",
        ),
    ],
    candidate_ids=_options.CANDIDATE_IDS,
    fusion=option(
        INPUT,
        "How several --candidates are fused: rrf by their ranks, minmax or zscore by the scores of --relevance-column.",
    ),
    fusion_weights=Annotated[
        list[float] | None,
        option(
            INPUT,
            "Weight of each of several --candidates, in their order; given as often.",
            "--fusion-weight",
            metavar="X",
            show_default="1",
        ),
    ],
    unknown_ids=option(
        INPUT,
        "How to treat an id of --candidates that is not in the corpus: error (the query fails, see --on-error) or skip "
        "(pick from the others, and count it).",
    ),
    index=option(
        INPUT,
        "FAISS index, or usearch's (NAME.usearch), over the corpus that retrieves the --pool rows of each query, or a "
        "folder of indexes over consecutive rows; needs the extra faiss or usearch.",
        metavar="FILE",
        show_default="that of a corpus of corpus build --index, else exact search",
    ),
    search_parameters=option(
        INPUT,
        "What the index of the corpus is searched with: nprobe=32, efSearch=64.",
        metavar="TEXT",
        show_default="as it was built",
    ),
    exact=option(INPUT, "Search exactly, also where the corpus has an index."),
    bias=_options.BIAS,
    groups=option(
        INPUT, "Group of each corpus row, such as its source: integers or strings of shape (N,).", metavar="FILE"
    ),
    costs=option(INPUT, "What each corpus row costs, such as its tokens: numbers of shape (N,).", metavar="FILE"),
    time=option(
        INPUT, "When each corpus row was written: times, or seconds since 1970, of shape (N,).", metavar="FILE"
    ),
    query_groups=option(
        INPUT,
        "Group of each query, integers or strings of shape (Q,); no query gets rows of its own group.",
        metavar="FILE",
    ),
    bad_rows=_options.BAD_ROWS,
    on_duplicate=_options.ON_DUPLICATE,
    overwrite=option(INPUT, "Discard an earlier job at --out and start anew."),
    vector_column=_options.VECTOR_COLUMN,
    id_column=_options.ID_COLUMN,
    bias_column=_options.BIAS_COLUMN,
    group_column=_options.GROUP_COLUMN,
    cost_column=_options.COST_COLUMN,
    time_column=_options.TIME_COLUMN,
    query_vector_column=_options.QUERY_VECTOR_COLUMN,
    query_id_column=_options.QUERY_ID_COLUMN,
    query_group_column=option(
        COLUMNS, "Column of the query groups, in the file of --query-groups, else in that of --queries."
    ),
    candidate_column=_options.CANDIDATE_COLUMN,
    candidate_vector_column=option(
        COLUMNS, "Column of lists of vectors, those of the candidates, whose ids may then be any: without --corpus."
    ),
    relevance_column=option(
        COLUMNS, "Column of lists of numbers, the relevance of the candidates instead of their cosine."
    ),
    relevance_scale=option(
        RULE, "How to rescale that relevance, for each query: by its range, to z-scores, or to ranks."
    ),
    method=option(
        RULE,
        "Rule: mmr weighs relevance and bias against redundancy, vrsd looks at the sum of the picks, msd at all "
        "distances, dpp and ssd at volume, sift at what is left unknown, coverage at what is left uncovered, gist "
        "at the least distance.",
    ),
    k=_options.K,
    pool=option(
        RULE,
        "Number of most relevant rows to choose from; 'all' selects from the whole corpus, exactly, and so does "
        "'certified', of mmr with cosines, by pools that grow until the picks are proven.",
        parser=_pool,
        metavar="N|all|certified",
        show_default="100",
    ),
    **_options.of_table(but=("relevance_scale", "metric", "half_life", "now")),
    half_life=option(RULE, f"{BY_NAME['half_life'].help}; or 12h, 7d.", parser=_options.seconds, metavar="TIME"),
    now=option(
        RULE,
        f"{BY_NAME['now'].help}; or 2026-03-31, 2026-03-31T12:00.",
        parser=_options.moment,
        metavar="TIME",
        show_default="when the job began",
    ),
    metric=option(
        RULE,
        "Similarity of vectors: cosine normalises them, dot takes them as they are.",
        show_default="that of a saved corpus, else cosine",
    ),
    dtype=option(
        RUN,
        "Type of the corpus in memory: float32, float16, bfloat16 or int8.",
        metavar="DTYPE",
        show_default="that of a saved corpus, else float32",
    ),
    device=option(RUN, "Device that holds the corpus and selects: cuda or cuda:N.", show_default="the CPU"),
    backend=option(RUN, "Backend that selects: auto, cpu or reference; with --device also triton or cuda."),
    num_threads=option(RUN, "Number of threads.", metavar="N", show_default="one per core"),
    chunk_size=option(RUN, "Number of queries in memory at a time.", metavar="N"),
    shard_size=option(
        RUN,
        "Number of queries in each Parquet file of the result: the most that a killed job repeats.",
        metavar="N",
    ),
    on_error=option(
        RUN,
        "What happens at a query that cannot be used: raise ends the job, skip writes empty lists for it and the "
        "reason to OUT.job/_errors-*.",
    ),
    memory=option(
        RUN,
        "Memory for the rows that are held of a saved corpus, which may be larger: they are then read for each chunk "
        "of queries. "
        "On Ray: for the segments that an actor holds, so that no node needs all.",
        metavar="2G",
        show_default="all of it",
    ),
    fingerprint=option(
        RUN,
        "How a resumed job recognises its inputs: by size, time and samples of the content, or by all of it.",
        show_default="as the job began, else sampled",
    ),
    verify=option(RUN, "Compare a saved corpus with its checksums before the job begins."),
    engine=option(CLUSTER, "Where the shards are made: in this process or on Ray, which needs the extra ray."),
    workers=option(CLUSTER, "Number of Ray actors that select.", metavar="N", show_default="as many as fit"),
    cpus_per_worker=option(CLUSTER, "Number of CPUs, and of threads, of each actor.", metavar="X", show_default="1"),
    gpus_per_worker=option(
        CLUSTER, "Number of GPUs that Ray reserves for each actor.", metavar="X", show_default="1 with --device"
    ),
    cpus_per_holder=option(
        CLUSTER,
        "Number of CPUs, and of threads, of each actor that holds segments (--memory).",
        metavar="X",
        show_default="1 where there are as many",
    ),
    ray_address=option(
        CLUSTER, "Address of the Ray cluster.", show_default="RAY_ADDRESS, else a new Ray on this machine"
    ),
    ray_timeout=option(
        CLUSTER,
        "Seconds to wait for room for an actor, or for one that was lost to be started again, before the job ends.",
        metavar="X",
        show_default="45",
    ),
)
def select(quiet: Quiet = False, **given: Any) -> None:
    """Select for every query of a file and write the picks as Parquet files.

    Each row has query_id and four lists: ids (the picks, best first), scores (the value of each when it was picked),
    relevance, and redundancy (the largest similarity with an earlier pick with mmr and gist, the mean with msd; NaN
    with other rules, but the largest with --max-similarity). MMR out of pools that it searches for itself adds
    certified: whether the picks are proven to be those of the whole corpus; --nearest adds nearest: the place, from 0,
    of the earlier pick that each is most similar to. Memory holds the corpus and a few chunks of
    queries. A job that was killed or stopped is resumed when the same command is run again; see also the commands job
    status and job verify.

    Exit codes: 0 complete, 1 error, 2 wrong usage, 130 after SIGINT, 143 after SIGTERM. After either signal the current
    shard is finished first; a second signal stops at once.
    """
    with (
        one_line_errors("select", RESUMABLE),
        notices(quiet),
        progress_bar(quiet) as progress,
        finishing(f"the current shard of at most {given['shard_size']} queries") as stop,
    ):
        given.update({name: given[name] or None for name in ("candidates", "fusion_weights")})
        summary = offline.select(progress=progress, stop=stop, **given)
    if not quiet:
        print(summary)
    if not summary.complete:
        raise typer.Exit(stop.exit_code)


@app.command()
@takes(
    offline.bias,
    pairs=Annotated[Path, option(INPUT, "File of questions and answers: .parquet, .csv with a header, or .jsonl.")],
    model=option(INPUT, "Causal language model: a name on the Hugging Face hub, a folder, or a .gguf file."),
    out=Annotated[
        Path,
        option(INPUT, "File of the result: .npy for select --bias, or .parquet with the input's columns and the bias."),
    ],
    cache=Annotated[
        Path | None,
        option(
            INPUT,
            "File that keeps the scores, also for later jobs.",
            show_default="a hidden file beside --out until the job is complete",
        ),
    ],
    overwrite=option(INPUT, "Replace an existing file at --out."),
    question_column=option(TEXTS, "Column of the questions."),
    answer_column=option(TEXTS, "Column of the answers."),
    bias_column=option(TEXTS, "Column of the bias in a .parquet result.", show_default="bias"),
    template=option(
        TEXTS,
        "Text of a demonstration, with {question} and, at its end, {answer}; the prompt is what precedes {answer}.",
        show_default=r"Q: {question}\nA: {answer}",
    ),
    dtype=option(RUN, "Type of the model's weights in memory."),
    batch_tokens=option(RUN, "Most tokens in one forward pass.", metavar="N"),
    backend=option(RUN, "Backend of the log-probabilities: auto, cpu, numpy or reference."),
    num_threads=option(RUN, "Number of threads of torch and of the kernels.", metavar="N", show_default="one per core"),
)
def bias(quiet: Quiet = False, **given: Any) -> None:
    """Score every (question, answer) pair of a file with a language model: the quality bias of RAGSys.

    The bias is the mean log-probability of the answer's tokens given the question. A job that was stopped is resumed
    when the same command is run again. Needs the extra lm.
    """
    bar = ("pairs", "loading the model", "scoring")
    run("bias", quiet, bar, lambda progress: offline.bias(progress=progress, **given))
