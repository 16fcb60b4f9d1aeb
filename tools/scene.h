// SPDX-License-Identifier: Apache-2.0
// A street scene made from a seed, and rays cast into it. Frame: x forward, y left, z up, m; the
// vehicle that looks stands at the origin of the ground plane and is not part of the scene.
#ifndef SPOPS_TOOLS_SCENE_H
#define SPOPS_TOOLS_SCENE_H

#include <stdbool.h>
#include <stdint.h>

typedef enum scene_class {
    SCENE_SKY = 0,
    SCENE_ROAD = 1,
    SCENE_MARKING = 2,
    SCENE_PAVEMENT = 3,
    SCENE_GRASS = 4,
    SCENE_BUILDING = 5,
    SCENE_WALL = 6,
    SCENE_VEHICLE = 7,
    SCENE_POLE = 8,
    SCENE_TREE = 9,
    SCENE_PERSON = 10,
    SCENE_NUM_CLASSES = 11
} scene_class;

typedef struct scene_hit {
    double distance; // along the ray, in lengths of its direction; INFINITY for the sky
    scene_class what;
    float rgb[3]; // linear light, 0 to about 1; set where colours are asked for
} scene_hit;

// What a laser's pulse meets.
typedef struct scene_echo {
    double distance; // as of a hit
    scene_class what;
    double facing;      // cosine of the angle between the ray and the surface's normal, 0 to 1
    double reflectance; // share of the light that is sent back, 0 to 1
    bool leaves;        // some of the light goes further in
    bool glass;         // most of it goes through
} scene_echo;

typedef struct scene scene;

// NULL when there is no memory.
scene *scene_create(uint64_t seed);

// A street of the same kind that differs more from seed to seed: widths, kerbs, junction, traffic,
// people, and the place to look from, which is on the road and free.
scene *scene_create_varied(uint64_t seed);
// x, y (m) and heading (rad) of that place.
void scene_place(const scene *s, double place[3]);

void scene_destroy(scene *s);

int scene_num_objects(const scene *s);

// What the ray origin + t * direction, t > 0, meets first. Colours cost a shadow ray more. Any
// number of threads may cast at the same time.
scene_hit scene_cast(const scene *s, const double origin[3], const double direction[3],
                     bool colours);

// The same for a laser, without colours.
scene_echo scene_probe(const scene *s, const double origin[3], const double direction[3]);

// Lower-case name of a class, and the colour it has on maps (sRGB).
const char *scene_class_name(scene_class what);
const uint8_t *scene_class_colour(scene_class what);

#endif
