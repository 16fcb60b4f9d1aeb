// SPDX-License-Identifier: Apache-2.0
// The tiles of the matrix kernels of taps: a row is what is compiled, and when it is taken. A plan is
// asked for a tile by the row's number: 1 to the number of rows, in any order, a new row takes the next.
// Plain C.
#ifndef SPOPS_KERNELS_IGEMM_IGEMM_TUNING_H
#define SPOPS_KERNELS_IGEMM_IGEMM_TUNING_H

#include <stdbool.h>
#include <stdint.h>

// Products on sm_90 (igemm_sm90.cuh). Of the rows whose `sums` is 0 where the schedule adds no rows and
// more where it does, the first that matches is taken.
//
// X(number,
//   where    FEW: only for tiles of rows of groups that are fewer than half of the multiprocessors, whom
//            nobody shares; ALONE: only where spops_igemm_goes_alone says so; ANY,
//   max      columns of the output, at most,
//   percent  where a tile of twice the columns takes so many percent of the time of this one: this one
//            where that is less time for all rounds of tiles; 0: wherever `max` says,
//   columns, gather warps, stages, blocks a multiprocessor, sums of a lane on their way)
//
// H200, f16, conv_indoor, us: 32 columns 51, 64 84, 128 227, 256 700 to 830 (docs/kernels/igemm.md).
// Narrow tiles busy more multiprocessors where these are few.
// H200, f16, points_200000, cold, us: forward 64 to 128 224, its gradient of x 316; with 8 gather warps
// that ask for a stage once the one before is full, 234 and 394. 256 to 256 columns 1,315; in tiles of
// 128 columns, which gather each row twice, 1,534. 512 to 512 5,022 and 5,687. At 256 columns more gather
// warps would leave too few registers.
// H100, f16, 96 to 96 columns in tiles of 96 and of 128, us: conv_lidar 49.5, 56.0; conv_indoor 192, 217;
// conv_shell 214, 243.
#define SPOPS_IGEMM_SM90_TILES(X)                                                                  \
    X(22, SPOPS_IGEMM_ALONE, 32, 0, 32, 8, 8, 1, 0)                                                \
    X(1, SPOPS_IGEMM_ANY, 32, 0, 32, 8, 4, 2, 0)                                                   \
    X(21, SPOPS_IGEMM_ALONE, 64, 0, 64, 8, 8, 1, 0)                                                \
    X(2, SPOPS_IGEMM_ANY, 64, 0, 64, 4, 4, 2, 0)                                                   \
    X(3, SPOPS_IGEMM_FEW, INT64_MAX, 0, 64, 4, 4, 2, 0)                                            \
    X(18, SPOPS_IGEMM_ANY, 96, 0, 96, 8, 8, 1, 0)                                                  \
    X(4, SPOPS_IGEMM_ANY, 128, 0, 128, 8, 6, 1, 0)                                                 \
    X(5, SPOPS_IGEMM_ANY, INT64_MAX, 0, 256, 4, 4, 1, 0)                                           \
    X(6, SPOPS_IGEMM_ANY, 64, 0, 64, 12, 8, 1, 3)                                                  \
    X(7, SPOPS_IGEMM_ANY, 128, 0, 128, 12, 6, 1, 3)                                                \
    X(8, SPOPS_IGEMM_ANY, INT64_MAX, 170, 128, 12, 6, 1, 3)                                        \
    X(9, SPOPS_IGEMM_ANY, INT64_MAX, 0, 256, 4, 4, 1, 6)

// When a row of the table is taken.
enum { SPOPS_IGEMM_ANY, SPOPS_IGEMM_FEW, SPOPS_IGEMM_ALONE };

// Pairs of tiles on sm_90 (igemm_pairs_sm90.cuh). Where they cannot be, one of them asks for the tile of as many
// columns.
//
// X(number, columns, gather warps, stages, registers of a thread that multiplies: its sums, and what the epilogue takes
//   beside them)
#define SPOPS_IGEMM_SM90_PAIRS(X)                                                                  \
    X(19, 96, 8, 5, 168)                                                                           \
    X(20, 128, 8, 4, 192)

// Products on every device of sm_80 or later (igemm_sm80.cuh), of either kind of schedule.
//
// X(number, max columns of the output, columns, stages, blocks a multiprocessor)
//
// Not measured on a device of its own: 64 columns leave room for two blocks, 128 read rows once.
#define SPOPS_IGEMM_SM80_TILES(X)                                                                  \
    X(10, 64, 64, 4, 2)                                                                            \
    X(11, INT64_MAX, 128, 4, 1)

