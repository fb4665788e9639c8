import numpy as np
from numpy.typing import NDArray

from .selection.by_similarity import Given
from .selection.cpu import Stage
from .selection.problem import Problem, Rows

ISAS: tuple[str, ...]
SUPPORTED_ISAS: tuple[str, ...]

def stop_on(flag: NDArray[np.int32] | None, error: type[BaseException] | None) -> None: ...
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
    problem: Problem, stage: Stage | None, bounds: str, isa: int, num_threads: int, most_kept: int, shared_items: int
) -> tuple[
    NDArray[np.int64],
    NDArray[np.float32],
    NDArray[np.float32],
    NDArray[np.float32],
    NDArray[np.int32],
    NDArray[np.float32] | None,
    NDArray[np.uint8] | None,
    tuple[int, int, int],
]: ...
def select_given(
    problem: Problem, given: Given, num_threads: int
) -> tuple[
    NDArray[np.int64],
    NDArray[np.float32],
    NDArray[np.float32],
    NDArray[np.float32],
    NDArray[np.int32],
    NDArray[np.uint8],
]: ...
def path(
    problem: Problem, low: float, high: float, isa: int, num_threads: int
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64], NDArray[np.int64], NDArray[np.uint8]]: ...
def encode(
    rows: NDArray[np.generic], dtype: str, scales: NDArray[np.float32] | None, isa: int, num_threads: int
) -> NDArray[np.uint8]: ...
def store(
    rows: NDArray[np.generic],
    given: str,
    out: NDArray[np.generic],
    dtype: str,
    scales: NDArray[np.float32] | None,
    cosine: bool,
    isa: int,
) -> tuple[int, int, float]: ...
def same(
    rows: NDArray[np.generic],
    given: str,
    data: NDArray[np.generic],
    dtype: str,
    scales: NDArray[np.float32] | None,
    places: NDArray[np.int64],
    cosine: bool,
    isa: int,
    num_threads: int,
) -> tuple[NDArray[np.uint8], int, int]: ...
def code_error(codes: NDArray[np.uint8]) -> float: ...
def code_scan_supported(isa: int, vectors: int, own: bool) -> bool: ...
def bf16_unit(isa: int) -> str | None: ...
def relevance(problem: Problem, isa: int, num_threads: int) -> tuple[NDArray[np.float32], NDArray[np.uint8]]: ...
def scan(
    problem: Problem,
    vectors: NDArray[np.float32],
    n: int,
    by_codes: bool,
    max_norm: float,
    largest_bias: float,
    score_weight: NDArray[np.float32] | None,
    bias_weight: NDArray[np.float32] | None,
    isa: int,
    num_threads: int,
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32], NDArray[np.float32], bool]: ...
def search(
    problem: Problem, largest_bias: float, isa: int, num_threads: int
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.uint8]]: ...
def near_supported(isa: int) -> bool: ...
def near(
    corpus: Rows,
    looked_at: NDArray[np.int64],
    sketches: NDArray[np.uint8],
    vectors: NDArray[np.float32],
    vector_bytes: NDArray[np.int8],
    start: NDArray[np.int16],
    least: NDArray[np.float32],
    margin: float,
    isa: int,
    num_threads: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]: ...

_Partials = tuple[
    NDArray[np.float32],
    NDArray[np.float32],
    NDArray[np.float64],
    NDArray[np.float64] | None,
    NDArray[np.float32],
    NDArray[np.int64] | None,
    NDArray[np.float32] | None,
    NDArray[np.int64] | None,
]

def score_logits(
    logits: NDArray[np.generic],
    dtype: str,
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
    top: int,
    isa: int,
    num_threads: int,
) -> _Partials: ...
def score_hidden(
    hidden: NDArray[np.generic],
    hidden_dtype: str,
    weight: NDArray[np.generic],
    weight_dtype: str,
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
    top: int,
    isa: int,
    num_threads: int,
) -> _Partials: ...
