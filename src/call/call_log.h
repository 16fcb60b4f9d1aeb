// SPDX-License-Identifier: Apache-2.0
// The line that an operator's call has in the log of calls: its tensors, plans, and what differs from
// the defaults of its row.
#ifndef SPOPS_CALL_LOG_H
#define SPOPS_CALL_LOG_H

#include "call/call_check.h"
#include "core/log.h"

// As spops_check_call has them, before anything is checked; slots of the row as far as they have values.
void spops_log_row(const spops_context *ctx, const char *call, const spops_row *row,
                   const void *const *args, const spops_call_number *attributes,
                   const int64_t *slots);

#endif
