// SPDX-License-Identifier: Apache-2.0
#include "bench/baselines/cusparse_spmm.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "support/device.h"

// The few declarations of cusparse.h (version 12) that are needed, in our own words.
enum {
    SPARSE_SUCCESS = 0,
    SPARSE_NOT_SUPPORTED = 10,
    SPARSE_NOT_TRANSPOSED = 0,
    SPARSE_ZERO_BASED = 0,
    SPARSE_INDEX_I32 = 2,
    SPARSE_ROW_MAJOR = 2,
    SPARSE_R_32F = 0,
    SPARSE_R_16F = 2,
    SPARSE_R_16BF = 14
};
static const int csr_algorithms[] = {4, 6, 12};

typedef int (*create_fn)(void **handle);
typedef int (*destroy_fn)(void *handle);
typedef int (*set_stream_fn)(void *handle, void *stream);
typedef int (*create_csr_fn)(void **matrix, int64_t rows, int64_t cols, int64_t nnz, void *offsets,
                             void *columns, void *values, int offset_type, int column_type,
                             int base, int value_type);
typedef int (*create_dense_fn)(void **matrix, int64_t rows, int64_t cols, int64_t row_stride,
                               void *values, int value_type, int order);
typedef int (*buffer_size_fn)(void *handle, int op_a, int op_b, const void *alpha, void *a, void *b,
                              const void *beta, void *c, int compute_type, int algorithm,
                              size_t *bytes);
typedef int (*spmm_fn)(void *handle, int op_a, int op_b, const void *alpha, void *a, void *b,
                       const void *beta, void *c, int compute_type, int algorithm, void *buffer);

typedef struct cusparse_library {
    void *file;
    create_fn create;
    destroy_fn destroy, destroy_sparse, destroy_dense;
    set_stream_fn set_stream;
    create_csr_fn create_csr;
    create_dense_fn create_dense;
    buffer_size_fn buffer_size;
    spmm_fn preprocess, spmm;
} cusparse_library;

struct cusparse_spmm {
    cusparse_library lib;
    void *handle, *a, *b, *c, *buffer;
    float alpha, beta;
    int algorithm;
    bool failed;
};

static bool fail(char *error, size_t error_bytes, const char *what, int status)
{
    snprintf(error, error_bytes, "cuSPARSE: %s returned %d", what, status);
    return false;
}

// A function of the library. POSIX lets data pointers carry functions; ISO C wants the detour.
static bool find(void *file, const char *name, void *function)
{
    void *symbol = dlsym(file, name);
    *(void **)function = symbol;
    return symbol != NULL;
}

// Stays open until the program ends.
static bool open_library(cusparse_library *lib, char *error, size_t error_bytes)
{
    const char *names[] = {getenv("SPOPS_CUSPARSE"), "libcusparse.so.12", "libcusparse.so",
                           "/usr/local/cuda/lib64/libcusparse.so.12"};
    for (size_t i = 0; lib->file == NULL && i < sizeof names / sizeof names[0]; ++i)
        if (names[i] != NULL && names[i][0] != '\0') lib->file = dlopen(names[i], RTLD_NOW);
    if (lib->file == NULL) {
        snprintf(error, error_bytes, "cuSPARSE is not here (libcusparse.so.12)");
        return false;
    }
    if (find(lib->file, "cusparseCreate", &lib->create) &&
        find(lib->file, "cusparseDestroy", &lib->destroy) &&
        find(lib->file, "cusparseDestroySpMat", &lib->destroy_sparse) &&
        find(lib->file, "cusparseDestroyDnMat", &lib->destroy_dense) &&
        find(lib->file, "cusparseSetStream", &lib->set_stream) &&
        find(lib->file, "cusparseCreateCsr", &lib->create_csr) &&
        find(lib->file, "cusparseCreateDnMat", &lib->create_dense) &&
        find(lib->file, "cusparseSpMM_bufferSize", &lib->buffer_size) &&
        find(lib->file, "cusparseSpMM_preprocess", &lib->preprocess) &&
        find(lib->file, "cusparseSpMM", &lib->spmm))
        return true;
    snprintf(error, error_bytes, "cuSPARSE lacks a function that is needed");
    return false;
}

