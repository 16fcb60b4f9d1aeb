// Names and sizes of the public enumerations.
#include "spops/types.h"

size_t spops_dtype_bytes(spops_dtype dtype)
{
    switch (dtype) {
    case SPOPS_DTYPE_F32: return 4;
    case SPOPS_DTYPE_F16: return 2;
    case SPOPS_DTYPE_BF16: return 2;
    case SPOPS_DTYPE_F8E4M3: return 1;
    case SPOPS_DTYPE_F8E5M2: return 1;
    case SPOPS_DTYPE_F4E2M1: return 0; // two to a byte
    case SPOPS_DTYPE_I8: return 1;
    case SPOPS_DTYPE_I32: return 4;
    case SPOPS_DTYPE_I64: return 8;
    }
    return 0;
}

const char *spops_dtype_name(spops_dtype dtype)
{
    switch (dtype) {
    case SPOPS_DTYPE_F32: return "f32";
    case SPOPS_DTYPE_F16: return "f16";
    case SPOPS_DTYPE_BF16: return "bf16";
    case SPOPS_DTYPE_F8E4M3: return "f8e4m3";
    case SPOPS_DTYPE_F8E5M2: return "f8e5m2";
    case SPOPS_DTYPE_F4E2M1: return "f4e2m1";
    case SPOPS_DTYPE_I8: return "i8";
    case SPOPS_DTYPE_I32: return "i32";
    case SPOPS_DTYPE_I64: return "i64";
    }
    return "?";
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
    }
    return "?";
}
