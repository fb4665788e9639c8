import numpy as np
from numpy.typing import NDArray

ISAS: tuple[str, ...]
SUPPORTED_ISAS: tuple[str, ...]

def texts_of(
    ids: list[str],
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.uint32], int]: ...
def find_texts(
    wanted: list[str | None],
    text: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    keys: NDArray[np.uint32],
    order: NDArray[np.int64],
) -> NDArray[np.int64]: ...
def texts_at(rows: NDArray[np.int64], text: NDArray[np.uint8], offsets: NDArray[np.int64]) -> list[str | None]: ...
def select(
    method: int,
    num_queries: int,
    pool: int,
    pool_stride: int,
    rows: NDArray[np.generic],
    dtype: int,
    norm: int,
    scales: NDArray[np.float32] | None,
    codes: NDArray[np.uint8] | None,
    queries: NDArray[np.float32] | None,
    unit_queries: bool,
    unit_rows: bool,
    bounds: int,
    candidates: NDArray[np.signedinteger] | None,
    relevance: NDArray[np.float32] | None,
    bias: NDArray[np.float32] | None,
    k: int,
    ks: NDArray[np.int64] | None,
    lambda_d: NDArray[np.float32],
    lambda_b: NDArray[np.float32] | None,
    relevance_error: NDArray[np.float32] | None,
    forced: NDArray[np.int64] | None,
    ceiling: NDArray[np.float32] | None,
    outside: NDArray[np.float32] | None,
    max_bias: float,
    best_first: bool,
    constraints: tuple[object, ...] | None,  # cpu._constraints
    options: tuple[object, ...] | None,  # cpu._OPTIONS
    isa: int,
    num_threads: int,
    pool_needed: NDArray[np.float32] | None = None,  # (Q,), written
) -> tuple[
    NDArray[np.int64],
    NDArray[np.float32],
    NDArray[np.float32],
    NDArray[np.float32],
    NDArray[np.int32],
    NDArray[np.uint8] | None,
    tuple[int, int, int],
]: ...
def select_given(
    rule: int,
    similarity: NDArray[np.float32],
    values: NDArray[np.float32],
    weights: NDArray[np.float32] | None,
    one: float,
    gamma: float,
    largest: float,
    determinant: tuple[float, float, float, float, float],
    k: int,
    ks: NDArray[np.int64] | None,
    lambda_d: NDArray[np.float32],
    open: NDArray[np.uint8] | None,
    initial: NDArray[np.int64] | None,
    groups: NDArray[np.int64] | None,
    max_per_group: int,
    costs: NDArray[np.float64] | None,
    budget: NDArray[np.float64] | None,
    max_similarity: NDArray[np.float32] | None,
    num_threads: int,
) -> tuple[
    NDArray[np.int64],
    NDArray[np.float32],
    NDArray[np.float32],
    NDArray[np.float32],
    NDArray[np.int32],
    NDArray[np.uint8],
]: ...
def path(
    num_queries: int,
    pool: int,
    pool_stride: int,
    rows: NDArray[np.generic],
    dtype: int,
    norm: int,
    scales: NDArray[np.float32] | None,
    queries: NDArray[np.float32] | None,
    unit_queries: bool,
    candidates: NDArray[np.signedinteger] | None,
    relevance: NDArray[np.float32] | None,
    bias: NDArray[np.float32] | None,
    k: int,
    ks: NDArray[np.int64] | None,
    lambda_b: NDArray[np.float32] | None,
    low: float,
    high: float,
    constraints: tuple[object, ...] | None,  # cpu._constraints
    isa: int,
    num_threads: int,
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64], NDArray[np.int64], NDArray[np.uint8]]: ...
def encode(
    rows: NDArray[np.generic], dtype: int, scales: NDArray[np.float32] | None, isa: int, num_threads: int
) -> NDArray[np.uint8]: ...
def store(
    rows: NDArray[np.generic],
    given: int,
    out: NDArray[np.generic],
    dtype: int,
    scales: NDArray[np.float32] | None,
    cosine: bool,
    isa: int,
) -> tuple[int, int, float]: ...
def same(
    rows: NDArray[np.generic],
    given: int,
    data: NDArray[np.generic],
    dtype: int,
    scales: NDArray[np.float32] | None,
    places: NDArray[np.int64],
    cosine: bool,
    isa: int,
    num_threads: int,
) -> tuple[NDArray[np.uint8], int, int]: ...
def code_error(codes: NDArray[np.uint8]) -> float: ...
def code_scan_supported(isa: int, vectors: int) -> bool: ...
def bf16_unit(isa: int) -> str | None: ...
def relevance(
    num_queries: int,
    pool: int,
    rows: NDArray[np.generic],
    dtype: int,
    norm: int,
    scales: NDArray[np.float32] | None,
    queries: NDArray[np.float32],
    unit_queries: bool,
    candidates: NDArray[np.signedinteger],
    bias: NDArray[np.float32] | None,
    lambda_b: NDArray[np.float32] | None,
    isa: int,
    num_threads: int,
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]: ...
def scan(
    vectors: NDArray[np.float32],
    n: int,
    rows: NDArray[np.generic],
    dtype: int,
    norm: int,
    scales: NDArray[np.float32] | None,
    codes: NDArray[np.uint8] | None,
    row_error: float,
    max_norm: float,
    bias: NDArray[np.float32] | None,
    largest_bias: float,
    score_weight: NDArray[np.float32] | None,
    bias_weight: NDArray[np.float32] | None,
    groups: NDArray[np.int64] | None,
    query_groups: NDArray[np.int64] | None,
    isa: int,
    num_threads: int,
    allowed: NDArray[np.uint8] | None = None,
    exclude: NDArray[np.int64] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32], NDArray[np.float32], bool]: ...
