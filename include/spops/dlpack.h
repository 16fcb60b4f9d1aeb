/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrices from DLPack tensors and back, without copying. Header-only, so that the library does not
 * depend on DLPack: the including program brings <dlpack/dlpack.h> (0.6 or later).
 *
 * Nothing is owned or retained: a view is valid while the tensor's memory is. The tensor's producer
 * and the context's stream must be ordered by the caller.
 */
#ifndef SPOPS_DLPACK_H
#define SPOPS_DLPACK_H

#include <dlpack/dlpack.h>

#include "spops/types.h"

SPOPS_EXTERN_C_BEGIN

/*
 * DLPack's device and type codes, by number: the numbers are its ABI, while its enumerators have
 * been renamed between versions.
 */
enum {
    SPOPS_DLPACK_CPU = 1,
    SPOPS_DLPACK_CUDA = 2,
    SPOPS_DLPACK_CUDA_HOST = 3, /* pinned host memory: within reach of both */
    SPOPS_DLPACK_CUDA_MANAGED = 13,
    SPOPS_DLPACK_INT = 0,
    SPOPS_DLPACK_FLOAT = 2,
    SPOPS_DLPACK_BFLOAT = 4,
    SPOPS_DLPACK_F8E4M3FN = 10,
    SPOPS_DLPACK_F8E5M2 = 12,
    SPOPS_DLPACK_F4E2M1FN = 17 /* two lanes of four bits: DLPack counts pairs of columns */
};

/** The dtypes that both sides have, by DLPack's code, bits and lanes. */
static inline spops_dtype spops_dlpack_get_dtype(DLDataType type, int *found)
{
    const int code = (int)type.code, bits = (int)type.bits;
    *found = 1;
    if (type.lanes == 1 && code == SPOPS_DLPACK_FLOAT && bits == 32) return SPOPS_DTYPE_F32;
    if (type.lanes == 1 && code == SPOPS_DLPACK_FLOAT && bits == 64) return SPOPS_DTYPE_F64;
    if (type.lanes == 1 && code == SPOPS_DLPACK_FLOAT && bits == 16) return SPOPS_DTYPE_F16;
    if (type.lanes == 1 && code == SPOPS_DLPACK_BFLOAT && bits == 16) return SPOPS_DTYPE_BF16;
    if (type.lanes == 1 && code == SPOPS_DLPACK_F8E4M3FN && bits == 8) return SPOPS_DTYPE_F8E4M3;
    if (type.lanes == 1 && code == SPOPS_DLPACK_F8E5M2 && bits == 8) return SPOPS_DTYPE_F8E5M2;
    if (type.lanes == 2 && code == SPOPS_DLPACK_F4E2M1FN && bits == 4) return SPOPS_DTYPE_F4E2M1;
    if (type.lanes == 1 && code == SPOPS_DLPACK_INT && bits == 32) return SPOPS_DTYPE_I32;
    *found = 0;
    return SPOPS_DTYPE_F32;
}

/** status, with its text where the caller wants one. */
static inline spops_status spops_dlpack_fail(spops_status status, const char *text,
                                             const char **message)
{
    if (message != NULL) *message = text;
    return status;
}

/* Rows of the leading dimensions taken together, and the step from one to the next. */
static inline spops_status spops_dlpack_collapse(const DLTensor *tensor, int64_t *rows,
                                                 int64_t *row_stride, const char **message)
{
    int64_t n = 1, stride = 0, expected = 0;
    int found = 0;

    for (int i = (int)tensor->ndim - 2; i >= 0; --i) {
        const int64_t size = tensor->shape[i];
        if (size == 1) continue; /* its stride means nothing */
        if (!found) {
            stride = tensor->strides[i];
        } else if (tensor->strides[i] != expected) {
            return spops_dlpack_fail(SPOPS_STATUS_NOT_SUPPORTED,
                                     "matrix_from_dlpack: tensor->strides of the leading "
                                     "dimensions leave gaps, expected rows at equal distances",
                                     message);
        }
        found = 1;
        n *= size;
        /* Too large to be anybody's stride: 0 is none either, where sizes exceed 1. */
        expected = stride > 0 && n <= INT64_MAX / stride ? n * stride : 0;
    }
    *rows = n;
    *row_stride = stride;
    return SPOPS_STATUS_OK;
}

