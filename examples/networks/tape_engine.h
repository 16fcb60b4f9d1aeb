// SPDX-License-Identifier: Apache-2.0
/*
 * What the engines of networks that are tapes have in common: the points of a frame, and a frame's work in
 * order. An engine begins with a tape_engine, and a tape_network says what it does itself.
 */
#ifndef NETWORKS_TAPE_ENGINE_H
#define NETWORKS_TAPE_ENGINE_H

#include "networks/scan.h"
#include "networks/tape.h"

enum {
    TAPE_INPUTS = 3,
    TAPE_FEATURES = 8, /* of a point, for each input */
    TAPE_SIDES = 6     /* streams beside the main one */
};

typedef struct tape_network tape_network;

typedef struct tape_engine {
    const tape_network *network;
    const device *d;
    device sides[TAPE_SIDES];
    int is_small, one_stream;
    double voxel_m;
    tape tape;
    int64_t max_points;
    spops_voxels *voxels; /* of the points */
    /* The frame. */
    int32_t *num_points;
    float *points;               /* [max_points][4] */
    void *features[TAPE_INPUTS]; /* [max_points][TAPE_FEATURES], of the tape's inputs */
} tape_engine;

/* A network. Functions that return an int give 0 for success. */
struct tape_network {
    const char *name, *title; /* "ptv3", "Point Transformer V3" */
    size_t engine_bytes;
    double voxel_m, check_voxel_m; /* where none is said; of the check without an option */
    const char *const *parts,
        *const *stages; /* their names: of a frame before its layers; of layers */
    int num_parts, num_stages, num_inputs;
    spops_reduce reduce; /* of features of points to those of their voxel */
    void (*build)(tape *t, int is_small);
    /* What the network sees of a point, for an input: TAPE_FEATURES numbers. */
    void (*describe_point)(const tape_engine *e, const float *point, int input, float *features);
    /* Plans, for what the largest of the scans needs and a little more. max_points is set, points are there. */
    int (*create)(tape_engine *e, const scan *scans, int num_scans);
    void (*destroy)(tape_engine *e); /* the plans */
    spops_status (*enqueue_part)(tape_engine *e, int part);
    spops_status (*enqueue_parts)(
        tape_engine *e); /* all of them, side by side; or those that no step's
                                                      plan is made by */
    /* Before the forward pass of a step: the main stream waits for the step's plan, which is enqueued beside it
       where it was not. NULL: enqueue_parts has made all. */
    spops_status (*enqueue_plan)(tape_engine *e, const tape_step *s);
    double (*part_bytes)(const tape_engine *e, const tape_sizes *sizes, int part,
                         int64_t num_points);
    /* Of the frame that was run last; waits. Refuses a frame that did not fit. */
    int (*get_sizes)(const tape_engine *e, tape_sizes *sizes);
    /* What was computed last, of scan s, against FP64; parameters are those of a tape for training. */
    int (*check)(const tape_engine *e, const float *parameters, const scan *s, const char *name);
};

/* NULL where it failed, and that was said. After it tape_alloc takes the parameters. */
tape_engine *tape_engine_create(const tape_network *network, const device *d, int is_small,
                                spops_dtype dtype, int training, double voxel_m, const scan *scans,
                                int num_scans);
void tape_engine_destroy(tape_engine *e);

int tape_engine_upload(tape_engine *e, const scan *s);

/* The features of voxels, for a part of the network's own. */
spops_status tape_engine_enqueue_features(tape_engine *e);
/* All parts and layers; where it trains also loss, gradients, and a step of gradient descent. `user` is an
   engine. */
spops_status tape_engine_enqueue_frame(void *user);

/* Numbers as the tape's dtype has them. */
int tape_engine_round(const tape_engine *e, double *x, size_t n);

/* The cells of a set as a cloud of one sample: where the device reads how many there are, offsets[1] is to be
   copied by tape_engine_enqueue_count, on d's stream, before the cloud is used. Sets rows of a level of the
   tape. */
int tape_engine_make_cloud(tape_engine *e, int level, const spops_coords *coords,
                           spops_point_cloud *cloud, int32_t **offsets);
spops_status tape_engine_enqueue_count(const tape_engine *e, const device *d, int level,
                                       int32_t *offsets);

/* Every side's stream waits for the main one, or the main one for every side's. */
int tape_engine_fork(const tape_engine *e);
int tape_engine_join(const tape_engine *e);
#endif