def search(
    queries: NDArray[np.float32],
    unit_queries: bool,
    n: int,
    rows: NDArray[np.generic],
    dtype: int,
    norm: int,
    scales: NDArray[np.float32] | None,
    codes: NDArray[np.uint8] | None,
    row_error: float,
    bias: NDArray[np.float32] | None,
    largest_bias: float,
    lambda_b: NDArray[np.float32],
    groups: NDArray[np.int64] | None,
    query_groups: NDArray[np.int64] | None,
    isa: int,
    num_threads: int,
    allowed: NDArray[np.uint8] | None = None,
    exclude: NDArray[np.int64] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.uint8]]: ...

_Partials = tuple[
    NDArray[np.float32],
    NDArray[np.float32],
    NDArray[np.float64],
    NDArray[np.float64] | None,
    NDArray[np.float32],
    NDArray[np.int64] | None,
]

def score_logits(
    logits: NDArray[np.generic],
    dtype: int,
    rows: NDArray[np.int64],
    inverse_temperature: NDArray[np.float32],
    logit_scale: float,
    softcap: float,
    num_columns: int,
    allowed: NDArray[np.int64] | None,
    pair_begin: NDArray[np.int64],
    columns: NDArray[np.int64],
    target_logits: NDArray[np.float32] | None,
    entropy: bool,
    rank: bool,
    isa: int,
    num_threads: int,
) -> _Partials: ...
def score_hidden(
    hidden: NDArray[np.generic],
    hidden_dtype: int,
    weight: NDArray[np.generic],
    weight_dtype: int,
    head_bias: NDArray[np.float32] | None,
    rows: NDArray[np.int64],
    inverse_temperature: NDArray[np.float32],
    logit_scale: float,
    softcap: float,
    num_columns: int,
    allowed: NDArray[np.int64] | None,
    pair_begin: NDArray[np.int64],
    columns: NDArray[np.int64],
    target_logits: NDArray[np.float32] | None,
    entropy: bool,
    rank: bool,
    isa: int,
    num_threads: int,
) -> _Partials: ...
