// SPDX-License-Identifier: Apache-2.0
#include "igemm/igemm_plan.h"

void spops_igemm_carve_tiles(spops_igemm_schedule *s, spops_carver *c)
{
    s->num_tiles = spops_carve(c, SPOPS_IGEMM_NUM_TOTALS, 1, sizeof *s->num_tiles);
    s->tiles = spops_carve(c, s->max_tiles, 4, sizeof *s->tiles);
    s->first = spops_carve(c, s->max_tiles + 1, 1, sizeof *s->first);
    s->out_rows = spops_carve(c, s->max_tiles, SPOPS_IGEMM_TILE_ROWS, sizeof *s->out_rows);
    if (s->has_units) s->unit_offsets = spops_carve(c, s->num_taps + 1, 1, sizeof(int32_t));
}

void spops_igemm_carve_pairs(spops_igemm_schedule *s, spops_carver *c)
{
    const int64_t max_pairs = (s->max_tiles + 1) / 2;

    s->pair_totals = spops_carve(c, 2, 1, sizeof *s->pair_totals);
    s->pairs = spops_carve(c, max_pairs, 4, sizeof *s->pairs);
    s->pair_first = spops_carve(c, max_pairs + 1, 1, sizeof *s->pair_first);
    s->group_taps = spops_carve(c, max_pairs, 4, sizeof *s->group_taps);
}

void spops_igemm_carve_records(spops_igemm_schedule *s, spops_carver *c)
{
    s->records = spops_carve(c, s->max_records, SPOPS_IGEMM_RECORD_INTS, sizeof *s->records);
    if (s->adds) s->sums = spops_carve(c, s->max_sums, 4, sizeof *s->sums);
    if (s->has_members) s->members = spops_carve(c, s->max_members, 1, sizeof *s->members);
    if (s->has_units) s->units = spops_carve(c, s->max_units, 2, sizeof *s->units);
}
