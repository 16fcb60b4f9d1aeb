// SPDX-License-Identifier: Apache-2.0
// Dense products by cuBLAS, opened with dlopen so that the library loads without it. A handle belongs
// to a context; plans that other contexts run use it as well, one call at a time.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "kernels/launchers.h"
#include "mvmr/matmul_args.h"

// The few declarations of cublas_v2.h that are needed, in our own words: its package need not be
// there where this is compiled.
enum {
    CUBLAS_OK = 0,
    CUBLAS_AS_STORED = 0,
    CUBLAS_TRANSPOSED = 1,
    CUBLAS_R_32F = 0,
    CUBLAS_R_16F = 2,
    CUBLAS_R_16BF = 14,
    CUBLAS_SUM_32F = 68,
    CUBLAS_SUM_32F_TF32 = 77,
    CUBLAS_ALL_SUMS_32F = 16, // a math mode: partial sums of f16 products are not rounded to f16
    CUBLAS_OWN_CHOICE = -1    // of an algorithm
};

typedef int (*create_fn)(void **handle);
typedef int (*destroy_fn)(void *handle);
typedef int (*set_stream_fn)(void *handle, void *stream);
typedef int (*set_workspace_fn)(void *handle, void *workspace, size_t bytes);
typedef int (*set_math_fn)(void *handle, int mode);
typedef int (*gemm_fn)(void *handle, int op_a, int op_b, int m, int n, int k, const void *alpha,
                       const void *a, int a_type, int lda, const void *b, int b_type, int ldb,
                       const void *beta, void *c, int c_type, int ldc, int compute, int algorithm);
typedef int (*batched_gemm_fn)(void *handle, int op_a, int op_b, int m, int n, int k,
                               const void *alpha, const void *a, int a_type, int lda,
                               long long a_stride, const void *b, int b_type, int ldb,
                               long long b_stride, const void *beta, void *c, int c_type, int ldc,
                               long long c_stride, int batches, int compute, int algorithm);

typedef struct cublas_library {
    spops_context_part part;
    void *file, *handle;
    destroy_fn destroy;
    set_stream_fn set_stream;
    set_workspace_fn set_workspace;
    gemm_fn gemm;
    batched_gemm_fn batched_gemm;
    pthread_mutex_t lock; // of the handle, which holds stream and workspace between calls
} cublas_library;

static void close_cublas(spops_context *ctx, spops_context_part *part)
{
    cublas_library *library = (cublas_library *)part;
    if (library->handle != NULL) (void)library->destroy(library->handle);
    if (library->file != NULL) dlclose(library->file);
    (void)pthread_mutex_destroy(&library->lock);
    spops_host_free(ctx, library, 1, sizeof *library);
}

// A function of the library. POSIX lets data pointers carry functions; ISO C wants the detour.
static bool find(void *file, const char *name, void *function)
{
    void *symbol = dlsym(file, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

static spops_status open_library(spops_context *ctx, const char *call, cublas_library *library)
{
    char name[64];
    create_fn create;
    set_math_fn set_math;
    int error;

    snprintf(name, sizeof name, "libcublas.so.%d", CUDART_VERSION / 1000);
    library->file = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library->file == NULL)
        return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED, "%s: cuBLAS (%s) cannot be opened", call,
                          name);
    if (!find(library->file, "cublasCreate_v2", &create) ||
        !find(library->file, "cublasDestroy_v2", &library->destroy) ||
        !find(library->file, "cublasSetStream_v2", &library->set_stream) ||
        !find(library->file, "cublasSetWorkspace_v2", &library->set_workspace) ||
        !find(library->file, "cublasSetMathMode", &set_math) ||
        !find(library->file, "cublasGemmEx", &library->gemm) ||
        !find(library->file, "cublasGemmStridedBatchedEx", &library->batched_gemm))
        return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED, "%s: %s lacks a function that is needed",
                          call, name);
    error = create(&library->handle);
    if (error != CUBLAS_OK) {
        library->handle = NULL;
        return spops_fail(ctx, SPOPS_STATUS_CUDA, "%s: cublasCreate: status %d", call, error);
    }
    error = set_math(library->handle, CUBLAS_ALL_SUMS_32F);
    if (error != CUBLAS_OK)
        return spops_fail(ctx, SPOPS_STATUS_CUDA, "%s: cublasSetMathMode: status %d", call, error);
    return SPOPS_STATUS_OK;
}

