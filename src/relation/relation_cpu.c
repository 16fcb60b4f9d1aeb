// SPDX-License-Identifier: Apache-2.0
// Relations on the CPU.
#include <string.h>

#include "backends/backend_cpu.h"
#include "core/threads.h"
#include "relation/relation.h"

// ---- Rows that are named ------------------------------------------------------------------------

static void mark_lists(const void *work, int64_t begin, int64_t end)
{
    const spops_relation_rows_args *args = (const spops_relation_rows_args *)work;
    for (int64_t i = begin; i < end; ++i)
        args->rows[i] = args->offsets[i] < args->offsets[i + 1];
}

// Several threads may mark one row.
static void mark_entries(const void *work, int64_t begin, int64_t end)
{
    const spops_relation_rows_args *args = (const spops_relation_rows_args *)work;
    const int32_t *rows = args->entries.rows;
    for (int64_t e = begin; e < end; ++e) {
        const int64_t row = rows == NULL ? e : rows[e * args->entries.stride];
        if (row >= 0) __atomic_store_n(&args->rows[row], 1, __ATOMIC_RELAXED);
    }
}

static void mark_table(const void *work, int64_t begin, int64_t end)
{
    const spops_relation_rows_args *args = (const spops_relation_rows_args *)work;
    const int64_t num_rows = args->num_rows == NULL ? args->max_rows : *args->num_rows;
    for (int64_t i = begin; i < end; ++i) {
        uint8_t any = 0;
        for (int32_t k = 0; i < num_rows && k < args->table_stride; ++k)
            any |= args->table[i * args->table_stride + k] >= 0;
        args->rows[i] = any;
    }
}

spops_status spops_cpu_relation_rows(spops_context *ctx, const spops_relation_rows_args *args)
{
    if (args->entries.num != NULL) {
        const int64_t num = (int64_t)*args->entries.num * args->entries.each;
        memset(args->rows, 0, (size_t)args->max_rows);
        spops_parallel_for(spops_team_for(ctx, num), num, 0, mark_entries, args);
        return SPOPS_STATUS_OK;
    }
    spops_parallel_for(spops_team_for(ctx, args->max_rows), args->max_rows, 0,
                       args->offsets != NULL ? mark_lists : mark_table, args);
    return SPOPS_STATUS_OK;
}

// ---- Places of entries --------------------------------------------------------------------------

static void place_lists(const void *work, int64_t begin, int64_t end)
{
    const spops_relation_places_args *args = (const spops_relation_places_args *)work;
    const spops_relation_side *sides = args->relation->sides;
    const int32_t *offsets = sides[SPOPS_SIDE_TARGET].by_key.offsets;

    for (int64_t k = begin; k < end; ++k) {
        const bool after = args->without >= 0 && k > args->without;
        const int64_t skipped = after ? offsets[args->without + 1] - offsets[args->without] : 0;
        if (k == args->without) continue;
        for (int64_t e = offsets[k]; e < offsets[k + 1]; ++e) {
            for (int side = 0; side < SPOPS_NUM_SIDES; ++side)
                if (args->rows[side] != NULL)
                    args->rows[side][e - skipped] =
                        sides[side].by_key.rows[e * sides[side].by_key.stride];
            if (args->places != NULL)
                args->places[e - skipped] = args->first[k] + (int32_t)(e - offsets[k]);
        }
    }
}

spops_status spops_cpu_relation_places(spops_context *ctx, const spops_relation_places_args *args)
{
    spops_parallel_for(spops_team_for(ctx, args->num_entries), args->relation->num_keys, 1,
                       place_lists, args);
    return SPOPS_STATUS_OK;
}
