// SPDX-License-Identifier: Apache-2.0
// Options, the context, and the walk over the suites.
#include "bench/bench.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench/bench_report.h"
#include "support/terminal.h"

#ifndef SPOPS_COMMIT
#define SPOPS_COMMIT "unknown"
#endif

#define BENCH_SUITE(name) extern const bench_suite bench_suite_##name;
#include "bench/suites.def"
#undef BENCH_SUITE
static const bench_suite *const suites[] = {
#define BENCH_SUITE(name) &bench_suite_##name,
#include "bench/suites.def"
#undef BENCH_SUITE
};
enum { NUM_SUITES = sizeof suites / sizeof *suites };

static bool is_pass(const char *item)
{
    for (int s = 0; s < NUM_SUITES; ++s)
        if (suites[s]->passes != NULL && bench_wants(suites[s]->passes, item)) return true;
    return false;
}

// The common options, as they are given.
static struct {
    const char *suites, *passes, *cols, *dtypes, *modes, *tiles, *output, *commit;
    spops_backend_kind backend;
    int64_t threads, samples;
    bool no_baselines, neighbour, quick, json, list_suites, tf32;
} given;
static const option_row common[] = {
    OPTION_BACKEND(&given.backend),
    {"--threads", "N", "CPU threads (default: all)", .number = &given.threads, .least = 1,
     .most = 1 << 20},
    {"--passes", "LIST", "forward,backward, or what else a suite has (default: all)",
     .accepts = is_pass, .text = &given.passes},
    {"--cols", "LIST", "row widths", .accepts = bench_is_width, .text = &given.cols},
    {"--dtypes", "LIST", "f32,f16,bf16; bev, forward: also f8e4m3,f8e5m2,nvfp4 features",
     .accepts = bench_is_dtype, .text = &given.dtypes},
    {"--modes", "LIST", "hot,cold (default: both)", "hot,cold", .text = &given.modes},
    {"--tiles", "LIST",
     "attention, conv, on CUDA: beside the tile that is chosen also every one that takes the rows "
     "(all), or these numbers",
     .accepts = bench_is_tile, .text = &given.tiles},
    {"--samples", "N", "samples a measurement (default: 50, on the CPU 15)",
     .number = &given.samples, .least = 1, .most = 1 << 20},
    {"--no-baselines", NULL, "only the library's own", .on = &given.no_baselines},
    {"--neighbour", NULL, "while another process keeps one core busy", .on = &given.neighbour},
    {"--quick", NULL, "small shapes, one width, few samples", .on = &given.quick},
    {"--json", NULL, "one JSON object a line instead of tables", .on = &given.json},
    {"--output", "FILE", "JSON lines to FILE, besides what is printed", .text = &given.output},
    {"--commit", "TEXT", "what to note as the commit", .text = &given.commit},
    {"--tf32", NULL, "mvmr, conv, attention: products of f32 rounded to tf32", .on = &given.tf32},
    {"--list-suites", NULL, "the names of the suites, a line each", .on = &given.list_suites},
    {0}};

const option_set *bench_options_of(const char *program)
{
    static option_group groups[NUM_SUITES + 1];
    static char titles[NUM_SUITES][64], about[512];
    static option_set all;
    size_t used = (size_t)snprintf(about, sizeof about,
                                   "Measure kernels beside baselines and the floor, the bytes that "
                                   "must move at the rate of a copy. SUITE is some of");
    int num_groups = 0;
    for (int s = 0; s < NUM_SUITES; ++s) {
        used += (size_t)snprintf(about + used, used < sizeof about ? sizeof about - used : 0,
                                 " %s,", suites[s]->name);
        if (suites[s]->options == NULL) continue;
        snprintf(titles[s], sizeof titles[s], "Suite %s:", suites[s]->name);
        groups[num_groups++] = (option_group){titles[s], suites[s]->options};
    }
    if (used < sizeof about)
        snprintf(about + used, sizeof about - used, " separated by commas, or all.");
    groups[num_groups] = (option_group){NULL, NULL};
    all = (option_set){.program = program,
                       .summary = "measure the kernels beside baselines and the floor",
                       .operand = "[SUITE[,SUITE...]]",
                       .file = &given.suites,
                       .about = about,
                       .rows = common,
                       .groups = groups};
    return &all;
}