/** Memory that the backend reaches. */
static inline spops_status spops_dlpack_check_device(const DLTensor *tensor,
                                                     spops_backend_kind backend, int32_t device,
                                                     const char **message)
{
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    const int type = (int)tensor->device.device_type;

    if (backend == SPOPS_BACKEND_CPU) {
        if (type != SPOPS_DLPACK_CPU && type != SPOPS_DLPACK_CUDA_HOST &&
            type != SPOPS_DLPACK_CUDA_MANAGED) {
            return spops_dlpack_fail(invalid,
                                     "matrix_from_dlpack: tensor->device is not host memory, "
                                     "expected it for a CPU context",
                                     message);
        }
    } else if (backend == SPOPS_BACKEND_CUDA) {
        if (type != SPOPS_DLPACK_CUDA && type != SPOPS_DLPACK_CUDA_HOST &&
            type != SPOPS_DLPACK_CUDA_MANAGED) {
            return spops_dlpack_fail(invalid,
                                     "matrix_from_dlpack: tensor->device is not CUDA memory, "
                                     "expected it for a CUDA context",
                                     message);
        }
        if (type == SPOPS_DLPACK_CUDA && tensor->device.device_id != device) {
            return spops_dlpack_fail(invalid,
                                     "matrix_from_dlpack: tensor->device.device_id is another "
                                     "CUDA device than the context's",
                                     message);
        }
    } else {
        return spops_dlpack_fail(invalid, "matrix_from_dlpack: backend is neither CPU nor CUDA",
                                 message);
    }
    return SPOPS_STATUS_OK;
}

/* Sizes that are none, or whose elements have more bytes than are counted; whether there are none. */
static inline spops_status spops_dlpack_check_sizes(const DLTensor *tensor, int64_t element_bytes,
                                                    int *empty, const char **message)
{
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    int64_t elements = 1;

    if (tensor->ndim < 1) {
        return spops_dlpack_fail(invalid,
                                 "matrix_from_dlpack: tensor->ndim is less than 1, expected at "
                                 "least one dimension",
                                 message);
    }
    if (tensor->shape == NULL) {
        return spops_dlpack_fail(invalid, "matrix_from_dlpack: tensor->shape is NULL", message);
    }
    for (int i = 0; i < (int)tensor->ndim; ++i) {
        if (tensor->shape[i] < 0) {
            return spops_dlpack_fail(invalid, "matrix_from_dlpack: tensor->shape is negative",
                                     message);
        }
        if (tensor->shape[i] == 0) {
            *empty = 1;
            continue;
        }
        /* Also of an empty tensor: the sizes that are not zero have a product. */
        if (elements > INT64_MAX / element_bytes / tensor->shape[i]) {
            return spops_dlpack_fail(invalid,
                                     "matrix_from_dlpack: tensor->shape has more bytes than 64 "
                                     "bits count",
                                     message);
        }
        elements *= tensor->shape[i];
    }
    return SPOPS_STATUS_OK;
}

/* Rows, columns and the step from row to row, in elements of the tensor; rows is 1 before. */
static inline spops_status spops_dlpack_get_rows(const DLTensor *tensor, int empty, int64_t *rows,
                                                 int64_t *cols, int64_t *row_stride,
                                                 const char **message)
{
    const int last = (int)tensor->ndim - 1;

    *cols = last > 0 ? tensor->shape[last] : 1;
    if (tensor->strides == NULL || empty) {
        const int leading = last > 0 ? last : 1; /* dimensions that count rows */
        for (int i = 0; i < leading; ++i)
            *rows *= tensor->shape[i];
        *row_stride = *cols;
    } else if (last == 0) {
        *rows = tensor->shape[0];
        *row_stride = *rows > 1 ? tensor->strides[0] : 1;
    } else {
        if (*cols > 1 && tensor->strides[last] != 1) {
            return spops_dlpack_fail(SPOPS_STATUS_NOT_SUPPORTED,
                                     "matrix_from_dlpack: tensor->strides of the last dimension "
                                     "is not 1, expected contiguous columns",
                                     message);
        }
        const spops_status status = spops_dlpack_collapse(tensor, rows, row_stride, message);
        if (status != SPOPS_STATUS_OK) return status;
        if (*rows <= 1) *row_stride = *cols;
    }
    return SPOPS_STATUS_OK;
}

