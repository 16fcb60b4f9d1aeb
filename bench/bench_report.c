// SPDX-License-Identifier: Apache-2.0
// Memory, timing and the report for all suites; the suites know what is measured.
#include "bench/bench_report.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <jansson.h>

#include "bench/baselines/dense_baselines.h"
#include "support/elements.h"
#include "support/terminal.h"

#define CPU_CASE_BUDGET_US 1.5e6 // slow CPU runs get fewer samples
#define MIN_SAMPLES        3

bool bench_wants(const char *list, const char *name)
{
    return options_wants(list, name);
}

bool bench_is_dtype(const char *item)
{
    spops_dtype dtype;
    return elements_find(item, &dtype);
}

bool bench_read_dtype(const char *item, spops_dtype *dtype)
{
    return elements_find(item, dtype);
}

bool bench_is_width(const char *item)
{
    int64_t width;
    return options_read_number(item, 1, BENCH_MAX_WIDTH, &width);
}

bool bench_is_tile(const char *item)
{
    int64_t tile;
    return strcmp(item, "all") == 0 || options_read_number(item, 1, BENCH_MAX_TILE, &tile);
}

bool bench_wants_tile(const bench *b, int32_t tile)
{
    char item[64];
    int64_t number;
    for (int i = 0; b->options.tiles != NULL && options_item(b->options.tiles, i, item); ++i)
        if (strcmp(item, "all") == 0 ||
            (options_read_number(item, 1, BENCH_MAX_TILE, &number) && number == tile))
            return true;
    return false;
}

int bench_cols(const bench *b, const int64_t *own, int num_own, int64_t cols[BENCH_MAX_COLS])
{
    const int num = b->options.num_cols > 0 ? b->options.num_cols : num_own;
    const int64_t *from = b->options.num_cols > 0 ? b->options.cols : own;
    memcpy(cols, from, (size_t)num * sizeof *cols);
    return num;
}

bool bench_wants_dtype(const bench *b, unsigned own, spops_dtype dtype)
{
    return ((b->options.dtypes != 0 ? b->options.dtypes : own) >> dtype & 1u) != 0;
}

void bench_progress(const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    // How many cases a suite has is known when it ends.
    progress_show(text, 0, 0);
}

