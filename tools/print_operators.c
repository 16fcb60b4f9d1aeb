// SPDX-License-Identifier: Apache-2.0
// Prints the list of operators that the library has: as JSON, which is installed as spops.ops.json, or
// as the text that docs/operators.md holds.
#include <stdio.h>
#include <string.h>

#include "spops/call.h"

static void print_string(const char *name, const char *text, const char *end)
{
    printf("\"%s\": ", name);
    if (text == NULL) {
        printf("null%s", end);
        return;
    }
    putchar('"');
    for (; *text != '\0'; ++text) {
        if (*text == '"' || *text == '\\') putchar('\\');
        putchar(*text);
    }
    printf("\"%s", end);
}

static void print_argument(const spops_operator_argument *a, const char *end)
{
    static const char *const kinds[] = {"tensor", "plan", "int",    "float", "enum",
                                        "flags",  "ints", "floats", "comm"};

    printf("        {");
    print_string("name", a->name, ", ");
    print_string("kind", kinds[a->kind], ", ");
    print_string("type", a->type, ", ");
    printf("\"dims\": [");
    for (int i = 0; i < a->num_dims; ++i)
        printf("%s\"%s\"", i > 0 ? ", " : "", a->dims[i]);
    printf("], \"optional\": %s, ", a->is_optional ? "true" : "false");
    print_string("needs", a->needs, ", ");
    printf("\"dense\": %s, ", a->is_dense ? "true" : "false");
    print_string("may_be", a->may_be, ", ");
    printf("\"updated\": %s, ", a->is_updated ? "true" : "false");
    print_string("first", a->first, ", ");
    print_string("last", a->last, ", ");
    print_string("values", a->values, ", ");
    if (a->kind == SPOPS_ARGUMENT_FLOAT)
        printf("\"default\": %g, ", a->float_default);
    else
        printf("\"default\": %lld, ", (long long)a->int_default);
    printf("\"count\": %d}%s\n", (int)a->count, end);
}

static void print_group(const spops_operator *op, const char *name, int first, int count,
                        const char *end)
{
    printf("      \"%s\": [\n", name);
    for (int i = 0; i < count; ++i)
        print_argument(op->arguments[first + i], i + 1 < count ? "," : "");
    printf("      ]%s\n", end);
}

static void print_json(const spops_operator *op, const char *end)
{
    printf("    {\n      ");
    print_string("name", op->name, ",\n      ");
    print_string("function", op->function, ",\n      ");
    print_string("types", op->types, ",\n      ");
    print_string("gradient", op->gradient, ",\n      ");
    print_string("scratch", op->scratch, ",\n      ");
    printf("\"needs_handles\": %s,\n      ", op->needs_handles != 0 ? "true" : "false");
    print_string("doc", op->doc, ",\n");
    print_group(op, "inputs", 0, op->num_inputs, ",");
    print_group(op, "outputs", op->num_inputs, op->num_outputs, ",");
    print_group(op, "attributes", op->num_inputs + op->num_outputs, op->num_attributes, "");
    printf("    }%s\n", end);
}

static void print_line(const char *what, const char *text)
{
    if (*text != '\0') printf("    %-10s %s\n", what, text);
}

static void print_text(const spops_operator *op)
{
    printf("%s: %s\n", op->name, op->doc);
    print_line("calls", op->function);
    print_line("types", op->types);
    print_line("inputs", op->inputs);
    print_line("outputs", op->outputs);
    print_line("attributes", op->attributes);
    print_line("gradient", op->gradient);
    if (op->needs_handles != 0)
        print_line(
            "not in",
            "ONNX files, ONNX Runtime, TensorRT, XLA and JAX: its handles are this process's");
}

int main(int argc, char **argv)
{
    int32_t num;
    const spops_operator *const *ops = spops_operators(&num);
    const int json = argc > 1 && strcmp(argv[1], "json") == 0;

    if (argc < 2 || argc > 3 || (!json && strcmp(argv[1], "text") != 0)) {
        fprintf(stderr, "print_operators json | text [FILE]\n");
        return 2;
    }
    if (argc == 3 && freopen(argv[2], "w", stdout) == NULL) {
        perror(argv[2]);
        return 1;
    }
    if (json) printf("{\n  \"version\": \"%s\",\n  \"operators\": [\n", spops_version());
    for (int32_t i = 0; i < num; ++i) {
        if (json)
            print_json(ops[i], i + 1 < num ? "," : "");
        else
            print_text(ops[i]);
    }
    if (json) printf("  ]\n}\n");
    return ferror(stdout) != 0;
}
