// SPDX-License-Identifier: Apache-2.0
// A model on the points of a scan, for `spops run` and `spops plan`: how it is loaded, how a scan becomes its
// input, and how long it takes.
#ifndef SPOPS_TOOLS_MODEL_RUN_H
#define SPOPS_TOOLS_MODEL_RUN_H

#include "tools/latency.h"

// What the options of both commands say. Axes are x, y, z.
typedef struct model_choices {
    const char *order, *int8; // "zyx" or "xyz"; "round", "ignore", "refuse"
    double size_m[3], origin_m[3];
    int64_t points_a_voxel; // that count; 0: all
    int64_t max_points, max_rows, max_inner_rows;
    bool widen;
} model_choices;

// Voxels of CenterPoint's network for nuScenes.
model_choices model_choices_default(void);

// Rows of the options, for a table of a command.
#define MODEL_OPTIONS(to)                                                                          \
    {"--order", "NAME", "axes of the model's coordinates: zyx or xyz; default: zyx", "zyx,xyz",    \
     .text = &(to).order},                                                                         \
        {"--size",   "X,Y,Z",  "of a voxel, m; default: 0.075,0.075,0.2", .reals = (to).size_m,    \
         .least = 3, .most = 3},                                                                   \
        {"--origin",                                                                               \
         "X,Y,Z",                                                                                  \
         "lower corner of the grid, m; write --origin=-54,... where it begins with a minus; "      \
         "default: -54,-54,-5",                                                                    \
         .reals = (to).origin_m,                                                                   \
         .least = 3,                                                                               \
         .most = 3},                                                                               \
        {"--points-a-voxel", "N", "that count for its features, 0: all; default: 10",              \
         .number = &(to).points_a_voxel, .most = 1024},                                            \
        {"--max-rows",                                                                             \
         "N",                                                                                      \
         "voxels that there is room for; default: as the file says",                               \
         .number = &(to).max_rows,                                                                 \
         .least = 1,                                                                               \
         .most = INT32_MAX - 1},                                                                   \
        {"--max-inner-rows",                                                                       \
         "N",                                                                                      \
         "rows of every other set; default: as the file says",                                     \
         .number = &(to).max_inner_rows,                                                           \
         .least = 1,                                                                               \
         .most = INT32_MAX - 1},                                                                   \
        {"--int8", "NAME",                                                                         \
         "layers that the file marks as int8 run in f16. round: weights rounded as int8 layers "   \
         "have them; ignore: as in the file; refuse: the file is refused; default: round",         \
         "round,ignore,refuse,codes", .text = &(to).int8},                                         \
    {                                                                                              \
        "--widen", NULL, "rows and weights in f32, not f16", .on = &(to).widen                     \
    }

// The model's input is points, where it is rows of a set; else false with a message on stderr.
bool model_open(const char *command, const session *s, const char *path, const model_choices *c,
                int64_t max_points, spops_model **model);

// A scan into the model's input: x y z, then as many other columns as the model has beside them; what the
// scan does not have is 0. f32 [num_points, cols]. False with a message on stderr.
bool model_put_points(const char *command, const session *s, const spops_model *model,
                      const model_choices *c, const float *points, int64_t num_points,
                      int64_t cols);

// latency_measure of frames of the model, and latency_on_device of one.
bool model_time(const char *command, const session *s, spops_model *model, int runs, double *us,
                double *device_us);

// What `spops plan` prints of a model. points: of a frame; scan: NULL, or points that it is timed on.
int plan_model(const char *command, const char *path, const session *s, const model_choices *c,
               const char *scan, bool timed, bool as_json);

#endif
