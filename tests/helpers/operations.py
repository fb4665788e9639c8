"""Every operation with good arguments, all that can be arrays."""

import numpy as np

import ragsys_kernels as rk
from ragsys_kernels import metrics, testing

RNG = np.random.default_rng(0)


def f32(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def selected(method):
    problem = testing.selection_problem(4, 20, 5, 11, bias=method == "mmr", groups=True, ragged=True)
    problem["relevance"] = f32(4, 20)
    problem["initial"] = np.array([[0, -1], [-1, -1], [7, 3], [-1, 2]])
    problem["k"] = np.array([3, 1, 5, 2])
    if method == "mmr":
        problem |= {"lambda_d": RNG.uniform(0, 1, 4), "lambda_b": RNG.uniform(0, 1, 4).astype(np.float32)}
    return problem


ROWS, BIAS, GROUPS = f32(30, 6), f32(30), np.arange(30) % 7
CORPUS = rk.Corpus(ROWS, bias=BIAS, groups=GROUPS)
QUERIES = {"queries": f32(4, 6), "query_groups": np.arange(4)}


def made(**arrays):
    corpus = rk.Corpus(**arrays)
    return corpus.data, corpus.bias, corpus.groups


ANSWERS = {
    "targets": np.array([1, 4, 2, 0, 3]),
    "rows": np.array([0, 2, 1, 1, 3]),
    "allowed": np.array([0, 1, 2, 3, 4, 7]),
    "temperature": np.array([0.5, 1.5]),
}
CU = {"cu_answers": np.array([0, 2, 5])}
HEAD = {"hidden": f32(4, 8), "weight": f32(9, 8), "bias": f32(9)}
PARTIALS = rk.logprob_partials(f32(4, 9), targets=np.arange(4), vocab_size=9, rank=True, entropy=True, k=3)
LOGPROBS = {
    "logp": -RNG.uniform(0.1, 3, 6),
    "is_correct": np.array([1, 0, 0, 1, 1, 0], bool),
    "cu_questions": np.array([0, 3, 6]),
}
PICKS = np.array([[0, 3, -1], [2, 1, 5]])


def merged(**fields):
    return rk.merge_partials([rk.Partials(**fields), PARTIALS])


def finished(**fields):
    return rk.answer_logprobs(
        partials=rk.Partials(**fields), targets=np.arange(4), vocab_size=9, want=("logp", "lse", "entropy", "rank")
    )


def best(**fields):
    return rk.top_logprobs(partials=rk.Partials(**fields), k=2)


# Operation: what is called and its arguments.
SELECTION = {
    "mmr": (rk.mmr, selected("mmr")),
    "vrsd": (rk.vrsd, selected("vrsd")),
    "search": (CORPUS.search, {**QUERIES, "n": 5, "lambda_b": RNG.uniform(0, 1, 4)}),
    "select": (
        CORPUS.select,
        {
            **QUERIES, "k": np.array([2, 3, 1, 2]), "pool": 8, "bias": f32(30), "groups": GROUPS[::-1].copy(),
            "initial": np.arange(4)[:, None], "lambda_d": RNG.uniform(0, 1, 4),
        },
    ),
    "select_candidates": (CORPUS.select, {**QUERIES, "k": 2, "candidates": np.arange(20).reshape(4, 5)}),
}  # fmt: skip
SCORING = {
    "token_logprobs": (
        rk.token_logprobs, {"logits": f32(4, 9), "targets": np.arange(4), "temperature": f32(4) ** 2 + 0.5},
    ),
    "answer_logprobs": (rk.answer_logprobs, {"logits": f32(4, 9), **ANSWERS, **CU}),
    "answer_logprobs_ids": (rk.answer_logprobs, {**HEAD, **ANSWERS, "answer_ids": np.array([1, 0, 0, 1, 1])}),
    "label_posteriors": (
        rk.label_posteriors,
        {**HEAD, "label_ids": np.array([3, 1, 2]), "cu_labels": np.array([0, 1, 3]), "prior": np.array([0.2, 0.8]),
         "rows": np.array([1, 3]), "temperature": np.array([1.0, 2.0])},
    ),
    "logprob_partials": (
        rk.logprob_partials, {**HEAD, **ANSWERS, **CU, "vocab_size": 9, "rank": True, "target_logits": f32(5)},
    ),
    "top_logprobs": (
        rk.top_logprobs,
        {**HEAD, "k": 3, "rows": np.array([1, 3]), "temperature": np.array([1.0, 2.0]), "allowed": ANSWERS["allowed"]},
    ),
}  # fmt: skip
OTHERS = {
    "Corpus": (made, {"embeddings": ROWS, "bias": BIAS, "groups": GROUPS}),
    "merge_partials": (merged, PARTIALS._asdict()),
    "answer_logprobs_partials": (finished, PARTIALS._asdict()),
    "top_logprobs_partials": (best, PARTIALS._asdict()),
    "multiple_choice": (metrics.multiple_choice, {**LOGPROBS, "best": np.array([0, 3])}),
    "dpo": (metrics.dpo, {**LOGPROBS, "reference": f32(6)}),
    "perplexity": (metrics.perplexity, {"sum_logp": -(f32(3) ** 2), "count": np.array([2, 0, 5])}),
    "sum_cosine": (metrics.sum_cosine, {"queries": f32(2, 6), "embeddings": ROWS, "indices": PICKS}),
    "pairwise_cosine": (metrics.pairwise_cosine, {"embeddings": ROWS, "indices": PICKS}),
    "intra_list_distance": (metrics.intra_list_distance, {"embeddings": ROWS, "indices": PICKS}),
    "log_determinant": (metrics.log_determinant, {"embeddings": ROWS, "indices": PICKS}),
    "vendi_score": (metrics.vendi_score, {"embeddings": ROWS, "indices": PICKS}),
    "coverage": (metrics.coverage, {"embeddings": ROWS, "indices": PICKS, "aspects": f32(3, 6)}),
    "near_duplicates": (metrics.near_duplicates, {"embeddings": ROWS, "indices": PICKS}),
    "win_rate": (metrics.win_rate, {"ours": f32(5), "theirs": f32(5)}),
    "max_diff": (metrics.max_diff, {"ours": f32(5), "theirs": f32(5)}),
    "alpha_ndcg": (metrics.alpha_ndcg, {"indices": PICKS, "judgements": RNG.integers(0, 2, (6, 3)) > 0}),
    "nqc": (metrics.nqc, {"scores": f32(3, 4), "corpus_score": f32(3)}),
    "macro_scores": (metrics.macro_scores, {"labels": PICKS[0], "predictions": PICKS[1]}),
}
