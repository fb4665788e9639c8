"""What the GPU kernels may need of a device: the one table, and the rules for every kernel."""

from fnmatch import fnmatchcase
from typing import NamedTuple

from ragsys_kernels._gpu import compilers

# Shared memory that a block can have, in bytes: CUDA C++ Programming Guide, technical specifications per compute
# capability; 64 KiB of local data share on CDNA 3.
SHARED = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "sm_100": 227 * 1024, "gfx942": 64 * 1024}
MATRIX = {"sm_80": {"mma.sync"}, "sm_90": {"wgmma", "mma.sync"}, "sm_100": {"tcgen05", "mma.sync"}, "gfx942": {"mfma"}}


class Budget(NamedTuple):
    """The most registers of a thread, by architecture; sm_80, sm_90, sm_100, gfx942 (vector registers, of 512)."""

    kernels: str  # shell pattern of names
    sm_80: int
    sm_90: int
    sm_100: int
    gfx942: int = 0
    wide_loads: bool = False  # of CUDA C++ kernels, which cannot say it themselves
    oldest: bool = False  # of another compiler than the newest

    def matches(self, name):
        return fnmatchcase(name, self.kernels)


# A thread can have 255 registers on NVIDIA's processors, of 64 K for all threads of a multiprocessor.
TRITON = (
    # Selection: registers hold the Gram matrix of a pool or its rows (regime a) or a tile of products (b, c).
    Budget("query factors *", 40, 40, 40, 40),
    Budget("estimates *", 255, 255, 255, 336),  # Hopper alone
    Budget("rows *", 255, 255, 255, 336),
    Budget("gram tile 16 *", 144, 144, 144, 136),
    Budget("gram tile 32 *", 136, 168, 136, 160),
    Budget("gram tile 64 *", 184, 184, 184, 192),
    Budget("gram tile 128 *", 255, 255, 255, 440),
    Budget("gram 16 *", 136, 136, 136, 120),
    Budget("gram 32 *", 144, 216, 144, 160),
    Budget("gram 64 *", 176, 144, 136, 176),
    Budget("gram 128 *", 255, 255, 255, 280),
    Budget("bounds *", 255, 255, 255, 288),
    Budget("stream vrsd plain *", 136, 176, 176, 152),
    Budget("stream * options *float16", 168, 168, 168, 152),
    Budget("stream * options float32", 240, 240, 240, 200),
    Budget("stream * options int8", 240, 240, 240, 208),
    Budget("row lengths *", 64, 64, 64, 48),
    Budget("corpus relevance *", 255, 248, 152, 184),
    Budget("corpus first *", 255, 248, 255, 192),
    Budget("corpus step *", 255, 248, 192, 192),
    Budget("corpus pick *", 64, 64, 64, 32),
    Budget("corpus initial *", 64, 64, 64, 32),
    Budget("corpus queries *", 40, 40, 40, 40),
    Budget("corpus candidates *", 32, 32, 32, 32),
    Budget("corpus found *", 32, 32, 32, 32),
    Budget("corpus search *", 208, 128, 96, 176),
    Budget("corpus given *", 72, 104, 72, 48),
    Budget("filter queries *", 48, 48, 48, 56),
    Budget("filter bars *", 96, 96, 96, 104),
    Budget("filter list *", 64, 64, 72, 64),
    Budget("filter least *", 248, 248, 208, 384),
    Budget("filter bits *", 248, 248, 216, 384),
    Budget("filter keys *", 128, 128, 128, 120),
    Budget("filter best *", 240, 240, 240, 264),
    Budget("proof columns *", 64, 64, 64, 96),
    Budget("proof bits *", 255, 255, 255, 512),
    Budget("proof peaks *", 255, 255, 255, 512),
    Budget("proof pool *", 96, 96, 96, 96),
    Budget("proof first pool *", 72, 72, 64, 72),
    Budget("proof draft *", 255, 255, 255, 440),
    Budget("proof rest [rsf][eti][lre]*", 255, 255, 255, 256),
    Budget("proof rest [pi][in][ci]*", 64, 64, 64, 32),
    Budget("proof rest queries *", 40, 40, 40, 40),
    # Scoring: a split of the vocabulary, or a tile of logits.
    Budget("_logprob_logits_kernel, [bf]*", 192, 192, 168, 112),
    Budget("_logprob_logits_kernel, packs, *", 192, 208, 168, 112),
    Budget("_logprob_merge_kernel, *", 72, 72, 72, 48),
    Budget("_logprob_linear_kernel, float32 x *", 255, 255, 255, 240),
    Budget("_logprob_linear_kernel, float16 x *", 232, 232, 216, 240),
    Budget("_logprob_linear_kernel, bfloat16 x *", 255, 232, 255, 288),
    Budget("_logprob_linear_target_kernel, float32 x *", 208, 192, 192, 120),
    Budget("_logprob_linear_target_kernel, float16 x *", 128, 128, 168, 176),
    Budget("_logprob_linear_target_kernel, bfloat16 x *", 136, 200, 240, 224),
    Budget("_logprob_linear_split_kernel, float32 x *", 200, 255, 192, 144),
    Budget("_logprob_linear_split_kernel, float16 x *", 208, 232, 255, 232),
    Budget("_logprob_linear_split_kernel, bfloat16 x *", 255, 255, 255, 264),
    Budget("_logprob_top_kernel, * K=32, *", 40, 48, 48, 32),
    Budget("_logprob_top_kernel, * K=256, *", 72, 80, 64, 48),
    Budget("_logprob_top_kernel, * K=1024, *", 64, 64, 64, 64),
    Budget("_logprob_slots_kernel, *", 80, 80, 80, 64),
    Budget("_logprob_aligned_slots_kernel, *", 32, 32, 32, 24),
    Budget("_logprob_finish_kernel, *", 72, 72, 72, 48),
    Budget("_logprob_answers_kernel, *", 64, 64, 64, 32),
)