bool bench_fail(bench *b, const char *format, ...)
{
    va_list args;
    b->failed = true;
    progress_clear();
    fflush(stdout);
    fputs("bench: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    return false;
}

bool bench_check(bench *b, const char *what, spops_status status)
{
    if (status == SPOPS_STATUS_OK) return true;
    return bench_fail(b, "%s: %s: %s", what, spops_status_name(status), spops_last_error(b->ctx));
}

bool bench_alloc(bench *b, size_t bytes, void **ptr)
{
    if (device_alloc(b->backend, bytes, ptr)) return true;
    return bench_fail(b, "%zu bytes: %s", bytes, device_error());
}

bool bench_upload(bench *b, const void *src, size_t bytes, void **ptr)
{
    if (!bench_alloc(b, bytes, ptr)) return false;
    if (device_upload(b->backend, *ptr, src, bytes)) return true;
    return bench_fail(b, "upload: %s", device_error());
}

bool bench_download(bench *b, void *dst, const void *src, size_t bytes)
{
    if (device_download(b->backend, dst, src, bytes)) return true;
    return bench_fail(b, "download: %s", device_error());
}

void bench_free(bench *b, void *ptr)
{
    device_free(b->backend, ptr);
}

bool bench_poison(bench *b, void *ptr, size_t bytes)
{
    if (device_fill(b->backend, ptr, 0xff, bytes)) return true;
    return bench_fail(b, "poison: %s", device_error());
}

void *bench_host(bench *b, int64_t count, size_t size)
{
    void *ptr = calloc((size_t)count + 1, size);
    if (ptr == NULL) bench_fail(b, "no host memory for %zu bytes", (size_t)count * size);
    return ptr;
}

bool bench_fetch_i32(bench *b, const int32_t *from, int64_t count, int32_t **to)
{
    *to = bench_host(b, count, sizeof **to);
    return *to != NULL && bench_download(b, *to, from, (size_t)count * sizeof **to);
}

static int samples_for(const bench *b, void (*enqueue)(void *user), void *user)
{
    struct timespec begin, end;
    const int wanted = b->options.num_samples;
    if (b->backend != SPOPS_BACKEND_CPU) return wanted;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    enqueue(user);
    clock_gettime(CLOCK_MONOTONIC, &end);
    const double us =
        1e6 * (double)(end.tv_sec - begin.tv_sec) + 1e-3 * (double)(end.tv_nsec - begin.tv_nsec);
    return (int)fmax(MIN_SAMPLES, fmin(wanted, CPU_CASE_BUDGET_US / fmax(us, 1.0)));
}

bool bench_time(bench *b, void (*enqueue)(void *user), void *user, bench_mode mode,
                device_timing *timing)
{
    if (device_time(b->backend, b->stream, enqueue, user, mode == BENCH_COLD,
                    samples_for(b, enqueue, user), timing))
        return true;
    return bench_fail(b, "timing: %s", device_error());
}

bool bench_time_together(bench *b, int num, void *const *streams, void (*enqueue)(void *user),
                         void *const *users, bench_mode mode, device_timing *timing)
{
    int num_samples = samples_for(b, enqueue, users[0]);
    if (b->backend == SPOPS_BACKEND_CPU && num_samples > MIN_SAMPLES * num) num_samples /= num;
    if (device_time_together(b->backend, num, streams, enqueue, users, mode == BENCH_COLD,
                             num_samples, timing))
        return true;
    return bench_fail(b, "timing: %s", device_error());
}

bench_variant *bench_case_add(bench_case *c, const char *name, bool is_baseline)
{
    if (c->num_variants == BENCH_MAX_VARIANTS) return NULL;
    bench_variant *v = &c->variants[c->num_variants++];
    memset(v, 0, sizeof *v);
    v->name = name;
    v->is_baseline = is_baseline;
    return v;
}

static const char *dtype_name(const bench_case *c)
{
    return c->cols > 0 ? spops_dtype_name(c->dtype) : "-";
}

bool bench_case_time(bench *b, bench_case *c, const char *name, bool is_baseline,
                     void (*enqueue)(void *user), void *user)
{
    bench_variant *v = bench_case_add(c, name, is_baseline);
    if (v == NULL) return bench_fail(b, "%s: too many variants", c->name);
    for (int mode = 0; mode < BENCH_NUM_MODES; ++mode) {
        if (!b->options.modes[mode]) continue;
        bench_progress("%s %s, %s, %lld columns: %s, %s", c->suite, c->name, dtype_name(c),
                       (long long)c->cols, name, mode == BENCH_HOT ? "hot" : "cold");
        if (!bench_time(b, enqueue, user, (bench_mode)mode, &v->timing[mode])) return false;
        v->has[mode] = true;
    }
    return true;
}

static void enqueue_bytes(void *user)
{
    dense_scatter *d = user;
    if (d->stream != NULL)
        dense_write_cuda(d);
    else
        memset(d->dense, 0, d->bytes);
}

bool bench_case_time_tile(bench *b, bench_case *c, int32_t tile, void (*enqueue)(void *user),
                          void *user)
{
    static char names[BENCH_MAX_TILE + 1][16]; // of variants, which keep them
    if (tile == 0) return bench_case_time(b, c, "spops", false, enqueue, user);
    snprintf(names[tile], sizeof names[tile], "tile %d", (int)tile);
    b->has_timed[tile] = true;
    return bench_case_time(b, c, names[tile], true, enqueue, user);
}

bool bench_case_time_bytes(bench *b, bench_case *c)
{
    dense_scatter d = {.bytes = (size_t)c->bytes};
    bool ok;
    if (!b->options.baselines || c->bytes <= 0) return true;
    if (!bench_alloc(b, d.bytes, &d.dense)) return false;
    d.stream = b->backend == SPOPS_BACKEND_CPU ? NULL : b->stream;
    ok = bench_case_time(b, c, "the bytes alone", true, enqueue_bytes, &d);
    if (ok && d.failed) ok = bench_fail(b, "%s: the bytes alone failed", c->name);
    bench_free(b, d.dense);
    return ok;
}

static double floor_us(const bench *b, const bench_case *c)
{
    return 1e6 * (double)c->bytes / b->copy_bytes_per_s;
}

// The gathered rows at the rate of the cache; 0: not known.
static double gather_floor_us(const bench *b, const bench_case *c)
{
    return b->cache_bytes_per_s > 0.0 ? 1e6 * (double)c->gather_bytes / b->cache_bytes_per_s : 0.0;
}

// How many times faster than baseline v the library is in this mode; 0: not known.
static double speedup(const bench_case *c, const bench_variant *v, int mode)
{
    for (int i = 0; i < c->num_variants; ++i) {
        const bench_variant *own = &c->variants[i];
        if (own->is_baseline || !own->has[mode] || !v->has[mode]) continue;
        return v->timing[mode].median_us / own->timing[mode].median_us;
    }
    return 0.0;
}

static void add_note(bench_case *c, bench_note note)
{
    if (c->num_notes < BENCH_MAX_NOTES) c->notes[c->num_notes++] = note;
}

void bench_case_note(bench_case *c, const char *key, int64_t number)
{
    add_note(c, (bench_note){key, NULL, number});
}

void bench_case_note_text(bench_case *c, const char *key, const char *text)
{
    add_note(c, (bench_note){key, text, 0});
}

static json_t *speedups_of(const bench_case *c, const bench_variant *v, int mode)
{
    json_t *all = json_object();
    for (int i = 0; i < c->num_variants; ++i) {
        const bench_variant *other = &c->variants[i];
        if (!other->is_baseline || !other->has[mode]) continue;
        json_object_set_new(all, other->name,
                            json_real(other->timing[mode].median_us / v->timing[mode].median_us));
    }
    return all;
}

static void set_real(json_t *line, const char *key, double value)
{
    json_object_set_new(line, key, json_real(value)); // none where it is not finite
}

static void print_json(bench *b, FILE *f, const bench_case *c, const bench_variant *v, int mode)
{
    const device_timing *t = &v->timing[mode];
    json_t *line = json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:i, s:s, s:s, s:s, s:I}", "date", b->date, "commit",
        b->options.commit, "device", b->device.name, "isa", b->device.isa, "backend",
        b->backend == SPOPS_BACKEND_CUDA ? "cuda" : "cpu", "threads", (int)b->device.num_processors,
        "suite", c->suite, "case", c->name, "dtype", dtype_name(c), "cols", (json_int_t)c->cols);
    for (const bench_note *n = c->notes; n < c->notes + c->num_notes; ++n)
        json_object_set_new(line, n->key,
                            n->text != NULL ? json_string(n->text) : json_integer(n->number));
    json_object_set_new(line, "variant", json_string(v->name));
    json_object_set_new(line, "mode", json_string(mode == BENCH_HOT ? "hot" : "cold"));
    set_real(line, "median_us", t->median_us);
    set_real(line, "p10_us", t->p10_us);
    set_real(line, "p90_us", t->p90_us);
    set_real(line, "min_us", t->min_us);
    if (c->bytes > 0) {
        json_object_set_new(line, "bytes", json_integer(c->bytes));
        json_object_set_new(line, "gather_bytes", json_integer(c->gather_bytes));
        set_real(line, "gbps", 1e-3 * (double)c->bytes / t->median_us);
        set_real(line, "copy_gbps", 1e-9 * b->copy_bytes_per_s);
        set_real(line, "floor_us", floor_us(b, c));
        set_real(line, "ratio", t->median_us / floor_us(b, c));
    }
    if (gather_floor_us(b, c) > 0.0) {
        set_real(line, "cache_gbps", 1e-9 * b->cache_bytes_per_s);
        set_real(line, "gather_floor_us", gather_floor_us(b, c));
        set_real(line, "gather_ratio", t->median_us / gather_floor_us(b, c));
    }
    if (!v->is_baseline) json_object_set_new(line, "speedups", speedups_of(c, v, mode));
    json_object_set_new(line, "command", json_string(b->command));
    if (line == NULL || json_dumpf(line, f, JSON_REAL_PRECISION(4)) != 0)
        bench_fail(b, "%s: a line of JSON cannot be written", c->name);
    fputc('\n', f);
    fflush(f);
    json_decref(line);
}

