// SPDX-License-Identifier: Apache-2.0
// Groups of rows of a cloud, such as buckets or patches, from above: a panel for each way to group
// them, each group in a colour of its own.
#ifndef SPOPS_TOOLS_GROUP_PICTURE_H
#define SPOPS_TOOLS_GROUP_PICTURE_H

#include "tools/picture.h"

enum { GROUP_PICTURE_COLUMNS = 4, GROUP_PICTURE_SIDE_PX = 400 };

typedef struct group_picture {
    picture p;
    const float *points; // [n][3], the caller's
    int64_t n;
    double left_m, top_m, px_per_m; // of every panel: y of its left, x of its top border
} group_picture;

// An empty picture of num_panels and a legend of two lines; false when there is no memory.
bool group_picture_create(const float *points, int64_t n, int num_panels,
                          const char *const legend[2], group_picture *out);
void group_picture_destroy(group_picture *g);

// Draw panel i: group k has the rows rows[offsets[k]] .. rows[offsets[k + 1] - 1]. Where several lie
// in a pixel, the highest one is seen.
bool group_picture_draw(group_picture *g, int i, const char *title, const int32_t *offsets,
                        const int32_t *rows, int64_t num_groups);

// Where in the picture the square of panel i begins.
void group_picture_corner(int i, int *x, int *y);

// The colour of a group.
colour group_picture_colour(int64_t group);

#endif
