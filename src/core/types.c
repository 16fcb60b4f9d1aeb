// SPDX-License-Identifier: Apache-2.0
// Names and sizes of the public enumerations.
#include "core/dtypes.h"

size_t spops_dtype_bytes(spops_dtype dtype)
{
    return (size_t)spops_dtype_bits(dtype) / 8; // 0 where two share a byte
}

const char *spops_dtype_name(spops_dtype dtype)
{
    static const char *const names[] = {
#define SPOPS_DTYPE(NAME, name, bits, c_type, device_type) #name,
#include "core/dtypes.def"
    };
    return (unsigned)dtype < SPOPS_NUM_DTYPES ? names[dtype] : "?";
}

const char *spops_status_name(spops_status status)
{
    switch (status) {
    case SPOPS_STATUS_OK: return "OK";
    case SPOPS_STATUS_INVALID_ARGUMENT: return "INVALID_ARGUMENT";
    case SPOPS_STATUS_OUT_OF_MEMORY: return "OUT_OF_MEMORY";
    case SPOPS_STATUS_NOT_SUPPORTED: return "NOT_SUPPORTED";
    case SPOPS_STATUS_SCRATCH_TOO_SMALL: return "SCRATCH_TOO_SMALL";
    case SPOPS_STATUS_BACKEND_UNAVAILABLE: return "BACKEND_UNAVAILABLE";
    case SPOPS_STATUS_CUDA: return "CUDA";
    case SPOPS_STATUS_CORRUPT_DATA: return "CORRUPT_DATA";
    case SPOPS_STATUS_CAPACITY_EXCEEDED: return "CAPACITY_EXCEEDED";
    case SPOPS_STATUS_COMPILE_FAILED: return "COMPILE_FAILED";
    case SPOPS_STATUS_COMM_BROKEN: return "COMM_BROKEN";
    }
    return "?";
}
