// SPDX-License-Identifier: Apache-2.0
// Sizes that the kernels over spans are built for (bev_spans.h has the words). Apart from the plan,
// so that a change of one compiles what works on spans and nothing else.
#ifndef SPOPS_BEVPOOL_BEV_SPANS_SIZES_H
#define SPOPS_BEVPOOL_BEV_SPANS_SIZES_H

#define SPOPS_BEV_TILE_PIXELS    32
#define SPOPS_BEV_WINDOW_COLUMNS 8
#define SPOPS_BEV_BUNDLE_PARTS   16
#define SPOPS_BEV_PART_KINDS     3   // each in bundles of its own
#define SPOPS_BEV_MAX_SPANS      128 // of a part; a plan that needs more keeps its lists

#endif
