// SPDX-License-Identifier: Apache-2.0
// DLPack tensors as matrices and back (spops/dlpack.h).
#include <criterion/criterion.h>
#include <dlpack/dlpack.h>
#include <stdint.h>
#include <string.h>

#include "spops/dlpack.h"
#include "spops/spops.h"

static float dl_memory[64];

static DLTensor dl_tensor(int ndim, int64_t *shape, int64_t *strides)
{
    DLTensor t;
    memset(&t, 0, sizeof t);
    t.data = dl_memory;
    t.device.device_type = kDLCPU;
    t.ndim = ndim;
    t.dtype.code = kDLFloat;
    t.dtype.bits = 32;
    t.dtype.lanes = 1;
    t.shape = shape;
    t.strides = strides;
    return t;
}

Test(dlpack, layouts)
{
    const spops_status not_supported = SPOPS_STATUS_NOT_SUPPORTED;
    struct {
        int ndim;
        int64_t shape[4], strides[4]; // strides[0] -1: NULL
        spops_status status;
        int64_t rows, cols, row_stride;
    } cases[] = {
        {1, {5}, {-1}, SPOPS_STATUS_OK, 5, 1, 1},
        {1, {5}, {3}, SPOPS_STATUS_OK, 5, 1, 3},
        {1, {1}, {0}, SPOPS_STATUS_OK, 1, 1, 1},
        {1, {0}, {9}, SPOPS_STATUS_OK, 0, 1, 1},
        {1, {5}, {0}, not_supported, 0, 0, 0},
        {2, {3, 4}, {-1}, SPOPS_STATUS_OK, 3, 4, 4},
        {2, {3, 4}, {7, 1}, SPOPS_STATUS_OK, 3, 4, 7},
        {2, {3, 4}, {3, 1}, not_supported, 0, 0, 0},
        {2, {3, 4}, {0, 1}, not_supported, 0, 0, 0},
        {2, {3, 4}, {-4, 1}, not_supported, 0, 0, 0},
        {2, {3, 4}, {1, 3}, not_supported, 0, 0, 0}, // transposed
        {2, {3, 1}, {2, 99}, SPOPS_STATUS_OK, 3, 1, 2},
        {2, {1, 4}, {99, 1}, SPOPS_STATUS_OK, 1, 4, 4},
        {2, {0, 4}, {5, 2}, SPOPS_STATUS_OK, 0, 4, 4},
        {2, {3, 0}, {0, 0}, SPOPS_STATUS_OK, 3, 0, 0},
        {3, {2, 3, 4}, {-1}, SPOPS_STATUS_OK, 6, 4, 4},
        {3, {2, 3, 4}, {15, 5, 1}, SPOPS_STATUS_OK, 6, 4, 5},
        {3, {2, 3, 4}, {16, 5, 1}, not_supported, 0, 0, 0},
        {3, {2, 1, 4}, {16, 77, 1}, SPOPS_STATUS_OK, 2, 4, 16},
        {3, {1, 3, 4}, {77, 5, 1}, SPOPS_STATUS_OK, 3, 4, 5},
        {3, {2, 3, 4}, {0, 0, 1}, not_supported, 0, 0, 0},
        {3, {2, 0, 4}, {1, 1, 1}, SPOPS_STATUS_OK, 0, 4, 4},
        {4, {2, 1, 3, 4}, {12, 5, 4, 1}, SPOPS_STATUS_OK, 6, 4, 4},
        {4, {1, 1, 1, 1}, {9, 9, 9, 9}, SPOPS_STATUS_OK, 1, 1, 1},
        {0, {0}, {0}, SPOPS_STATUS_INVALID_ARGUMENT, 0, 0, 0},
        {-1, {0}, {0}, SPOPS_STATUS_INVALID_ARGUMENT, 0, 0, 0},
        {2, {-3, 4}, {-1}, SPOPS_STATUS_INVALID_ARGUMENT, 0, 0, 0},
        {2, {INT64_MAX, 4}, {-1}, SPOPS_STATUS_INVALID_ARGUMENT, 0, 0, 0},
        {3, {INT64_MAX, 4, 0}, {-1}, SPOPS_STATUS_INVALID_ARGUMENT, 0, 0, 0},
        {2, {2, 4}, {INT64_MAX, 1}, SPOPS_STATUS_INVALID_ARGUMENT, 0, 0, 0},
        {3, {2, 2, 4}, {0, INT64_MAX, 1}, SPOPS_STATUS_INVALID_ARGUMENT, 0, 0, 0},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        const bool compact = cases[i].strides[0] == -1;
        const DLTensor t =
            dl_tensor(cases[i].ndim, cases[i].shape, compact ? NULL : cases[i].strides);
        spops_matrix m = {dl_memory, 77, 77, 77, SPOPS_DTYPE_I8};
        const char *message = NULL;
        const spops_status status =
            spops_matrix_from_dlpack(&t, SPOPS_BACKEND_CPU, 0, &m, &message);
        cr_assert_eq(status, cases[i].status, "case %zu: %s", i, message != NULL ? message : "");
        if (status == SPOPS_STATUS_OK) {
            cr_assert_null(message);
            cr_assert_eq(m.data, (void *)dl_memory);
            cr_assert_eq(m.dtype, SPOPS_DTYPE_F32);
            cr_assert(m.rows == cases[i].rows && m.cols == cases[i].cols &&
                          m.row_stride == cases[i].row_stride,
                      "case %zu: [%d, %d] stride %d", i, (int)m.rows, (int)m.cols,
                      (int)m.row_stride);
        } else {
            cr_assert_eq(strncmp(message, "matrix_from_dlpack: ", 20), 0);
            cr_assert_eq(m.rows, 77, "case %zu touched its output", i);
            cr_assert_eq(spops_matrix_from_dlpack(&t, SPOPS_BACKEND_CPU, 0, &m, NULL), status);
        }
    }
}

