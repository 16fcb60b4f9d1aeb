// SPDX-License-Identifier: Apache-2.0
/*
 * A reduction of one's own, registered at run time: log-sum-exp, with its gradient (the softmax).
 * The CPU takes C functions; a GPU takes a CUDA C++ struct as text, compiled when it is registered.
 * Built with EXAMPLE_WITH_CUDA it runs on a GPU as well, where there is one.
 */
#include <spops/spops.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef EXAMPLE_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

/* ---- The reduction, for the CPU ----------------------------------------------------------------
 */

/* Carried as (maximum, sum of exp(v - maximum)), so that exp never overflows. */
typedef struct lse_state {
    float max, sum;
} lse_state;

static float exp_difference(float a, float b)
{
    return a == b ? 1.0f : expf(a - b); /* also for two infinities */
}

static lse_state lse_combine_one(lse_state a, lse_state b)
{
    lse_state r;
    r.max = b.max > a.max ? b.max : a.max;
    r.sum = a.sum * exp_difference(a.max, r.max) + b.sum * exp_difference(b.max, r.max);
    return r;
}

static float lse_value(lse_state a)
{
    return a.max + logf(a.sum);
}

static void lse_identity(void *user, int64_t n, void *state)
{
    lse_state *s = (lse_state *)state;
    (void)user;
    for (int64_t i = 0; i < n; ++i) {
        s[i].max = -INFINITY;
        s[i].sum = 0.0f;
    }
}

static void lse_fold(void *user, int64_t n, void *state, const float *v, int32_t term)
{
    lse_state *s = (lse_state *)state;
    (void)user, (void)term;
    for (int64_t i = 0; i < n; ++i) {
        lse_state one;
        one.max = v[i];
        one.sum = 1.0f;
        s[i] = lse_combine_one(s[i], one);
    }
}

static void lse_combine(void *user, int64_t n, void *a, const void *b)
{
    lse_state *s = (lse_state *)a;
    (void)user;
    for (int64_t i = 0; i < n; ++i)
        s[i] = lse_combine_one(s[i], ((const lse_state *)b)[i]);
}

static void lse_finalize(void *user, int64_t n, const void *state, int64_t count, float *out)
{
    (void)user, (void)count; /* an empty segment gives -infinity */
    for (int64_t i = 0; i < n; ++i)
        out[i] = lse_value(((const lse_state *)state)[i]);
}

static void lse_grad(void *user, int64_t n, const float *v, int32_t term, const void *state,
                     int64_t count, float *dv)
{
    (void)user, (void)term, (void)count;
    for (int64_t i = 0; i < n; ++i)
        dv[i] = expf(v[i] - lse_value(((const lse_state *)state)[i]));
}

/* ---- The same for the GPU: the struct that spops/device/segreduce.cuh describes ----------------
 */

static const char lse_cuda[] =
    "struct log_sum_exp {\n"
    "    struct state { float max, sum; };\n"
    "    static constexpr bool uses_term = false;\n"
    "    static constexpr bool has_arg = false;\n"
    "    static __device__ float ratio(float a, float b) { return a == b ? 1.0f : expf(a - b); }\n"
    "    static __device__ state identity() { state a = {-SPOPS_INFINITY, 0.0f}; return a; }\n"
    "    static __device__ state lift(float v, int) { state a = {v, 1.0f}; return a; }\n"
    "    static __device__ state combine(state a, state b)\n"
    "    {\n"
    "        state r;\n"
    "        r.max = b.max > a.max ? b.max : a.max;\n"
    "        r.sum = a.sum * ratio(a.max, r.max) + b.sum * ratio(b.max, r.max);\n"
    "        return r;\n"
    "    }\n"
    "    static __device__ float finalize(state a, long long) { return a.max + logf(a.sum); }\n"
    "    static __device__ float grad(float v, int, state a, long long)\n"
    "    {\n"
    "        return expf(v - (a.max + logf(a.sum)));\n"
    "    }\n"
    "};\n";

/* ---- Memory where a context runs ---------------------------------------------------------------
 */

static void *device_copy(spops_backend_kind backend, const void *from, size_t bytes)
{
    void *to = NULL;
#ifdef EXAMPLE_WITH_CUDA
    if (backend == SPOPS_BACKEND_CUDA) {
        if (cudaMalloc(&to, bytes) != cudaSuccess) return NULL;
        if (cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice) == cudaSuccess) return to;
        cudaFree(to);
        return NULL;
    }
#endif
    (void)backend;
    to = malloc(bytes);
    if (to != NULL) memcpy(to, from, bytes);
    return to;
}

static int host_copy(spops_backend_kind backend, void *to, const void *from, size_t bytes)
{
#ifdef EXAMPLE_WITH_CUDA
    if (backend == SPOPS_BACKEND_CUDA)
        return cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost) == cudaSuccess;
#endif
    (void)backend;
    memcpy(to, from, bytes);
    return 1;
}

static void device_free(spops_backend_kind backend, void *ptr)
{
#ifdef EXAMPLE_WITH_CUDA
    if (backend == SPOPS_BACKEND_CUDA) {
        cudaFree(ptr);
        return;
    }
#endif
    (void)backend;
    free(ptr);
}

/* ---- Use it ------------------------------------------------------------------------------------
 */

/* Three segments of 5000, 0 and 3 rows: one long enough to be split, one empty, one short. */
enum { NUM_SEGMENTS = 3, NUM_ROWS = 5003, COLS = 5 };
static const int32_t offsets[NUM_SEGMENTS + 1] = {0, 5000, 5000, NUM_ROWS};
static float x[NUM_ROWS][COLS], out[NUM_SEGMENTS][COLS], grad_x[NUM_ROWS][COLS];
static float grad_out[NUM_SEGMENTS][COLS];

