// Options, the context, and the walk over the suites.
#include "bench/bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/bench_report.h"
#include "tools/settings.h"

#ifndef SPOPS_COMMIT
#define SPOPS_COMMIT "unknown"
#endif

#define ALL_SUITES "bev,segreduce,gather,maps"

const char *bench_usage(void)
{
    return "usage: bench [SUITE[,SUITE]] [options]\n"
           "  SUITE                bev, segreduce, gather, maps or all (default: all)\n"
           "  --backend NAME       auto, cpu or cuda (default: auto)\n"
           "  --threads N          CPU threads (default: all)\n"
           "  --maps LIST          bev: " SETTING_NAMES " or all (default: a,c,b)\n"
           "  --article            bev: 105k to 1280k at 80 columns, 209k also at 128 and 256\n"
           "  --streams N          bev: also N contexts at once, beside N runs in a row\n"
           "  --rig FILE           bev: a rig as JSON instead of the shipped one\n"
           "  --frame NAME         bev: ego or lidar instead of the map's own\n"
           "  --passes LIST        forward,backward; bev: also plan\n"
           "  --layouts LIST       bev, forward: channels last,first (default: last)\n"
           "  --shapes LIST        segreduce: uniform,powerlaw,huge\n"
           "  --all-ops            segreduce: every reduction, not only the sum\n"
           "  --cols LIST          row widths\n"
           "  --dtypes LIST        f32,f16,bf16; bev, forward: also f8e4m3,f8e5m2,nvfp4 features\n"
           "  --kernel NAME        bev: auto, lists or spans (auto)\n"
           "  --depth-dtype NAME   bev: beside 8- and 4-bit features, f16,f8e4m3,f8e5m2 (f16)\n"
           "  --out-dtype NAME     bev: likewise, f16,f32,f8e4m3,f8e5m2 (f16)\n"
           "  --accumulate NAME    bev: f32 or f16, what sums may be carried in (f32)\n"
           "  --modes LIST         hot,cold\n"
           "  --samples N          samples a measurement (default: 50, on the CPU 15)\n"
           "  --ablation           maps: search strategies, symmetry, output coordinates in "
           "stages\n"
           "  --no-baselines       only the library's own\n"
           "  --quick              small shapes, one width, few samples\n"
           "  --json               one JSON object a line instead of tables\n"
           "  --output FILE        JSON lines to FILE, besides what is printed\n"
           "  --commit TEXT        what to note as the commit\n";
}

static bool read_int(const char *text, int64_t *value)
{
    char *end;
    errno = 0;
    const long long parsed = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || parsed < 1 || parsed > 1 << 20) return false;
    *value = parsed;
    return true;
}

// Calls read for every item of a comma-separated list.
static bool read_list(const char *list, bool (*read)(const char *item, bench_options *o),
                      bench_options *o)
{
    char item[64];
    for (const char *p = list;; ++p) {
        const size_t length = strcspn(p, ",");
        if (length == 0 || length >= sizeof item) return false;
        memcpy(item, p, length);
        item[length] = '\0';
        if (!read(item, o)) return false;
        p += length;
        if (*p == '\0') return true;
    }
}

static bool read_cols(const char *item, bench_options *o)
{
    if (o->num_cols == BENCH_MAX_COLS || !read_int(item, &o->cols[o->num_cols]) ||
        o->cols[o->num_cols] > BENCH_MAX_WIDTH)
        return false;
    ++o->num_cols;
    return true;
}

// Any float dtype; f4e2m1 with its block scales is called nvfp4.
static bool find_dtype(const char *item, spops_dtype *found)
{
    for (int dtype = SPOPS_DTYPE_F32; dtype <= SPOPS_DTYPE_F4E2M1; ++dtype) {
        const char *name =
            dtype == SPOPS_DTYPE_F4E2M1 ? "nvfp4" : spops_dtype_name((spops_dtype)dtype);
        if (strcmp(item, name) != 0) continue;
        *found = (spops_dtype)dtype;
        return true;
    }
    return false;
}

static bool read_dtype(const char *item, bench_options *o)
{
    spops_dtype dtype;
    if (!find_dtype(item, &dtype)) return false;
    o->dtypes |= 1u << (unsigned)dtype;
    return true;
}

static bool read_mode(const char *item, bench_options *o)
{
    if (strcmp(item, "hot") == 0) return o->modes[BENCH_HOT] = true;
    if (strcmp(item, "cold") == 0) return o->modes[BENCH_COLD] = true;
    return false;
}

static bool known(const char *item, const char *names)
{
    return bench_wants(names, item);
}

static bool check_suite(const char *item, bench_options *o)
{
    (void)o;
    return known(item, ALL_SUITES ",all");
}

static bool check_map(const char *item, bench_options *o)
{
    (void)o;
    return known(item, SETTING_NAMES ",all");
}

static bool check_shape(const char *item, bench_options *o)
{
    (void)o;
    return known(item, "uniform,powerlaw,huge");
}

static bool check_pass(const char *item, bench_options *o)
{
    (void)o;
    return known(item, "forward,backward,plan");
}

static bool check_layout(const char *item, bench_options *o)
{
    (void)o;
    return known(item, "last,first");
}

static bool read_kernel(const char *text, bench_options *o)
{
    static const char *const names[] = {"auto", "lists", "spans"};
    for (int k = SPOPS_BEV_KERNEL_AUTO; k <= SPOPS_BEV_KERNEL_SPANS; ++k)
        if (strcmp(text, names[k]) == 0) {
            o->kernel = (spops_bev_kernel)k;
            return true;
        }
    return false;
}