static bool is_suite(const char *name)
{
    for (int s = 0; s < NUM_SUITES; ++s)
        if (strcmp(name, suites[s]->name) == 0) return true;
    return strcmp(name, "all") == 0;
}

// The common options as the suites need them; each item was accepted.
static void set_options(bench_options *o)
{
    char item[64];
    spops_dtype dtype;
    o->suites = given.suites == NULL || options_wants(given.suites, "all") ? NULL : given.suites;
    o->backend = given.backend;
    o->passes = given.passes;
    o->tiles = given.tiles;
    for (int i = 0; given.cols != NULL && i < BENCH_MAX_COLS && options_item(given.cols, i, item);
         ++i)
        if (options_read_number(item, 1, BENCH_MAX_WIDTH, &o->cols[i])) o->num_cols = i + 1;
    for (int i = 0; given.dtypes != NULL && options_item(given.dtypes, i, item); ++i)
        if (bench_read_dtype(item, &dtype)) o->dtypes |= 1u << (unsigned)dtype;
    o->modes[BENCH_HOT] = bench_wants(given.modes, "hot");
    o->modes[BENCH_COLD] = bench_wants(given.modes, "cold");
    o->quick = given.quick;
    o->tf32 = given.tf32;
    o->json = given.json;
    o->baselines = !given.no_baselines;
    o->num_samples = (int)given.samples;
    o->num_threads = (int)given.threads;
    o->output = given.output;
    o->commit = given.commit != NULL ? given.commit : SPOPS_COMMIT;
}

// Back to what nothing given means.
static void clear_rows(const option_row *rows)
{
    for (; rows != NULL && rows->name != NULL; ++rows) {
        if (rows->on != NULL) *rows->on = false;
        if (rows->text != NULL) *rows->text = NULL;
        if (rows->number != NULL) *rows->number = 0;
    }
}

static options_result read_options(const option_set *o, int argc, char **argv, bench_options *out)
{
    char item[64];
    memset(out, 0, sizeof *out);
    memset(&given, 0, sizeof given);
    for (int s = 0; s < NUM_SUITES; ++s)
        clear_rows(suites[s]->options);
    const options_result result = options_read(o, argc, argv);
    if (result != OPTIONS_READ) return result;
    for (int i = 0; given.suites != NULL && options_item(given.suites, i, item); ++i)
        if (!is_suite(item)) return options_error(o, "there is no suite '%s'", item);
    if (given.cols != NULL && options_item(given.cols, BENCH_MAX_COLS, item))
        return options_error(o, "--cols has more than %d widths", BENCH_MAX_COLS);
    set_options(out);
    return OPTIONS_READ;
}

static void note_command(bench *b, int argc, char **argv)
{
    size_t used = 0;
    for (int i = 0; i < argc && used < sizeof b->command - 1; ++i) {
        const char *name = strrchr(argv[i], '/');
        const char *text = i == 0 && name != NULL ? name + 1 : argv[i];
        const int n =
            snprintf(b->command + used, sizeof b->command - used, "%s%s", i > 0 ? " " : "", text);
        used += n > 0 ? (size_t)n : 0;
    }
}

