// SPDX-License-Identifier: Apache-2.0
// Locality of buckets: the boxes around the rows of each, beside those around as many rows along a
// curve, which needs a sort.
#include "tools/plan_cloud.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "support/cloud_file.h"
#include "support/device.h"
#include "tools/group_picture.h"

enum { DIMS = 3, BITS = 10, NUM_ROUNDS = 4 };

typedef struct cloud {
    const char *command, *file;
    const session *s;
    int64_t n, bucket_rows;
    float *points; // [n][3] host
    spops_point_cloud there;
    double size_m[DIMS], origin_m[DIMS];
    group_picture *picture; // NULL: none
    int num_drawn;
} cloud;

// A way to group rows, and what came out.
typedef struct grouping {
    const char *name;
    int num_rounds; // of hashes; 0: runs along a curve
    spops_bucket_hash hashes[NUM_ROUNDS];
    spops_patch_curve curve;
    int64_t num_groups, num_late;
    double side_m;     // cube root of a box's volume, mean over rows
    double diagonal_m; // of a box, mean over rows
} grouping;

static bool check(const cloud *c, spops_status status)
{
    if (status == SPOPS_STATUS_OK) return true;
    command_fail(c->command, "%s: %s", c->file, spops_last_error(c->s->ctx));
    return false;
}

static bool fail(const cloud *c, const char *what)
{
    command_fail(c->command, "%s: %s", c->file, what);
    return false;
}

// Cells as fine as the largest extent of the cloud allows, the same on every axis.
static void choose_cells(cloud *c)
{
    double lower[DIMS], extent = 0.0;
    for (int a = 0; a < DIMS; ++a) {
        double upper = -INFINITY;
        lower[a] = INFINITY;
        for (int64_t i = 0; i < c->n; ++i) {
            lower[a] = fmin(lower[a], (double)c->points[DIMS * i + a]);
            upper = fmax(upper, (double)c->points[DIMS * i + a]);
        }
        if (upper - lower[a] > extent) extent = upper - lower[a];
    }
    for (int a = 0; a < DIMS; ++a) {
        c->origin_m[a] = isfinite(lower[a]) ? lower[a] : 0.0;
        c->size_m[a] = extent > 0.0 && isfinite(extent) ? extent * (1.0 + 1e-6) / (1 << BITS) : 1.0;
    }
}

static bool read_cloud(cloud *c)
{
    char error[4096 + 256];
    void *device = NULL;
    cloud_file file;
    if (!cloud_file_read(c->file, &file, error, sizeof error)) {
        command_fail(c->command, "%s", error);
        return false;
    }
    c->n = file.num_points;
    const size_t bytes = (size_t)c->n * DIMS * sizeof *c->points;
    c->points = malloc(bytes > 0 ? bytes : 1);
    if (!cloud_file_widen(&file) || c->points == NULL) {
        cloud_file_free(&file);
        return fail(c, "no memory for its points");
    }
    for (int64_t i = 0; i < c->n * DIMS; ++i)
        c->points[i] = ((const float *)file.values)[i / DIMS * file.cols + i % DIMS];
    cloud_file_free(&file);
    const bool sent = device_alloc(c->s->backend, bytes, &device) &&
                      (bytes == 0 || device_upload(c->s->backend, device, c->points, bytes));
    c->there.points = spops_matrix_dense(device, c->n, DIMS, SPOPS_DTYPE_F32);
    choose_cells(c);
    return sent || fail(c, device_error());
}

// Boxes of groups of rows, offsets[g] .. offsets[g + 1] - 1 of rows.
static void measure(const cloud *c, const int32_t *offsets, const int32_t *rows, grouping *g)
{
    double side = 0.0, diagonal = 0.0;
    for (int64_t i = 0; i < g->num_groups; ++i) {
        const int32_t begin = offsets[i], end = offsets[i + 1];
        double volume = 1.0, squares = 0.0;
        for (int a = 0; a < DIMS && end > begin; ++a) {
            double lower = INFINITY, upper = -INFINITY;
            for (int32_t e = begin; e < end; ++e) {
                lower = fmin(lower, (double)c->points[DIMS * (int64_t)rows[e] + a]);
                upper = fmax(upper, (double)c->points[DIMS * (int64_t)rows[e] + a]);
            }
            volume *= upper - lower;
            squares += (upper - lower) * (upper - lower);
        }
        side += (double)(end - begin) * cbrt(volume);
        diagonal += (double)(end - begin) * sqrt(squares);
    }
    if (c->n == 0) return;
    g->side_m = side / (double)c->n;
    g->diagonal_m = diagonal / (double)c->n;
}