// Gradients of the matrices on sm_90 (igemm_wgrad_sm90.cu).
//
// X(number, 1: of units, 0: of pairs, max channels of x, max channels of g, columns, warpgroups, stages,
//   blocks a multiprocessor)
//
// Of units two suffice: their sums bind, not their tiles.
#define SPOPS_IGEMM_WGRAD_TILES(X)                                                                 \
    X(12, 0, 64, 64, 64, 1, 4, 3)                                                                  \
    X(13, 0, 64, 128, 128, 1, 4, 2)                                                                \
    X(14, 0, INT64_MAX, 128, 128, 2, 6, 1)                                                         \
    X(15, 0, INT64_MAX, INT64_MAX, 256, 2, 4, 1)                                                   \
    X(16, 1, 64, 128, 128, 1, 4, 2)                                                                \
    X(17, 1, INT64_MAX, INT64_MAX, 256, 2, 4, 1)

#define SPOPS_TILE(...) +1
enum {
    SPOPS_IGEMM_NUM_TILES = SPOPS_IGEMM_SM90_TILES(SPOPS_TILE) SPOPS_IGEMM_SM90_PAIRS(SPOPS_TILE)
        SPOPS_IGEMM_SM80_TILES(SPOPS_TILE) SPOPS_IGEMM_WGRAD_TILES(SPOPS_TILE)
};
#undef SPOPS_TILE

// Which kernel a tile is of.
typedef enum spops_igemm_kernel {
    SPOPS_IGEMM_NONE,
    SPOPS_IGEMM_SM80,
    SPOPS_IGEMM_SM90,
    SPOPS_IGEMM_SM90_ADDS, // rows first
    SPOPS_IGEMM_WGRAD,
    SPOPS_IGEMM_WGRAD_UNITS
} spops_igemm_kernel;

// NONE: there is no such tile.
static inline spops_igemm_kernel spops_igemm_kernel_of(int32_t number)
{
    switch (number) {
#define SPOPS_TILE(number, where, max, percent, columns, gather_warps, stages, blocks, sums)       \
    case number: return sums > 0 ? SPOPS_IGEMM_SM90_ADDS : SPOPS_IGEMM_SM90;
        SPOPS_IGEMM_SM90_TILES(SPOPS_TILE)
#undef SPOPS_TILE
#define SPOPS_TILE(number, ...)                                                                    \
    case number: return SPOPS_IGEMM_SM90;
        SPOPS_IGEMM_SM90_PAIRS(SPOPS_TILE)
#undef SPOPS_TILE
#define SPOPS_TILE(number, ...)                                                                    \
    case number: return SPOPS_IGEMM_SM80;
        SPOPS_IGEMM_SM80_TILES(SPOPS_TILE)
#undef SPOPS_TILE
#define SPOPS_TILE(number, units, ...)                                                             \
    case number: return units ? SPOPS_IGEMM_WGRAD_UNITS : SPOPS_IGEMM_WGRAD;
        SPOPS_IGEMM_WGRAD_TILES(SPOPS_TILE)
#undef SPOPS_TILE
    default: return SPOPS_IGEMM_NONE;
    }
}

static inline bool spops_igemm_is_gradient(int32_t number)
{
    return spops_igemm_kernel_of(number) >= SPOPS_IGEMM_WGRAD;
}

// Columns of pairs of tiles; 0: tile `number` is no pair.
static inline int32_t spops_igemm_pair_columns(int32_t number)
{
#define SPOPS_TILE(of_row, columns, ...)                                                           \
    if (number == of_row) return columns;
    SPOPS_IGEMM_SM90_PAIRS(SPOPS_TILE)
#undef SPOPS_TILE
    return 0;
}

// The tile in the place of `number` where tiles do not go in pairs.
static inline int32_t spops_igemm_single_tile(int32_t number)
{
    const int32_t paired = spops_igemm_pair_columns(number);
#define SPOPS_TILE(of_row, where, max, percent, columns, gather_warps, stages, blocks, sums)       \
    if (paired == columns && where == SPOPS_IGEMM_ANY && sums == 0) return of_row;
    SPOPS_IGEMM_SM90_TILES(SPOPS_TILE)
#undef SPOPS_TILE
    return number;
}

