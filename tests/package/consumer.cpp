// SPDX-License-Identifier: Apache-2.0
// A stranger's C++11 program: the largest row of each key, and which term it was, on the CPU.
#include <spops/spops.h>

#include <cstdio>
#include <memory>
#include <vector>

int main()
{
    spops_context_options options = spops_context_options_default();
    options.backend = SPOPS_BACKEND_CPU;
    spops_context *raw = nullptr;
    if (spops_context_create(&options, &raw) != SPOPS_STATUS_OK) {
        std::fprintf(stderr, "%s\n", spops_last_error(nullptr));
        return 1;
    }
    std::unique_ptr<spops_context, void (*)(spops_context *)> ctx(raw, spops_context_destroy);
    const std::vector<int32_t> keys = {1, 0, 1, 0, 1};
    std::vector<float> x = {1, 5, 9, 2, 9}, out(2);
    std::vector<int32_t> arg(2);
    spops_segments *plan = nullptr;
    if (spops_segments_create_from_keys(ctx.get(), 2, 5, keys.data(), SPOPS_KEYS_UNSORTED, nullptr,
                                        &plan) != SPOPS_STATUS_OK) {
        std::fprintf(stderr, "%s\n", spops_last_error(ctx.get()));
        return 1;
    }
    std::unique_ptr<spops_segments, void (*)(spops_segments *)> segments(plan,
                                                                         spops_segments_destroy);
    const spops_matrix arg_matrix = spops_matrix_dense(arg.data(), 2, 1, SPOPS_DTYPE_I32);
    if (spops_segreduce_execute(ctx.get(), segments.get(), SPOPS_REDUCE_MAX,
                                spops_matrix_dense(x.data(), 5, 1, SPOPS_DTYPE_F32), nullptr,
                                spops_matrix_dense(out.data(), 2, 1, SPOPS_DTYPE_F32),
                                &arg_matrix) != SPOPS_STATUS_OK) {
        std::fprintf(stderr, "%s\n", spops_last_error(ctx.get()));
        return 1;
    }
    if (out[0] != 5 || out[1] != 9 || arg[0] != 1 || arg[1] != 2) {
        std::fprintf(stderr, "wrong maxima: %g (term %d), %g (term %d)\n", out[0], arg[0], out[1],
                     arg[1]);
        return 1;
    }
    std::printf("C++: spops %s, maxima are right\n", spops_version());
    return 0;
}
