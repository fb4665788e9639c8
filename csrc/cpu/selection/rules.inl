// What a region of rules.cpp compiles, and its table: the rules after MMR and VRSD.

#include "selection/loop.inl"
#include "simd/exp.inl"
#include "selection/objectives/msd.inl"
#include "selection/objectives/factored.inl"
#include "selection/objectives/coverage.inl"
#include "selection/objectives/coverage_blocks.inl"

constexpr RuleKernels kRules = {
    select_query<Msd>,
    select_query<Factored>,
    select_query<Coverage>,
};