// Whether a plan that asks for tile `forced`, or 0, may run tile `number`. One of products leaves
// gradients their choice, and the other way round.
static inline bool spops_igemm_leaves(int32_t forced, int32_t number)
{
    return forced == 0 || forced == number ||
           spops_igemm_is_gradient(forced) != spops_igemm_is_gradient(number);
}

// What a tile of products is chosen by.
typedef struct spops_igemm_case {
    int64_t max_tiles; // of the schedule
    int64_t cols;      // of the output
    int32_t num_processors;
    bool sm90;          // the device has the kernel
    bool records, adds; // the schedule has records, which are sums in part
    bool whole;         // no tile is shared, and bits do not depend on max_tiles
    bool has_pairs;     // tiles may go in pairs: 16 bits, rows of more than 64 bytes
    bool f32;           // rows of x are
    int64_t row_bytes;  // of x
    int32_t taps_a_row; // of the schedule, on average; 0: not known
    bool reads_ahead;   // blocks begin beside those of the layer before
} spops_igemm_case;

static inline int64_t spops_igemm_rounds(const spops_igemm_case *at, int64_t columns)
{
    const int64_t tiles = at->max_tiles * ((at->cols + columns - 1) / columns);
    return (tiles + at->num_processors - 1) / at->num_processors;
}

// The tile of records whose sums are whole; 0: the one of the table. All widths give the same bits, so that it
// may look at how many tiles there are.
//
// H100, f16, 3 x 3 x 3, us by width, in tiles of 32, 64, 128 and 256 columns: 30 tiles of 128 channels 23, 28,
// 34, 47; 75 tiles of 128 channels 34, 31, 34, 49, of 256 83, 77, 77, 92; 167 tiles of 256 140, 100, 92, 107;
// 329 tiles of 256 226, 144, 123, 129; 537 tiles of 256 266, 167, 140, 133.
static inline int32_t spops_igemm_whole_tile(const spops_igemm_case *at)
{
    if (!at->sm90 || !at->records || at->adds || !at->whole || at->cols <= 64) return 0;
    if (at->max_tiles * ((at->cols + 31) / 32) <= at->num_processors) return 1;
    if (at->max_tiles * ((at->cols + 63) / 64) <= 2 * (int64_t)at->num_processors) return 3;
    return at->cols > 128 && spops_igemm_rounds(at, 128) <= 5 ? 4 : 0;
}

// Fewer than three tiles a multiprocessor.
static inline bool spops_igemm_few_tiles(int64_t max_tiles, int32_t num_processors)
{
    return max_tiles < 3 * (int64_t)num_processors;
}

// Whether single tiles come out even on the blocks where pairs do not: a little below three a multiprocessor, where rows have not so
// few taps that most tiles are light. Where they have fewer than ten, the last tiles are light, and 2.6 suffice.
//
// H100, f16, 3 x 3 x 3, cold, us, in pairs and alone: tiles a multiprocessor, taps a row; 128 to 128; 96 to 96 channels.
//     gyroid  2.6, 14.8    65.2, 66.0;    56.7, 60.3        lidar  2.5, 6.3    45.4, 44.3;    39.4, 41.1
//     room    2.7, 13.9    67.6, 67.9;    58.4, 61.8               2.6, 8.2    54.8, 51.6;    47.2, 46.3
//             2.9, 13.9    71.8, 69.1;    62.5, 62.8               2.9, 8.0    58.8, 52.7;    50.4, 47.7
//     gyroid  3.0, 14.9    70.6, 68.0;    61.6, 61.7               3.0, 5.8    50.3, 46.3;    43.2, 41.0
//     room    3.02, 13.9   71.6, 74.0;    61.9, 66.5        scans  2.2, 4.4    37.2, 40.1;    31.8, 34.2
//     gyroid  3.3, 14.7    76.6, 81.6;    65.7, 73.0               2.6, 1.9    31.6, 36.7;    27.2, 33.2
// 256 to 128 channels are faster in pairs in all of these but the last lidar (75.1, 84.6).
static inline bool spops_igemm_single_tiles_are_even(const spops_igemm_case *at)
{
    const int64_t tiles = 100 * at->max_tiles, processors = at->num_processors;
    if (at->taps_a_row < 5 || at->row_bytes >= 512 || tiles > 300 * processors) return false;
    return at->taps_a_row < 10 ? tiles >= 255 * processors
                               : tiles >= 285 * processors && at->cols > 96;
}

