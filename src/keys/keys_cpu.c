// SPDX-License-Identifier: Apache-2.0
// Argsort and unique on the CPU: a sort by digits of keys without signs.
#include <string.h>

#include "backends/backend_cpu.h"
#include "core/radix_sort.h"
#include "keys/keys_args.h"

enum { MAX_PARTS = 64 };

typedef struct keys_work {
    spops_matrix keys;
    bool descending;
    int64_t n; // keys that count
    spops_radix_buffers buffers;
    int sorted_in; // which of the buffers has the result
} keys_work;

static bool is_wide(spops_matrix keys)
{
    return keys.dtype == SPOPS_DTYPE_I64;
}

static spops_radix_buffers carve(spops_matrix keys, spops_carver *c)
{
    return spops_radix_carve(is_wide(keys) ? 8 : 4, keys.rows, c);
}

static void fill_keys(const void *work, int64_t begin, int64_t end)
{
    const keys_work *w = (const keys_work *)work;
    for (int64_t i = begin; i < end; ++i) {
        w->buffers.values[0][i] = (int32_t)i;
        if (is_wide(w->keys)) {
            const uint64_t key = (uint64_t)((const int64_t *)w->keys.data)[i] ^ (uint64_t)1 << 63;
            ((uint64_t *)w->buffers.keys[0])[i] = w->descending ? ~key : key;
        } else {
            const uint32_t key = (uint32_t)((const int32_t *)w->keys.data)[i] ^ (uint32_t)1 << 31;
            ((uint32_t *)w->buffers.keys[0])[i] = w->descending ? ~key : key;
        }
    }
}

// to[i] = the key of rank `rank`; to[i] = 0 where rank is below 0.
static void put_key(const keys_work *w, void *to, int64_t i, int64_t rank)
{
    const int32_t from = rank < 0 ? 0 : w->buffers.values[w->sorted_in][rank];
    if (is_wide(w->keys))
        ((int64_t *)to)[i] = rank < 0 ? 0 : ((const int64_t *)w->keys.data)[from];
    else
        ((int32_t *)to)[i] = rank < 0 ? 0 : ((const int32_t *)w->keys.data)[from];
}

static keys_work sort_keys(spops_team team, spops_matrix keys, const int32_t *num_keys,
                           bool descending, void *scratch)
{
    spops_carver c = {scratch, 0};
    keys_work w = {.keys = keys, .descending = descending, .n = keys.rows};

    w.buffers = carve(keys, &c);
    if (num_keys != NULL) w.n = *num_keys < 0 ? 0 : *num_keys < w.n ? *num_keys : w.n;
    spops_parallel_for(team, w.n, 0, fill_keys, &w);
    if (w.n > 0) w.sorted_in = spops_radix_sort(team, is_wide(keys) ? 64 : 32, w.n, &w.buffers, 0);
    return w;
}

// ---- Argsort ------------------------------------------------------------------------------------

size_t spops_cpu_argsort_scratch_bytes(spops_context *ctx, const spops_argsort_args *args)
{
    spops_carver c = {NULL, 0};
    (void)ctx;
    (void)carve(args->keys, &c);
    return c.used;
}

typedef struct argsort_work {
    const spops_argsort_args *args;
    keys_work keys;
} argsort_work;

static void write_order(const void *work, int64_t begin, int64_t end)
{
    const argsort_work *w = (const argsort_work *)work;
    for (int64_t i = begin; i < end; ++i) {
        const bool counts = i < w->keys.n;
        w->args->order[i] = counts ? w->keys.buffers.values[w->keys.sorted_in][i] : -1;
        if (w->args->sorted.data != NULL)
            put_key(&w->keys, w->args->sorted.data, i, counts ? i : -1);
    }
}

spops_status spops_cpu_argsort(spops_context *ctx, const spops_argsort_args *args)
{
    const spops_team team = spops_team_for(ctx, args->keys.rows * 4);
    const argsort_work work = {
        args, sort_keys(team, args->keys, args->num_keys, args->descending, args->scratch)};
    spops_parallel_for(team, args->keys.rows, 0, write_order, &work);
    return SPOPS_STATUS_OK;
}

