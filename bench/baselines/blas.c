// SPDX-License-Identifier: Apache-2.0
#include "bench/baselines/blas.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "support/device.h"

// The few declarations of cublas_v2.h (version 12) and cblas.h that are needed, in our own words.
enum {
    CUBLAS_NOT_TRANSPOSED = 0,
    CUBLAS_R_32F = 0,
    CUBLAS_R_16F = 2,
    CUBLAS_R_16BF = 14,
    CUBLAS_SUM_32F = 68,
    CUBLAS_SUM_32F_TF32 = 77,
    CUBLAS_DEFAULT_ALGORITHM = -1,
    CBLAS_ROWS_FIRST = 101,
    CBLAS_NOT_TRANSPOSED = 111
};
#define WORKSPACE_BYTES ((size_t)32 << 20) // what cuBLAS recommends on sm_90; makes it capturable

typedef int (*create_fn)(void **handle);
typedef int (*destroy_fn)(void *handle);
typedef int (*set_stream_fn)(void *handle, void *stream);
typedef int (*set_workspace_fn)(void *handle, void *workspace, size_t bytes);
typedef int (*gemm_fn)(void *handle, int op_a, int op_b, int m, int n, int k, const void *alpha,
                       const void *a, int a_type, int lda, const void *b, int b_type, int ldb,
                       const void *beta, void *c, int c_type, int ldc, int compute, int algorithm);
typedef void (*sgemm_fn)(int order, int op_a, int op_b, int m, int n, int k, float alpha,
                         const float *a, int lda, const float *b, int ldb, float beta, float *c,
                         int ldc);
typedef void (*set_threads_fn)(int num_threads);

struct blas {
    destroy_fn destroy;
    gemm_fn gemm;
    sgemm_fn sgemm;
    void *handle, *workspace;
    bool failed;
};

// A function of the library. POSIX lets data pointers carry functions; ISO C wants the detour.
static bool find(void *file, const char *name, void *function)
{
    void *symbol = dlsym(file, name);
    *(void **)function = symbol;
    return symbol != NULL;
}

// Stays open until the program ends.
static void *open_first(const char *const *names, int num_names)
{
    void *file = NULL;
    for (int i = 0; file == NULL && i < num_names; ++i)
        if (names[i] != NULL && names[i][0] != '\0') file = dlopen(names[i], RTLD_NOW);
    return file;
}

static bool open_cublas(blas *b, void *stream, char *error, size_t error_bytes)
{
    const char *names[] = {getenv("SPOPS_CUBLAS"), "libcublas.so.12", "libcublas.so",
                           "/usr/local/cuda/lib64/libcublas.so.12"};
    create_fn create;
    set_stream_fn set_stream;
    set_workspace_fn set_workspace;
    void *file = open_first(names, 4);

    if (file == NULL || !find(file, "cublasCreate_v2", &create) ||
        !find(file, "cublasDestroy_v2", &b->destroy) ||
        !find(file, "cublasSetStream_v2", &set_stream) ||
        !find(file, "cublasSetWorkspace_v2", &set_workspace) ||
        !find(file, "cublasGemmEx", &b->gemm)) {
        snprintf(error, error_bytes, "cuBLAS is not here (libcublas.so.12)");
        return false;
    }
    if (create(&b->handle) != 0 || set_stream(b->handle, stream) != 0 ||
        !device_alloc(SPOPS_BACKEND_CUDA, WORKSPACE_BYTES, &b->workspace) ||
        set_workspace(b->handle, b->workspace, WORKSPACE_BYTES) != 0) {
        snprintf(error, error_bytes, "cuBLAS could not be started");
        return false;
    }
    return true;
}

static bool open_cblas(blas *b, int num_threads, char *error, size_t error_bytes)
{
    const char *names[] = {getenv("SPOPS_CBLAS"), "libopenblas.so.0", "libopenblas.so",
                           "libcblas.so.3"};
    set_threads_fn set_threads;
    void *file = open_first(names, 4);

    if (file == NULL || !find(file, "cblas_sgemm", &b->sgemm)) {
        snprintf(error, error_bytes, "no CBLAS is here (libopenblas.so.0)");
        return false;
    }
    if (find(file, "openblas_set_num_threads", &set_threads)) set_threads(num_threads);
    return true;
}

bool blas_create(spops_backend_kind backend, void *stream, int num_threads, blas **out, char *error,
                 size_t error_bytes)
{
    blas *b = calloc(1, sizeof *b);
    *out = NULL;
    if (b == NULL) {
        snprintf(error, error_bytes, "no host memory");
        return false;
    }
    if (backend == SPOPS_BACKEND_CUDA ? !open_cublas(b, stream, error, error_bytes)
                                      : !open_cblas(b, num_threads, error, error_bytes)) {
        blas_destroy(b);
        return false;
    }
    *out = b;
    return true;
}

void blas_destroy(blas *b)
{
    if (b == NULL) return;
    if (b->handle != NULL) b->destroy(b->handle);
    device_free(SPOPS_BACKEND_CUDA, b->workspace);
    free(b);
}

void blas_multiply(blas *b, spops_dtype dtype, bool tf32, int64_t rows, int64_t in_cols,
                   int64_t out_cols, const void *x, const void *w, void *out)
{
    const float one = 1.0f, zero = 0.0f;
    const int type = dtype == SPOPS_DTYPE_F32   ? CUBLAS_R_32F
                     : dtype == SPOPS_DTYPE_F16 ? CUBLAS_R_16F
                                                : CUBLAS_R_16BF;
    const int m = (int)rows, k = (int)in_cols, n = (int)out_cols;

    if (rows == 0) return;
    if (b->sgemm != NULL) {
        if (dtype != SPOPS_DTYPE_F32)
            b->failed = true;
        else
            b->sgemm(CBLAS_ROWS_FIRST, CBLAS_NOT_TRANSPOSED, CBLAS_NOT_TRANSPOSED, m, n, k, one, x,
                     k, w, n, zero, out, n);
        return;
    }
    // Columns come first in cuBLAS: the transposed product of the transposed matrices.
    if (b->gemm(b->handle, CUBLAS_NOT_TRANSPOSED, CUBLAS_NOT_TRANSPOSED, n, m, k, &one, w, type, n,
                x, type, k, &zero, out, type, n, tf32 ? CUBLAS_SUM_32F_TF32 : CUBLAS_SUM_32F,
                CUBLAS_DEFAULT_ALGORITHM) != 0)
        b->failed = true;
}

bool blas_failed(const blas *b)
{
    return b->failed;
}