// Whether tiles go in pairs. Pairs read fewer bytes of weights. But few pairs do not come out even on the blocks, and a
// share costs twice that of a tile.
//
// H100, f16, 3 x 3 x 3, cold, us, in tiles and in pairs (shared up to 4 a block): tiles a multiprocessor; 128 to 128;
// 96 to 96; 64 to 128 channels.
//     room 1.7              54, 51;     48, 44;     32, 35
//     lidar of 0.2 m 2.5    47, 47;     42, 41;     28, 35
//     gyroid 1.2            41, 41;     38, 36;     28, 30
//            3.0            71, 71;     64, 63;     41, 47
//            4.5            104, 96;    93, 84;     58, 59
//            18             346, 313;   309, 261;   189, 173
//            72             1,339, 1,248;           701, 650
//     lidar of 0.1 m 4.1    49, 55;     44, 47;     30, 40
// The last has 4.5 taps a row, the lidar before 6.3, the others 14 and more; it gains at 256 to 128 channels, 89 in tiles
// and 81 in pairs. Whole sums: room 55, 53, lidar of 0.2 m 47, 54, gyroid 3.0 71, 79, 4.5 104, 105.
//
// Maps by reserve, whose taps a row are not known, are those of engines, where scale, shift and residual follow the sums: few
// tiles go alone there. H100, f16, layers of MinkUNet 1.0 one by one, in pairs and alone, us: 75 tiles, 128 to 128 33, 19; 30, of
// 8 taps 21, 11; 167, 128 to 128 with a residual 48, 29, without 39, 29; 329, 96 to 96 60, 35 and 50, 34.
static inline bool spops_igemm_takes_pairs(const spops_igemm_case *at)
{
    if (!at->sm90 || !at->has_pairs || at->cols <= 64 || at->cols > 128) return false;
    if (at->max_tiles >= 8 * (int64_t)at->num_processors) return true;
    if (at->whole || at->row_bytes <= 128 || spops_igemm_single_tiles_are_even(at)) return false;
    if (spops_igemm_few_tiles(at->max_tiles, at->num_processors)) return at->taps_a_row > 0;
    return at->taps_a_row >= 8 || at->row_bytes >= 512;
}

// Stages that the epilogue of a pair counts as, where blocks share pairs.
//
// H100, f16, cold, us, for 8, 4 and 2 stages, 128 to 128; 96 to 96 channels: gyroid 1.2 42.4, 42.4, 41.8; 36.6, 36.1, 36.4; room
// 51.6, 51.1, 50.7; 44.3, 44.1, 43.5; lidar of 0.2 m 48.4, 47.0, 46.1; 42.0, 40.7, 40.2; gyroid 3.0 72.4, 71.9, 73.6; 64.2,
// 62.8, 63.7; 4.5 98.0, 97.1, 98.0; 84.9, 84.1, 85.5.
static inline int32_t spops_igemm_pair_cost(int64_t max_tiles, int32_t num_processors)
{
    return spops_igemm_few_tiles(max_tiles, num_processors) ? 2 : 4;
}

// Whether a block of up to 64 columns has a multiprocessor alone, with more gather warps and stages. A block of two on a multiprocessor
// takes 0.47 us a stage however few blocks run; alone it takes less, but two tiles of many taps one after the other take longer than
// beside each other. Bits are the same. A layer that reads ahead leaves room for the blocks of the layer before. Rows of f32 were not
// measured.
//
// H100, f16, 3 x 3 x 3, cold, us, two blocks a multiprocessor and one: tiles a multiprocessor, taps a row; 64 to 64; 256 to 64; 32 to 64;
// 32 to 32 channels.
//     gyroid  0.04, 13.1    19.8, 17.4;    54.5, 46.6;    14.4, 12.7;    13.3, 12.0
//             0.83, 14.6    19.3, 16.7;    50.4, 44.8;    14.6, 12.8;    13.5, 12.7
//             1.01, 14.8    19.9, 21.1;    54.8, 56.5;    13.9, 15.9;    13.7, 14.9
//             1.98, 14.7    23.6, 25.4;    68.4, 75.8;    16.8, 18.5;    16.7, 17.4
//     room    0.80, 14.0    19.7, 17.6;    54.3, 48.0;    14.9, 13.4;    13.7, 12.7
//             1.70, 14.0    23.2, 24.4;    66.2, 73.8;    16.2, 17.9;    16.0, 17.3
//     lidar   0.98, 8.0     20.5, 17.7;    54.9, 48.3;    14.6, 13.0;    13.5, 12.9
//             1.71, 7.2     21.6, 21.2;    60.7, 58.9;    15.5, 15.6;    14.8, 15.3
//             2.48, 6.3     25.6, 22.2;    72.5, 63.7;    18.5, 16.4;    16.4, 16.0
//             4.08, 4.5     26.8, 23.8;    76.4, 66.0;    19.0, 20.3;    17.8, 20.0
static inline bool spops_igemm_goes_alone(const spops_igemm_case *at)
{
    if (!at->records || at->f32 || at->reads_ahead) return false;
    if (at->max_tiles <= at->num_processors) return true;
    const int64_t tiles = 100 * at->max_tiles, processors = at->num_processors;
    return at->cols > 32 && at->row_bytes > 64 && at->taps_a_row >= 4 && at->taps_a_row <= 6 &&
           tiles >= 240 * processors && tiles <= 410 * processors;
}