// ---- Unique -------------------------------------------------------------------------------------

typedef struct unique_work {
    const spops_unique_args *args;
    keys_work keys;
    int64_t num_unique;
    int64_t *before; // [MAX_PARTS] different keys before a part's
    int32_t *begins; // [n] rank of the first of the keys that are one
} unique_work;

static spops_radix_buffers carve_unique(spops_matrix keys, unique_work *w, spops_carver *c)
{
    const spops_radix_buffers buffers = carve(keys, c);
    int64_t *before = spops_carve(c, MAX_PARTS, 1, sizeof *before);
    int32_t *begins = spops_carve(c, keys.rows, 1, sizeof *begins);
    if (w != NULL) {
        w->before = before;
        w->begins = begins;
    }
    return buffers;
}

size_t spops_cpu_unique_scratch_bytes(spops_context *ctx, const spops_unique_args *args)
{
    spops_carver c = {NULL, 0};
    (void)ctx;
    (void)carve_unique(args->keys, NULL, &c);
    return c.used;
}

// Whether the key of a rank is another than the one before.
static bool begins_at(const keys_work *w, int64_t rank)
{
    if (rank == 0) return true;
    if (is_wide(w->keys)) {
        const uint64_t *keys = (const uint64_t *)w->buffers.keys[w->sorted_in];
        return keys[rank] != keys[rank - 1];
    }
    const uint32_t *keys = (const uint32_t *)w->buffers.keys[w->sorted_in];
    return keys[rank] != keys[rank - 1];
}

static void count_unique(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const unique_work *w = (const unique_work *)work;
    int64_t count = 0;
    for (int64_t i = begin; i < end; ++i)
        count += begins_at(&w->keys, i);
    w->before[part] = count;
}

static void write_unique(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const unique_work *w = (const unique_work *)work;
    int64_t u = w->before[part] - 1;
    for (int64_t i = begin; i < end; ++i) {
        if (begins_at(&w->keys, i)) {
            w->begins[++u] = (int32_t)i;
            put_key(&w->keys, w->args->values.data, u, i);
        }
        if (w->args->inverse != NULL)
            w->args->inverse[w->keys.buffers.values[w->keys.sorted_in][i]] = (int32_t)u;
    }
}

static void write_rest(const void *work, int64_t begin, int64_t end)
{
    const unique_work *w = (const unique_work *)work;
    for (int64_t i = begin; i < end; ++i) {
        const int64_t next = i + 1 < w->num_unique ? w->begins[i + 1] : w->keys.n;
        if (i >= w->num_unique) put_key(&w->keys, w->args->values.data, i, -1);
        if (w->args->inverse != NULL && i >= w->keys.n) w->args->inverse[i] = -1;
        if (w->args->counts != NULL)
            w->args->counts[i] = i < w->num_unique ? (int32_t)(next - w->begins[i]) : 0;
    }
}

spops_status spops_cpu_unique(spops_context *ctx, const spops_unique_args *args)
{
    const spops_team team = spops_team_for(ctx, args->keys.rows * 4);
    const int parts = spops_team_parts(team, MAX_PARTS);
    unique_work work = {.args = args};
    spops_carver c = {args->scratch, 0};

    (void)carve_unique(args->keys, &work, &c);
    work.keys = sort_keys(team, args->keys, args->num_keys, false, args->scratch);
    spops_parallel_parts(team, parts, work.keys.n, count_unique, &work);
    for (int part = 0; part < parts; ++part) {
        const int64_t count = work.before[part];
        work.before[part] = work.num_unique;
        work.num_unique += count;
    }
    spops_parallel_parts(team, parts, work.keys.n, write_unique, &work);
    spops_parallel_for(team, args->keys.rows, 0, write_rest, &work);
    *args->num_unique = (int32_t)work.num_unique;
    return SPOPS_STATUS_OK;
}
