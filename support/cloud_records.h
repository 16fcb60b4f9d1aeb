// SPDX-License-Identifier: Apache-2.0
// Files of points as records: what the headers of .pcd, .ply and .las files say, and numbers by field.
#ifndef SPOPS_SUPPORT_CLOUD_RECORDS_H
#define SPOPS_SUPPORT_CLOUD_RECORDS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CLOUD_MOST_FIELDS = 64, CLOUD_NAME_BYTES = 32 };

typedef enum cloud_type {
    CLOUD_I8,
    CLOUD_U8,
    CLOUD_I16,
    CLOUD_U16,
    CLOUD_I32,
    CLOUD_U32,
    CLOUD_I64,
    CLOUD_U64,
    CLOUD_F32,
    CLOUD_F64
} cloud_type;
int64_t cloud_type_bytes(cloud_type type);

typedef struct cloud_field {
    char name[CLOUD_NAME_BYTES]; // empty: padding
    cloud_type type;
    int64_t offset;      // in a record; of planar records, of the field's first number
    double scale, shift; // value = scale * number + shift
} cloud_field;

typedef struct cloud_records {
    const char *format; // static
    int64_t num;
    int num_fields;
    cloud_field fields[CLOUD_MOST_FIELDS];
    int64_t record_bytes;
    bool planar; // each field of all points together
    bool big_endian;
    bool nan_is_missing; // points whose x, y or z is NaN stand for none
    const unsigned char *data;
    unsigned char *owned; // what data is in where it was made here, to be freed; else NULL
} cloud_records;

// A file in memory, followed by a byte 0, and where a line about a fault goes.
typedef struct cloud_source {
    const char *name;
    const unsigned char *data;
    size_t bytes;
    char *error;
    size_t error_bytes;
} cloud_source;

// "NAME: ..."; false.
__attribute__((format(printf, 2, 3))) bool cloud_fail(const cloud_source *s, const char *format,
                                                      ...);

// By the header. False with a line in the source's error.
bool cloud_records_of_pcd(const cloud_source *s, cloud_records *out);
bool cloud_records_of_ply(const cloud_source *s, cloud_records *out);
bool cloud_records_of_las(const cloud_source *s, cloud_records *out);

// Field f of point i.
double cloud_number(const cloud_records *r, int64_t i, const cloud_field *field);

#endif
