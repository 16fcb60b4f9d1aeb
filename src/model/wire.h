// SPDX-License-Identifier: Apache-2.0
// The wire format of protocol buffers, read: tags, varints, fixed numbers and byte strings. A message is
// a range of bytes that is never left; nothing is allocated.
#ifndef SPOPS_MODEL_WIRE_H
#define SPOPS_MODEL_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Bytes of a message, or of a string.
typedef struct spops_span {
    const uint8_t *at, *end;
} spops_span;

typedef enum spops_wire_type {
    SPOPS_WIRE_VARINT = 0,
    SPOPS_WIRE_FIXED64 = 1,
    SPOPS_WIRE_BYTES = 2,
    SPOPS_WIRE_FIXED32 = 5
} spops_wire_type;

typedef struct spops_wire_field {
    uint32_t number;
    spops_wire_type type;
    uint64_t value;    // of a number, its bits
    spops_span bytes;  // of BYTES; of fixed numbers where they stand
    const uint8_t *at; // where the field begins
} spops_wire_field;

typedef enum spops_wire_result {
    SPOPS_WIRE_END = 0,
    SPOPS_WIRE_FIELD = 1,
    SPOPS_WIRE_DAMAGED = 2 // `what` of spops_wire_next says how; field->at says where
} spops_wire_result;

// The next field of the message, which is taken off it.
spops_wire_result spops_wire_next(spops_span *message, spops_wire_field *field, const char **what);

// The next varint of at most 64 bits; false: there is none.
bool spops_wire_varint(spops_span *bytes, uint64_t *value);

static inline size_t spops_span_bytes(spops_span s)
{
    return (size_t)(s.end - s.at);
}

bool spops_span_is(spops_span s, const char *text);
bool spops_span_same(spops_span a, spops_span b);

#endif
