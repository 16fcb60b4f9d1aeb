// SPDX-License-Identifier: Apache-2.0
// The commands of `spops`, and what they share: arguments, an open context, progress, numbers in
// words.
#ifndef SPOPS_TOOLS_COMMAND_H
#define SPOPS_TOOLS_COMMAND_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "spops/spops.h"
#include "support/elements.h"
#include "support/options.h"
#include "support/terminal.h"
#include "tools/rig_json.h"

// Exit statuses.
#define COMMAND_OK     0
#define COMMAND_FAILED 1
#define COMMAND_USAGE  2

// argv[0] is the command's own name.
int command_info(int argc, char **argv);
int command_plan(int argc, char **argv);
int command_demo(int argc, char **argv);
int command_scan(int argc, char **argv);
int command_voxelize(int argc, char **argv);
int command_tune(int argc, char **argv);
int command_run(int argc, char **argv);
extern const option_set voxelize_options, tune_options, run_options;
extern const option_set info_options, plan_options, demo_options, scan_options;

// The whole tool; argv as main gets it.
int command_main(int argc, char **argv);

// ---- Arguments --------------------------------------------------------------------------------

// The options of a command are rows (support/options.h). Its run begins so:
//
//     const options_result result = options_read(&x_options, argc, argv);
//     if (result != OPTIONS_READ) return command_status(result);
int command_status(options_result result);

#define OPTION_DTYPE(to, otherwise)                                                                \
    {                                                                                              \
        "--dtype", "NAME",                                                                         \
            "of features, depths and output: f32, f16, bf16; f8e4m3, f8e5m2, nvfp4: of features, " \
            "the others being f16; default: " otherwise,                                           \
            "f32,f16,bf16,f8e4m3,f8e5m2,nvfp4", .dtype = (to)                                      \
    }

// "command: message" on stderr. Returns COMMAND_FAILED.
__attribute__((format(printf, 2, 3))) int command_fail(const char *command, const char *format,
                                                       ...);

// ---- A context on a stream of its own ---------------------------------------------------------

typedef struct session {
    spops_context *ctx;
    void *stream;
    spops_backend_kind backend;
    spops_device_info device;
} session;

// False with a message on stderr.
bool session_open(const char *command, spops_backend_kind backend, session *out);
void session_close(session *s);
// "AMD EPYC 9V74, avx512, 2 threads" or "NVIDIA H200, sm_90, 132 multiprocessors".
void session_describe(const session *s, char *text, size_t bytes);

// The rig of `path`, or the one that is built in where path is NULL. False with a message on
// stderr.
bool command_rig(const char *command, const char *path, rig *out);

// ---- Output -----------------------------------------------------------------------------------

// "1,656,117"; "12.3 MB"; "12.3 ms". text holds COMMAND_NUMBER_BYTES.
#define COMMAND_NUMBER_BYTES 32
const char *in_groups(int64_t value, char *text);
const char *in_bytes(double value, char *text);
const char *in_time(double us, char *text);

// Make a folder unless it is there; false with errno.
bool command_make_directory(const char *path);

// One line of JSON on stdout. Takes `line` over, which may be NULL.
void command_print_json(json_t *line);
// Write `numbers` into directory/name, and print them too if `print`. Takes them over; false with a
// message on stderr, also where they are NULL.
bool command_save_json(const char *command, json_t *numbers, const char *directory,
                       const char *name, bool print);

// Seconds of a monotonic clock.
double clock_s(void);

// ---- Elements ---------------------------------------------------------------------------------

// Round to dtype (f32, f16, bf16; to nearest, ties to even) and back.
void elements_encode(spops_dtype dtype, const float *from, int64_t count, void *to);
void elements_decode(spops_dtype dtype, const void *from, int64_t count, double *to);

// How far a sum of num_terms products, accumulated in f32 and rounded to dtype, may be from the
// exact one: every product and addition rounds once in f32, the result once in dtype.
double elements_sum_bound(spops_dtype dtype, int64_t num_terms, double magnitude, double sum);

#endif
