// SPDX-License-Identifier: Apache-2.0
// A stranger's C++17 program on spops/spops.hpp: sums by key, objects that free themselves, an
// exception with the library's line.
#include <spops/spops.hpp>

#include <cstdio>
#include <cstring>
#include <vector>

int main()
{
    spops::context ctx(SPOPS_BACKEND_CPU);
    const std::vector<int32_t> keys = {1, 0, 1, 0, 1};
    const std::vector<float> x = {1, 5, 9, 2, 9};
    std::vector<float> out(2);
    auto plan = spops::make<spops::segments>(ctx, spops_segments_create_from_keys, 2, 5,
                                             keys.data(), SPOPS_KEYS_UNSORTED, nullptr);
    spops::check(ctx,
                 spops_segreduce_execute(ctx, plan, SPOPS_REDUCE_SUM, spops::matrix(x.data(), 5, 1),
                                         nullptr, spops::matrix(out.data(), 2, 1), nullptr));
    ctx.wait();
    if (out[0] != 7 || out[1] != 19) {
        std::fprintf(stderr, "wrong sums: %g, %g\n", out[0], out[1]);
        return 1;
    }
    spops::segments moved = std::move(plan);
    if (plan.get() != nullptr || moved.get() == nullptr) return 1;
    const int32_t offsets[] = {0, 3, 2};
    try {
        spops::make<spops::segments>(ctx, spops_segments_create, 2, offsets, nullptr);
    } catch (const spops::error &e) {
        if (e.status() != SPOPS_STATUS_INVALID_ARGUMENT || !std::strstr(e.what(), "offsets[2]")) {
            std::fprintf(stderr, "%s\n", e.what());
            return 1;
        }
        std::printf("C++17: sums are right; refused: %s\n", e.what());
        return 0;
    }
    std::fprintf(stderr, "descending offsets were taken\n");
    return 1;
}
