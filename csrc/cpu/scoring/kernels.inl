// The scoring kernels of a region. Two regions are no instruction sets: of those, RSK_BF16_DOT and RSK_AMX, only the
// products of bfloat16 are taken.

#include "simd/vectors.inl"
#include "simd/exp.inl"
#include "simd/transpose.inl"
#include "scoring/fold.inl"
#include "scoring/top.inl"
#include "scoring/linear.inl"
#ifdef RSK_AMX
#include "scoring/amx.inl"
#endif
#include "scoring/hidden.inl"

#if defined(RSK_AMX)
constexpr ScoreKernels kScoreKernels = {nullptr,    nullptr, score_hidden_targets, score_hidden, sizeof(TileScratch),
                                        tile_block, pack,    packed_bytes};
#elif defined(RSK_BF16_DOT)
constexpr ScoreKernels kScoreKernels = {
    nullptr, nullptr, score_hidden_targets, score_hidden, sizeof(LinearScratch), linear_block, nullptr, nullptr};
#else
#include "scoring/logits.inl"
constexpr ScoreKernels kScoreKernels = {score_logits_targets,
                                        score_logits,
                                        score_hidden_targets,
                                        score_hidden,
                                        sizeof(LinearScratch),
                                        linear_block,
                                        nullptr,
                                        nullptr};
#endif
