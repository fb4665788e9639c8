// Products of rows, for each type of elements, compiled once per instruction set in target regions of this one
// translation unit. Headers come before the regions, as in select.cpp.
#include <cfloat>
#include <cstring>

#include "isa.h"
#include "regions.h"
#include "selection/kernels.h"

#define RSK_REGION_BODY "selection/row_kernels.inl"
#include "each_region.inl"
