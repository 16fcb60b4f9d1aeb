/* SPDX-License-Identifier: Apache-2.0 */
/* Everything but the device headers and dlpack.h. */
#ifndef SPOPS_SPOPS_H
#define SPOPS_SPOPS_H

#include "spops/types.h"
#include "spops/context.h"
#include "spops/plan.h"
#include "spops/regime.h"
#include "spops/segments.h"
#include "spops/segreduce.h"
#include "spops/gather.h"
#include "spops/mvmr.h"
#include "spops/bevpool.h"
#include "spops/quantize.h"
#include "spops/coords.h"
#include "spops/dense.h"
#include "spops/points.h"
#include "spops/point_levels.h"
#include "spops/voxels.h"
#include "spops/kernel_map.h"
#include "spops/pyramid.h"
#include "spops/pool.h"
#include "spops/activation.h"
#include "spops/norm.h"
#include "spops/layer.h"
#include "spops/linear.h"
#include "spops/convert.h"
#include "spops/buckets.h"
#include "spops/patches.h"
#include "spops/attention.h"
#include "spops/sparseconv.h"
#include "spops/pointconv.h"
#include "spops/weights.h"
#include "spops/call.h"

#endif