// Four digits or so, never an exponent.
static const char *format_us(double us, char *text, size_t bytes)
{
    snprintf(text, bytes, "%.*f", us < 10.0 ? 3 : us < 100.0 ? 2 : us < 1000.0 ? 1 : 0, us);
    return text;
}

static void print_table(const bench *b, const bench_case *c)
{
    char number[32], low[32], high[32];
    printf("\n%s %s", c->suite, c->name);
    if (c->cols > 0) printf(", %s, %lld columns", dtype_name(c), (long long)c->cols);
    printf(": %s\n", c->what);
    if (c->bytes > 0) {
        printf("  floor %s us: %.4g MB at %.4g GB/s",
               format_us(floor_us(b, c), number, sizeof number), 1e-6 * (double)c->bytes,
               1e-9 * b->copy_bytes_per_s);
        if (c->gather_bytes > 0) printf("; gathers %.4g MB", 1e-6 * (double)c->gather_bytes);
        if (gather_floor_us(b, c) > 0.0)
            printf(", %s us at %.4g GB/s of L2",
                   format_us(gather_floor_us(b, c), number, sizeof number),
                   1e-9 * b->cache_bytes_per_s);
        putchar('\n');
    }
    text_table t;
    memset(&t, 0, sizeof t);
    table_cell(&t, "%s", "");
    for (int mode = 0; mode < BENCH_NUM_MODES; ++mode) {
        if (!b->options.modes[mode]) continue;
        table_cell(&t, "%s us", mode == BENCH_HOT ? "hot" : "cold");
        table_cell(&t, "(p10 to p90)");
        table_cell(&t, "x floor");
        table_cell(&t, "gain");
    }
    table_end_row(&t);
    for (int i = 0; i < c->num_variants; ++i) {
        const bench_variant *v = &c->variants[i];
        table_cell(&t, "%s", v->name);
        for (int mode = 0; mode < BENCH_NUM_MODES; ++mode) {
            const device_timing *m = &v->timing[mode];
            if (!b->options.modes[mode]) continue;
            const bool has = v->has[mode];
            table_cell(&t, "%s", has ? format_us(m->median_us, number, sizeof number) : "-");
            if (has)
                table_cell(&t, "(%s to %s)", format_us(m->p10_us, low, sizeof low),
                           format_us(m->p90_us, high, sizeof high));
            else
                table_cell(&t, "%s", "");
            if (has && c->bytes > 0)
                table_cell(&t, "%.2f", m->median_us / floor_us(b, c));
            else
                table_cell(&t, "%s", "");
            if (has && v->is_baseline && speedup(c, v, mode) > 0.0)
                table_cell(&t, "%.2f", speedup(c, v, mode));
            else
                table_cell(&t, "%s", "");
        }
        table_end_row(&t);
    }
    table_print(&t, stdout, 2, terminal_columns(stdout));
    fflush(stdout);
}

void bench_case_print(bench *b, const bench_case *c)
{
    progress_clear();
    if (!b->options.json) print_table(b, c);
    for (int i = 0; i < c->num_variants; ++i)
        for (int mode = 0; mode < BENCH_NUM_MODES; ++mode) {
            if (!c->variants[i].has[mode]) continue;
            if (b->options.json) print_json(b, stdout, c, &c->variants[i], mode);
            if (b->output != NULL) print_json(b, b->output, c, &c->variants[i], mode);
        }
}