static bool open_bench(bench *b)
{
    spops_context_options options = spops_context_options_default();
    const time_t now = time(NULL);
    struct tm utc;

    gmtime_r(&now, &utc);
    strftime(b->date, sizeof b->date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    b->backend = b->options.backend;
    if (b->backend == SPOPS_BACKEND_AUTO)
        b->backend = spops_has_cuda() && device_has_cuda() ? SPOPS_BACKEND_CUDA : SPOPS_BACKEND_CPU;
    if (b->options.num_samples == 0)
        b->options.num_samples = b->options.quick ? 9 : b->backend == SPOPS_BACKEND_CPU ? 15 : 50;
    if (!device_stream_create(b->backend, &b->stream))
        return bench_fail(b, "no stream: %s", device_error());
    options.backend = b->backend;
    options.num_threads = b->options.num_threads;
    options.stream = b->stream;
    const spops_status status = spops_context_create(&options, &b->ctx);
    if (status != SPOPS_STATUS_OK)
        return bench_fail(b, "%s: %s", spops_status_name(status), spops_last_error(NULL));
    b->device.struct_size = sizeof b->device;
    if (!bench_check(b, "device", spops_context_get_device_info(b->ctx, &b->device))) return false;
    if (b->options.output != NULL) {
        b->output = fopen(b->options.output, "a");
        if (b->output == NULL) return bench_fail(b, "%s: %s", b->options.output, strerror(errno));
    }
    bench_progress("measuring the rates of memory and cache");
    if (!device_copy_rate(b->backend, &b->copy_bytes_per_s))
        return bench_fail(b, "copy rate: %s", device_error());
    if (!device_cache_rate(b->backend, &b->cache_bytes_per_s))
        return bench_fail(b, "cache rate: %s", device_error());
    return true;
}

// A process that computes without end, until it is killed or this one is gone; -1 if none starts.
static pid_t start_neighbour(void)
{
    const pid_t parent = getpid(), child = fork();
    if (child != 0) return child;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (getppid() == parent)
        for (volatile int i = 0; i < 1 << 24; ++i) {
        }
    _exit(0);
}

static void stop_neighbour(pid_t neighbour)
{
    (void)kill(neighbour, SIGKILL);
    (void)waitpid(neighbour, NULL, 0);
}

// A number that no rows took was meant for others, or is a mistake.
static void check_tiles(bench *b)
{
    char item[64];
    int64_t tile;
    for (int i = 0; b->options.tiles != NULL && options_item(b->options.tiles, i, item); ++i)
        if (options_read_number(item, 1, BENCH_MAX_TILE, &tile) && !b->has_timed[tile])
            bench_fail(b, "--tiles: tile %d takes no rows that were timed", (int)tile);
}

static void print_device(const bench *b)
{
    printf("%s (%s, %d %s), copies at %.4g GB/s, ", b->device.name, b->device.isa,
           (int)b->device.num_processors,
           b->backend == SPOPS_BACKEND_CUDA ? "multiprocessors" : "threads",
           1e-9 * b->copy_bytes_per_s);
    if (b->cache_bytes_per_s > 0.0) printf("L2 delivers %.4g GB/s, ", 1e-9 * b->cache_bytes_per_s);
    printf("commit %s\n", b->options.commit);
}

int bench_main(int argc, char **argv)
{
    bench b;
    memset(&b, 0, sizeof b);
    const char *slash = strrchr(argv[0], '/');
    const option_set *o = bench_options_of(slash != NULL ? slash + 1 : argv[0]);
    const options_result result = read_options(o, argc, argv, &b.options);
    if (result != OPTIONS_READ) return result == OPTIONS_HELPED ? 0 : 2;
    for (int s = 0; given.list_suites && s < NUM_SUITES; ++s)
        puts(suites[s]->name);
    if (given.list_suites) return 0;
    note_command(&b, argc, argv);
    if (open_bench(&b)) {
        if (!b.options.json) print_device(&b);
        const pid_t neighbour = given.neighbour ? start_neighbour() : 0;
        if (neighbour < 0) bench_fail(&b, "no process for a neighbour: %s", strerror(errno));
        for (int s = 0; s < NUM_SUITES; ++s)
            if (bench_wants(b.options.suites, suites[s]->name)) suites[s]->run(&b);
        if (neighbour > 0) stop_neighbour(neighbour);
        check_tiles(&b);
    }
    progress_end();
    if (b.output != NULL && fclose(b.output) != 0)
        bench_fail(&b, "%s: %s", b.options.output, strerror(errno));
    spops_context_destroy(b.ctx);
    device_stream_destroy(b.backend, b.stream);
    return b.failed ? 1 : 0;
}
