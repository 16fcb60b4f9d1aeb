// SPDX-License-Identifier: Apache-2.0
/* The decoder in FP64, to check a small frame. */
#ifndef DECODER_REFERENCE_H
#define DECODER_REFERENCE_H

#include "decoder/engine.h"

/* Largest differences over the largest element. */
typedef struct differences {
    double output, logits;
    double largest; /* output, in FP64 */
    int64_t kept;   /* children of all levels */
} differences;

/*
 * Compares the engine's last frame, f: the rows of every set, which children are kept for each logit,
 * logits, and every element of the output. Which children there are is taken from the engine: a logit
 * near 0 may round to the other side. 0 for success; else it said why.
 */
int reference_compare(const engine *e, const frame *f, differences *found);

/* The output's rows in use as f32; the caller frees them. NULL: no memory, or the copy failed. */
float *reference_download_output(const engine *e, int64_t rows);

#endif
