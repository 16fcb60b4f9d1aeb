// SPDX-License-Identifier: Apache-2.0
/*
 * A sparse U-Net that labels the points of LiDAR scans, and how it is trained: what the files of
 * this folder share.
 *
 *     points -> voxels (mean of point features) -> five levels of 3x3x3 convolutions, joined by
 *     2x2x2 convolutions down and up, with a sum across -> classes of voxels -> classes of points
 *
 * All of it runs on one context, CPU or CUDA. Maps and buffers are reserved for a capacity, so that
 * a step allocates nothing and waits for nothing, and a GPU runs it as one captured graph.
 */
#ifndef SEGMENT_SEGMENT_H
#define SEGMENT_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <spops/spops.h>

#define SEGMENT_LEVELS      5
#define SEGMENT_NUM_LAYERS  (4 * SEGMENT_LEVELS - 1)
#define SEGMENT_POINT_COLS  4  /* x, y, z (m), intensity */
#define SEGMENT_FEATURES    8  /* of a point, made from these */
#define SEGMENT_LOGITS      16 /* columns of logits; those after the classes count nowhere */
#define SEGMENT_IGNORED     255
#define SEGMENT_ERROR_BYTES 4608

/* Points that a network sees: within so far of the sensor, and between so far below and above it.
   The box of its voxels has a little more, for scans that are scaled and raised in training. */
#define SEGMENT_REACH_M  60.0
#define SEGMENT_DEPTH_M  5.0
#define SEGMENT_HEIGHT_M 20.0
#define SEGMENT_MARGIN   1.1

