// SPDX-License-Identifier: Apache-2.0
// What `spops plan` says of a cloud: how near rows of a bucket lie to each other, by hash.
#ifndef SPOPS_TOOLS_PLAN_CLOUD_H
#define SPOPS_TOOLS_PLAN_CLOUD_H

#include "tools/command.h"

// Print it, and draw the groups into the PNG file `out` (NULL: do not); COMMAND_OK or COMMAND_FAILED.
// Groups have at most bucket_rows rows.
int plan_cloud(const char *command, const char *file, const session *s, int64_t bucket_rows,
               const char *out, bool as_json);

#endif
