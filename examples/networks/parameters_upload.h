// SPDX-License-Identifier: Apache-2.0
/* Folded parameters where the device is. */
#ifndef NETWORKS_PARAMETERS_UPLOAD_H
#define NETWORKS_PARAMETERS_UPLOAD_H

#include "networks/device.h"
#include "networks/parameters.h"

/* To memory of the device, which is allocated, with weights in dtype. What was allocated
   is the caller's after a failure too. */
int folded_parameters_upload(const device *d, const folded_parameters *f, int taps,
                             spops_dtype dtype, void **weights, float **scale, float **shift);

#endif
