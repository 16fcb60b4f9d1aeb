// SPDX-License-Identifier: Apache-2.0
// Tables of 3 x 3 x 3 taps among sorted keys (sorted_search.cu).
#ifndef SPOPS_KERNELS_MAPS_SORTED_SEARCH_H
#define SPOPS_KERNELS_MAPS_SORTED_SEARCH_H

#include "kernels/launchers.h"
#include "maps/map_arrays.h"

namespace spops
{

// Whether sorted_search serves a search; and the search, once counts and state are cleared.
bool sorted_search_fits(const spops_map_search_args *args);
spops_status sorted_search(spops_context *ctx, const spops_map_search_args *args);

} // namespace spops

#endif
