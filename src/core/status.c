// SPDX-License-Identifier: Apache-2.0
// The one line of detail about a failed call.
#include "core/status.h"

#include <stdio.h>
#include <string.h>

#include "core/context.h"

static _Thread_local char thread_error[SPOPS_ERROR_BYTES];

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
    memcpy(ctx != NULL ? ctx->error : thread_error, line, strlen(line) + 1);
    return status;
}

const char *spops_last_error(const spops_context *ctx)
{
    return ctx != NULL ? ctx->error : thread_error;
}
