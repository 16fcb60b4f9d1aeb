// SPDX-License-Identifier: Apache-2.0
// A reduction of one's own from CUDA C++: log-sum-exp as a functor for the library's own kernel, on
// the caller's stream, over a plan that the library built.
#include <spops/device/segreduce.cuh>
#include <spops/spops.h>

#include <cmath>
#include <cstdio>
#include <vector>

// Carried as (maximum, sum of exp(v - maximum)), so that exp never overflows.
struct log_sum_exp {
    struct state {
        float max, sum;
    };
    static constexpr bool uses_term = false;
    static constexpr bool has_arg = false;
    static __device__ float ratio(float a, float b) { return a == b ? 1.0f : expf(a - b); }
    static __device__ state identity() { return {-INFINITY, 0.0f}; }
    static __device__ state lift(float v, int) { return {v, 1.0f}; }
    static __device__ state combine(state a, state b)
    {
        const float max = b.max > a.max ? b.max : a.max;
        return {max, a.sum * ratio(a.max, max) + b.sum * ratio(b.max, max)};
    }
    static __device__ float finalize(state a, long long) { return a.max + logf(a.sum); }
};

#define TRY_CUDA(call)                                                                             \
    do {                                                                                           \
        const cudaError_t error = (call);                                                          \
        if (error != cudaSuccess) {                                                                \
            std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error));                    \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)
#define TRY_SPOPS(call)                                                                            \
    do {                                                                                           \
        if ((call) != SPOPS_STATUS_OK) {                                                           \
            std::fprintf(stderr, "%s\n", spops_last_error(ctx));                                   \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

template <class T> static cudaError_t upload(const std::vector<T> &from, T **to)
{
    const cudaError_t error = cudaMalloc(to, from.size() * sizeof(T));
    if (error != cudaSuccess) return error;
    return cudaMemcpy(*to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice);
}

int main()
{
    // One segment long enough to be split, one empty, one short.
    const int num_segments = 3, num_rows = 20003, cols = 12;
    const std::vector<int32_t> offsets = {0, 20000, 20000, num_rows};
    std::vector<float> x(num_rows * cols), out(num_segments * cols);
    for (size_t i = 0; i < x.size(); ++i)
        x[i] = (float)(i * 37 % 101) / 10.0f - 5.0f;

    spops_context *ctx = nullptr;
    spops_context_options options = spops_context_options_default();
    options.backend = SPOPS_BACKEND_CUDA;
    if (spops_context_create(&options, &ctx) == SPOPS_STATUS_BACKEND_UNAVAILABLE) {
        std::printf("CUDA: not run: %s\n", spops_last_error(nullptr));
        return 0;
    }
    int32_t *d_offsets;
    float *d_x, *d_out;
    TRY_CUDA(upload(offsets, &d_offsets));
    TRY_CUDA(upload(x, &d_x));
    TRY_CUDA(upload(out, &d_out));

    spops_segments *segments = nullptr;
    spops_segments_view view = spops_segments_view_default();
    TRY_SPOPS(spops_segments_create(ctx, num_segments, d_offsets, nullptr, &segments));
    TRY_SPOPS(spops_segments_get_view(ctx, segments, &view));

    void *scratch = nullptr;
    uint32_t *tickets = nullptr;
    const size_t scratch_bytes = (size_t)view.max_pieces * cols * 8;
    const size_t tickets_bytes = (size_t)view.max_splits * cols * sizeof *tickets;
    TRY_CUDA(cudaMalloc(&scratch, scratch_bytes));
    TRY_CUDA(cudaMalloc((void **)&tickets, tickets_bytes));
    TRY_CUDA(cudaMemset(tickets, 0, tickets_bytes)); // zero again after every launch
    TRY_CUDA(spops::segreduce_launch<log_sum_exp>(view, d_x, cols, nullptr, d_out, cols, cols,
                                                  scratch, tickets, nullptr));
    TRY_CUDA(cudaMemcpy(out.data(), d_out, out.size() * sizeof(float), cudaMemcpyDeviceToHost));

    double worst = 0.0;
    for (int s = 0; s < num_segments; ++s)
        for (int c = 0; c < cols; ++c) {
            double total = 0.0;
            for (int t = offsets[s]; t < offsets[s + 1]; ++t)
                total += std::exp((double)x[t * cols + c]);
            const double value = std::log(total), got = out[s * cols + c];
            const double error = got == value ? 0.0 : std::fabs(got - value);
            if (!(error <= worst)) worst = error;
        }
    // 20000 additions in f32, each off by at most 2^-24 of the sum, and expf and logf.
    const bool right = worst <= 20000 * std::ldexp(1.0, -24);
    std::printf("CUDA: log-sum-exp is %s (error %.1e)\n", right ? "right" : "WRONG", worst);

    spops_segments_destroy(segments);
    spops_context_destroy(ctx);
    cudaFree(d_offsets);
    cudaFree(d_x);
    cudaFree(d_out);
    cudaFree(scratch);
    cudaFree(tickets);
    return right ? 0 : 1;
}