/* A well mixed function of z, for numbers that follow from a seed (splitmix64). */
static inline uint64_t segment_mix64(uint64_t z)
{
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* ---- Classes (scans.c) ---------------------------------------------------------------------- */

#define SEGMENT_NUM_CLASSES 9
/* Labels as spops scan writes them are 0 to 10; 0 is ignored, and markings count as road. */
#define SEGMENT_NUM_LABELS 11

const char *segment_class_name(int what);
/* Class of a label, or SEGMENT_IGNORED; the label must be in range. */
uint8_t segment_class_of(uint8_t label);
/* The first label of a class. */
uint8_t segment_label_of(uint8_t what);

/* ---- Scans (scans.c) ------------------------------------------------------------------------- */

typedef struct segment_scan {
    int64_t num_points;
    float *points;    /* [num_points][SEGMENT_POINT_COLS], all within the box that a network sees */
    uint8_t *classes; /* [num_points], or NULL */
    char name[64];
} segment_scan;

/* Points as they are, copied; those beyond the network's reach are left out and counted. Refused:
   no points, values that are not finite, labels out of range. labels may be NULL. */
bool segment_scan_create(const char *name, int64_t num_points, const float *points,
                         const uint8_t *labels, segment_scan *out, int64_t *num_left_out,
                         char error[SEGMENT_ERROR_BYTES]);
void segment_scan_free(segment_scan *scan);

typedef struct segment_scans {
    int32_t num;
    segment_scan *scans;
} segment_scans;

/* All scan_*.npy of a folder with their labels, in the order of their names. */
bool segment_scans_load(const char *folder, segment_scans *out, char error[SEGMENT_ERROR_BYTES]);
void segment_scans_free(segment_scans *scans);

#define SEGMENT_MOST_SCALE 1.05

/* How a scan is changed before it is learned from: turned, mirrored, scaled, thinned, raised. */
typedef struct segment_change {
    double cosine, sine; /* of the turn about z */
    double mirror;       /* 1 or -1, of y */
    double scale, raise_m;
    double kept;   /* share of points that stay */
    uint64_t seed; /* of those that do */
} segment_change;

segment_change segment_change_none(void);
segment_change segment_change_random(uint64_t seed);

/* ---- The network (network.c) ----------------------------------------------------------------- */

typedef struct segment_shape {
    int32_t widths[SEGMENT_LEVELS]; /* channels of each level, multiples of 8 */
    int32_t centre_only; /* 1: taps but the centre's stay 0, so that no voxel sees another */
    double voxel_m;
} segment_shape;

/* 32, 32, 48, 64, 96 channels and voxels of 0.2 m: 0.92 million weights. */
segment_shape segment_shape_default(void);

/* Of what a network can take in one run. */
typedef struct segment_capacity {
    int64_t points;
    int64_t rows[SEGMENT_LEVELS];
    int64_t pairs[SEGMENT_LEVELS];
} segment_capacity;

typedef struct segment_layer {
    spops_pyramid_relation relation;
    int32_t level; /* of the map */
    int32_t in_level, out_level, in_cols, out_cols, num_taps;
    bool norm;            /* batch norm and ReLU after it */
    int64_t weights_at;   /* into parameters: [num_taps * in_cols, out_cols] */
    int64_t norm_at;      /* into parameters: gamma, then beta */
    int64_t statistic_at; /* into statistics: running mean, then running variance */
} segment_layer;

/* Numbers of one step, where the context runs; see segment_step_of. */
typedef struct segment_step {
    int32_t num_points;
    float inverse_weight;           /* 1 / sum of the weights of the labelled points */
    float rate, decay;              /* of AdamW; decay is that of weights, already times rate */
    float correction1, correction2; /* 1 / (1 - beta^t) */
} segment_step;

typedef struct segment_codes segment_codes; /* codes.c */

typedef struct segment_network {
    spops_context *ctx;
    spops_backend_kind backend;
    segment_shape shape;
    spops_dtype dtype; /* of features and of the weights that products take: f32 or bf16 */
    bool training;
    segment_capacity capacity;
    segment_layer layers[SEGMENT_NUM_LAYERS];
    int64_t num_parameters, num_weights, num_statistics; /* weights come first */
    /* Where the context runs. */
    float *parameters, *gradients, *moment1, *moment2; /* [num_parameters] */
    uint8_t *trained;                                  /* [num_parameters] 0: stays as it is */
    void *weights;           /* parameters in dtype; `parameters` itself with f32 */
    float *statistics;       /* running means and variances */
    float *batch_statistics; /* of this step */
    /* Inputs of a run. */
    float *points;    /* [capacity.points][3] */
    int32_t *batch;   /* [capacity.points] */
    void *features;   /* [capacity.points][SEGMENT_FEATURES] dtype */
    uint8_t *classes; /* [capacity.points] */
    segment_step *step;
    float *class_weights; /* [SEGMENT_NUM_CLASSES] */
    /* Results. */
    void *logits;       /* [capacity.points][SEGMENT_LOGITS] dtype */
    float *loss;        /* [1] of the last step, with space for partial sums after it */
    int32_t *confusion; /* [true][predicted], counted up by every loss */
    /* Plans and what is in between. */
    spops_voxels *voxels;
    spops_pyramid *pyramid;
    spops_devoxels *devoxels;
    spops_sparseconv *convs[3][SEGMENT_LEVELS];
    const int32_t *num_rows[SEGMENT_LEVELS];
    void *voxel_features, *voxel_logits;
    void *before[SEGMENT_NUM_LAYERS]; /* a layer's sum */
    void *after[SEGMENT_NUM_LAYERS];  /* and what follows from it */
    void *points_gradient;            /* of logits */
    void *voxels_gradient;
    void *level_gradient[2][SEGMENT_LEVELS];
    segment_codes *codes; /* NULL: features are not in 8 bits */
    char error[SEGMENT_ERROR_BYTES];
} segment_network;

/* The capacity for `together` scans at a time; changed: as segment_change_random changes them. */
bool segment_measure(spops_context *ctx, spops_backend_kind backend, const segment_shape *shape,
                     const segment_scans *scans, bool changed, int32_t together,
                     segment_capacity *capacity, char error[SEGMENT_ERROR_BYTES]);

/* Weights are He-normal from the seed. After a failure out->error has a line. */
bool segment_network_create(spops_context *ctx, spops_backend_kind backend,
                            const segment_shape *shape, spops_dtype dtype, bool training,
                            const segment_capacity *capacity, uint64_t seed, segment_network *out);
void segment_network_destroy(segment_network *network);

/* Enqueue: the maps of what points hold; logits, with the statistics of the batch or the running
   ones; loss and gradients; a step of AdamW. Each needs those before it. */
bool segment_prepare(segment_network *network);
bool segment_forward(segment_network *network, bool batch_statistics);
bool segment_loss(segment_network *network, bool gradient);
bool segment_backward(segment_network *network);
bool segment_update(segment_network *network);

/* Wait, and say whether everything fitted into the capacity. */
bool segment_check(segment_network *network);

/* Set all taps but the centres of 3x3x3 layers to 0: what a network is without its neighbours. */
bool segment_keep_centres(segment_network *network);

/* Copy parameters to where products read them (needed after writing parameters by hand). */
bool segment_refresh_weights(segment_network *network);

/* ---- In 8 bits (codes.c) --------------------------------------------------------------------- */

/* For f8e4m3 or i8, of a network of f32 that does not train. Then ranges are measured after each of some
   runs; then weights become codes and forward runs on codes, from voxels to the logits of voxels. Norms
   are folded with the running statistics. */
bool segment_codes_create(segment_network *network, spops_dtype dtype);
bool segment_codes_measure(segment_network *network);
bool segment_codes_begin(segment_network *network);
void segment_codes_destroy(segment_network *network);

/* Whether layers run on codes; and one, by what it reads of a run in f32. */
bool segment_codes_run(const segment_network *network);
bool segment_codes_layer(segment_network *network, int at, const void *x, const void *residual);

/* ---- Batches (batches.c) --------------------------------------------------------------------- */

/* Points of some scans as a network takes them, in host memory. */
typedef struct segment_batch {
    spops_dtype dtype;
    int64_t num_points, max_points;
    float *points;
    int32_t *batch;
    void *features;
    uint8_t *classes;
    float inverse_weight;
} segment_batch;

bool segment_batch_create(int64_t max_points, spops_dtype dtype, segment_batch *out);
void segment_batch_free(segment_batch *batch);

void segment_batch_clear(segment_batch *batch);
/* False where it does not fit. */
bool segment_batch_add(segment_batch *batch, const segment_shape *shape, const segment_scan *scan,
                       const segment_change *change);
/* weights: [SEGMENT_NUM_CLASSES]. Copies the batch and the numbers of step `at` of `num_steps` to
   where the network runs. Nothing may be running. */
bool segment_batch_send(segment_batch *batch, const float *weights, int64_t at, int64_t num_steps,
                        double rate, segment_network *network);

/* The rate of step `at`: up in a line over the first twentieth, then down along a cosine. */
double segment_rate(double most, int64_t at, int64_t num_steps);

/* ---- Training (training.c) ------------------------------------------------------------------- */

typedef struct segment_training {
    int64_t num_steps;
    int32_t together; /* scans of a step */
    double rate;
    uint64_t seed;
    bool change; /* scans before they are learned from */
} segment_training;

typedef struct segment_trainer segment_trainer;

/* Learns on scans. Everything of step n follows from the seed and n. stream is the context's. */
bool segment_trainer_create(segment_network *network, const segment_scans *scans,
                            const segment_training *how, void *stream, segment_trainer **out);
/* One step; *loss is that of the step. */
bool segment_trainer_step(segment_trainer *trainer, int64_t at, float *loss);
int64_t segment_trainer_points(const segment_trainer *trainer); /* of the last step */
void segment_trainer_destroy(segment_trainer *trainer);

/* Inverse square roots of the classes' shares of the points, of mean 1 over the points. */
void segment_class_weights(const segment_scans *scans, float weights[SEGMENT_NUM_CLASSES]);

/* Label one scan with the running statistics; classes gets [num_points] and the confusion counts
   up where the scan has classes. */
bool segment_label(segment_network *network, segment_batch *batch, const segment_scan *scan,
                   uint8_t *classes);

/* The classes that the logits of the last run say; waits for nothing. */
bool segment_read_classes(segment_network *network, int64_t num_points, uint8_t *classes);

typedef struct segment_score {
    int64_t confusion[SEGMENT_NUM_CLASSES][SEGMENT_NUM_CLASSES]; /* [true][predicted] */
    double iou[SEGMENT_NUM_CLASSES]; /* NAN where a class is not there */
    double mean_iou, accuracy;
} segment_score;

/* The rest of a score from its confusion. */
void segment_score_finish(segment_score *score);

bool segment_confusion_clear(segment_network *network);
/* Read the network's confusion. */
bool segment_confusion_read(segment_network *network, segment_score *score);

/* ---- Checkpoints (checkpoint.c) -------------------------------------------------------------- */

/* What a file is, before its numbers are read. */
typedef struct segment_checkpoint {
    segment_shape shape;
    int64_t step, num_steps; /* that were done, and are planned */
    uint64_t seed;
    double rate;
    int32_t together;
    bool has_moments; /* training can go on */
    bool narrow;      /* weights are bf16 */
} segment_checkpoint;

/* Written beside `path` and renamed, so that an interruption leaves the old file or the new one. */
bool segment_checkpoint_save(segment_network *network, const segment_checkpoint *about,
                             const char *path);
/* Read and check a file; *bytes is to be freed. */
bool segment_checkpoint_read(const char *path, unsigned char **bytes, size_t *num_bytes,
                             segment_checkpoint *about, char error[SEGMENT_ERROR_BYTES]);
bool segment_checkpoint_parse(const char *name, const unsigned char *bytes, size_t num_bytes,
                              segment_checkpoint *about, char error[SEGMENT_ERROR_BYTES]);
/* Parsed bytes into a network of the same shape. */
bool segment_checkpoint_load(segment_network *network, const unsigned char *bytes,
                             size_t num_bytes);

#endif
