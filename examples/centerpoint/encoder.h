// SPDX-License-Identifier: Apache-2.0
/*
 * The encoder: a network's sets, maps, plans and memory for frames of up to a given size, and the work
 * of a frame, enqueued in parts. A graph that holds all of them takes a frame after the other,
 * whatever its size, without the host looking at a count.
 */
#ifndef CENTERPOINT_ENCODER_H
#define CENTERPOINT_ENCODER_H

#include "centerpoint/network.h"
#include "networks/device.h"

/* The points of one or more sweeps. */
typedef struct frame {
    int64_t num_points;
    float *points; /* [num_points][NUM_FEATURES]: x y z in m, intensity, age in s */
} frame;

typedef struct encoder {
    const device *d;
    const network *net;
    spops_dtype dtype; /* of features and weights: f32 or f16 */
    int implicit_gemm; /* runs every layer */
    /* What is made for the capacities. */
    int64_t max_points, max_rows[NUM_LEVELS];
    spops_voxels *voxels;
    spops_coords *sets[NUM_LEVELS];                        /* of level 1 and on */
    spops_kernel_map *within[NUM_LEVELS], *to[NUM_LEVELS]; /* to[l]: from level l - 1 */
    spops_sparseconv *within_conv[NUM_LEVELS], *to_conv[NUM_LEVELS];
    /* All maps; all convolutions; and both of each level. */
    spops_plan *map_plans[2 * NUM_LEVELS], *conv_plans[2 * NUM_LEVELS], *level_plans[NUM_LEVELS][4];
    int num_maps, num_convs, num_level_plans[NUM_LEVELS];
    device sets_on, maps_on; /* streams beside that of d, for sets and for maps */
    void *buffers[NUM_BUFFERS];
    void *weights[NUM_LAYERS];
    float *scale[NUM_LAYERS], *shift[NUM_LAYERS];
    void *bev; /* [C Z][Y][X], Z = 2 */
    /* The frame. */
    int32_t *num_points;
    float *points;  /* [max_points][4]: z y x, and nothing */
    void *features; /* [max_points][NUM_INPUTS] */
} encoder;

/* Capacities are what the largest of the frames needs at each level, and a little more. */
int encoder_create(encoder *e, const device *d, const network *net, spops_dtype dtype,
                   const frame *frames, int num_frames);
void encoder_destroy(encoder *e);

/* A frame to where the encoder reads it. */
int encoder_upload(encoder *e, const frame *f);

/* Points to hard voxels; the coarser sets; maps; plans of convolutions; mean features of voxels; the
   layers; the dense features. */
enum {
    PART_VOXELS,
    PART_SETS,
    PART_MAPS,
    PART_PLANS,
    PART_MEAN,
    PART_LAYERS,
    PART_DENSE,
    NUM_PARTS
};
spops_status encoder_enqueue_part(encoder *e, int part);
spops_status encoder_enqueue_layer(encoder *e, int i);
spops_status encoder_enqueue_frame(encoder *e);

/* Of the frame that was run last; waits. Refuses a frame that did not fit. */
typedef struct encoder_sizes {
    int64_t rows[NUM_LEVELS], within_pairs[NUM_LEVELS], to_pairs[NUM_LEVELS];
    int64_t left_out; /* points outside the grid */
} encoder_sizes;
int encoder_get_sizes(const encoder *e, encoder_sizes *sizes);

/* Elements of the dense features. */
int64_t encoder_bev_elements(void);

#endif