spops_status spops_cuda_matmul_open(spops_context *ctx, const spops_matmul_open_args *args)
{
    spops_status status = SPOPS_STATUS_OK;
    cublas_library *library;

    if (ctx->matmul != NULL) return SPOPS_STATUS_OK;
    library = spops_host_alloc(ctx, 1, sizeof *library);
    if (library == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    library->part.destroy = close_cublas;
    (void)pthread_mutex_init(&library->lock, NULL); // cannot fail without attributes
    SPOPS_TRY_GOTO(open_library(ctx, args->call, library), status, fail);
    ctx->matmul = &library->part;
    return SPOPS_STATUS_OK;

fail:
    close_cublas(ctx, &library->part);
    return status;
}

static int type_of(spops_dtype dtype)
{
    return dtype == SPOPS_DTYPE_F32   ? CUBLAS_R_32F
           : dtype == SPOPS_DTYPE_F16 ? CUBLAS_R_16F
                                      : CUBLAS_R_16BF;
}

static int operation(const spops_matmul_operand *operand)
{
    return operand->transposed ? CUBLAS_TRANSPOSED : CUBLAS_AS_STORED;
}

// Columns come first in cuBLAS: the transposed product of the transposed matrices. A single product is
// not a batch of one, because cuBLAS cuts a deep one into parts and a batch never; it loses numbers of
// deep ones unless all is f32, so gradients of W in 16 bits do not come here (docs/sparseconv.md).
static int multiply(const cublas_library *library, const spops_matmul_args *args)
{
    const float one = 1.0f, beta = args->accumulate ? 1.0f : 0.0f;
    const int type = type_of(args->dtype), out_type = type_of(args->out_dtype);
    const int compute = args->tf32 ? CUBLAS_SUM_32F_TF32 : CUBLAS_SUM_32F;
    const int m = (int)args->cols, n = (int)args->rows, k = (int)args->depth;
    const spops_matmul_operand *a = &args->b, *b = &args->a, *c = &args->c;

    if (args->batches == 1)
        return library->gemm(library->handle, operation(a), operation(b), m, n, k, &one, a->data,
                             type, (int)a->row_stride, b->data, type, (int)b->row_stride, &beta,
                             c->data, out_type, (int)c->row_stride, compute, CUBLAS_OWN_CHOICE);
    return library->batched_gemm(library->handle, operation(a), operation(b), m, n, k, &one,
                                 a->data, type, (int)a->row_stride, a->batch_stride, b->data, type,
                                 (int)b->row_stride, b->batch_stride, &beta, c->data, out_type,
                                 (int)c->row_stride, c->batch_stride, (int)args->batches, compute,
                                 CUBLAS_OWN_CHOICE);
}

spops_status spops_cuda_matmul(spops_context *ctx, const spops_matmul_args *args)
{
    cublas_library *library = (cublas_library *)args->library;
    int error;

    if (args->batches == 0 || args->rows == 0 || args->cols == 0) return SPOPS_STATUS_OK;
    (void)pthread_mutex_lock(&library->lock);
    error = library->set_stream(library->handle, ctx->stream);
    if (error == CUBLAS_OK)
        error =
            library->set_workspace(library->handle, args->workspace, SPOPS_MATMUL_WORKSPACE_BYTES);
    if (error == CUBLAS_OK) error = multiply(library, args);
    (void)pthread_mutex_unlock(&library->lock);
    if (error == CUBLAS_OK) return SPOPS_STATUS_OK;
    return spops_fail(ctx, SPOPS_STATUS_CUDA, "matmul: cuBLAS: status %d", error);
}
