// SPDX-License-Identifier: Apache-2.0
// A small set of addresses. What no longer fits is not kept: the set may then say no where yes would
// be right, so it serves to leave out work that may be done twice.
#ifndef SPOPS_CORE_ADDRESS_SET_H
#define SPOPS_CORE_ADDRESS_SET_H

#include <stdbool.h>
#include <stdint.h>

#define SPOPS_ADDRESS_SET_SLOTS 512 // a power of two
#define SPOPS_ADDRESS_SET_MOST  (SPOPS_ADDRESS_SET_SLOTS / 4 * 3)

// Empty where it is zero.
typedef struct spops_address_set {
    const void *slots[SPOPS_ADDRESS_SET_SLOTS]; // open addressing; NULL: free
    int32_t num;
} spops_address_set;

// The slot that holds the address, or that it belongs in.
static inline uint32_t spops_address_set_slot(const spops_address_set *set, const void *address)
{
    const uint64_t mixed = (uint64_t)(uintptr_t)address * UINT64_C(0x9e3779b97f4a7c15);
    uint32_t at = (uint32_t)(mixed >> 32) % SPOPS_ADDRESS_SET_SLOTS;
    while (set->slots[at] != 0 && set->slots[at] != address)
        at = (at + 1) % SPOPS_ADDRESS_SET_SLOTS;
    return at;
}

static inline bool spops_address_set_has(const spops_address_set *set, const void *address)
{
    return set->slots[spops_address_set_slot(set, address)] == address;
}

// address is not NULL.
static inline void spops_address_set_add(spops_address_set *set, const void *address)
{
    const uint32_t at = spops_address_set_slot(set, address);
    if (set->slots[at] == address || set->num == SPOPS_ADDRESS_SET_MOST) return;
    set->slots[at] = address;
    ++set->num;
}

#endif
