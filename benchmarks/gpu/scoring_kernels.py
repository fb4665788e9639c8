"""Every Triton kernel of scoring in each shape that its launcher chooses, to be compiled without a device."""

from __future__ import annotations

from benchmarks.gpu.compilation import Compilation, by_generation, describe
from ragsys_kernels._gpu.compilers import float32_precision
from ragsys_kernels.scoring.triton.answers import ANSWER_BLOCK, logprob_answers_kernel
from ragsys_kernels.scoring.triton.finish import logprob_finish_kernel
from ragsys_kernels.scoring.triton.linear import (
    AMD_WARPS,
    MOST_SPLIT_ROWS,
    TARGET_STAGES,
    logprob_linear_kernel,
    logprob_linear_split_kernel,
    logprob_linear_target_kernel,
    tile_of,
)
from ragsys_kernels.scoring.triton.logits import logprob_logits_kernel, split_size, splits_of
from ragsys_kernels.scoring.triton.merge import PAIRS_AT_ONCE, logprob_merge_kernel, merge_shape
from ragsys_kernels.scoring.triton.slots import (
    PAIR_BLOCK,
    SLOT_BLOCK,
    logprob_aligned_slots_kernel,
    logprob_slots_kernel,
)
from ragsys_kernels.scoring.triton.top import BLOCK, MOST, list_shape, logprob_top_kernel

_POINTERS = {"float32": "*fp32", "float16": "*fp16", "bfloat16": "*bf16"}

# Types of the kernels' arguments; those of logits, hidden states and weights depend on how they are stored.
_TYPES = {
    **dict.fromkeys(("rows", "allowed", "pair_begin", "columns", "rank", "begin", "order", "answers"), "*i64"),
    **dict.fromkeys(
        ("targets", "row_of", "slot_of", "slot_of_row", "place", "leader", "rank_of_pair", "counts"), "*i64"
    ),
    **dict.fromkeys(("choice", "top_ids"), "*i64"),
    **dict.fromkeys(("size", "done"), "*i32"),
    **dict.fromkeys(("state",), "*i8"),
    **dict.fromkeys(("greedy",), "*i1"),
    **dict.fromkeys(("inverse_temperature", "bias", "than", "target", "ref", "largest"), "*fp32"),
    **dict.fromkeys(("temperature", "logp", "lse", "entropy"), "*fp32"),
    **dict.fromkeys(("part_max", "part_rest", "part_sum", "part_weighted", "held", "top"), "*fp32"),
    **dict.fromkeys(("total", "total_weighted", "values", "sums", "means", "logp64"), "*fp64"),
    **dict.fromkeys(("stride", "stride_hidden", "stride_weight", "dims"), "i32"),
    **dict.fromkeys(
        ("num_slots", "num_pairs", "num_columns", "num_entering", "splits", "tiles", "row_tiles", "steps"), "i32"
    ),
    **dict.fromkeys(("width", "chosen", "k", "pairs_each"), "i32"),
    **dict.fromkeys(("num_rows", "num_allowed", "num_answers", "ignore", "begin_at"), "i32"),
    **dict.fromkeys(("inner", "outer", "inverse"), "fp32"),
}

# What a call leaves out, by the name of the feature it then lacks.
_ABSENT = {
    "allowed": ("allowed",),
    "entropy": ("part_weighted", "total_weighted", "entropy"),
    "rank": ("rank", "rank_of_pair"),
    "than": ("than",),
    "bias": ("bias",),
}


# What a call leaves out whose pairs have slots already; what one whose pairs each have a row of their own, and a
# temperature of their own, of their answer, or that of all.
_SLOTS = ("ignore", "temperature", "begin", "answers")
_ALIGNED = ("rows", "inverse_temperature", "pair_begin", "slot_of", "slot_of_row", "place")
_TEMPERATURES = {
    "pair's": ("begin", "answers"),
    "answer's": ("answers",),
    "one": ("temperature", "begin", "answers"),
}


def _without(features: str, *missing: str) -> tuple[str, ...]:
    """Return the arguments that are None in a call with these features."""
    return (
        tuple(
            argument
            for feature, arguments in _ABSENT.items()
            if feature not in features.split()
            for argument in arguments
        )
        + missing
    )


def ahead_of_time() -> list[Compilation]:
    """Return the kernels with features in the combinations that matter."""
    others = [*_slots(), *_logits(), *_merges(), *_finish(), *_answers(), *_tops()]
    return [*others, *by_generation(_linear)]


# What the launch of the logits has where it merges the splits too, by what is wanted; else none of it.
_FINISHED = {
    "": ("logp64", "state", "lse", "largest", "entropy"),
    "everything": (),
    "rank": ("done", "logp", "logp64", "state", "lse", "largest", "entropy"),
}
_FINISHED["slots"] = _FINISHED["rank"]