// Whether up to 256 columns go in tiles of 128, which are twice as many. A tile of 256 is shared up to two a multiprocessor; a little
// above, where rows have few taps and most tiles are light, the heaviest would take as long as all others.
//
// H100, f16, 3 x 3 x 3, cold, us, 256 to 256 channels in tiles of 256 and of 128: tiles a multiprocessor, taps a row.
//     scans 2.2, 4.4 104.1, 81.4; 2.5, 2.8 94.7, 77.5; 2.6, 1.9 91.6, 68.4
//     lidar 2.0, 6.8 116.8, 105.6; 2.5, 6.3 120.1, 116.3; 2.1, 8.7 134.8, 136.3; 3.0, 5.8 120.4, 127.6; 4.1, 4.5 126.4, 137.6
//     room 2.3, 14.0 171.2, 197.2
static inline bool spops_igemm_halves_columns(const spops_igemm_case *at)
{
    if (!at->sm90 || !at->records || at->adds || at->whole || at->f32) return false;
    if (at->cols <= 128 || at->cols > 256 || at->taps_a_row == 0 || at->taps_a_row > 6)
        return false;
    const int64_t tiles = 100 * at->max_tiles, processors = at->num_processors;
    return tiles > 200 * processors && tiles <= (at->taps_a_row < 5 ? 270 : 250) * processors;
}

static inline int32_t spops_igemm_tile(const spops_igemm_case *at)
{
    if (spops_igemm_whole_tile(at) != 0) return spops_igemm_whole_tile(at);
    if (spops_igemm_halves_columns(at)) return 4;
    if (spops_igemm_takes_pairs(at)) {
#define SPOPS_TILE(number, columns, ...)                                                           \
    if (at->cols <= columns) return number;
        SPOPS_IGEMM_SM90_PAIRS(SPOPS_TILE)
#undef SPOPS_TILE
    }
    const bool are_few = !at->records && at->max_tiles <= at->num_processors / 2;
    const bool holds[] = {true, are_few, spops_igemm_goes_alone(at)}; // ANY, FEW, ALONE
#define SPOPS_TILE(number, where, max, percent, columns, gather_warps, stages, blocks, sums)       \
    if (at->sm90 && (sums > 0) == at->adds && holds[where] && at->cols <= max &&                   \
        (percent == 0 || (!at->whole && percent * spops_igemm_rounds(at, 2 * columns) >=           \
                                            100 * spops_igemm_rounds(at, columns))))               \
        return number;
    SPOPS_IGEMM_SM90_TILES(SPOPS_TILE)
#undef SPOPS_TILE
#define SPOPS_TILE(number, max, ...)                                                               \
    if (at->cols <= max) return number;
    SPOPS_IGEMM_SM80_TILES(SPOPS_TILE)
#undef SPOPS_TILE
    return 0;
}

static inline int32_t spops_igemm_wgrad_tile(bool of_units, int64_t x_channels, int64_t g_channels)
{
#define SPOPS_TILE(number, units, max_x, max_g, ...)                                               \
    if (of_units == units && x_channels <= max_x && g_channels <= max_g) return number;
    SPOPS_IGEMM_WGRAD_TILES(SPOPS_TILE)
#undef SPOPS_TILE
    return 0;
}

#endif