static bool read_accumulate(const char *text, bench_options *o)
{
    o->accumulate = strcmp(text, "f16") == 0 ? SPOPS_ACCUMULATE_F16 : SPOPS_ACCUMULATE_F32;
    return known(text, "f32,f16");
}

static bool read_backend(const char *text, bench_options *o)
{
    if (strcmp(text, "auto") == 0)
        o->backend = SPOPS_BACKEND_AUTO;
    else if (strcmp(text, "cpu") == 0)
        o->backend = SPOPS_BACKEND_CPU;
    else if (strcmp(text, "cuda") == 0)
        o->backend = SPOPS_BACKEND_CUDA;
    else
        return false;
    return true;
}

// An option that takes a value; false if the value makes no sense. *is_option: whether there is
// one.
static bool read_value(const char *name, const char *value, bench_options *o, bool *is_option)
{
    int64_t number = 0;
    *is_option = true;
    if (strcmp(name, "--backend") == 0) return read_backend(value, o);
    if (strcmp(name, "--maps") == 0) return read_list(o->maps = value, check_map, o);
    if (strcmp(name, "--shapes") == 0) return read_list(o->shapes = value, check_shape, o);
    if (strcmp(name, "--passes") == 0) return read_list(o->passes = value, check_pass, o);
    if (strcmp(name, "--layouts") == 0) return read_list(o->layouts = value, check_layout, o);
    if (strcmp(name, "--cols") == 0) return read_list(value, read_cols, o);
    if (strcmp(name, "--dtypes") == 0) return read_list(value, read_dtype, o);
    if (strcmp(name, "--kernel") == 0) return read_kernel(value, o);
    if (strcmp(name, "--accumulate") == 0) return read_accumulate(value, o);
    if (strcmp(name, "--depth-dtype") == 0) return find_dtype(value, &o->depth_dtype);
    if (strcmp(name, "--out-dtype") == 0) return find_dtype(value, &o->out_dtype);
    if (strcmp(name, "--modes") == 0) return read_list(value, read_mode, o);
    if (strcmp(name, "--frame") == 0) return known(o->frame = value, "ego,lidar");
    if (strcmp(name, "--rig") == 0) return (o->rig = value) != NULL;
    if (strcmp(name, "--output") == 0) return (o->output = value) != NULL;
    if (strcmp(name, "--commit") == 0) return (o->commit = value) != NULL;
    if (strcmp(name, "--samples") == 0) {
        if (!read_int(value, &number)) return false;
        o->num_samples = (int)number;
        return true;
    }
    if (strcmp(name, "--streams") == 0) {
        if (!read_int(value, &number) || number > DEVICE_MAX_TOGETHER) return false;
        o->num_streams = (int)number;
        return true;
    }
    if (strcmp(name, "--threads") == 0) {
        if (!read_int(value, &number)) return false;
        o->num_threads = (int)number;
        return true;
    }
    *is_option = false;
    return false;
}

static bool read_switch(const char *name, bench_options *o)
{
    if (strcmp(name, "--all-ops") == 0) return o->all_ops = true;
    if (strcmp(name, "--article") == 0) return o->article = true;
    if (strcmp(name, "--ablation") == 0) return o->ablation = true;
    if (strcmp(name, "--quick") == 0) return o->quick = true;
    if (strcmp(name, "--json") == 0) return o->json = true;
    if (strcmp(name, "--no-baselines") == 0) {
        o->baselines = false;
        return true;
    }
    return false;
}

static bool read_options(int argc, char **argv, bench_options *o)
{
    memset(o, 0, sizeof *o);
    o->baselines = true;
    o->layouts = "last";
    o->depth_dtype = o->out_dtype = SPOPS_DTYPE_F16;
    o->commit = SPOPS_COMMIT;
    for (int i = 1; i < argc; ++i) {
        const char *arg = argv[i];
        bool is_option = false;
        if (strncmp(arg, "--", 2) != 0) {
            if (o->suites != NULL || !read_list(arg, check_suite, o)) {
                fprintf(stderr, "bench: there is no suite '%s'\n", arg);
                return false;
            }
            o->suites = arg;
            continue;
        }
        if (read_switch(arg, o)) continue;
        if (i + 1 < argc && read_value(arg, argv[i + 1], o, &is_option)) {
            ++i;
            continue;
        }
        if (is_option)
            fprintf(stderr, "bench: %s does not take '%s'\n", arg, argv[i + 1]);
        else
            fprintf(stderr, "bench: unknown option, or one without its value: %s\n", arg);
        return false;
    }
    if (o->suites == NULL || bench_wants(o->suites, "all")) o->suites = ALL_SUITES;
    if (!o->modes[BENCH_HOT] && !o->modes[BENCH_COLD])
        o->modes[BENCH_HOT] = o->modes[BENCH_COLD] = true;
    return true;
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
    for (int i = 1; i < argc; ++i)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(bench_usage(), stdout);
            return 0;
        }
    if (!read_options(argc, argv, &b.options)) {
        fputs(bench_usage(), stderr);
        return 2;
    }
    note_command(&b, argc, argv);
    if (open_bench(&b)) {
        if (!b.options.json) print_device(&b);
        if (bench_wants(b.options.suites, "bev")) bench_bev(&b);
        if (bench_wants(b.options.suites, "segreduce")) bench_segreduce(&b);
        if (bench_wants(b.options.suites, "gather")) bench_gather(&b);
        if (bench_wants(b.options.suites, "maps")) bench_maps(&b);
    }
    bench_progress("%s", "");
    if (b.output != NULL && fclose(b.output) != 0)
        bench_fail(&b, "%s: %s", b.options.output, strerror(errno));
    spops_context_destroy(b.ctx);
    device_stream_destroy(b.backend, b.stream);
    return b.failed ? 1 : 0;
}