def _logits() -> list[Compilation]:
    found = []
    for dtype, size, name, features in (
        ("float32", 100_000, "plain", ""),
        ("float16", 100_000, "plain", ""),
        ("bfloat16", 100_000, "plain", ""),
        ("float32", 100_000, "entropy and rank", "entropy rank"),
        ("bfloat16", 100_000, "entropy and rank", "entropy rank"),
        ("bfloat16", 100_000, "entropy and all else", "everything entropy"),
        ("bfloat16", 100_000, "softcap", "softcap"),
        ("bfloat16", 100_000, "every feature", "slots entropy rank softcap allowed than"),
        ("float32", 500, "entropy and rank", "entropy rank"),
        ("float32", 100, "entropy and all else", "everything entropy"),
        ("bfloat16", 100_000, "slots", "slots"),
        ("bfloat16", 100_000, "temperatures of tokens", "pair's"),
        ("bfloat16", 100_000, "temperatures of answers", "answer's"),
        ("float32", 100_000, "log p", "packs"),
        ("float16", 100_000, "log p", "packs"),
        ("bfloat16", 100_000, "log p", "packs"),
        ("bfloat16", 100_000, "entropy and rank", "packs entropy rank"),
        ("bfloat16", 100_000, "slots", "packs slots"),
    ):
        block, warps = split_size(size)
        wide = "allowed" not in features and size > 500
        packs = "packs" in features
        temperature = next((of for of in _TEMPERATURES if of in features), "one")
        missing = _SLOTS if "slots" in features else (*_ALIGNED, *_TEMPERATURES[temperature])
        missing += _FINISHED[next((what for what in ("slots", "rank", "everything") if what in features), "")]
        constexprs = {
            "BLOCK": block,
            "SPLITS": merge_shape(splits_of(size))[0],
            "SOFTCAP": "softcap" in features,
            "PER_PAIR": temperature == "pair's",
            "ITEM": (4 if dtype == "float32" else 2) if packs else 0,
        }
        found.append(
            describe(
                f"_logprob_logits_kernel, {'packs, ' if packs else ''}{dtype}, BLOCK={block}, {name}",
                logprob_logits_kernel,
                {**_TYPES, "logits": _POINTERS[dtype], "stride": "i64"},  # rows further apart than 2^31 elements
                constexprs,
                absent=_without(features, *missing),
                multiples=("stride",) if wide and not packs else (),
                num_warps=warps,
                num_stages=3,
                wide_loads=wide,
                fp_fusion=False,
            )
        )
    return found


def _merges() -> list[Compilation]:
    found = []
    for splits, dtype, features in (
        (1, "float32", ""),
        (32, "bfloat16", "softcap entropy"),
        (256, "", "entropy"),
        (1000, "float32", "entropy"),
    ):
        size, warps = merge_shape(splits)
        softcap = "softcap" in features
        found.append(
            describe(
                f"_logprob_merge_kernel, {dtype or 'linear'}, SPLITS={size}" + (", softcap" if softcap else ""),
                logprob_merge_kernel,
                {**_TYPES, "logits": _POINTERS[dtype or "float32"]},
                {"SPLITS": size, "PAIRS": PAIRS_AT_ONCE, "SOFTCAP": softcap},
                absent=_without(features) if dtype else _without(features, "logits"),
                num_warps=warps,
                num_stages=3,
                fp_fusion=False,
            )
        )
    return found


def _linear(hopper: bool) -> list[Compilation]:
    found = []
    every = "bias allowed softcap entropy rank"
    for hidden, weight, D, name, features in (
        ("float32", "float32", 64, "plain", ""),
        ("float32", "float32", 33, "every feature", every),
        ("float16", "float16", 64, "plain", ""),
        ("bfloat16", "bfloat16", 64, "plain", ""),
        ("bfloat16", "bfloat16", 64, "softcap and bias", "softcap bias"),
        ("bfloat16", "bfloat16", 64, "entropy and rank", "entropy rank"),
        ("bfloat16", "bfloat16", 64, "every feature", every),
        ("bfloat16", "bfloat16", 32, "plain", ""),
        ("bfloat16", "bfloat16", 16, "plain", ""),
        ("bfloat16", "bfloat16", 33, "plain", ""),
        ("bfloat16", "bfloat16", 33, "every feature", every),
        ("float32", "bfloat16", 16, "plain", ""),
    ):
        for rows in (64, 16) if hopper and D == 64 and name in ("plain", "every feature") else (64,):
            found += _linear_forms(hidden, weight, D, name, features, rows, hopper)
    return found


