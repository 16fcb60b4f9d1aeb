// SPDX-License-Identifier: Apache-2.0
// What a build without CUDA links instead of backend_cuda.c.
#include "core/backend.h"

const spops_backend *spops_backend_cuda(void)
{
    return NULL;
}