/**
 * View a DLPack tensor as a matrix.
 *
 *     shape [n]           -> [n, 1]                     weights, index outputs
 *     shape [r, c]        -> [r, c]
 *     shape [a, ..., b, c] -> [a * ... * b, c]          where the leading dimensions leave no gaps
 *
 * tensor   f64, f32, f16, bf16, f8e4m3fn, f8e5m2 or i32, one lane; or f4e2m1fn, two lanes, of which each
 *          pair becomes two columns (so that c above is twice DLPack's). Its last dimension is
 *          contiguous, its rows do not overlap (no broadcast, no negative stride); strides NULL
 *          means compact; byte_offset is added.
 * backend  Of the context that will run on it. CPU takes CPU, pinned and managed memory; CUDA takes
 *          CUDA memory of `device`, pinned and managed memory.
 * device   CUDA device ordinal of that context; ignored for the CPU.
 * out      The view; untouched after a failure.
 * message  What was wrong, a constant string; NULL if not wanted. Untouched on success.
 *
 * Errors   INVALID_ARGUMENT (NULL, negative or overflowing sizes, misaligned, wrong device),
 *          NOT_SUPPORTED (a dtype or a layout that no matrix has).
 * Threads  Any.
 */
static inline spops_status spops_matrix_from_dlpack(const DLTensor *tensor,
                                                    spops_backend_kind backend, int32_t device,
                                                    spops_matrix *out, const char **message)
{
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    spops_matrix m;
    spops_status status;
    size_t element_bytes, alignment;
    int64_t rows = 1, cols = 1, row_stride = 0;
    int packed, found, empty = 0;

    if (tensor == NULL) {
        return spops_dlpack_fail(invalid, "matrix_from_dlpack: tensor is NULL", message);
    }
    if (out == NULL) return spops_dlpack_fail(invalid, "matrix_from_dlpack: out is NULL", message);

    status = spops_dlpack_check_device(tensor, backend, device, message);
    if (status != SPOPS_STATUS_OK) return status;
    m.dtype = spops_dlpack_get_dtype(tensor->dtype, &found);
    if (!found) {
        return spops_dlpack_fail(SPOPS_STATUS_NOT_SUPPORTED,
                                 "matrix_from_dlpack: tensor->dtype is none of f64 f32 f16 bf16 "
                                 "f8e4m3 f8e5m2 i32 with one lane, f4e2m1 with two",
                                 message);
    }
    packed = m.dtype == SPOPS_DTYPE_F4E2M1;
    alignment = (size_t)tensor->dtype.bits * tensor->dtype.lanes / 8;
    element_bytes = packed ? 2 : alignment; /* 2: so that single columns can be counted too */

    status = spops_dlpack_check_sizes(tensor, (int64_t)element_bytes, &empty, message);
    if (status != SPOPS_STATUS_OK) return status;
    status = spops_dlpack_get_rows(tensor, empty, &rows, &cols, &row_stride, message);
    if (status != SPOPS_STATUS_OK) return status;
    if (row_stride < cols) {
        return spops_dlpack_fail(SPOPS_STATUS_NOT_SUPPORTED,
                                 "matrix_from_dlpack: tensor->strides make rows overlap or run "
                                 "backwards, expected a step of at least one row",
                                 message);
    }
    if (rows > 1 && row_stride > (INT64_MAX / (int64_t)element_bytes - cols) / (rows - 1)) {
        return spops_dlpack_fail(invalid,
                                 "matrix_from_dlpack: tensor->strides span more bytes than 64 "
                                 "bits count",
                                 message);
    }

    m.data = tensor->data;
    if (tensor->data != NULL) m.data = (void *)((char *)tensor->data + tensor->byte_offset);
    if (!empty && tensor->data == NULL) {
        return spops_dlpack_fail(invalid,
                                 "matrix_from_dlpack: tensor->data is NULL, expected memory for a "
                                 "tensor that is not empty",
                                 message);
    }
    if (!empty && (uintptr_t)m.data % alignment != 0) {
        return spops_dlpack_fail(invalid,
                                 "matrix_from_dlpack: tensor->data plus byte_offset is not a "
                                 "multiple of the element's size",
                                 message);
    }
    m.rows = rows;
    m.cols = packed ? 2 * cols : cols;
    m.row_stride = packed ? 2 * row_stride : row_stride;
    *out = m;
    return SPOPS_STATUS_OK;
}

