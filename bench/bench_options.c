#include "bench/bench_options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_report.h"
#include "support/elements.h"

bool bench_wants(const char *list, const char *name)
{
    char item[64];
    if (list == NULL) return true;
    for (int i = 0; bench_item(list, i, item); ++i)
        if (strcmp(item, name) == 0) return true;
    return false;
}

bool bench_item(const char *list, int i, char item[64])
{
    for (; i > 0; --i) {
        list += strcspn(list, ",");
        if (*list == '\0') return false;
        ++list;
    }
    const size_t length = strcspn(list, ",");
    if (length == 0 || length >= 64) return false;
    memcpy(item, list, length);
    item[length] = '\0';
    return true;
}

bool bench_read_dtype(const char *item, spops_dtype *dtype)
{
    return elements_find(item, dtype);
}

bool bench_is_dtype(const char *item)
{
    spops_dtype dtype;
    return bench_read_dtype(item, &dtype);
}

bool bench_read_number(const char *item, int64_t most, int64_t *number)
{
    char *end;
    errno = 0;
    const long long parsed = strtoll(item, &end, 10);
    if (errno != 0 || end == item || *end != '\0' || parsed < 1 || parsed > most) return false;
    *number = parsed;
    return true;
}

bool bench_is_width(const char *item)
{
    int64_t width;
    return bench_read_number(item, BENCH_MAX_WIDTH, &width);
}

void bench_options_clear(const bench_option *options)
{
    for (const bench_option *o = options; o != NULL && o->name != NULL; ++o) {
        if (o->on != NULL) *o->on = false;
        if (o->text != NULL) *o->text = NULL;
        if (o->number != NULL) *o->number = 0;
    }
}

static bool accepts(const bench_option *o, const char *item)
{
    if (o->choices != NULL) return bench_wants(o->choices, item);
    return o->accepts == NULL || o->accepts(item);
}

static bool accepts_value(const bench_option *o, const char *value)
{
    char item[64];
    int count = 0;
    if (strcmp(o->value, "LIST") != 0) return accepts(o, value);
    size_t length = 0;
    for (; bench_item(value, count, item) && accepts(o, item); ++count)
        length += strlen(item) + 1;
    return length == strlen(value) + 1; // every item was one
}

static bool take_value(const bench_option *o, const char *value)
{
    int64_t number = 0;
    if (o->text != NULL) {
        *o->text = value;
        return accepts_value(o, value);
    }
    if (!bench_read_number(value, o->most, &number)) return false;
    *o->number = (int)number;
    return true;
}

int bench_options_read(const bench_option *options, const char *program, int argc, char **argv)
{
    for (const bench_option *o = options; o != NULL && o->name != NULL; ++o) {
        if (strcmp(argv[0], o->name) != 0) continue;
        if (o->value == NULL) {
            *o->on = true;
            return 1;
        }
        if (argc < 2) {
            fprintf(stderr, "%s: %s needs a value (%s)\n", program, o->name, o->value);
            return -1;
        }
        if (take_value(o, argv[1])) return 2;
        fprintf(stderr, "%s: %s does not take '%s'", program, o->name, argv[1]);
        if (o->choices != NULL) fprintf(stderr, ", expected %s", o->choices);
        if (o->number != NULL) fprintf(stderr, ", expected a number from 1 to %d", o->most);
        fputc('\n', stderr);
        return -1;
    }
    return 0;
}

void bench_options_help(const bench_option *options, const char *suite, FILE *f)
{
    for (const bench_option *o = options; o != NULL && o->name != NULL; ++o) {
        char left[64];
        snprintf(left, sizeof left, "%s%s%s", o->name, o->value != NULL ? " " : "",
                 o->value != NULL ? o->value : "");
        fprintf(f, "  %-20s %s%s%s\n", left, suite != NULL ? suite : "", suite != NULL ? ": " : "",
                o->help);
    }
}