CUDA = (
    # Threads of which a multiprocessor has 512, 384 with 128 slots, and with 112 for MSD and on sm_100.
    Budget("rsk_*_gram_128_*", 168, 168, 168, wide_loads=True),
    Budget("rsk_[mv][mr]*_gram_112_*", 128, 128, 168, wide_loads=True),
    Budget("rsk_msd_gram_112_*", 168, 168, 168, wide_loads=True),
    Budget("rsk_*_gram_[36]*", 128, 128, 128, wide_loads=True),
    # Two blocks of four warps share a multiprocessor, or one of eight. None for sm_80.
    Budget("rsk_*_resident_*", 0, 255, 255, wide_loads=True),
    # Two blocks of eight warps share a multiprocessor, or one of sm_80.
    Budget("rsk_*_streamed_*", 255, 128, 128, wide_loads=True),
)


# What is spilled, in bytes of a thread.
SPILLED = {
    # Faster so on an H200 than what spills less: float32 rows held on chip (VRSD 1.6 times, MMR with a bias 1.8 times
    # as fast as with a third of them held), one warp a pool (1.1 times, with options), one warp for few float32 rows.
    ("rows 128 * float32", "sm_90"): 488,
    ("proof draft * float32", "sm_90"): 488,
    ("bounds mmr options float16", "sm_90"): 224,
    ("_logprob_linear_kernel, float32 x float32, ROWS=16, *", "sm_90"): 456,
    ("_logprob_linear_target_kernel, float32 x float32, ROWS=16, *", "sm_90"): 8,
    # Of few splits, where each row of a tile has a place of its own for its values.
    ("_logprob_linear_split_kernel, float32 x *", "sm_90"): 824,
    ("_logprob_linear_split_kernel, bfloat16 x *", "sm_100"): 112,
    ("_logprob_top_kernel, * K=1024, *", "sm_90"): 16,
    ("_logprob_top_kernel, * K=1024, *", "sm_100"): 16,
    # By one of the compilers, a few registers that are read once a tile.
    ("_logprob_linear_kernel, bfloat16 x bfloat16, *", "sm_90"): 8,
    ("corpus step 64 vrsd options *float16", "sm_90"): 32,
    ("corpus relevance 64 * plain float32", "sm_100"): 8,
    ("corpus step * vrsd * float32", "sm_100"): 16,
    ("corpus first * vrsd * float32", "sm_100"): 16,
    ("rows 64 vrsd options float32", "sm_100"): 8,
    ("gram tile 64 vrsd options *float16", "sm_80"): 40,
    ("proof bits 64 x 6 plain *", "sm_90"): 16,
    ("gram 128 mmr plain int8", "sm_80"): 40,
    ("gram 128 mmr plain int8", "sm_100"): 16,
    ("proof draft * int8", "sm_100"): 16,
    # So that two blocks of eight warps share a multiprocessor.
    ("rsk_*_streamed_*", "sm_100"): 36,
    # Rules with 128 slots and all options together, which keep a row of numbers of each slot beside the matrix.
    ("gram 128 [ds]* options float16", "sm_80"): 152,
}


