// The kernels of the rules after MMR and VRSD, compiled once per instruction set in target regions of this one
// translation unit. Headers come before the regions, as in select.cpp.
#include <algorithm>
#include <cfloat>
#include <cstring>

#include "interrupt.h"
#include "isa.h"
#include "regions.h"
#include "selection/kernels.h"

#define RSK_REGION_BODY "selection/rules.inl"
#include "each_region.inl"

namespace rsk {
namespace {

constexpr const RuleKernels* kIsas[] = {RSK_OF_EACH_REGION(kRules)};

}  // namespace

SelectQuery* rule_kernel(Method method, int isa) {
  const RuleKernels& rules = kernels_of(kIsas, isa);
  return method == Method::msd ? rules.msd : is_factored(method) ? rules.factored : rules.coverage;
}

}  // namespace rsk
