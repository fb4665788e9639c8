"""What a call is given it only reads: every public function leaves the bits of its arguments as they are."""

import copy
import dataclasses

import numpy as np
import pytest
import rule_problems
from operations import OTHERS, RNG, SCORING, SELECTION, f32

import ragsys_kernels as rk
from ragsys_kernels import similarity
from ragsys_kernels.integrations import langchain, llama_index, pyversity

pytestmark = [
    pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning"),
    pytest.mark.filterwarnings("ignore::ragsys_kernels.ConversionWarning"),
]

WORDS = [["c", "a", "b", "a"], ["b", "d"], ["d", "c"]]
IDS = np.array([[2, 0, 1], [1, 2, -1]])
PAIRS = similarity.jaccard(WORDS)[0]
GIVEN = {"relevance": f32(2, 3), "similarity": np.stack([PAIRS] * 2), "candidates": IDS, "k": 2}
LISTS = f32(9, 5).tolist()


def of_rules():
    """Every rule with all that limits picks, and the path."""
    found = {}
    for rule in rule_problems.OPTIONS:
        method, problem = rule_problems.problem_of(rule, "everything", initial=True)
        found[rule] = getattr(rk, method), problem
    method, problem = rule_problems.problem_of("mmr", "relevance")
    found["mmr relevance"] = rk.mmr, problem | {"relevance_scale": "rank"}
    problem = {name: x for name, x in problem.items() if name != "lambda_d"}
    found["mmr_path"] = rk.mmr_path, problem | {"relevance_scale": "minmax"}
    found["gist"] = rk.gist, {"queries": f32(3, 6), "embeddings": f32(20, 6), "k": 4, "candidates": None}
    found["allowed"] = rk.mmr, {
        "queries": f32(2, 6), "embeddings": f32(20, 6), "k": 4, "allowed": RNG.permutation(20)[None, :9].repeat(2, 0),
        "exclude": np.array([7, 3, 5]),
    }  # fmt: skip
    return found


def sparse_rows():
    """Indices that are not sorted, one of them twice."""
    sparse = pytest.importorskip("scipy.sparse")
    made = sparse.csr_matrix((np.array([1.0, 2, 3, 4]), np.array([2, 0, 0, 1]), np.array([0, 3, 3, 4])), shape=(3, 3))
    assert made.nnz == 4
    return made


def wide(given):
    """Arguments in float64, which no conversion copies where the work is done in it."""
    return {name: x.astype(np.float64) if getattr(x, "dtype", 0) == np.float32 else x for name, x in given.items()}


CALLS = {
    **SELECTION, **SCORING, **OTHERS, **of_rules(),
    **{f"{name} of float64": (call, wide(given)) for name, (call, given) in (SELECTION | OTHERS).items()},
    **{f"{name} by similarity": (getattr(rk, name), GIVEN) for name in ("mmr", "msd", "dpp", "coverage")},
    "sparse rows": (rk.mmr, lambda: {**GIVEN, "similarity": sparse_rows()}),
    "jaccard": (similarity.jaccard, {"sets": WORDS, "candidates": IDS}),
    "jaccard of sparse rows": (similarity.jaccard, lambda: {"sets": sparse_rows(), "candidates": IDS}),
    "maxsim": (similarity.maxsim, {"documents": [f32(2, 4), f32(3, 4), f32(1, 4)], "candidates": IDS}),
    "maxsim_relevance": (
        similarity.maxsim_relevance,
        {"queries": [f32(2, 4)] * 2, "documents": [f32(2, 4), f32(3, 4), f32(1, 4)], "candidates": IDS},
    ),
    "lists": (rk.mmr, {"queries": [[2.0, 1, 3]], "embeddings": [[2.0, 0, 1], [1, 2, 3], [0, 1, 1]], "k": 2}),
    "LangChain": (
        langchain.maximal_marginal_relevance, {"query_embedding": np.array(LISTS[0]), "embedding_list": LISTS, "k": 3},
    ),
    "LlamaIndex": (
        llama_index.get_top_k_mmr_embeddings,
        {"query_embedding": LISTS[0], "embeddings": LISTS, "similarity_top_k": 3, "embedding_ids": list("ihgfedcba")},
    ),
    **{
        f"pyversity {strategy}": (
            pyversity.diversify, {"embeddings": f32(9, 5), "scores": f32(9), "k": 3, "strategy": strategy},
        )
        for strategy in ("mmr", "msd", "dpp", "cover", "ssd")
    },
}  # fmt: skip


def parts(x):
    """What of an argument may be written to, as something that can be compared."""
    if isinstance(x, np.ndarray):
        return x.shape, x.strides, x.dtype.str, x.tobytes()
    if hasattr(x, "tocsr"):
        return x.has_sorted_indices, *map(parts, (x.data, x.indices, x.indptr))
    if dataclasses.is_dataclass(x):  # a Corpus
        return {name: parts(value) for name, value in vars(x).items() if isinstance(value, np.ndarray)}
    return list(map(parts, x)) if isinstance(x, list) else copy.copy(x)


@pytest.mark.parametrize("name", CALLS)
def test_arguments_stay_as_they_are(name):
    function, given = CALLS[name]
    given = given() if callable(given) else given
    before = {argument: parts(value) for argument, value in given.items()}
    function(**given)
    for argument, value in given.items():
        assert parts(value) == before[argument], argument