Test(dlpack, memory)
{
    int64_t shape[2] = {2, 3};
    const char *message = NULL;
    spops_matrix m;
    DLTensor t = dl_tensor(2, shape, NULL);
    const struct {
        int type, id;
        spops_backend_kind backend;
        int32_t device;
        spops_status status;
    } places[] = {
        {1, 0, SPOPS_BACKEND_CPU, 0, SPOPS_STATUS_OK},
        {3, 0, SPOPS_BACKEND_CPU, 0, SPOPS_STATUS_OK},
        {13, 0, SPOPS_BACKEND_CPU, 0, SPOPS_STATUS_OK},
        {2, 0, SPOPS_BACKEND_CPU, 0, SPOPS_STATUS_INVALID_ARGUMENT},
        {10, 0, SPOPS_BACKEND_CPU, 0, SPOPS_STATUS_INVALID_ARGUMENT},
        {2, 1, SPOPS_BACKEND_CUDA, 1, SPOPS_STATUS_OK},
        {2, 1, SPOPS_BACKEND_CUDA, 0, SPOPS_STATUS_INVALID_ARGUMENT},
        {3, 0, SPOPS_BACKEND_CUDA, 1, SPOPS_STATUS_OK},
        {13, 0, SPOPS_BACKEND_CUDA, 1, SPOPS_STATUS_OK},
        {1, 0, SPOPS_BACKEND_CUDA, 0, SPOPS_STATUS_INVALID_ARGUMENT},
        {1, 0, SPOPS_BACKEND_AUTO, 0, SPOPS_STATUS_INVALID_ARGUMENT},
    };
    const struct {
        int code, bits, lanes;
        spops_status status;
        spops_dtype dtype;
    } types[] = {
        {kDLFloat, 32, 1, SPOPS_STATUS_OK, SPOPS_DTYPE_F32},
        {kDLFloat, 16, 1, SPOPS_STATUS_OK, SPOPS_DTYPE_F16},
        {kDLBfloat, 16, 1, SPOPS_STATUS_OK, SPOPS_DTYPE_BF16},
        {kDLInt, 32, 1, SPOPS_STATUS_OK, SPOPS_DTYPE_I32},
        {kDLFloat, 64, 1, SPOPS_STATUS_OK, SPOPS_DTYPE_F64},
        {kDLFloat, 8, 1, SPOPS_STATUS_NOT_SUPPORTED, SPOPS_DTYPE_F32},
        {kDLFloat, 32, 4, SPOPS_STATUS_NOT_SUPPORTED, SPOPS_DTYPE_F32},
        {kDLInt, 64, 1, SPOPS_STATUS_NOT_SUPPORTED, SPOPS_DTYPE_F32},
        {kDLUInt, 32, 1, SPOPS_STATUS_NOT_SUPPORTED, SPOPS_DTYPE_F32},
        {kDLInt, 16, 1, SPOPS_STATUS_NOT_SUPPORTED, SPOPS_DTYPE_F32},
    };

    for (size_t i = 0; i < sizeof places / sizeof places[0]; ++i) {
        t.device.device_type = (DLDeviceType)places[i].type;
        t.device.device_id = places[i].id;
        cr_assert_eq(
            spops_matrix_from_dlpack(&t, places[i].backend, places[i].device, &m, &message),
            places[i].status, "place %zu", i);
    }
    t = dl_tensor(2, shape, NULL);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; ++i) {
        t.dtype.code = (uint8_t)types[i].code;
        t.dtype.bits = (uint8_t)types[i].bits;
        t.dtype.lanes = (uint16_t)types[i].lanes;
        cr_assert_eq(spops_matrix_from_dlpack(&t, SPOPS_BACKEND_CPU, 0, &m, &message),
                     types[i].status, "type %zu", i);
        if (types[i].status == SPOPS_STATUS_OK) cr_assert_eq(m.dtype, types[i].dtype);
    }

    t = dl_tensor(2, shape, NULL);
    t.byte_offset = 12;
    cr_assert_eq(spops_matrix_from_dlpack(&t, SPOPS_BACKEND_CPU, 0, &m, NULL), SPOPS_STATUS_OK);
    cr_assert_eq(m.data, (void *)(dl_memory + 3));
    t.byte_offset = 2;
    cr_assert_eq(spops_matrix_from_dlpack(&t, SPOPS_BACKEND_CPU, 0, &m, NULL),
                 SPOPS_STATUS_INVALID_ARGUMENT);
    t.byte_offset = 0;
    t.data = NULL;
    cr_assert_eq(spops_matrix_from_dlpack(&t, SPOPS_BACKEND_CPU, 0, &m, NULL),
                 SPOPS_STATUS_INVALID_ARGUMENT);
    shape[0] = 0;
    cr_assert_eq(spops_matrix_from_dlpack(&t, SPOPS_BACKEND_CPU, 0, &m, NULL), SPOPS_STATUS_OK);
    cr_assert_null(m.data);
    t.shape = NULL;
    cr_assert_eq(spops_matrix_from_dlpack(&t, SPOPS_BACKEND_CPU, 0, &m, NULL),
                 SPOPS_STATUS_INVALID_ARGUMENT);
    cr_assert_eq(spops_matrix_from_dlpack(NULL, SPOPS_BACKEND_CPU, 0, &m, &message),
                 SPOPS_STATUS_INVALID_ARGUMENT);
    cr_assert_str_eq(message, "matrix_from_dlpack: tensor is NULL");
    cr_assert_eq(spops_matrix_from_dlpack(&t, SPOPS_BACKEND_CPU, 0, NULL, &message),
                 SPOPS_STATUS_INVALID_ARGUMENT);
}