def _linear_forms(
    hidden: str, weight: str, D: int, name: str, features: str, rows: int, hopper: bool
) -> list[Compilation]:
    """Return the kernels of sums and of targets for calls of so many rows."""
    found = []
    dot16 = hidden == weight != "float32"
    tile = tile_of(dot16, D, rows, hopper)
    constexprs = {**tile.constants(), "DOT16": dot16, "SOFTCAP": "softcap" in features}
    constexprs["PRECISION"] = float32_precision(hopper)
    common = {
        "multiples": ("stride_hidden", "stride_weight", "dims") if tile.even else (),
        "num_warps": tile.num_warps,
        "amd_warps": AMD_WARPS,
        "maxnreg": tile.maxnreg,
        "dot16": dot16,
        "wide_loads": tile.even,
        "fp_fusion": False,
    }
    types = {**_TYPES, "hidden": _POINTERS[hidden], "weight": _POINTERS[weight]}
    what = f"{hidden} x {weight}, ROWS={tile.rows}, DIMS={tile.dims}{', EVEN' if tile.even else ''}, {name}"
    kernel = logprob_linear_kernel
    absent = _without(features + " than", *(("target",) if "rank" in features else ()))
    name_of = f"_logprob_linear_kernel, {what}"
    found.append(describe(name_of, kernel, types, constexprs, absent=absent, num_stages=tile.num_stages, **common))
    if name != "entropy and rank":  # which the targets' kernel does not know
        kernel, name_of = logprob_linear_target_kernel, f"_logprob_linear_target_kernel, {what}"
        absent = _without(features)
        found.append(describe(name_of, kernel, types, constexprs, absent=absent, num_stages=TARGET_STAGES, **common))
        tile = tile_of(dot16, D, min(rows, MOST_SPLIT_ROWS), hopper)
        constexprs, common = {**constexprs, **tile.constants()}, {**common, "num_warps": tile.num_warps}
        what = f"{hidden} x {weight}, ROWS={tile.rows}, DIMS={tile.dims}{', EVEN' if tile.even else ''}, {name}"
        kernel, name_of = logprob_linear_split_kernel, f"_logprob_linear_split_kernel, {what}"
        types = {**types, "order": "*i64"}
        found.append(describe(name_of, kernel, types, constexprs, absent=absent, num_stages=TARGET_STAGES, **common))
    return found


def _tops() -> list[Compilation]:
    return [
        describe(
            f"_logprob_top_kernel, {dtype or 'linear'}, K={list_shape(k)[0]}, {features or 'plain'}",
            logprob_top_kernel,
            {**_TYPES, "logits": _POINTERS[dtype or "float32"], "stride": "i64"},
            {"BLOCK": BLOCK, "K": list_shape(k)[0], "SOFTCAP": "softcap" in features},
            absent=_without(features, "held" if dtype else "logits"),
            num_warps=list_shape(k)[1],
            num_stages=3,
            fp_fusion=False,
        )
        for dtype, k, features in (
            ("float32", 20, ""),
            ("bfloat16", 20, ""),
            ("bfloat16", 256, "softcap allowed"),
            ("bfloat16", MOST, "softcap allowed"),
            ("", 20, ""),
            ("", 20, "allowed"),
        )
    ]


def _slots() -> list[Compilation]:
    found = []
    for features in ("", "allowed rank"):
        common = {"num_stages": 3, "fp_fusion": False}
        name = f"_logprob_slots_kernel, {features or 'plain'}"
        absent = _without(features, "temperature")
        kernel = logprob_slots_kernel
        found.append(describe(name, kernel, _TYPES, {"BLOCK": SLOT_BLOCK}, absent=absent, num_warps=8, **common))
        name = f"_logprob_aligned_slots_kernel, {features or 'plain'}"
        absent = _without(features, *_TEMPERATURES["answer's" if features else "one"])
        constexprs = {"BLOCK": PAIR_BLOCK, "PER_PAIR": False}
        kernel = logprob_aligned_slots_kernel
        found.append(describe(name, kernel, _TYPES, constexprs, absent=absent, num_warps=4, **common))
    return found


def _finish() -> list[Compilation]:
    found = []
    answers = ("logp64", "state")
    for splits, dtype, name, features, missing in (
        (32, "bfloat16", "log p", "", (*_ALIGNED, *_TEMPERATURES["one"], *answers, "lse", "largest")),
        (32, "float32", "answers", "", (*_ALIGNED, *_TEMPERATURES["answer's"], "lse", "largest")),
        (32, "bfloat16", "everything", "slots entropy rank allowed softcap", _TEMPERATURES["one"]),
        (256, "", "answers", "", (*_ALIGNED, *_TEMPERATURES["one"], "logits", "part_rest", "lse", "largest")),
        (256, "", "everything", "slots entropy rank", ("logits", "part_rest", *_TEMPERATURES["one"])),
        (1000, "float32", "everything", "slots entropy rank", _TEMPERATURES["one"]),
    ):
        size, warps = merge_shape(splits)
        found.append(
            describe(
                f"_logprob_finish_kernel, {dtype or 'linear'}, SPLITS={size}, {name}",
                logprob_finish_kernel,
                {**_TYPES, "logits": _POINTERS[dtype or "float32"], "stride": "i64"},
                {"SPLITS": size, "SOFTCAP": "softcap" in features, "PER_PAIR": False},
                absent=_without(features, *missing),
                num_warps=warps,
                num_stages=3,
                fp_fusion=False,
            )
        )
    return found


def _answers() -> list[Compilation]:
    return [
        describe(
            f"_logprob_answers_kernel, {name}",
            logprob_answers_kernel,
            _TYPES,
            {"BLOCK": ANSWER_BLOCK},
            absent=absent,
            num_warps=1,
            num_stages=3,
            fp_fusion=False,
        )
        for name, absent in (
            ("one", ("begin", "order")),
            ("by bounds", ("order",)),
            ("by ids", ()),
            ("sums of given values", ("state", "order", "means", "counts", "greedy")),
        )
    ]