// Bring groups to the host, measure and draw them.
static bool look_at(cloud *c, const int32_t *offsets_there, const int32_t *rows_there, grouping *g)
{
    const size_t num_offsets = (size_t)g->num_groups + 1, num_rows = (size_t)c->n;
    int32_t *offsets = malloc(num_offsets * sizeof *offsets);
    int32_t *rows = malloc((num_rows + 1) * sizeof *rows);
    bool ok = offsets != NULL && rows != NULL;
    if (!ok) fail(c, "no memory for its groups");
    ok = ok &&
         ((device_download(c->s->backend, offsets, offsets_there, num_offsets * sizeof *offsets) &&
           (num_rows == 0 ||
            device_download(c->s->backend, rows, rows_there, num_rows * sizeof *rows))) ||
          fail(c, device_error()));
    if (ok) measure(c, offsets, rows, g);
    if (ok && c->picture != NULL)
        ok =
            group_picture_draw(c->picture, c->num_drawn++, g->name, offsets, rows, g->num_groups) ||
            fail(c, "no memory for the picture");
    free(offsets);
    free(rows);
    return ok;
}

static bool group_by_hashes(cloud *c, grouping *g)
{
    spops_context *ctx = c->s->ctx;
    spops_buckets_options o = spops_buckets_options_default();
    spops_buckets_info info = spops_buckets_info_default();
    spops_buckets_view view = spops_buckets_view_default();
    spops_buckets *buckets = NULL;
    o.bucket_rows = (int32_t)c->bucket_rows;
    o.bits = BITS;
    o.num_rounds = g->num_rounds;
    memcpy(o.hashes, g->hashes, sizeof g->hashes);
    memcpy(o.size_m, c->size_m, sizeof o.size_m);
    memcpy(o.origin_m, c->origin_m, sizeof o.origin_m);
    bool ok = check(c, spops_buckets_create(ctx, &c->there, &o, &buckets)) &&
              check(c, spops_buckets_get_info_sync(ctx, buckets, &info)) &&
              check(c, spops_buckets_get_view(ctx, buckets, &view));
    g->num_groups = info.num_buckets;
    g->num_late = info.num_late;
    ok = ok && look_at(c, view.offsets, view.rows, g);
    spops_buckets_destroy(buckets);
    return ok;
}

static bool group_by_curve(cloud *c, grouping *g)
{
    spops_context *ctx = c->s->ctx;
    spops_patch_order o = spops_patch_order_default();
    spops_patches_info info = spops_patches_info_default();
    spops_patches_view view = spops_patches_view_default();
    spops_patches *patches = NULL;
    o.patch_rows = (int32_t)c->bucket_rows;
    o.bits = BITS;
    o.curve = g->curve;
    memcpy(o.size_m, c->size_m, sizeof o.size_m);
    memcpy(o.origin_m, c->origin_m, sizeof o.origin_m);
    bool ok = check(c, spops_patches_create_from_order(ctx, &c->there, &o, &patches)) &&
              check(c, spops_patches_get_info_sync(ctx, patches, &info)) &&
              check(c, spops_patches_get_view(ctx, patches, &view));
    g->num_groups = info.num_patches;
    ok = ok && look_at(c, view.query_offsets, view.query_rows, g);
    spops_patches_destroy(patches);
    return ok;
}

static void print_groupings(const cloud *c, const grouping *g, int num)
{
    char text[COMMAND_NUMBER_BYTES];
    text_table t;
    memset(&t, 0, sizeof t);
    printf("cloud %s: %s rows in groups of at most %lld, cells of %.3g m\n\n", c->file,
           in_groups(c->n, text), (long long)c->bucket_rows, c->size_m[0]);
    for (int i = 0; i < 6; ++i) {
        static const char *const heads[] = {"rows by",       "groups",       "placed late",
                                            "side of a box", "its diagonal", "beside Z-order"};
        table_cell(&t, "%s", heads[i]);
    }
    table_end_row(&t);
    for (int i = 0; i < num; ++i) {
        table_cell(&t, "%s", g[i].name);
        table_cell(&t, "%s", in_groups(g[i].num_groups, text));
        table_cell(&t, "%s", g[i].num_rounds > 0 ? in_groups(g[i].num_late, text) : "");
        table_cell(&t, "%.2f m", g[i].side_m);
        table_cell(&t, "%.2f m", g[i].diagonal_m);
        table_cell(&t, "%.2f", g[0].side_m > 0.0 ? g[i].side_m / g[0].side_m : 1.0);
        table_end_row(&t);
    }
    table_print(&t, stdout, 2, terminal_columns(stdout));
    printf("\nThe side of a box is the cube root of its volume; means are over rows.\n");
}