static int value_type(spops_dtype dtype)
{
    return dtype == SPOPS_DTYPE_F32   ? SPARSE_R_32F
           : dtype == SPOPS_DTYPE_F16 ? SPARSE_R_16F
                                      : SPARSE_R_16BF;
}

static int run(cusparse_spmm *m, spmm_fn function)
{
    return function(m->handle, SPARSE_NOT_TRANSPOSED, SPARSE_NOT_TRANSPOSED, &m->alpha, m->a, m->b,
                    &m->beta, m->c, SPARSE_R_32F, m->algorithm, m->buffer);
}

static bool prepare(cusparse_spmm *m, const cusparse_spmm_desc *d, char *error, size_t error_bytes)
{
    const int type = value_type(d->dtype);
    size_t bytes = 0;
    int status = m->lib.create(&m->handle);
    if (status != SPARSE_SUCCESS) return fail(error, error_bytes, "cusparseCreate", status);
    status = m->lib.set_stream(m->handle, d->stream);
    if (status != SPARSE_SUCCESS) return fail(error, error_bytes, "cusparseSetStream", status);
    status = m->lib.create_csr(&m->a, d->num_segments, d->num_rows, d->num_terms,
                               (void *)d->offsets, (void *)d->idx, (void *)d->w, SPARSE_INDEX_I32,
                               SPARSE_INDEX_I32, SPARSE_ZERO_BASED, type);
    if (status != SPARSE_SUCCESS) return fail(error, error_bytes, "cusparseCreateCsr", status);
    status = m->lib.create_dense(&m->b, d->num_rows, d->cols, d->cols, (void *)d->x, type,
                                 SPARSE_ROW_MAJOR);
    if (status != SPARSE_SUCCESS) return fail(error, error_bytes, "cusparseCreateDnMat", status);
    status = m->lib.create_dense(&m->c, d->num_segments, d->cols, d->cols, d->out, type,
                                 SPARSE_ROW_MAJOR);
    if (status != SPARSE_SUCCESS) return fail(error, error_bytes, "cusparseCreateDnMat", status);
    status = m->lib.buffer_size(m->handle, SPARSE_NOT_TRANSPOSED, SPARSE_NOT_TRANSPOSED, &m->alpha,
                                m->a, m->b, &m->beta, m->c, SPARSE_R_32F, m->algorithm, &bytes);
    if (status != SPARSE_SUCCESS)
        return fail(error, error_bytes, "cusparseSpMM_bufferSize", status);
    if (!device_alloc(SPOPS_BACKEND_CUDA, bytes, &m->buffer)) {
        snprintf(error, error_bytes, "cuSPARSE's buffer: %s", device_error());
        return false;
    }
    status = run(m, m->lib.preprocess); // optional, and not for every algorithm
    if (status != SPARSE_SUCCESS && status != SPARSE_NOT_SUPPORTED)
        return fail(error, error_bytes, "cusparseSpMM_preprocess", status);
    return true;
}

bool cusparse_spmm_create(const cusparse_spmm_desc *desc, cusparse_spmm **out, char *error,
                          size_t error_bytes)
{
    cusparse_spmm *m = calloc(1, sizeof *m);
    *out = NULL;
    if (m == NULL) {
        snprintf(error, error_bytes, "no host memory");
        return false;
    }
    m->alpha = 1.0f;
    m->algorithm = csr_algorithms[desc->algorithm - 1];
    if (!open_library(&m->lib, error, error_bytes) || !prepare(m, desc, error, error_bytes)) {
        cusparse_spmm_destroy(m);
        return false;
    }
    *out = m;
    return true;
}

void cusparse_spmm_enqueue(void *spmm)
{
    cusparse_spmm *m = spmm;
    if (run(m, m->lib.spmm) != SPARSE_SUCCESS) m->failed = true;
}

bool cusparse_spmm_failed(const cusparse_spmm *spmm)
{
    return spmm->failed;
}

void cusparse_spmm_destroy(cusparse_spmm *m)
{
    if (m == NULL) return;
    if (m->a != NULL) m->lib.destroy_sparse(m->a);
    if (m->b != NULL) m->lib.destroy_dense(m->b);
    if (m->c != NULL) m->lib.destroy_dense(m->c);
    device_free(SPOPS_BACKEND_CUDA, m->buffer);
    if (m->handle != NULL) m->lib.destroy(m->handle);
    free(m);
}
