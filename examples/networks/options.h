// SPDX-License-Identifier: Apache-2.0
/* Options of the networks' programs: those that several have, and rows for a program's own. */
#ifndef NETWORKS_OPTIONS_H
#define NETWORKS_OPTIONS_H

#include "networks/device.h"
#include "networks/floors.h"

#include <stdio.h>

enum { OPTIONS_FILES = 32 };

/* What several programs are told. */
typedef struct network_options {
    const char *files[OPTIONS_FILES];
    int num_files;
    const char *dtype, *weights, *generate, *output;
    int beams, rays; /* of simulated scans */
    int check, layers;
    ceilings ceilings;
    spops_backend_kind backend;
} network_options;

/* An option of a program's own. */
typedef enum option_kind {
    OPTION_FLAG,
    OPTION_INT,    /* above 0 */
    OPTION_COUNT,  /* 0 or more */
    OPTION_NUMBER, /* above 0 */
    OPTION_TEXT
} option_kind;
typedef struct option_row {
    const char *name; /* "--voxel" */
    option_kind kind;
    void *value; /* int, int, int64_t, double, const char * */
} option_row;

/* 8 beams of 120 rays, an H200's ceilings, a GPU where there is one. */
network_options network_options_default(void);

/* 0 for success; 1 where an argument is none of these, or a number is out of range. Arguments that do not
   begin with a dash, and values of --scan, are files. */
int network_options_read(int argc, char **argv, network_options *o, const option_row *own,
                         int num_own);

/* f16 on a GPU, f32 on the CPU, unless it was said. */
spops_dtype network_options_dtype(const network_options *o, const device *d);

/* The file of --output, to be appended to; NULL where none was named. 0 for success. */
int network_options_output(const network_options *o, FILE **file);

/* What follows the last slash. */
const char *file_name(const char *path);

#define NETWORK_OPTIONS_USAGE                                                                      \
    "  --beams N, --rays N of simulated scans: 8 and 120\n"                                        \
    "  --dtype f32|f16     of features and weights: f16 on a GPU, f32 on the CPU\n"                \
    "  --backend cpu|cuda  where it runs: a GPU where there is one\n"                              \
    "  --weights FILE      read the parameters from a file\n"                                      \
    "  --generate FILE     draw parameters and write them to a file\n"                             \
    "  --ceilings T,G      a device's TFLOP/s and GB/s, for floors: 790,4200\n"                    \
    "  --output FILE       append what was measured, a JSON object a line\n"

#endif
