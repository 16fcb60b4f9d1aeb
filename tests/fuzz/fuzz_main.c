// SPDX-License-Identifier: Apache-2.0
// Runs a harness without libFuzzer: every file given, and `-n N` damaged versions of each (numbers
// and bytes changed, pieces cut off or repeated), the same ones on every run.
#include "fuzz.h"

static uint32_t next_random(uint64_t *state)
{
    // An LCG's high bits: Knuth's MMIX constants.
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33);
}

static size_t damage(uint64_t *state, uint8_t *data, size_t bytes)
{
    static const int32_t hostile[] = {0, 1, -1, 2, INT32_MAX, INT32_MIN, INT32_MAX - 1, 65536, 255};
    const uint32_t num_changes = 1 + next_random(state) % 4;
    for (uint32_t i = 0; i < num_changes && bytes > 0; ++i) {
        const size_t at = next_random(state) % bytes;
        switch (next_random(state) % 5) {
        case 0: data[at] ^= (uint8_t)(1u << next_random(state) % 8); break;
        case 1: data[at] = (uint8_t)next_random(state); break;
        case 2: bytes = at; break;
        case 3: // a number takes a hostile value
            if (at / 4 * 4 + 4 <= bytes)
                memcpy(data + at / 4 * 4,
                       &hostile[next_random(state) % (sizeof hostile / sizeof *hostile)], 4);
            break;
        default: // a number takes another's
            if (at / 4 * 4 + 4 <= bytes)
                memmove(data + at / 4 * 4, data + next_random(state) % (bytes / 4) * 4, 4);
            break;
        }
    }
    return bytes;
}

static uint8_t *read_file(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    uint8_t *data = NULL;
    long size;
    if (file == NULL) return NULL;
    if (fseek(file, 0, SEEK_END) == 0 && (size = ftell(file)) >= 0 &&
        fseek(file, 0, SEEK_SET) == 0) {
        *bytes = (size_t)size;
        data = malloc(*bytes > 0 ? *bytes : 1);
        if (data != NULL && fread(data, 1, *bytes, file) != *bytes) {
            free(data);
            data = NULL;
        }
    }
    fclose(file);
    return data;
}

int main(int argc, char **argv)
{
    long num_damaged = 0, num_runs = 0;
    for (int i = 1; i < argc; ++i) {
        uint64_t state = 1;
        size_t bytes = 0;
        if (strcmp(argv[i], "-n") == 0 && i + 1 < argc) {
            num_damaged = strtol(argv[++i], NULL, 10);
            continue;
        }
        uint8_t *data = read_file(argv[i], &bytes);
        uint8_t *copy = malloc(bytes > 0 ? bytes : 1);
        if (data == NULL || copy == NULL) {
            fprintf(stderr, "cannot read %s\n", argv[i]);
            return 1;
        }
        LLVMFuzzerTestOneInput(data, bytes);
        for (long n = 0; n < num_damaged; ++n) {
            memcpy(copy, data, bytes);
            LLVMFuzzerTestOneInput(copy, damage(&state, copy, bytes));
        }
        num_runs += 1 + num_damaged;
        free(data);
        free(copy);
    }
    printf("%ld inputs\n", num_runs);
    return num_runs > 0 ? 0 : 1;
}
