// SPDX-License-Identifier: Apache-2.0
// The one line of detail about a failed call.
#include "core/status.h"

#include <stdio.h>
#include <string.h>

#include "core/context.h"
#include "core/log.h"

static _Thread_local char thread_error[SPOPS_ERROR_BYTES];

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// A line of another call as one of the outer call: its name, and that of the argument it begins
// with. What no longer fits is cut.
static void name_outer(const spops_outer_call *outer, char *line)
{
    char own[SPOPS_ERROR_BYTES];
    const char *detail = strstr(line, ": "), *argument = "";

    if (detail == NULL) return;
    detail += 2;
    for (int i = 0; outer->names != NULL && outer->names[i][0] != NULL; ++i) {
        const size_t length = strlen(outer->names[i][0]);
        if (strncmp(detail, outer->names[i][0], length) != 0 || is_name(detail[length])) continue;
        detail += length;
        argument = outer->names[i][1];
        break;
    }
    snprintf(own, sizeof own, "%s: %s%s", outer->call, argument, detail);
    memcpy(line, own, strlen(own) + 1);
}

spops_status spops_fail(spops_context *ctx, spops_status status, const char *format, ...)
{
    char line[SPOPS_ERROR_BYTES]; // first here: an argument may be the message it replaces
    va_list arguments;

    va_start(arguments, format);
    if (vsnprintf(line, sizeof line, format, arguments) < 0) line[0] = '\0';
    va_end(arguments);
    // Names and compiler output come from outside; the detail stays one line.
    for (char *p = line; *p != '\0'; ++p) {
        if ((unsigned char)*p < 0x20 || *p == 0x7f) *p = ' ';
    }
    if (ctx != NULL && ctx->outer != NULL) name_outer(ctx->outer, line);
    memcpy(ctx != NULL ? ctx->error : thread_error, line, strlen(line) + 1);
    if (spops_log_is_on) spops_log_failure(status, line);
    return status;
}

const char *spops_last_error(const spops_context *ctx)
{
    return ctx != NULL ? ctx->error : thread_error;
}
