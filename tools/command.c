// SPDX-License-Identifier: Apache-2.0
#include "tools/command.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "support/device.h"
#include "tools/rig_default.h"

// ---- Arguments --------------------------------------------------------------------------------

int command_status(options_result result)
{
    return result == OPTIONS_WRONG ? COMMAND_USAGE : COMMAND_OK;
}

int command_fail(const char *command, const char *format, ...)
{
    va_list args;
    progress_clear();
    va_start(args, format);
    fprintf(stderr, "%s: ", command);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return COMMAND_FAILED;
}

// ---- A context on a stream of its own ---------------------------------------------------------

bool session_open(const char *command, spops_backend_kind backend, session *out)
{
    spops_context_options options = spops_context_options_default();
    memset(out, 0, sizeof *out);
    out->backend = backend;
    if (backend == SPOPS_BACKEND_AUTO)
        out->backend =
            spops_has_cuda() && device_has_cuda() ? SPOPS_BACKEND_CUDA : SPOPS_BACKEND_CPU;
    // Asked for by name, a device that is not there is for the library to explain.
    if (out->backend == SPOPS_BACKEND_CUDA && device_has_cuda() &&
        !device_stream_create(out->backend, &out->stream)) {
        command_fail(command, "%s", device_error());
        return false;
    }
    options.backend = out->backend;
    options.stream = out->stream;
    if (spops_context_create(&options, &out->ctx) != SPOPS_STATUS_OK) {
        command_fail(command, "%s", spops_last_error(NULL));
        session_close(out);
        return false;
    }
    out->device.struct_size = sizeof out->device;
    if (spops_context_get_device_info(out->ctx, &out->device) != SPOPS_STATUS_OK) {
        command_fail(command, "%s", spops_last_error(out->ctx));
        session_close(out);
        return false;
    }
    return true;
}

void session_close(session *s)
{
    spops_context_destroy(s->ctx);
    if (s->stream != NULL) device_stream_destroy(s->backend, s->stream);
    s->ctx = NULL;
    s->stream = NULL;
}

void session_describe(const session *s, char *text, size_t bytes)
{
    snprintf(text, bytes, "%s, %s, %d %s", s->device.name, s->device.isa, s->device.num_processors,
             s->backend == SPOPS_BACKEND_CUDA ? "multiprocessors" : "threads");
}

bool command_rig(const char *command, const char *path, rig *out)
{
    char error[RIG_ERROR_BYTES];
    const bool ok = path != NULL ? rig_load(path, out, error, sizeof error)
                                 : rig_parse((const char *)rig_six_cameras_json,
                                             rig_six_cameras_json_bytes, out, error, sizeof error);
    if (!ok) command_fail(command, "%s", error);
    return ok;
}

// ---- Output -----------------------------------------------------------------------------------

const char *in_groups(int64_t value, char *text)
{
    char digits[COMMAND_NUMBER_BYTES];
    const int length = snprintf(digits, sizeof digits, "%lld", (long long)value);
    int at = 0;
    for (int i = 0; i < length; ++i) {
        if (i > 0 && (length - i) % 3 == 0 && digits[i - 1] != '-') text[at++] = ',';
        text[at++] = digits[i];
    }
    text[at] = '\0';
    return text;
}

const char *in_bytes(double value, char *text)
{
    static const char *const units[] = {"bytes", "kB", "MB", "GB", "TB"};
    int unit = 0;
    while (fabs(value) >= 1000.0 && unit < 4)
        value /= 1000.0, ++unit;
    snprintf(text, COMMAND_NUMBER_BYTES, unit == 0 ? "%.0f %s" : "%.3g %s", value, units[unit]);
    return text;
}

const char *in_time(double us, char *text)
{
    if (us < 1000.0)
        snprintf(text, COMMAND_NUMBER_BYTES, "%.3g us", us);
    else if (us < 1e6)
        snprintf(text, COMMAND_NUMBER_BYTES, "%.3g ms", us / 1e3);
    else
        snprintf(text, COMMAND_NUMBER_BYTES, us < 1e8 ? "%.3g s" : "%.0f s", us / 1e6);
    return text;
}

bool command_make_directory(const char *path)
{
    struct stat about;
    if (mkdir(path, 0777) == 0) return true;
    return errno == EEXIST && stat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

void command_print_json(json_t *line)
{
    if (line == NULL) return;
    json_dumpf(line, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(line);
}

bool command_save_json(const char *command, json_t *numbers, const char *directory,
                       const char *name, bool print)
{
    char path[4096];
    if (numbers == NULL) {
        command_fail(command, "no memory for %s", name);
        return false;
    }
    if (snprintf(path, sizeof path, "%s/%s", directory, name) >= (int)sizeof path ||
        json_dump_file(numbers, path, JSON_INDENT(2)) != 0) {
        command_fail(command, "%s: cannot be written", path);
        json_decref(numbers);
        return false;
    }
    if (print)
        command_print_json(numbers);
    else
        json_decref(numbers);
    return true;
}

double clock_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// ---- Elements ---------------------------------------------------------------------------------

void elements_encode(spops_dtype dtype, const float *from, int64_t count, void *to)
{
    if (dtype == SPOPS_DTYPE_F32) {
        memcpy(to, from, (size_t)count * sizeof *from);
        return;
    }
    uint16_t *out = to;
    for (int64_t i = 0; i < count; ++i)
        out[i] = dtype == SPOPS_DTYPE_F16 ? elements_f16_of_float(from[i])
                                          : elements_bf16_of_float(from[i]);
}

void elements_decode(spops_dtype dtype, const void *from, int64_t count, double *to)
{
    const float *wide = from;
    const uint16_t *narrow = from;
    for (int64_t i = 0; i < count; ++i)
        to[i] = dtype == SPOPS_DTYPE_F32   ? wide[i]
                : dtype == SPOPS_DTYPE_F16 ? elements_float_of_f16(narrow[i])
                                           : elements_float_of_bf16(narrow[i]);
}

double elements_sum_bound(spops_dtype dtype, int64_t num_terms, double magnitude, double sum)
{
    const double steps = ((double)num_terms + 1.0) * 0x1p-24;
    if (steps >= 1.0) return INFINITY;
    const double in_f32 = steps / (1.0 - steps) * magnitude + (double)num_terms * 0x1p-149;
    const double unit = dtype == SPOPS_DTYPE_F16    ? 0x1p-11
                        : dtype == SPOPS_DTYPE_BF16 ? 0x1p-8
                                                    : 0.0;
    const double least = dtype == SPOPS_DTYPE_F16    ? 0x1p-25
                         : dtype == SPOPS_DTYPE_BF16 ? 0x1p-134
                                                     : 0.0;
    return in_f32 + unit * (fabs(sum) + in_f32) + least;
}
