// SPDX-License-Identifier: Apache-2.0
#include "model/wire.h"

#include <string.h>

bool spops_span_is(spops_span s, const char *text)
{
    const size_t n = strlen(text);
    return spops_span_bytes(s) == n && memcmp(s.at, text, n) == 0;
}

bool spops_span_same(spops_span a, spops_span b)
{
    const size_t n = spops_span_bytes(a);
    return spops_span_bytes(b) == n && (n == 0 || memcmp(a.at, b.at, n) == 0);
}

bool spops_wire_varint(spops_span *bytes, uint64_t *value)
{
    *value = 0;
    for (unsigned shift = 0; shift < 64 && bytes->at < bytes->end; shift += 7) {
        const uint8_t byte = *bytes->at++;
        if (shift == 63 && byte > 1) return false; // more than 64 bits
        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return true;
    }
    return false;
}

static uint64_t little_endian(const uint8_t *at, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; ++i)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

spops_wire_result spops_wire_next(spops_span *message, spops_wire_field *field, const char **what)
{
    uint64_t tag, length = 0;

    field->at = message->at;
    if (message->at == message->end) return SPOPS_WIRE_END;
    *what = "a tag that does not end";
    if (!spops_wire_varint(message, &tag)) return SPOPS_WIRE_DAMAGED;
    *what = "a field whose number is 0 or more than 2^29 - 1";
    if (tag >> 3 == 0 || tag >> 3 > 0x1fffffff) return SPOPS_WIRE_DAMAGED;
    field->number = (uint32_t)(tag >> 3);
    field->value = 0;
    switch (tag & 7) {
    case SPOPS_WIRE_VARINT:
        field->type = SPOPS_WIRE_VARINT;
        field->bytes = (spops_span){message->at, message->at};
        *what = "a number that does not end";
        return spops_wire_varint(message, &field->value) ? SPOPS_WIRE_FIELD : SPOPS_WIRE_DAMAGED;
    case SPOPS_WIRE_FIXED64:
        field->type = SPOPS_WIRE_FIXED64;
        length = 8;
        break;
    case SPOPS_WIRE_FIXED32:
        field->type = SPOPS_WIRE_FIXED32;
        length = 4;
        break;
    case SPOPS_WIRE_BYTES:
        field->type = SPOPS_WIRE_BYTES;
        *what = "a length that does not end";
        if (!spops_wire_varint(message, &length)) return SPOPS_WIRE_DAMAGED;
        break;
    default:
        *what = "a field of a type that there is not"; // groups, 6 and 7
        return SPOPS_WIRE_DAMAGED;
    }
    *what = "a field that is longer than what it is in";
    if (length > spops_span_bytes(*message)) return SPOPS_WIRE_DAMAGED;
    field->bytes = (spops_span){message->at, message->at + length};
    if (field->type != SPOPS_WIRE_BYTES) field->value = little_endian(message->at, (size_t)length);
    message->at += length;
    return SPOPS_WIRE_FIELD;
}