/** DLPack's code, bits and lanes of a dtype; 0 for one that it is not told. */
static inline int spops_dlpack_put_dtype(spops_dtype dtype, DLDataType *out)
{
    int code = SPOPS_DLPACK_FLOAT, bits;

    switch (dtype) {
    case SPOPS_DTYPE_F32: bits = 32; break;
    case SPOPS_DTYPE_F64: bits = 64; break;
    case SPOPS_DTYPE_F16: bits = 16; break;
    case SPOPS_DTYPE_BF16: code = SPOPS_DLPACK_BFLOAT, bits = 16; break;
    case SPOPS_DTYPE_I32: code = SPOPS_DLPACK_INT, bits = 32; break;
    case SPOPS_DTYPE_F8E4M3: code = SPOPS_DLPACK_F8E4M3FN, bits = 8; break;
    case SPOPS_DTYPE_F8E5M2: code = SPOPS_DLPACK_F8E5M2, bits = 8; break;
    case SPOPS_DTYPE_F4E2M1: code = SPOPS_DLPACK_F4E2M1FN, bits = 4; break;
    default: return 0;
    }
    out->code = (uint8_t)code;
    out->bits = (uint8_t)bits;
    out->lanes = dtype == SPOPS_DTYPE_F4E2M1 ? 2 : 1;
    return 1;
}

/**
 * Describe a matrix as a two-dimensional DLPack tensor.
 *
 * backend  Where m's data lives: CPU, or CUDA on `device` (0 for the CPU).
 * shape    Storage of two numbers that the tensor points to; must live as long as the tensor.
 * strides  Likewise.
 * out      The tensor; untouched after a failure.
 * message  As spops_matrix_from_dlpack.
 *
 * Errors   INVALID_ARGUMENT (NULL, negative sizes, no such backend, odd sizes of f4e2m1, which
 *          becomes pairs: two lanes), NOT_SUPPORTED (a dtype that is not f32 f16 bf16 f8e4m3 f8e5m2
 *          f4e2m1 i32).
 * Threads  Any.
 */
static inline spops_status spops_matrix_to_dlpack(spops_matrix m, spops_backend_kind backend,
                                                  int32_t device, int64_t shape[2],
                                                  int64_t strides[2], DLTensor *out,
                                                  const char **message)
{
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    DLTensor tensor;

    if (shape == NULL || strides == NULL || out == NULL) {
        return spops_dlpack_fail(invalid, "matrix_to_dlpack: shape, strides or out is NULL",
                                 message);
    }
    if (m.rows < 0 || m.cols < 0) {
        return spops_dlpack_fail(invalid, "matrix_to_dlpack: m has a negative size", message);
    }
    if (backend != SPOPS_BACKEND_CPU && backend != SPOPS_BACKEND_CUDA) {
        return spops_dlpack_fail(invalid, "matrix_to_dlpack: backend is neither CPU nor CUDA",
                                 message);
    }
    if (!spops_dlpack_put_dtype(m.dtype, &tensor.dtype)) {
        return spops_dlpack_fail(SPOPS_STATUS_NOT_SUPPORTED,
                                 "matrix_to_dlpack: m.dtype is none of f32 f16 bf16 f8e4m3 f8e5m2 "
                                 "f4e2m1 i32 f64",
                                 message);
    }
    if (tensor.dtype.lanes == 2 && (m.cols % 2 != 0 || (m.rows > 1 && m.row_stride % 2 != 0))) {
        return spops_dlpack_fail(invalid,
                                 "matrix_to_dlpack: m has an odd number of columns or row_stride, "
                                 "expected even ones for f4e2m1",
                                 message);
    }
    shape[0] = m.rows;
    shape[1] = m.cols / tensor.dtype.lanes;
    strides[0] = (m.rows > 1 ? m.row_stride : m.cols) / tensor.dtype.lanes;
    strides[1] = 1;
    tensor.data = m.data;
    tensor.device.device_type =
        (DLDeviceType)(backend == SPOPS_BACKEND_CUDA ? SPOPS_DLPACK_CUDA : SPOPS_DLPACK_CPU);
    tensor.device.device_id = backend == SPOPS_BACKEND_CUDA ? device : 0;
    tensor.ndim = 2;
    tensor.shape = shape;
    tensor.strides = strides;
    tensor.byte_offset = 0;
    *out = tensor;
    return SPOPS_STATUS_OK;
}

SPOPS_EXTERN_C_END

#endif
