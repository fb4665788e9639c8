// What a region of rules.cpp compiles, and its table: the rules after MMR and VRSD.

#include "selection/loop.inl"
#include "simd/exp.inl"
#include "selection/objectives/msd.inl"
#include "selection/objectives/factored.inl"
#include "selection/objectives/coverage.inl"

constexpr RuleKernels kRules = {
    RSK_EACH_TYPE(Select<Msd>::query),
    RSK_EACH_TYPE(Select<Factored>::query),
    RSK_EACH_TYPE(Select<Coverage>::query),
};