# By the newest NVRTC, which compiles the same sources on a device: it takes all 255 registers where nvcc 13.0 takes a
# few less.
SPILLED_BY_NVRTC = {
    ("rsk_vrsd_resident_*_384_float16", "sm_90"): 8,
}


def spilled(name, arch, table=SPILLED):
    """How many bytes of a thread a kernel may spill."""
    listed = (most for (kernels, on), most in table.items() if on == arch and fnmatchcase(name, kernels))
    return max(listed, default=0)


def of_any_compiler(table):
    """The table for code of another compiler, which may take all the registers that a thread can have."""
    return [budget._replace(sm_80=255, sm_90=255, sm_100=255, gfx942=512, oldest=True) for budget in table]


def _refused(compiled):
    """Whether the launcher refuses a kernel by older compilers: compilers.MATRIX_OF_FLOAT32."""
    kinds = ("facility", "cover", "xquad")
    return (
        compiled.arch in compilers.MATRIX_OF_FLOAT32
        and compiled.name.endswith("float32")
        and any(f" {kind} " in compiled.name for kind in kinds)
    )


def violations(compiled, table):
    """What is wrong with a compiled kernel, as lines of text; none where it keeps to its budget."""
    found = [budget for budget in table if budget.matches(compiled.name)]
    if len(found) != 1:
        return [f"{compiled.name}: {len(found)} budgets, not one: {[budget.kernels for budget in found]}"]
    registers = getattr(found[0], compiled.arch)
    wrong = []
    if found[0].oldest and _refused(compiled):
        return []
    if compiled.registers > registers:
        wrong.append(f"{compiled.registers} registers, budget {registers}")
    spare = spilled(compiled.name, compiled.arch)
    if compiled.stack > spare:
        wrong.append(f"{compiled.stack} bytes of stack")
    # AMD's compiler counts registers that it keeps in accumulator registers or their lanes: without a stack no byte of
    # them goes to memory.
    if compiled.spills > spare and (compiled.stack or not compiled.arch.startswith("gfx")):
        wrong.append(f"{compiled.spills} spilled")
    if compiled.shared > SHARED[compiled.arch]:
        wrong.append(f"{compiled.shared} bytes of shared memory, a block can have {SHARED[compiled.arch]}")
    if compiled.dot16 and not MATRIX[compiled.arch] & set(compiled.matrix):
        wrong.append("no matrix instructions")
    if (compiled.wide_loads or found[0].wide_loads) and compiled.widest_load < 16:
        wrong.append(f"global loads of {compiled.widest_load} bytes at most")
    return [f"{compiled.name}, {compiled.arch}: {line}" for line in wrong]
