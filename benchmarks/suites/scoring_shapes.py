"""The named problems of log-probabilities, their ledger and the names of the contenders; nothing here needs torch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.harness import ledger
from benchmarks.harness.contender import OURS

KEY = ("op", "backend", "isa", "shape", "dtype", "hardware", "contender")
LEDGER = ledger.Ledger(
    ledger.RESULTS / "scoring.csv",
    KEY,
    (
        *KEY,
        "T",
        "V",
        "D",  # empty: logits are given
        "threads",
        "rounds",
        "us",  # of one call, median over the rounds
        "iqr_us",
        "ratio",  # its time over the library's, median over the rounds
        "max_error",  # of log p, against float64
        "peak_mb",  # most memory above what was there before the call
        "note",
        "commit",
        "versions",
        "date",
    ),
)

RANK = f"{OURS}, rank and entropy"
MOST_PROBABLE = 20  # tokens of a row
TOP = f"{OURS}, {MOST_PROBABLE} most probable"
FALLBACK, NAIVE = f"{OURS}, NumPy fallback", "NumPy"
FRESH, WARM, LSE = "log_softmax + gather", "log_softmax + gather, warm", "logsumexp"
CROSS_ENTROPY, COMPILED = "F.cross_entropy", "torch.compile"
WITH_LOGITS, LINEAR = "product + log_softmax", "F.linear_cross_entropy"


@dataclass(frozen=True)
class Shape:
    """``D`` None: logits are given, else hidden states and a (V, D) matrix. ``model``: whose logits, else random."""

    T: int
    V: int
    D: int | None = None
    dtype: str = "float32"
    model: str = ""
    threads: int = 1

    @property
    def op(self) -> str:
        return "token_logprobs" if self.D is None else "answer_logprobs"

    def __str__(self) -> str:
        parts = [self.model, f"T{self.T}", f"V{self.V}", "" if self.D is None else f"D{self.D}", self.dtype]
        return "-".join([*filter(None, parts), *([f"threads{self.threads}"] if self.threads > 1 else [])])

    def small(self) -> Shape:
        return replace(self, T=min(self.T, 8), V=500, D=self.D and 48, model="", threads=1)


TOKENS = (1, 8, 64, 512)
VOCABULARIES = {32_000: 2048, 50_257: 768, 151_936: 1024, 262_144: 640}  # and the hidden size of a model that has it
DTYPES = ("float32", "bfloat16")
LOGITS = [Shape(T, V, None, dtype) for V in VOCABULARIES for T in TOKENS for dtype in DTYPES]
LONGEST = 151_936  # the vocabulary that 512 rows of hidden states are taken with: seconds a call
HIDDEN = [
    Shape(T, V, D, dtype)
    for V, D in VOCABULARIES.items()
    for T in TOKENS
    for dtype in DTYPES
    if T < 512 or V == LONGEST
]
RECORDED = [
    Shape(512, V, None, dtype, model)
    for model, V in (("smollm2", 49_152), ("gemma3", 262_144))
    for dtype in DTYPES
]  # fmt: skip
# Of which the most probable tokens are found too, as to distil a model; the bars are 1.3 and 1.15 times log p alone.
DISTILLED = [Shape(T, LONGEST, D, dtype) for T, D in ((512, None), (2048, 1024)) for dtype in DTYPES]
THREADS = [
    Shape(T, LONGEST, D, dtype, threads=2)
    for D, some in ((None, (8, 512)), (VOCABULARIES[LONGEST], (8, 64, 512)))
    for T in some
    for dtype in DTYPES
]