static void print_json(const cloud *c, const grouping *g, int num)
{
    json_t *list = json_array();
    for (int i = 0; i < num; ++i)
        json_array_append_new(list, json_pack("{s:s, s:I, s:I, s:f, s:f}", "by", g[i].name,
                                              "groups", (json_int_t)g[i].num_groups, "late",
                                              (json_int_t)g[i].num_late, "side_m", g[i].side_m,
                                              "diagonal_m", g[i].diagonal_m));
    json_t *line = json_pack("{s:s, s:s, s:I, s:I, s:f, s:o}", "kind", "cloud", "file", c->file,
                             "rows", (json_int_t)c->n, "group_rows", (json_int_t)c->bucket_rows,
                             "cell_m", c->size_m[0], "groupings", list);
    command_print_json(line);
}

static bool begin_picture(cloud *c, int num_panels, group_picture *p)
{
    char rows[COMMAND_NUMBER_BYTES], first[64], second[64];
    const char *const legend[] = {first, second};
    snprintf(first, sizeof first, "%s points, groups of at most %lld", in_groups(c->n, rows),
             (long long)c->bucket_rows);
    snprintf(second, sizeof second, "from above, a colour a group");
    if (!group_picture_create(c->points, c->n, num_panels, legend, p))
        return fail(c, "no memory for the picture");
    c->picture = p;
    return true;
}

int plan_cloud(const char *command, const char *file, const session *s, int64_t bucket_rows,
               const char *out, bool as_json)
{
    char error[4096 + 256];
    group_picture drawn = {0};
    grouping g[] = {
        {.name = "Z-order, sorted", .curve = SPOPS_PATCH_CURVE_ZORDER},
        {.name = "Hilbert, sorted", .curve = SPOPS_PATCH_CURVE_HILBERT},
        {.name = "zorder_div", .num_rounds = 1, .hashes = {SPOPS_BUCKET_HASH_ZORDER_DIV}},
        {.name = "zorder_mod", .num_rounds = 1, .hashes = {SPOPS_BUCKET_HASH_ZORDER_MOD}},
        {.name = "xor_div", .num_rounds = 1, .hashes = {SPOPS_BUCKET_HASH_XOR_DIV}},
        {.name = "xor_mod", .num_rounds = 1, .hashes = {SPOPS_BUCKET_HASH_XOR_MOD}},
        {.name = "all four, in this order",
         .num_rounds = NUM_ROUNDS,
         .hashes = {SPOPS_BUCKET_HASH_ZORDER_DIV, SPOPS_BUCKET_HASH_ZORDER_MOD,
                    SPOPS_BUCKET_HASH_XOR_DIV, SPOPS_BUCKET_HASH_XOR_MOD}},
    };
    enum { NUM = (int)(sizeof g / sizeof g[0]) };
    cloud c = {.command = command, .file = file, .s = s, .bucket_rows = bucket_rows};
    bool ok = read_cloud(&c) && (out == NULL || begin_picture(&c, NUM, &drawn));
    for (int i = 0; ok && i < NUM; ++i)
        ok = g[i].num_rounds > 0 ? group_by_hashes(&c, &g[i]) : group_by_curve(&c, &g[i]);
    if (ok && out != NULL && !picture_write_png(&drawn.p, out, error, sizeof error)) {
        command_fail(command, "%s", error);
        ok = false;
    }
    if (ok && as_json)
        print_json(&c, g, NUM);
    else if (ok)
        print_groupings(&c, g, NUM);
    if (ok && out != NULL && !as_json) printf("picture   %s\n", out);
    group_picture_destroy(&drawn);
    device_free(s->backend, c.there.points.data);
    free(c.points);
    return ok ? COMMAND_OK : COMMAND_FAILED;
}
