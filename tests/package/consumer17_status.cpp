// SPDX-License-Identifier: Apache-2.0
// A stranger's C++17 program that is compiled without exceptions: failures are results.
#include <spops/spops.hpp>

#include <cstdio>
#include <cstring>

#if defined(__cpp_exceptions) || defined(SPOPS_HPP_EXCEPTIONS)
#error "to be compiled without exceptions"
#endif

static int fail(const char *what, const char *message)
{
    std::fprintf(stderr, "%s: %s\n", what, message);
    return 1;
}

int main()
{
    spops::result<spops::context> opened = spops::try_open(SPOPS_BACKEND_CPU);
    if (!opened) return fail("no context", opened.message());
    const spops::context &ctx = *opened;
    const int32_t offsets[] = {0, 3, 5}, descending[] = {0, 3, 2};
    const float x[] = {1, 5, 9, 2, 9};
    float out[2] = {0, 0};
    auto plan = spops::try_make<spops::segments>(ctx, spops_segments_create, 2, offsets, nullptr);
    if (!plan || plan->get() == nullptr || plan.status() != SPOPS_STATUS_OK || *plan.message() != 0)
        return fail("no plan", plan.message());
    if (spops_segreduce_execute(ctx, *plan, SPOPS_REDUCE_SUM, spops::matrix(x, 5, 1), nullptr,
                                spops::matrix(out, 2, 1), nullptr) != SPOPS_STATUS_OK)
        return fail("not executed", spops_last_error(ctx));
    if (out[0] != 15 || out[1] != 11) return fail("sums", "are wrong");
    const auto none =
        spops::try_make<spops::segments>(ctx, spops_segments_create, 2, descending, nullptr);
    if (none || none->get() != nullptr || none.status() != SPOPS_STATUS_INVALID_ARGUMENT ||
        std::strstr(none.message(), "offsets[2]") == nullptr)
        return fail("descending offsets", none.message());
    const auto nowhere = spops::try_open(static_cast<spops_backend_kind>(99));
    if (nowhere || (*nowhere).get() != nullptr || std::strlen(nowhere.message()) == 0)
        return fail("a backend that there is not", "was opened");
    spops::segments moved = std::move(*plan);
    if (plan->get() != nullptr || moved.get() == nullptr) return fail("move", "copied");
    std::printf("C++17 without exceptions: sums are right; refused: %s\n", none.message());
    return 0;
}
