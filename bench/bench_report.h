// SPDX-License-Identifier: Apache-2.0
// What every suite works with: options, the context, timing, and the report (a table or JSON
// lines).
#ifndef SPOPS_BENCH_REPORT_H
#define SPOPS_BENCH_REPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "spops/spops.h"
#include "support/device.h"
#include "support/options.h"

#define BENCH_MAX_COLS  16   // widths in a list
#define BENCH_MAX_WIDTH 1024 // of a row
#define BENCH_MAX_TILE  99   // numbers of tiles that are tried, from 1 on

typedef enum bench_mode { BENCH_HOT = 0, BENCH_COLD = 1, BENCH_NUM_MODES = 2 } bench_mode;

// What every suite goes by. What only one goes by is in its own file.
typedef struct bench_options {
    spops_backend_kind backend;
    const char *suites, *passes; // comma-separated; NULL: all
    const char *tiles;           // the same; NULL: none but what is chosen
    int64_t cols[BENCH_MAX_COLS];
    int num_cols;    // 0: the suite's own
    unsigned dtypes; // bit mask of 1 << dtype; 0: the suite's own
    bool modes[BENCH_NUM_MODES];
    bool quick, json, baselines, tf32;
    int num_samples, num_threads;
    const char *output, *commit;
} bench_options;

typedef struct bench {
    bench_options options;
    spops_context *ctx;
    spops_backend_kind backend;
    void *stream;
    spops_device_info device;
    double copy_bytes_per_s;
    double cache_bytes_per_s; // 0: not known
    FILE *output;             // JSON lines besides stdout, or NULL
    char date[32];
    char command[512];
    bool has_timed[BENCH_MAX_TILE + 1]; // tiles by number
    bool failed;                        // something was wrong; goes on with the next case
} bench;

// A row of a suite's own options.
typedef option_row bench_option;

// Whether `name` is in a list that may be NULL (all), and readers of items for rows of options.
bool bench_wants(const char *list, const char *name);
bool bench_is_dtype(const char *item);
bool bench_read_dtype(const char *item, spops_dtype *dtype);
bool bench_is_width(const char *item);
bool bench_is_tile(const char *item); // or "all"

// Whether a tile, 1 to BENCH_MAX_TILE, is to be timed beside what is chosen.
bool bench_wants_tile(const bench *b, int32_t tile);

// The columns and dtypes to walk: the options' or the suite's own.
int bench_cols(const bench *b, const int64_t *own, int num_own, int64_t cols[BENCH_MAX_COLS]);
bool bench_wants_dtype(const bench *b, unsigned own, spops_dtype dtype);

// Report a failure on stderr and remember it; returns false.
__attribute__((format(printf, 2, 3))) bool bench_fail(bench *b, const char *format, ...);
// The same with the library's message unless status is OK; returns whether it is.
bool bench_check(bench *b, const char *what, spops_status status);
// Progress on stderr where that is a terminal.
__attribute__((format(printf, 1, 2))) void bench_progress(const char *format, ...);

// Device memory; false (reported) when there is none.
bool bench_alloc(bench *b, size_t bytes, void **ptr);
bool bench_upload(bench *b, const void *src, size_t bytes, void **ptr); // allocates too
bool bench_download(bench *b, void *dst, const void *src, size_t bytes);
void bench_free(bench *b, void *ptr);
bool bench_poison(bench *b, void *ptr, size_t bytes);
// Host memory; reported when there is none.
void *bench_host(bench *b, int64_t count, size_t size);
// A host copy of an array, in memory of bench_host.
bool bench_fetch_i32(bench *b, const int32_t *from, int64_t count, int32_t **to);

// Time enqueue(user). Whether the runs themselves worked is for who wrote them to say.
bool bench_time(bench *b, void (*enqueue)(void *user), void *user, bench_mode mode,
                device_timing *timing);

// The same for `num` callers side by side, each on its stream.
bool bench_time_together(bench *b, int num, void *const *streams, void (*enqueue)(void *user),
                         void *const *users, bench_mode mode, device_timing *timing);

// One way to do a case's work, in the modes that were measured.
typedef struct bench_variant {
    const char *name;
    bool is_baseline;
    bool has[BENCH_NUM_MODES];
    device_timing timing[BENCH_NUM_MODES];
} bench_variant;

// Something a suite says of a case in its JSON line, besides what all of them say.
typedef struct bench_note {
    const char *key;
    const char *text; // NULL: the number
    int64_t number;
} bench_note;

enum { BENCH_MAX_VARIANTS = 32, BENCH_MAX_NOTES = 8 };

typedef struct bench_case {
    const char *suite;
    char name[96];  // such as "map A forward"
    char what[200]; // sizes, for the table
    spops_dtype dtype;
    int64_t cols;         // 0: neither rows nor a dtype
    int64_t bytes;        // compulsory: each needed element once; 0: no floor
    int64_t gather_bytes; // 0: nothing is gathered
    int num_notes, num_variants;
    bench_note notes[BENCH_MAX_NOTES];
    bench_variant variants[BENCH_MAX_VARIANTS];
} bench_case;

void bench_case_note(bench_case *c, const char *key, int64_t number);
void bench_case_note_text(bench_case *c, const char *key, const char *text);
bench_variant *bench_case_add(bench_case *c, const char *name, bool is_baseline);
// Time a variant in every wanted mode.
bool bench_case_time(bench *b, bench_case *c, const char *name, bool is_baseline,
                     void (*enqueue)(void *user), void *user);
// The same of a tile, whose gain is that of what is chosen over it; 0: of what is chosen itself.
bool bench_case_time_tile(bench *b, bench_case *c, int32_t tile, void (*enqueue)(void *user),
                          void *user);
// Beside it a plain write of as many bytes as the case must move, "the bytes alone"; the launch of a
// graph, which counts in cold samples, counts there too. Nothing where baselines are not wanted.
bool bench_case_time_bytes(bench *b, bench_case *c);
void bench_case_print(bench *b, const bench_case *c);

// A suite, listed in suites.def.
typedef struct bench_suite {
    const char *name;
    const char *passes;          // what --passes may name of it, separated by commas; NULL: nothing
    const bench_option *options; // its own; NULL, or ended by a row without a name
    void (*run)(bench *b);       // walks its cases and reports; failures are in b->failed
} bench_suite;

#endif
