// SPDX-License-Identifier: Apache-2.0
// Clouds that benchmarks of coordinates, maps and convolutions run on: files of the test data where
// they are there, else made ones of the same kind.
#ifndef SPOPS_BENCH_SCENES_H
#define SPOPS_BENCH_SCENES_H

#include "bench/bench_report.h"

#define BENCH_QUICK_ROWS 20000

// Voxels [num_rows][4] (batch 0), lexicographic; from a file of the test data where it is there.
typedef struct bench_scene {
    const char *name, *file;
    int64_t most_rows; // of a made one
    bool from_file;
    int64_t num_rows;
    int32_t *rows;
    spops_coords_box box;
} bench_scene;

// Fill rows (to be freed) and box of a scene whose name (lidar, indoor, shell), file and most_rows
// are set.
bool bench_scene_load(bench *b, bench_scene *s);

// Rows (to be freed) and box of a gyroid's surface, sin x cos y + sin y cos z + sin z cos x = 0, one
// period in a grid of so many cells a side: cells less than 0.75 of one from it, lexicographic.
bool bench_scene_gyroid(bench *b, int32_t cells, bench_scene *s);

// Rows in lexicographic order, each once.
void bench_scene_unique(bench_scene *s);

// Rows of a made sweep: 64 beams over ground, a wall on either side, and posts, in cells of 0.05 m.
// At most 133,312 of them, for which there must be room.
void bench_scene_sweep(bench_scene *s);

// Values of 4 bytes of a file of the test data (version 1, a header of 128 bytes), to be freed; NULL
// where there is no such file. `type` as the header has it: "<i4".
void *bench_load_npy(bench *b, const char *file, const char *type, int64_t *rows, int64_t *cols);

#endif