static double worst_error(void)
{
    double worst = 0.0;
    for (int s = 0; s < NUM_SEGMENTS; ++s)
        for (int c = 0; c < COLS; ++c) {
            double total = 0.0, value, error;
            for (int t = offsets[s]; t < offsets[s + 1]; ++t)
                total += exp((double)x[t][c]);
            value = log(total);
            error = isinf(value) ? (out[s][c] == value ? 0.0 : INFINITY) : fabs(out[s][c] - value);
            if (!(error <= worst)) worst = error;
            for (int t = offsets[s]; t < offsets[s + 1]; ++t) {
                error = fabs(grad_x[t][c] - exp((double)x[t][c] - value) * grad_out[s][c]);
                if (!(error <= worst)) worst = error;
            }
        }
    return worst;
}

static spops_status register_log_sum_exp(spops_context *ctx, spops_reduce *out)
{
    spops_reduce_desc desc;

    memset(&desc, 0, sizeof desc);
    desc.struct_size = sizeof desc;
    desc.name = "log-sum-exp";
    desc.state_bytes = sizeof(lse_state);
    desc.identity = lse_identity;
    desc.fold = lse_fold;
    desc.combine = lse_combine;
    desc.finalize = lse_finalize;
    desc.grad = lse_grad;
    desc.cuda_source = lse_cuda;
    desc.cuda_op = "log_sum_exp";
    return spops_reduce_create(ctx, &desc, out);
}

static int run(spops_backend_kind backend, const char *name)
{
    spops_context_options context_options = spops_context_options_default();
    spops_segments_options options = spops_segments_options_default();
    spops_reduce log_sum_exp;
    spops_context *ctx = NULL;
    spops_segments *segments = NULL;
    spops_matrix grad_rows;
    void *d_offsets = NULL, *d_x = NULL, *d_out = NULL, *d_grad_out = NULL, *d_grad_x = NULL;
    int failed = 1;

    context_options.backend = backend;
    if (spops_context_create(&context_options, &ctx) == SPOPS_STATUS_BACKEND_UNAVAILABLE) {
        printf("%s: not run: %s\n", name, spops_last_error(NULL));
        return 0;
    }
    if (ctx == NULL) goto done;

    if (register_log_sum_exp(ctx, &log_sum_exp) != SPOPS_STATUS_OK) goto done;

    memset(out, 0, sizeof out);
    memset(grad_x, 0, sizeof grad_x);
    d_offsets = device_copy(backend, offsets, sizeof offsets);
    d_x = device_copy(backend, x, sizeof x);
    d_out = device_copy(backend, out, sizeof out);
    d_grad_out = device_copy(backend, grad_out, sizeof grad_out);
    d_grad_x = device_copy(backend, grad_x, sizeof grad_x);
    if (!d_offsets || !d_x || !d_out || !d_grad_out || !d_grad_x) goto done;

    options.max_cols = COLS;
    options.gradients = SPOPS_GRADIENTS_ALL;
    grad_rows = spops_matrix_dense(d_grad_x, NUM_ROWS, COLS, SPOPS_DTYPE_F32);
    if (spops_segments_create(ctx, NUM_SEGMENTS, (const int32_t *)d_offsets, &options, &segments) !=
            SPOPS_STATUS_OK ||
        spops_segreduce_execute(ctx, segments, log_sum_exp,
                                spops_matrix_dense(d_x, NUM_ROWS, COLS, SPOPS_DTYPE_F32), NULL,
                                spops_matrix_dense(d_out, NUM_SEGMENTS, COLS, SPOPS_DTYPE_F32),
                                NULL) != SPOPS_STATUS_OK ||
        spops_segreduce_execute_backward(
            ctx, segments, log_sum_exp,
            spops_matrix_dense(d_grad_out, NUM_SEGMENTS, COLS, SPOPS_DTYPE_F32),
            spops_matrix_dense(d_x, NUM_ROWS, COLS, SPOPS_DTYPE_F32), NULL, &grad_rows,
            NULL) != SPOPS_STATUS_OK ||
        spops_context_wait_sync(ctx) != SPOPS_STATUS_OK)
        goto done;
    if (!host_copy(backend, out, d_out, sizeof out) ||
        !host_copy(backend, grad_x, d_grad_x, sizeof grad_x))
        goto done;
    /* 5000 additions in f32, each off by at most 2^-24 of the sum, and expf and logf. */
    failed = !(worst_error() <= 5000 * ldexp(1.0, -24));
    printf("%s: log-sum-exp is %s (error %.1e)\n", name, failed ? "WRONG" : "right", worst_error());

done:
    if (failed) fprintf(stderr, "%s: %s\n", name, spops_last_error(ctx));
    spops_segments_destroy(segments);
    device_free(backend, d_offsets);
    device_free(backend, d_x);
    device_free(backend, d_out);
    device_free(backend, d_grad_out);
    device_free(backend, d_grad_x);
    spops_context_destroy(ctx);
    return failed;
}

int main(void)
{
    int failed;
    for (int t = 0; t < NUM_ROWS; ++t)
        for (int c = 0; c < COLS; ++c)
            x[t][c] = (float)((t * 37 + c * 11) % 101) / 10.0f - 5.0f;
    for (int s = 0; s < NUM_SEGMENTS; ++s)
        for (int c = 0; c < COLS; ++c)
            grad_out[s][c] = 1.0f + (float)s - 0.5f * (float)c;
    failed = run(SPOPS_BACKEND_CPU, "CPU");
#ifdef EXAMPLE_WITH_CUDA
    failed |= run(SPOPS_BACKEND_CUDA, "CUDA");
#endif
    return failed;
}