Test(dlpack, round_trip)
{
    static const spops_dtype dtypes[] = {SPOPS_DTYPE_F32,   SPOPS_DTYPE_F16,    SPOPS_DTYPE_BF16,
                                         SPOPS_DTYPE_I32,   SPOPS_DTYPE_F8E4M3, SPOPS_DTYPE_F8E5M2,
                                         SPOPS_DTYPE_F4E2M1};
    int64_t shape[2], strides[2];
    DLTensor t;
    const char *message = NULL;

    for (int i = 0; i < 7 * 2 * 4 * 3; ++i) {
        const spops_backend_kind backend = i / 7 % 2 == 0 ? SPOPS_BACKEND_CPU : SPOPS_BACKEND_CUDA;
        const bool pairs = dtypes[i % 7] == SPOPS_DTYPE_F4E2M1;
        const int64_t rows = i / 14 % 4, cols = (i / 56 % 3) * (pairs ? 2 : 1);
        const spops_matrix m = {dl_memory + 1, rows, cols, cols + 2, dtypes[i % 7]};
        spops_matrix back;
        cr_assert_eq(spops_matrix_to_dlpack(m, backend, 3, shape, strides, &t, &message),
                     SPOPS_STATUS_OK);
        cr_assert_eq((int)t.device.device_type, backend == SPOPS_BACKEND_CPU ? 1 : 2);
        cr_assert_eq(t.device.device_id, backend == SPOPS_BACKEND_CPU ? 0 : 3);
        cr_assert_eq(t.ndim, 2);
        cr_assert_eq((int)t.dtype.lanes, pairs ? 2 : 1);
        cr_assert_eq(t.shape[1] * t.dtype.lanes, cols);
        cr_assert(t.shape == shape && t.strides == strides && t.byte_offset == 0);
        cr_assert_eq(spops_matrix_from_dlpack(&t, backend, 3, &back, &message), SPOPS_STATUS_OK);
        cr_assert_eq(back.data, m.data);
        cr_assert(back.rows == rows && back.cols == cols && back.dtype == m.dtype);
        if (rows > 1 && cols > 0) cr_assert_eq(back.row_stride, m.row_stride);
    }
    cr_assert_null(message);
    cr_assert_eq(spops_matrix_to_dlpack(spops_matrix_dense(dl_memory, 2, 3, SPOPS_DTYPE_F4E2M1),
                                        SPOPS_BACKEND_CPU, 0, shape, strides, &t, &message),
                 SPOPS_STATUS_INVALID_ARGUMENT);
    cr_assert_not_null(strstr(message, "odd number of columns"));
    message = NULL;
    memset(&t, 0x3c, sizeof t);
    cr_assert_eq(spops_matrix_to_dlpack(spops_matrix_dense(dl_memory, 2, 2, SPOPS_DTYPE_I8),
                                        SPOPS_BACKEND_CPU, 0, shape, strides, &t, &message),
                 SPOPS_STATUS_NOT_SUPPORTED);
    cr_assert_eq(t.ndim, 0x3c3c3c3c);
    cr_assert_eq(spops_matrix_to_dlpack(spops_matrix_dense(dl_memory, -2, 2, SPOPS_DTYPE_F32),
                                        SPOPS_BACKEND_CPU, 0, shape, strides, &t, &message),
                 SPOPS_STATUS_INVALID_ARGUMENT);
    cr_assert_eq(spops_matrix_to_dlpack(spops_matrix_dense(dl_memory, 2, 2, SPOPS_DTYPE_F32),
                                        SPOPS_BACKEND_AUTO, 0, shape, strides, &t, &message),
                 SPOPS_STATUS_INVALID_ARGUMENT);
    cr_assert_eq(spops_matrix_to_dlpack(spops_matrix_dense(dl_memory, 2, 2, SPOPS_DTYPE_F32),
                                        SPOPS_BACKEND_CPU, 0, NULL, strides, &t, &message),
                 SPOPS_STATUS_INVALID_ARGUMENT);
}
