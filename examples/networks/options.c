// SPDX-License-Identifier: Apache-2.0
/* Options are rows of a list: a name, a kind, and where the value goes. */
#include "networks/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

network_options network_options_default(void)
{
    const network_options o = {.beams = 8,
                               .rays = 120,
                               .ceilings = {790, 4200, 0},
                               .dtype = "",
                               .backend = SPOPS_BACKEND_AUTO};
    return o;
}

/* 1 where a number is out of range, or is not whole and should be. */
static int read_number(const option_row *row, const char *text)
{
    char *end = NULL;
    const double value = strtod(text, &end);

    if (end == text || *end != 0 || !(value >= 0) || value > 1e9) return 1;
    if (value == 0 && row->kind != OPTION_COUNT) return 1;
    if (row->kind == OPTION_NUMBER) {
        *(double *)row->value = value;
        return 0;
    }
    if (row->kind == OPTION_COUNT)
        *(int64_t *)row->value = (int64_t)value;
    else
        *(int *)row->value = (int)value;
    return (double)(int64_t)value != value;
}

/* The value of an option, or 1 where it is none. */
static int read_value(const option_row *row, const char *text)
{
    switch (row->kind) {
    case OPTION_FLAG: *(int *)row->value = 1; return 0;
    case OPTION_TEXT: *(const char **)row->value = text; return text[0] == 0;
    default: return read_number(row, text);
    }
}

static int read_ceilings(const char *text, ceilings *c)
{
    return sscanf(text, "%lf,%lf", &c->tflops, &c->gbs) != 2 || !(c->tflops > 0 && c->gbs > 0);
}

static int add_file(network_options *o, const char *name)
{
    if (o->num_files == OPTIONS_FILES || name[0] == 0) return 1;
    o->files[o->num_files++] = name;
    return 0;
}

static const option_row *find_row(const option_row *rows, int num, const char *name)
{
    for (int i = 0; i < num; ++i)
        if (strcmp(rows[i].name, name) == 0) return &rows[i];
    return NULL;
}

int network_options_read(int argc, char **argv, network_options *o, const option_row *own,
                         int num_own)
{
    const char *ceilings = NULL, *backend = "", *scan = NULL;
    const option_row common[] = {
        {"--beams", OPTION_INT, &o->beams},      {"--rays", OPTION_INT, &o->rays},
        {"--dtype", OPTION_TEXT, &o->dtype},     {"--backend", OPTION_TEXT, &backend},
        {"--weights", OPTION_TEXT, &o->weights}, {"--generate", OPTION_TEXT, &o->generate},
        {"--output", OPTION_TEXT, &o->output},   {"--json", OPTION_TEXT, &o->output},
        {"--check", OPTION_FLAG, &o->check},     {"--layers", OPTION_FLAG, &o->layers},
        {"--ceilings", OPTION_TEXT, &ceilings},  {"--scan", OPTION_TEXT, &scan},
    };

    for (int i = 1; i < argc; ++i) {
        const option_row *row = find_row(own, num_own, argv[i]);
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (row == NULL) row = find_row(common, (int)(sizeof common / sizeof *common), argv[i]);
        if (row == NULL && (argv[i][0] == '-' || add_file(o, argv[i]))) return 1;
        if (row == NULL) continue;
        if (read_value(row, value)) return 1;
        i += row->kind != OPTION_FLAG;
        if (row->value == &scan && add_file(o, scan)) return 1;
    }
    if (strcmp(backend, "cpu") == 0) o->backend = SPOPS_BACKEND_CPU;
    if (strcmp(backend, "cuda") == 0) o->backend = SPOPS_BACKEND_CUDA;
    return (backend[0] != 0 && o->backend == SPOPS_BACKEND_AUTO) ||
           (ceilings != NULL && read_ceilings(ceilings, &o->ceilings)) ||
           (o->dtype[0] != 0 && strcmp(o->dtype, "f16") != 0 && strcmp(o->dtype, "f32") != 0);
}

spops_dtype network_options_dtype(const network_options *o, const device *d)
{
    const int f32 =
        o->dtype[0] == 0 ? d->backend == SPOPS_BACKEND_CPU : strcmp(o->dtype, "f32") == 0;
    return f32 ? SPOPS_DTYPE_F32 : SPOPS_DTYPE_F16;
}

int network_options_output(const network_options *o, FILE **file)
{
    *file = o->output == NULL ? NULL : fopen(o->output, "a");
    if (*file != NULL || o->output == NULL) return 0;
    fprintf(stderr, "%s: cannot be written\n", o->output);
    return 1;
}

const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}
