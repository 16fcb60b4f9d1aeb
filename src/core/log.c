// SPDX-License-Identifier: Apache-2.0
// Where lines of the log go: to the caller's function, or by SPOPS_LOG to standard error or a file.
#define _GNU_SOURCE // secure_getenv
#include "core/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/context.h"

bool spops_log_is_on;

static spops_log_sink log_sink;
static void *log_user;
static int log_file; // of SPOPS_LOG
static char refusal[160];
static _Thread_local int num_forgiving;

// ---- Where lines go -----------------------------------------------------------------------------

// One write a line, so that lines of several threads and processes do not mix.
static void write_to_file(void *user, const char *line)
{
    char text[SPOPS_LOG_LINE_BYTES + 8];
    const int length = snprintf(text, sizeof text, "spops: %s\n", line);
    ssize_t written;
    do {
        written = write(*(const int *)user, text, (size_t)length);
    } while (written < 0 && errno == EINTR);
}

void spops_log_set(spops_log_sink sink, void *user)
{
    log_sink = sink;
    log_user = user;
    spops_log_is_on = sink != NULL;
}

static void read_environment(void)
{
    static const char wanted[] = "calls";
    const char *text = secure_getenv("SPOPS_LOG");
    const size_t length = sizeof wanted - 1;

    if (text == NULL || text[0] == '\0') return;
    if (strncmp(text, wanted, length) != 0 || (text[length] != '\0' && text[length] != ':') ||
        (text[length] == ':' && text[length + 1] == '\0')) {
        snprintf(refusal, sizeof refusal, "\"%.40s\", expected calls or calls:FILE", text);
        return;
    }
    log_file = STDERR_FILENO;
    if (text[length] == ':')
        log_file = open(text + length + 1, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (log_file < 0)
        snprintf(refusal, sizeof refusal, "\"%.40s\", whose file cannot be written: %s", text,
                 strerror(errno));
    else if (!spops_log_is_on)
        spops_log_set(write_to_file, &log_file);
}

spops_status spops_log_open(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, read_environment);
    SPOPS_REQUIRE(NULL, refusal[0] == '\0', "context_create: environment variable SPOPS_LOG is %s",
                  refusal);
    return SPOPS_STATUS_OK;
}

// ---- Lines --------------------------------------------------------------------------------------

void spops_log_add(spops_log_line *line, const char *format, ...)
{
    va_list arguments;
    int length;

    va_start(arguments, format);
    length =
        vsnprintf(line->text + line->length, sizeof line->text - line->length, format, arguments);
    va_end(arguments);
    if (length < 0) return;
    line->length += (size_t)length;
    if (line->length >= sizeof line->text) line->length = sizeof line->text - 1;
}

void spops_log_write(const spops_log_line *line)
{
    const spops_log_sink sink = log_sink;
    if (sink != NULL) sink(log_user, line->text);
}

bool spops_log_is_own(const spops_context *ctx, const char *call)
{
    return ctx == NULL || ctx->outer == NULL || strcmp(ctx->outer->call, call) == 0;
}

void spops_log_call(const spops_context *ctx, const char *call)
{
    spops_log_line line = {0};
    if (!spops_log_is_own(ctx, call)) return;
    spops_log_add(&line, "%s", call);
    if (ctx != NULL) spops_log_add(&line, " ctx=%p", (const void *)ctx);
    spops_log_write(&line);
}

void spops_log_failure(spops_status status, const char *message)
{
    spops_log_line line = {0};
    if (!spops_log_is_on || num_forgiving > 0) return;
    spops_log_add(&line, "  %s: %s", spops_status_name(status), message);
    spops_log_write(&line);
}

void spops_log_forgive(int change)
{
    num_forgiving += change;
}
