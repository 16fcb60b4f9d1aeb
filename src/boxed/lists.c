// SPDX-License-Identifier: Apache-2.0
// Lists among the attributes of a boxed call, and arrays that it copies out.
#include "boxed/lists.h"

#include <inttypes.h>

#include "core/backend.h"

static const char *name_of(const spops_boxed_call *b, int i)
{
    return b->row->attributes[i].row->name;
}

static spops_status check_count(const spops_boxed_call *b, int i, int n)
{
    SPOPS_REQUIRE(b->ctx, b->counts[i] <= n, "%s: %s has %d numbers, expected at most %d",
                  b->row->call, name_of(b, i), (int)b->counts[i], n);
    return SPOPS_STATUS_OK;
}

spops_status spops_list_i32(const spops_boxed_call *b, int i, int n, int32_t absent, int32_t *to)
{
    const int64_t *list = b->attributes[i].list;

    SPOPS_TRY(check_count(b, i, n));
    for (int k = 0; k < n; ++k) {
        const int64_t value = b->counts[i] == 1  ? list[0]
                              : k < b->counts[i] ? list[k]
                                                 : (int64_t)absent;
        SPOPS_REQUIRE(b->ctx, value >= INT32_MIN && value <= INT32_MAX,
                      "%s: %s[%d] is %" PRId64 ", expected an int32", b->row->call, name_of(b, i),
                      k, value);
        to[k] = (int32_t)value;
    }
    return SPOPS_STATUS_OK;
}

spops_status spops_list_f64(const spops_boxed_call *b, int i, int n, double absent, double *to)
{
    const double *list = b->attributes[i].list;

    SPOPS_TRY(check_count(b, i, n));
    for (int k = 0; k < n; ++k)
        to[k] = b->counts[i] == 1 ? list[0] : k < b->counts[i] ? list[k] : absent;
    return SPOPS_STATUS_OK;
}

spops_status spops_copy_array(spops_boxed_call *b, int i, const void *from, int64_t n)
{
    const spops_matrix to = b->matrices[i];

    if (b->args[i] == NULL && to.rows == 0) return SPOPS_STATUS_OK;
    if (from == NULL) n = 0; // nothing was made, as of an empty set
    SPOPS_REQUIRE(b->ctx, to.rows * to.cols == n,
                  "%s: %s has %" PRId64 " elements, expected %" PRId64, b->row->call,
                  b->row->args[i].name, to.rows * to.cols, n);
    if (n == 0) return SPOPS_STATUS_OK;
    return b->ctx->backend->copy(b->ctx, to.data, from, (size_t)n * 4);
}

spops_point_cloud spops_cloud_of(const spops_boxed_call *b, int i)
{
    const bool has_offsets = b->args[i + 1] != NULL;
    const spops_point_cloud cloud = {b->matrices[i], b->args[i + 1],
                                     has_offsets ? b->matrices[i + 1].rows - 1 : 0};
    return cloud;
}
