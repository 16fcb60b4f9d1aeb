// SPDX-License-Identifier: Apache-2.0
// The scene: what stands in the street (make_*), what a ray meets (objects in a grid of cells that
// a ray walks through), and what colour that has (surfaces, sun, sky).
#include "tools/scene.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "support/random.h"

#define PI            3.14159265358979323846
#define GRID_CELL_M   4.0
#define GRID_CELLS    56
#define GRID_LOWER_M  (-0.5 * GRID_CELLS * GRID_CELL_M)
#define OBJECT_PLANES 6
#define RAY_OFFSET_M  1e-3
#define HAZE_M        420.0

#define CENTRE_LINE_M 1.75
#define BLOCK_END_M   100.0

// The street runs along x, the side street along y; the vehicle that looks is in the lane y = 0.
typedef struct layout {
    double road_right_m, road_left_m; // edges of the street
    double side_back_m, side_front_m; // of the side street
    double pavement_m, corner_m;      // width, radius
    double setback_m;                 // of the houses, behind grass
    double kerb_m;                    // how much higher pavements and grass lie than the road
} layout;

static double side_middle_m(const layout *l)
{
    return 0.5 * (l->side_back_m + l->side_front_m);
}

// From a road's edge to the houses.
static double beside_m(const layout *l)
{
    return l->pavement_m + l->setback_m;
}

static const layout usual_layout = {-7.65, 11.15, 19.0, 29.0, 4.0, 4.0, 0.0, 0.0};

typedef enum shape { SHAPE_HULL, SHAPE_CYLINDER_Z, SHAPE_CYLINDER_Y, SHAPE_ELLIPSOID } shape;

typedef enum surface {
    SURFACE_PLAIN,
    SURFACE_PAINT,
    SURFACE_GLASS,
    SURFACE_FACADE,
    SURFACE_BRICKS,
    SURFACE_LEAVES,
    SURFACE_LIGHT
} surface;

// An object in its own frame: turned by yaw about z, its centre at the origin. A hull is a box of
// half sizes `half` whose sides lean inwards by slope (metres per metre of height) towards the top.
typedef struct object {
    shape shape;
    surface surface;
    scene_class what;
    double centre[3];
    double cos_yaw, sin_yaw;
    double half[3];  // cylinder: radius, half length, -; ellipsoid: radii
    double slope[4]; // of the sides +x, -x, +y, -y
    float rgb[3];
    float seed; // makes equal objects look different
} object;

struct scene {
    uint64_t seed;
    layout lay;
    double place[3]; // of the one who looks: x, y, yaw
    int num_objects, max_objects;
    object *objects;
    object spare; // written where there is no memory; scene_create then fails
    bool out_of_memory;
    int32_t *cell_begin; // [GRID_CELLS * GRID_CELLS + 1] into cell_objects
    int32_t *cell_objects;
    double *cell_top_m;
    double sun[3];
};

static const char *const class_names[SCENE_NUM_CLASSES] = {
    "sky",  "road",    "marking", "pavement", "grass",  "building",
    "wall", "vehicle", "pole",    "tree",     "person",
};

static const uint8_t class_colours[SCENE_NUM_CLASSES][3] = {
    {120, 170, 220}, {104, 104, 124}, {250, 250, 245}, {206, 170, 196},
    {150, 196, 110}, {214, 150, 92},  {160, 92, 66},   {62, 130, 246},
    {250, 210, 60},  {44, 130, 62},   {240, 60, 80},
};

const char *scene_class_name(scene_class what)
{
    return what >= 0 && what < SCENE_NUM_CLASSES ? class_names[what] : "?";
}

const uint8_t *scene_class_colour(scene_class what)
{
    return class_colours[what >= 0 && what < SCENE_NUM_CLASSES ? what : SCENE_SKY];
}

// ---- Random numbers and noise -----------------------------------------------------------------

static uint64_t mix64(uint64_t z)
{
    return random_mix(z + RANDOM_STEP);
}

typedef struct dice {
    uint64_t state;
} dice;

static double roll(dice *d, double from, double to)
{
    d->state = mix64(d->state);
    return from + (to - from) * (double)(d->state >> 11) * 0x1p-53;
}

static int roll_int(dice *d, int count)
{
    const int i = (int)roll(d, 0.0, count);
    return i < count ? i : count - 1;
}

static double lattice(int64_t x, int64_t y)
{
    const uint64_t h = mix64((uint64_t)x * 0x8da6b343u ^ mix64((uint64_t)y));
    return (double)(h >> 11) * 0x1p-53;
}

// Smooth noise, 0 to 1, of wavelength 1.
static double noise(double x, double y)
{
    const double fx = floor(x), fy = floor(y);
    const int64_t ix = (int64_t)fx, iy = (int64_t)fy;
    double u = x - fx, v = y - fy;
    u = u * u * (3.0 - 2.0 * u);
    v = v * v * (3.0 - 2.0 * v);
    const double low = lattice(ix, iy) * (1.0 - u) + lattice(ix + 1, iy) * u;
    const double high = lattice(ix, iy + 1) * (1.0 - u) + lattice(ix + 1, iy + 1) * u;
    return low * (1.0 - v) + high * v;
}

static double noise_octaves(double x, double y, int octaves)
{
    double sum = 0.0, weight = 0.5, total = 0.0;
    for (int i = 0; i < octaves; ++i) {
        sum += weight * noise(x, y);
        total += weight;
        x = 2.03 * x + 17.1, y = 2.03 * y - 9.7, weight *= 0.5;
    }
    return sum / total;
}

// ---- What stands in the street ----------------------------------------------------------------

static object *add(scene *s, shape form, surface skin, scene_class what, double x, double y,
                   double z, double yaw_rad, double hx, double hy, double hz, const float rgb[3])
{
    if (s->num_objects == s->max_objects) {
        const int grown = s->max_objects == 0 ? 512 : 2 * s->max_objects;
        object *objects = realloc(s->objects, (size_t)grown * sizeof *objects);
        if (objects == NULL) {
            s->out_of_memory = true;
            return &s->spare;
        }
        s->objects = objects;
        s->max_objects = grown;
    }
    object *o = &s->objects[s->num_objects++];
    memset(o, 0, sizeof *o);
    o->shape = form, o->surface = skin, o->what = what;
    o->centre[0] = x, o->centre[1] = y, o->centre[2] = z;
    o->cos_yaw = cos(yaw_rad), o->sin_yaw = sin(yaw_rad);
    o->half[0] = hx, o->half[1] = hy, o->half[2] = hz;
    memcpy(o->rgb, rgb, sizeof o->rgb);
    o->seed = (float)(mix64((uint64_t)s->num_objects ^ s->seed) >> 40) * 0x1p-24f;
    return o;
}

// A part of something at (x, y) with heading yaw: its place is given along, across and up.
static object *add_part(scene *s, shape form, surface skin, scene_class what, const double at[3],
                        double along, double across, double up, double hx, double hy, double hz,
                        const float rgb[3])
{
    const double c = cos(at[2]), n = sin(at[2]);
    return add(s, form, skin, what, at[0] + along * c - across * n, at[1] + along * n + across * c,
               up, at[2], hx, hy, hz, rgb);
}

static const float black[3] = {0.02f, 0.02f, 0.022f};
static const float dark_glass[3] = {0.03f, 0.04f, 0.05f};
static const float steel[3] = {0.22f, 0.23f, 0.24f};
static const float bark[3] = {0.11f, 0.075f, 0.05f};
static const float tail_light[3] = {0.75f, 0.02f, 0.02f};
static const float head_light[3] = {0.95f, 0.93f, 0.8f};

static void make_wheels(scene *s, const double at[3], double along_front, double along_back,
                        double across, double radius)
{
    static const float rim[3] = {0.35f, 0.36f, 0.38f};
    for (int i = 0; i < 4; ++i) {
        const double along = i < 2 ? along_front : along_back, side = i % 2 == 0 ? 1.0 : -1.0;
        add_part(s, SHAPE_CYLINDER_Y, SURFACE_PLAIN, SCENE_VEHICLE, at, along, side * across,
                 radius, radius, 0.11, 0.0, black);
        add_part(s, SHAPE_CYLINDER_Y, SURFACE_PLAIN, SCENE_VEHICLE, at, along, side * across,
                 radius, 0.58 * radius, 0.12, 0.0, rim);
    }
}

static void make_lights(scene *s, const double at[3], double half_length, double across, double up,
                        double size)
{
    for (int i = 0; i < 2; ++i) {
        const double side = i == 0 ? across : -across;
        add_part(s, SHAPE_HULL, SURFACE_LIGHT, SCENE_VEHICLE, at, half_length - 0.05, side, up,
                 0.07, size, 0.6 * size, head_light);
        add_part(s, SHAPE_HULL, SURFACE_LIGHT, SCENE_VEHICLE, at, 0.05 - half_length, side,
                 up + 0.06, 0.07, size, 0.7 * size, tail_light);
    }
}

static void make_car(scene *s, dice *d, double x, double y, double yaw_rad)
{
    static const float paints[][3] = {
        {0.55f, 0.03f, 0.03f},  {0.03f, 0.09f, 0.34f}, {0.62f, 0.63f, 0.64f},
        {0.05f, 0.05f, 0.055f}, {0.75f, 0.74f, 0.70f}, {0.02f, 0.20f, 0.16f},
        {0.55f, 0.30f, 0.03f},  {0.17f, 0.19f, 0.22f}, {0.10f, 0.30f, 0.52f},
    };
    const float *paint = paints[roll_int(d, (int)(sizeof paints / sizeof paints[0]))];
    const double at[3] = {x, y, yaw_rad};
    const bool tall = roll(d, 0.0, 1.0) < 0.3; // an estate or a van-like car
    const double half = roll(d, 2.05, 2.35), wide = roll(d, 0.88, 0.93);
    const double sill = 0.26, waist = tall ? 0.98 : 0.88, top = tall ? 1.72 : 1.46;

    object *o = add_part(s, SHAPE_HULL, SURFACE_PAINT, SCENE_VEHICLE, at, 0.0, 0.0,
                         0.5 * (sill + waist), half, wide, 0.5 * (waist - sill), paint);
    o->slope[0] = 0.22, o->slope[1] = 0.12, o->slope[2] = o->slope[3] = 0.10;
    const double glass_half = tall ? 0.80 * half : 0.62 * half,
                 glass_at = tall ? -0.16 * half : -0.1 * half;
    o = add_part(s, SHAPE_HULL, SURFACE_GLASS, SCENE_VEHICLE, at, glass_at, 0.0,
                 0.5 * (waist + top), glass_half, wide - 0.07, 0.5 * (top - waist), dark_glass);
    o->slope[0] = 0.85, o->slope[1] = tall ? 0.15 : 0.6, o->slope[2] = o->slope[3] = 0.30;
    const double inset = (top - waist) * 0.96;
    const double roof_front = glass_at + glass_half - 0.85 * inset;
    const double roof_back = glass_at - glass_half + (tall ? 0.15 : 0.6) * inset;
    add_part(s, SHAPE_HULL, SURFACE_PAINT, SCENE_VEHICLE, at, 0.5 * (roof_front + roof_back), 0.0,
             top, 0.5 * (roof_front - roof_back), wide - 0.07 - 0.30 * inset + 0.01, 0.035, paint);
    add_part(s, SHAPE_HULL, SURFACE_PLAIN, SCENE_VEHICLE, at, 0.0, 0.0, 0.33, half + 0.04,
             wide - 0.06, 0.09, black);
    make_lights(s, at, half, 0.62, 0.66, 0.16);
    make_wheels(s, at, 0.62 * half, -0.60 * half, wide - 0.10, 0.32);
}

static void make_bus(scene *s, double x, double y, double yaw_rad)
{
    static const float paint[3] = {0.66f, 0.10f, 0.05f}, band[3] = {0.75f, 0.72f, 0.62f};
    const double at[3] = {x, y, yaw_rad};
    add_part(s, SHAPE_HULL, SURFACE_PAINT, SCENE_VEHICLE, at, 0.0, 0.0, 1.70, 5.6, 1.25, 1.35,
             paint);
    add_part(s, SHAPE_HULL, SURFACE_GLASS, SCENE_VEHICLE, at, 0.0, 0.0, 1.95, 5.62, 1.27, 0.48,
             dark_glass);
    add_part(s, SHAPE_HULL, SURFACE_PLAIN, SCENE_VEHICLE, at, 0.0, 0.0, 2.62, 5.61, 1.26, 0.10,
             band);
    add_part(s, SHAPE_HULL, SURFACE_PLAIN, SCENE_VEHICLE, at, -0.5, 0.0, 3.12, 2.0, 0.8, 0.12,
             band);
    make_lights(s, at, 5.6, 0.9, 0.75, 0.18);
    make_wheels(s, at, 3.4, -3.0, 1.17, 0.48);
}

static void make_person(scene *s, dice *d, double x, double y)
{
    static const float coats[][3] = {
        {0.50f, 0.06f, 0.08f}, {0.06f, 0.12f, 0.30f}, {0.55f, 0.42f, 0.08f},
        {0.10f, 0.25f, 0.14f}, {0.45f, 0.20f, 0.40f},
    };
    static const float trousers[3] = {0.05f, 0.055f, 0.08f}, skin[3] = {0.55f, 0.34f, 0.24f};
    const float *coat = coats[roll_int(d, (int)(sizeof coats / sizeof coats[0]))];
    const double at[3] = {x, y, roll(d, 0.0, 2.0 * PI)}, size = roll(d, 0.92, 1.06);
    for (int i = 0; i < 2; ++i)
        add_part(s, SHAPE_CYLINDER_Z, SURFACE_PLAIN, SCENE_PERSON, at, i == 0 ? 0.12 : -0.12,
                 i == 0 ? 0.08 : -0.08, 0.42 * size, 0.09, 0.42 * size, 0.0, trousers);
    add_part(s, SHAPE_ELLIPSOID, SURFACE_PLAIN, SCENE_PERSON, at, 0.0, 0.0, 1.12 * size, 0.14, 0.21,
             0.40 * size, coat);
    add_part(s, SHAPE_ELLIPSOID, SURFACE_PLAIN, SCENE_PERSON, at, 0.0, 0.0, 1.62 * size, 0.11, 0.10,
             0.14, skin);
}

static void make_tree(scene *s, dice *d, double x, double y)
{
    const double height = roll(d, 4.2, 5.8), spread = roll(d, 1.3, 1.9);
    const double at[3] = {x, y, 0.0};
    const float green[3] = {(float)roll(d, 0.05, 0.12), (float)roll(d, 0.17, 0.26),
                            (float)roll(d, 0.03, 0.06)};
    add_part(s, SHAPE_CYLINDER_Z, SURFACE_PLAIN, SCENE_TREE, at, 0.0, 0.0, 0.4 * height, 0.15,
             0.4 * height, 0.0, bark);
    add_part(s, SHAPE_ELLIPSOID, SURFACE_LEAVES, SCENE_TREE, at, 0.0, 0.0, height, 0.85 * spread,
             0.85 * spread, 0.9 * spread, green);
    for (int i = 0; i < 5; ++i) {
        const double angle = (i + roll(d, -0.25, 0.25)) * 2.0 * PI / 5.0, out = 0.55 * spread;
        const double r = spread * roll(d, 0.48, 0.68);
        add_part(s, SHAPE_ELLIPSOID, SURFACE_LEAVES, SCENE_TREE, at, out * cos(angle),
                 out * sin(angle), height + spread * roll(d, -0.5, 0.3), r, r, 0.85 * r, green);
    }
}

static void make_lamp(scene *s, double x, double y, double yaw_rad)
{
    const double at[3] = {x, y, yaw_rad};
    add_part(s, SHAPE_CYLINDER_Z, SURFACE_PLAIN, SCENE_POLE, at, 0.0, 0.0, 3.5, 0.09, 3.5, 0.0,
             steel);
    add_part(s, SHAPE_HULL, SURFACE_PLAIN, SCENE_POLE, at, 0.9, 0.0, 7.0, 0.95, 0.05, 0.05, steel);
    add_part(s, SHAPE_HULL, SURFACE_LIGHT, SCENE_POLE, at, 1.7, 0.0, 6.95, 0.35, 0.12, 0.06,
             head_light);
}

static void make_traffic_light(scene *s, double x, double y, double yaw_rad, int lit)
{
    static const float lamps[3][3] = {
        {0.9f, 0.03f, 0.02f}, {0.9f, 0.5f, 0.02f}, {0.02f, 0.7f, 0.2f}};
    static const float off[3] = {0.03f, 0.03f, 0.03f};
    const double at[3] = {x, y, yaw_rad};
    add_part(s, SHAPE_CYLINDER_Z, SURFACE_PLAIN, SCENE_POLE, at, 0.0, 0.0, 1.7, 0.08, 1.7, 0.0,
             steel);
    add_part(s, SHAPE_HULL, SURFACE_PLAIN, SCENE_POLE, at, 0.1, 0.0, 3.0, 0.14, 0.18, 0.5, black);
    for (int i = 0; i < 3; ++i)
        add_part(s, SHAPE_ELLIPSOID, SURFACE_LIGHT, SCENE_POLE, at, 0.24, 0.0, 3.3 - 0.3 * i, 0.05,
                 0.11, 0.11, i == lit ? lamps[i] : off);
}

static void make_sign(scene *s, double x, double y, double yaw_rad)
{
    static const float blue[3] = {0.02f, 0.12f, 0.5f};
    const double at[3] = {x, y, yaw_rad};
    add_part(s, SHAPE_CYLINDER_Z, SURFACE_PLAIN, SCENE_POLE, at, 0.0, 0.0, 1.2, 0.04, 1.2, 0.0,
             steel);
    add_part(s, SHAPE_HULL, SURFACE_PLAIN, SCENE_POLE, at, 0.05, 0.0, 2.2, 0.02, 0.32, 0.32, blue);
}

static void make_building(scene *s, dice *d, double x0, double y0, double x1, double y1)
{
    static const float walls[][3] = {
        {0.46f, 0.30f, 0.20f}, {0.55f, 0.46f, 0.33f}, {0.36f, 0.17f, 0.12f}, {0.50f, 0.50f, 0.47f},
        {0.60f, 0.52f, 0.40f}, {0.34f, 0.38f, 0.42f}, {0.52f, 0.34f, 0.28f},
    };
    static const float trim[3] = {0.55f, 0.53f, 0.5f};
    static const float roofs[][3] = {
        {0.17f, 0.16f, 0.16f}, {0.30f, 0.13f, 0.09f}, {0.20f, 0.21f, 0.23f}};
    const float *roof = roofs[roll_int(d, (int)(sizeof roofs / sizeof roofs[0]))];
    const float *wall = walls[roll_int(d, (int)(sizeof walls / sizeof walls[0]))];
    const double height = 3.2 * (2 + roll_int(d, 4)) + 1.2;
    const double x = 0.5 * (x0 + x1), y = 0.5 * (y0 + y1), hx = 0.5 * (x1 - x0),
                 hy = 0.5 * (y1 - y0);
    add(s, SHAPE_HULL, SURFACE_FACADE, SCENE_BUILDING, x, y, 0.5 * height, 0.0, hx, hy,
        0.5 * height, wall);
    add(s, SHAPE_HULL, SURFACE_PLAIN, SCENE_BUILDING, x, y, height + 0.1, 0.0, hx + 0.15, hy + 0.15,
        0.2, trim);
    add(s, SHAPE_HULL, SURFACE_PLAIN, SCENE_BUILDING, x, y, height + 0.2, 0.0, hx - 0.35, hy - 0.35,
        0.2, roof);
    for (int i = 0; i < 2; ++i) // what stands on roofs
        add(s, SHAPE_HULL, SURFACE_PLAIN, SCENE_BUILDING, x + roll(d, -0.6, 0.6) * hx,
            y + roll(d, -0.6, 0.6) * hy, height + 0.8, 0.0, roll(d, 0.4, 1.2), roll(d, 0.4, 1.2),
            0.6, wall);
    add(s, SHAPE_HULL, SURFACE_PLAIN, SCENE_BUILDING, x, y, 3.35, 0.0, hx + 0.08, hy + 0.08, 0.12,
        trim);
}

// Houses one after the other along one side of a street. along_x: the row runs along x, its front
// at `front`, houses towards `side` (1 or -1); else along y.
static void make_row(scene *s, dice *d, bool along_x, double from, double to, double front,
                     double side)
{
    static const float bricks[3] = {0.34f, 0.16f, 0.11f}, hedge[3] = {0.05f, 0.17f, 0.04f};
    bool garden = true; // no two gardens side by side, none at a corner
    while (to - from > 6.0) {
        double end = from + roll(d, 8.0, 17.0);
        if (to - end < 7.0) end = to;
        const double depth = roll(d, 10.0, 14.0), back = front + side * depth;
        garden = !garden && end < to && roll(d, 0.0, 1.0) < 0.45;
        if (garden) { // behind a wall or a hedge
            const double middle = 0.5 * (from + end), half = 0.5 * (end - from);
            const double wall = front + side * 0.2;
            const bool green = roll(d, 0.0, 1.0) < 0.4;
            add(s, SHAPE_HULL, green ? SURFACE_LEAVES : SURFACE_BRICKS,
                green ? SCENE_TREE : SCENE_WALL, along_x ? middle : wall, along_x ? wall : middle,
                green ? 0.7 : 0.9, 0.0, along_x ? half : 0.2, along_x ? 0.2 : half,
                green ? 0.7 : 0.9, green ? hedge : bricks);
            for (int i = 0; i < 2; ++i) {
                const double a = roll(d, from + 2.0, end - 2.0),
                             b = front + side * roll(d, 3.0, 9.0);
                make_tree(s, d, along_x ? a : b, along_x ? b : a);
            }
        } else {
            const double near_side = front + side * (roll(d, 0.0, 1.0) < 0.3 ? 1.5 : 0.0);
            const double low = near_side < back ? near_side : back;
            const double high = near_side < back ? back : near_side;
            if (along_x)
                make_building(s, d, from, low, end, high);
            else
                make_building(s, d, low, from, high, end);
        }
        from = end;
    }
}

static bool in_junction(const layout *l, double x, double margin)
{
    return x > l->side_back_m - margin && x < l->side_front_m + margin;
}

// All that the street has whatever the traffic: houses, a park, trees, lamps, parked cars.
static void make_blocks(scene *s, dice *d)
{
    const layout *l = &s->lay;
    const double left = l->road_left_m + beside_m(l), right = l->road_right_m - beside_m(l);
    const double back = l->side_back_m - beside_m(l), front = l->side_front_m + beside_m(l);
    static const float bricks[3] = {0.42f, 0.20f, 0.13f};

    make_row(s, d, true, -BLOCK_END_M, back, left, 1.0);
    make_row(s, d, true, front, BLOCK_END_M, left, 1.0);
    make_row(s, d, true, front, BLOCK_END_M, right, -1.0);
    make_row(s, d, true, -14.0, back, right, -1.0);
    make_row(s, d, false, left + 14.5, BLOCK_END_M, back, -1.0);
    make_row(s, d, false, left + 14.5, BLOCK_END_M, front, 1.0);
    make_row(s, d, false, -BLOCK_END_M, right - 14.5, back, -1.0);
    make_row(s, d, false, -BLOCK_END_M, right - 14.5, front, 1.0);

    // A park behind a low wall, on the right behind the vehicle.
    add(s, SHAPE_HULL, SURFACE_BRICKS, SCENE_WALL, -38.0, right - 0.2, 0.55, 0.0, 22.0, 0.18, 0.55,
        bricks);
    add(s, SHAPE_HULL, SURFACE_BRICKS, SCENE_WALL, -77.0, right - 0.2, 0.55, 0.0, 13.0, 0.18, 0.55,
        bricks);
    for (int i = 0; i < 26; ++i)
        make_tree(s, d, roll(d, -90.0, -17.0), right - roll(d, 3.0, 40.0));

    // Along the kerbs: trees and lamps by turns, cars parked in their bays.
    for (int side = 0; side < 2; ++side) {
        const double kerb = side == 0 ? l->road_left_m : l->road_right_m,
                     out = side == 0 ? 1.0 : -1.0;
        int i = 0;
        for (double x = -88.0 + 4.0 * side; x < 92.0; x += 9.0, ++i) {
            if (in_junction(l, x, 6.5)) continue;
            if (i % 3 == 1)
                make_lamp(s, x, kerb + out * 0.7, side == 0 ? -0.5 * PI : 0.5 * PI);
            else
                make_tree(s, d, x + roll(d, -0.6, 0.6), kerb + out * 1.0);
        }
        for (double x = -87.0; x < 90.0; x += 6.0)
            if (!in_junction(l, x, 9.5) && !(x > -5.0 && x < 8.0) && roll(d, 0.0, 1.0) < 0.66)
                make_car(s, d, x + roll(d, -0.5, 0.5), kerb - out * (1.22 + roll(d, -0.12, 0.12)),
                         (side == 0 ? PI : 0.0) + roll(d, -0.03, 0.03));
    }

    make_traffic_light(s, l->side_front_m + 5.6, l->road_left_m + 0.6, 0.0, 2);
    make_traffic_light(s, l->side_front_m + 0.8, l->road_right_m - 4.6, -0.5 * PI, 0);
    make_traffic_light(s, l->side_back_m - 0.8, l->road_left_m + 4.6, 0.5 * PI, 0);
}

// Around a vehicle in the lane y = 0, at x = 0.
static void make_usual_traffic(scene *s, dice *d)
{
    const layout *l = &s->lay;
    make_car(s, d, 10.9, -3.5, 0.01);
    make_car(s, d, 44.0, 0.1, -0.01);
    make_car(s, d, -12.5, -0.1, 0.0);
    make_car(s, d, -24.0, -3.4, 0.0);
    make_car(s, d, 52.5, -3.6, 0.0);
    make_car(s, d, -9.0, 3.4, PI + 0.01);
    make_car(s, d, 38.5, 3.5, PI);
    make_car(s, d, 37.5, 7.0, PI);
    make_car(s, d, -38.0, 3.5, PI);
    make_bus(s, -19.5, 7.0, PI);
    make_car(s, d, 26.4, -17.0, 0.5 * PI);
    make_car(s, d, 26.5, -24.0, 0.5 * PI + 0.02);
    make_car(s, d, 21.6, 20.0, -0.5 * PI);
    make_car(s, d, 23.8, 5.4, PI - 0.9);

    make_traffic_light(s, 13.6, l->road_right_m - 0.6, PI, 2);
    make_sign(s, 4.0, l->road_right_m - 0.5, PI);
    make_sign(s, -7.0, l->road_left_m + 0.5, 0.0);
    make_person(s, d, 24.6, -10.6);
    make_person(s, d, 21.4, -10.2);
    make_person(s, d, 22.9, 13.9);
    for (int i = 0; i < 18; ++i) {
        const double x = roll(d, -50.0, 60.0);
        const double off = roll(d, 1.8, l->pavement_m - 0.5);
        if (!in_junction(l, x, 1.0))
            make_person(s, d, x, i % 2 == 0 ? l->road_left_m + off : l->road_right_m - off);
    }
}

// ---- Streets that differ more: other widths, other traffic, another place to look from ------------

static void make_truck(scene *s, dice *d, double x, double y, double yaw_rad)
{
    static const float cargo[][3] = {
        {0.62f, 0.62f, 0.60f}, {0.10f, 0.22f, 0.42f}, {0.55f, 0.42f, 0.10f}};
    static const float cab[3] = {0.45f, 0.46f, 0.48f};
    const float *paint = cargo[roll_int(d, (int)(sizeof cargo / sizeof cargo[0]))];
    const double at[3] = {x, y, yaw_rad}, half = roll(d, 2.6, 3.8), top = roll(d, 2.6, 3.6);
    const double wide = 1.12, front = half;
    add_part(s, SHAPE_HULL, SURFACE_PAINT, SCENE_VEHICLE, at, -1.0, 0.0, 0.5 * (0.9 + top),
             half - 1.0, wide, 0.5 * (top - 0.9), paint);
    object *o = add_part(s, SHAPE_HULL, SURFACE_PAINT, SCENE_VEHICLE, at, front - 0.95, 0.0, 1.35,
                         0.95, wide - 0.05, 0.95, cab);
    o->slope[0] = 0.15;
    add_part(s, SHAPE_HULL, SURFACE_GLASS, SCENE_VEHICLE, at, front - 0.9, 0.0, 1.75, 0.86,
             wide - 0.03, 0.35, dark_glass);
    make_lights(s, at, half, 0.8, 0.75, 0.15);
    make_wheels(s, at, half - 1.1, -half + 1.3, wide - 0.1, 0.45);
}

static void make_vehicle(scene *s, dice *d, double x, double y, double yaw_rad)
{
    const double kind = roll(d, 0.0, 1.0);
    if (kind < 0.78)
        make_car(s, d, x, y, yaw_rad);
    else if (kind < 0.92)
        make_truck(s, d, x, y, yaw_rad);
    else
        make_bus(s, x, y, yaw_rad);
}

// Vehicles along a lane, from the dice, with room for the one who looks.
static void fill_lane(scene *s, dice *d, bool along_x, double lane, double yaw_rad)
{
    const double density = roll(d, 10.0, 60.0); // metres of road to a vehicle, at most
    for (double at = -95.0 + roll(d, 0.0, 20.0); at < 95.0; at += roll(d, 14.0, 14.0 + density)) {
        const double side = lane + roll(d, -0.3, 0.3), turn = yaw_rad + roll(d, -0.04, 0.04);
        const double x = along_x ? at : side, y = along_x ? side : at;
        // Both streets' traffic must not meet in the junction.
        const bool crossing = along_x
                                  ? in_junction(&s->lay, x, 3.0)
                                  : y > s->lay.road_right_m - 3.0 && y < s->lay.road_left_m + 3.0;
        if (crossing && !along_x) continue;
        if (hypot(x - s->place[0], y - s->place[1]) < 9.5) continue;
        make_vehicle(s, d, x, y, turn);
    }
}

static void make_varied_people(scene *s, dice *d)
{
    const layout *l = &s->lay;
    const int groups = 14 + roll_int(d, 22);
    for (int i = 0; i < groups; ++i) {
        const bool along_x = roll(d, 0.0, 1.0) < 0.75;
        const double along = roll(d, -80.0, 80.0);
        // On a pavement, or now and then on the road.
        const double off =
            roll(d, 0.0, 1.0) < 0.85 ? roll(d, 0.6, l->pavement_m - 0.4) : -roll(d, 0.4, 5.0);
        const bool first = roll(d, 0.0, 1.0) < 0.5;
        const double across = along_x ? (first ? l->road_left_m + off : l->road_right_m - off)
                                      : (first ? l->side_front_m + off : l->side_back_m - off);
        const int people = 1 + roll_int(d, 3);
        for (int k = 0; k < people; ++k) {
            const double a = along + 0.9 * k + roll(d, -0.2, 0.2), b = across + roll(d, -0.4, 0.4);
            const double x = along_x ? a : b, y = along_x ? b : a;
            if (hypot(x - s->place[0], y - s->place[1]) > 4.0) make_person(s, d, x, y);
        }
    }
}

static void make_varied_signs(scene *s, dice *d)
{
    const layout *l = &s->lay;
    for (int i = 0; i < 16; ++i) {
        const double x = roll(d, -85.0, 85.0), yaw = roll(d, 0.0, 1.0) < 0.5 ? 0.0 : PI;
        const double y = roll(d, 0.0, 1.0) < 0.5 ? l->road_left_m + 0.5 : l->road_right_m - 0.5;
        if (in_junction(l, x, 3.0)) continue;
        if (i % 4 == 0)
            make_traffic_light(s, x, y, yaw, i % 3);
        else
            make_sign(s, x, y, yaw);
    }
}

// Walls and hedges between the pavement and what is in front of the houses.
static void make_front_walls(scene *s, dice *d)
{
    static const float bricks[3] = {0.38f, 0.18f, 0.12f}, hedge[3] = {0.05f, 0.17f, 0.04f};
    const layout *l = &s->lay;
    if (l->setback_m < 1.0) return;
    for (int side = 0; side < 2; ++side) {
        const double y = side == 0 ? l->road_left_m + l->pavement_m + 0.3
                                   : l->road_right_m - l->pavement_m - 0.3;
        for (double x = -95.0 + roll(d, 0.0, 20.0); x < 85.0;) {
            const double half = roll(d, 2.0, 8.0), high = roll(d, 0.25, 0.9);
            const bool green = roll(d, 0.0, 1.0) < 0.3;
            if (!in_junction(l, x + half, half + beside_m(l) + 0.5))
                add(s, SHAPE_HULL, green ? SURFACE_LEAVES : SURFACE_BRICKS,
                    green ? SCENE_TREE : SCENE_WALL, x + half, y, high, 0.0, half, 0.18, high,
                    green ? hedge : bricks);
            x += 2.0 * half + roll(d, 2.0, 25.0);
        }
    }
}

static void roll_layout(dice *d, layout *l)
{
    l->road_right_m = roll(d, -8.2, -5.6);
    l->road_left_m = roll(d, 9.1, 11.8);
    l->side_back_m = roll(d, 13.0, 24.0);
    l->side_front_m = l->side_back_m + roll(d, 7.0, 13.0);
    l->pavement_m = roll(d, 2.4, 5.5);
    l->corner_m = l->pavement_m;
    l->setback_m = roll(d, 0.0, 1.0) < 0.35 ? 0.0 : roll(d, 1.0, 5.0);
    l->kerb_m = roll(d, 0.10, 0.16);
}

static void roll_place(scene *s, dice *d)
{
    const layout *l = &s->lay;
    if (roll(d, 0.0, 1.0) < 0.7) {
        const int lane = roll_int(d, 4);
        s->place[0] = roll(d, -60.0, 60.0);
        s->place[1] = -3.5 + 3.5 * lane + roll(d, -0.3, 0.3);
        s->place[2] = (lane < 2 ? 0.0 : PI) + roll(d, -0.1, 0.1);
    } else {
        const bool back = roll(d, 0.0, 1.0) < 0.5;
        const double quarter = 0.25 * (l->side_front_m - l->side_back_m);
        s->place[0] = side_middle_m(l) + (back ? -quarter : quarter) + roll(d, -0.3, 0.3);
        s->place[1] = roll(d, -50.0, 50.0);
        s->place[2] = (back ? -0.5 : 0.5) * PI + roll(d, -0.1, 0.1);
    }
}

static void make_varied_traffic(scene *s, dice *d)
{
    const double quarter = 0.25 * (s->lay.side_front_m - s->lay.side_back_m);
    for (int lane = 0; lane < 4; ++lane)
        fill_lane(s, d, true, -3.5 + 3.5 * lane, lane < 2 ? 0.0 : PI);
    fill_lane(s, d, false, side_middle_m(&s->lay) - quarter, -0.5 * PI);
    fill_lane(s, d, false, side_middle_m(&s->lay) + quarter, 0.5 * PI);
    make_front_walls(s, d);
    make_varied_signs(s, d);
    make_varied_people(s, d);
}

// ---- The grid that rays walk through ----------------------------------------------------------

static void object_bounds(const object *o, double reach[2], double *top)
{
    double hx = o->half[0], hy = o->half[1], hz = o->half[2];
    if (o->shape == SHAPE_CYLINDER_Z) hy = o->half[0], hz = o->half[1];
    if (o->shape == SHAPE_CYLINDER_Y) hz = o->half[0];
    reach[0] = fabs(o->cos_yaw) * hx + fabs(o->sin_yaw) * hy;
    reach[1] = fabs(o->sin_yaw) * hx + fabs(o->cos_yaw) * hy;
    *top = o->centre[2] + hz;
}

static int grid_index(double m)
{
    const double i = floor((m - GRID_LOWER_M) / GRID_CELL_M);
    return i < 0.0 ? 0 : i > GRID_CELLS - 1 ? GRID_CELLS - 1 : (int)i;
}

static bool fill_grid(scene *s)
{
    const int num_cells = GRID_CELLS * GRID_CELLS;
    s->cell_begin = calloc((size_t)num_cells + 1, sizeof *s->cell_begin);
    s->cell_top_m = calloc((size_t)num_cells, sizeof *s->cell_top_m);
    if (s->cell_begin == NULL || s->cell_top_m == NULL) return false;
    for (int pass = 0; pass < 2;
         ++pass) { // count, then place (cell_begin[c] moves to the cell's end)
        for (int i = 0; i < s->num_objects; ++i) {
            const object *o = &s->objects[i];
            double reach[2], top;
            object_bounds(o, reach, &top);
            const int x0 = grid_index(o->centre[0] - reach[0]),
                      x1 = grid_index(o->centre[0] + reach[0]);
            const int y0 = grid_index(o->centre[1] - reach[1]),
                      y1 = grid_index(o->centre[1] + reach[1]);
            for (int y = y0; y <= y1; ++y)
                for (int x = x0; x <= x1; ++x) {
                    const int cell = y * GRID_CELLS + x;
                    if (pass == 1) {
                        s->cell_objects[s->cell_begin[cell]++] = i;
                        continue;
                    }
                    s->cell_begin[cell + 1]++;
                    if (top > s->cell_top_m[cell]) s->cell_top_m[cell] = top;
                }
        }
        if (pass == 1) break;
        for (int c = 0; c < num_cells; ++c)
            s->cell_begin[c + 1] += s->cell_begin[c];
        s->cell_objects = calloc((size_t)s->cell_begin[num_cells] + 1, sizeof *s->cell_objects);
        if (s->cell_objects == NULL) return false;
    }
    for (int c = num_cells; c > 0; --c)
        s->cell_begin[c] = s->cell_begin[c - 1];
    s->cell_begin[0] = 0;
    return true;
}

static scene *create(uint64_t seed, bool varied)
{
    scene *s = calloc(1, sizeof *s);
    if (s == NULL) return NULL;
    s->seed = seed;
    s->lay = usual_layout;
    const double azimuth = 2.72, elevation = 0.92;
    s->sun[0] = cos(azimuth) * cos(elevation);
    s->sun[1] = sin(azimuth) * cos(elevation);
    s->sun[2] = sin(elevation);
    dice d = {mix64(seed)};
    if (varied) {
        roll_layout(&d, &s->lay);
        roll_place(s, &d);
    }
    make_blocks(s, &d);
    if (varied)
        make_varied_traffic(s, &d);
    else
        make_usual_traffic(s, &d);
    if (s->out_of_memory || !fill_grid(s)) {
        scene_destroy(s);
        return NULL;
    }
    return s;
}

scene *scene_create(uint64_t seed)
{
    return create(seed, false);
}

scene *scene_create_varied(uint64_t seed)
{
    return create(seed, true);
}

void scene_place(const scene *s, double place[3])
{
    memcpy(place, s->place, sizeof s->place);
}

void scene_destroy(scene *s)
{
    if (s == NULL) return;
    free(s->objects);
    free(s->cell_begin);
    free(s->cell_objects);
    free(s->cell_top_m);
    free(s);
}

int scene_num_objects(const scene *s)
{
    return s->num_objects;
}

// ---- Rays and objects -------------------------------------------------------------------------

// Where a ray enters an object, after t = RAY_OFFSET_M and before *t; the normal is the object's
// own.
static bool enter_hull(const object *o, const double p[3], const double v[3], double *t,
                       double normal[3])
{
    double enter = -INFINITY, leave = INFINITY;
    double best[3] = {0.0, 0.0, 1.0};
    for (int i = 0; i < OBJECT_PLANES; ++i) {
        const int axis = i / 2;
        const double sign = i % 2 == 0 ? 1.0 : -1.0;
        const double lean = i < 4 ? o->slope[i] : 0.0;
        // inside: n . p <= limit
        const double limit = o->half[axis] - (axis < 2 ? lean * o->half[2] : 0.0);
        const double height = sign * p[axis] + lean * p[2] - limit;
        const double speed = sign * v[axis] + lean * v[2];
        if (speed == 0.0) {
            if (height > 0.0) return false;
            continue;
        }
        const double at = -height / speed;
        if (speed < 0.0) {
            if (at > enter) {
                enter = at;
                best[0] = best[1] = 0.0, best[2] = lean;
                best[axis] = sign;
            }
        } else if (at < leave) {
            leave = at;
        }
        if (enter > leave) return false;
    }
    if (enter < RAY_OFFSET_M || enter >= *t) return false;
    *t = enter;
    const double length = sqrt(best[0] * best[0] + best[1] * best[1] + best[2] * best[2]);
    for (int i = 0; i < 3; ++i)
        normal[i] = best[i] / length;
    return true;
}

// axis: 2 or 1, the axis of the cylinder.
static bool enter_cylinder(const object *o, int axis, const double p[3], const double v[3],
                           double *t, double normal[3])
{
    const int a = 0, b = axis == 2 ? 1 : 2;
    const double radius = o->half[0], half = o->half[1];
    const double qa = v[a] * v[a] + v[b] * v[b], qb = p[a] * v[a] + p[b] * v[b];
    const double qc = p[a] * p[a] + p[b] * p[b] - radius * radius;
    const double disc = qb * qb - qa * qc;
    bool hit = false;
    if (qa > 0.0 && disc >= 0.0) {
        const double at = (-qb - sqrt(disc)) / qa;
        if (at >= RAY_OFFSET_M && at < *t && fabs(p[axis] + at * v[axis]) <= half) {
            *t = at;
            normal[axis] = 0.0;
            normal[a] = (p[a] + at * v[a]) / radius;
            normal[b] = (p[b] + at * v[b]) / radius;
            hit = true;
        }
    }
    if (v[axis] != 0.0) {
        const double side = v[axis] < 0.0 ? 1.0 : -1.0;
        const double at = (side * half - p[axis]) / v[axis];
        const double pa = p[a] + at * v[a], pb = p[b] + at * v[b];
        if (at >= RAY_OFFSET_M && at < *t && pa * pa + pb * pb <= radius * radius) {
            *t = at;
            normal[a] = normal[b] = 0.0;
            normal[axis] = side;
            hit = true;
        }
    }
    return hit;
}

static bool enter_ellipsoid(const object *o, const double p[3], const double v[3], double *t,
                            double normal[3])
{
    double qa = 0.0, qb = 0.0, qc = -1.0;
    for (int i = 0; i < 3; ++i) {
        const double pi = p[i] / o->half[i], vi = v[i] / o->half[i];
        qa += vi * vi, qb += pi * vi, qc += pi * pi;
    }
    const double disc = qb * qb - qa * qc;
    if (disc < 0.0) return false;
    const double at = (-qb - sqrt(disc)) / qa;
    if (at < RAY_OFFSET_M || at >= *t) return false;
    *t = at;
    double length = 0.0;
    for (int i = 0; i < 3; ++i) {
        normal[i] = (p[i] + at * v[i]) / (o->half[i] * o->half[i]);
        length += normal[i] * normal[i];
    }
    length = sqrt(length);
    for (int i = 0; i < 3; ++i)
        normal[i] /= length;
    return true;
}

static bool enter_object(const object *o, const double origin[3], const double direction[3],
                         double *t, double normal[3])
{
    const double dx = origin[0] - o->centre[0], dy = origin[1] - o->centre[1];
    const double c = o->cos_yaw, n = o->sin_yaw;
    const double p[3] = {c * dx + n * dy, c * dy - n * dx, origin[2] - o->centre[2]};
    const double v[3] = {c * direction[0] + n * direction[1], c * direction[1] - n * direction[0],
                         direction[2]};
    bool hit = false;
    switch (o->shape) {
    case SHAPE_HULL: hit = enter_hull(o, p, v, t, normal); break;
    case SHAPE_CYLINDER_Z: hit = enter_cylinder(o, 2, p, v, t, normal); break;
    case SHAPE_CYLINDER_Y: hit = enter_cylinder(o, 1, p, v, t, normal); break;
    case SHAPE_ELLIPSOID: hit = enter_ellipsoid(o, p, v, t, normal); break;
    }
    return hit;
}

// The first object on the way, or -1; *t comes in as the farthest that counts. any: the first
// found.
static int first_object(const scene *s, const double origin[3], const double direction[3], bool any,
                        double *t, double normal[3])
{
    const double upper = GRID_LOWER_M + GRID_CELLS * GRID_CELL_M;
    double from = 0.0, to = *t;
    for (int i = 0; i < 2; ++i) { // the part of the ray above the grid
        if (direction[i] == 0.0) {
            if (origin[i] < GRID_LOWER_M || origin[i] >= upper) return -1;
            continue;
        }
        double a = (GRID_LOWER_M - origin[i]) / direction[i],
               b = (upper - origin[i]) / direction[i];
        if (a > b) {
            const double swap = a;
            a = b, b = swap;
        }
        if (a > from) from = a;
        if (b < to) to = b;
    }
    if (from >= to) return -1;

    // Walk from cell to cell. Source: Amanatides, Woo: A fast voxel traversal algorithm, 1987.
    int cell[2], step[2];
    double next[2], every[2];
    for (int i = 0; i < 2; ++i) {
        cell[i] = grid_index(origin[i] + from * direction[i]);
        step[i] = direction[i] > 0.0 ? 1 : -1;
        every[i] = direction[i] == 0.0 ? INFINITY : GRID_CELL_M / fabs(direction[i]);
        const double edge = GRID_LOWER_M + (cell[i] + (step[i] > 0 ? 1 : 0)) * GRID_CELL_M;
        next[i] = direction[i] == 0.0 ? INFINITY : (edge - origin[i]) / direction[i];
    }
    int found = -1;
    while (from < to) {
        const int axis = next[0] < next[1] ? 0 : 1;
        const double leave = next[axis] < to ? next[axis] : to;
        const int c = cell[1] * GRID_CELLS + cell[0];
        const double z0 = origin[2] + from * direction[2], z1 = origin[2] + leave * direction[2];
        if ((z0 < z1 ? z0 : z1) <= s->cell_top_m[c])
            for (int32_t k = s->cell_begin[c]; k < s->cell_begin[c + 1]; ++k)
                if (enter_object(&s->objects[s->cell_objects[k]], origin, direction, t, normal)) {
                    found = s->cell_objects[k];
                    if (any) return found;
                }
        if (*t <= leave) break; // nothing in later cells is nearer
        from = next[axis];
        next[axis] += every[axis];
        cell[axis] += step[axis];
        if (cell[axis] < 0 || cell[axis] >= GRID_CELLS) break;
    }
    return found;
}

// ---- Surfaces ---------------------------------------------------------------------------------

static void set_rgb(float out[3], double r, double g, double b)
{
    out[0] = (float)r, out[1] = (float)g, out[2] = (float)b;
}

static void scale_rgb(float out[3], double by)
{
    for (int i = 0; i < 3; ++i)
        out[i] *= (float)by;
}

static bool within(double v, double middle, double width)
{
    return fabs(v - middle) < 0.5 * width;
}

// Position in a pattern that repeats every `period`, 0 to period.
static double phase(double v, double period)
{
    return v - period * floor(v / period);
}

static bool arrow(double along, double across)
{
    if (along > 0.0 && along < 2.2) return fabs(across) < 0.08;
    return along >= 2.2 && along < 3.4 && fabs(across) < 0.32 * (3.4 - along) / 1.2;
}

// Paint on the street along x (y across), whose junction is b metres away.
static bool street_marking(const layout *l, double x, double y, double b)
{
    if (b < 1.2) return false;
    if (b < 4.6) // the crossing
        return b > 1.4 && b < 4.4 && y > l->road_right_m + 0.4 && y < l->road_left_m - 0.4 &&
               phase(y - l->road_right_m, 1.1) < 0.55;
    const bool towards = x < side_middle_m(l); // of the lanes right of the centre line
    const bool right = y < CENTRE_LINE_M;
    if (b < 5.9) return b > 5.3 && towards == right && y > -5.25 && y < 8.75;
    if (within(y, CENTRE_LINE_M - 0.16, 0.13) || within(y, CENTRE_LINE_M + 0.16, 0.13)) return true;
    if (within(y, -1.75, 0.14) || within(y, 5.25, 0.14)) return b < 16.0 || phase(x, 6.0) < 3.0;
    if (within(y, -5.25, 0.11) || within(y, 8.75, 0.11)) return true;
    if (y < -5.25 || y > 8.75) return phase(x, 6.0) < 0.11;
    for (int lane = 0; lane < 4; ++lane) {
        const double middle = -3.5 + 3.5 * lane;
        if (!within(y, middle, 1.0)) continue;
        const double along = lane < 2 ? x : -x;
        const double start = lane < 2 ? 3.5 : -45.5;
        if (arrow(along - start, y - middle) || arrow(along - start + 26.0, y - middle))
            return true;
    }
    return false;
}

// Paint on the side street (x across), whose junction is a metres away.
static bool side_marking(const layout *l, double x, double a)
{
    if (a < 1.2) return false;
    if (a < 4.6)
        return a > 1.4 && a < 4.4 && x > l->side_back_m + 0.3 && x < l->side_front_m - 0.3 &&
               phase(x - l->side_back_m, 1.1) < 0.55;
    if (within(x, side_middle_m(l), 0.14)) return a < 14.0 || phase(a, 4.0) < 2.0;
    return within(x, l->side_back_m + 0.35, 0.11) || within(x, l->side_front_m - 0.35, 0.11);
}

static scene_class ground_class(const layout *l, double x, double y, double *kerb)
{
    // Metres beyond the edges of both streets, into the block.
    const double a = y > CENTRE_LINE_M ? y - l->road_left_m : l->road_right_m - y;
    const double b = x > side_middle_m(l) ? x - l->side_front_m : l->side_back_m - x;
    double edge = a < b ? a : b;
    if (a < l->corner_m && b < l->corner_m && a > 0.0 && b > 0.0) // rounded corners
        edge = l->corner_m - hypot(l->corner_m - a, l->corner_m - b);
    *kerb = edge;
    if (edge <= 0.0) {
        if (a <= 0.0 && b > 0.0 && street_marking(l, x, y, b)) return SCENE_MARKING;
        if (b <= 0.0 && a > 0.0 && side_marking(l, x, a)) return SCENE_MARKING;
        return SCENE_ROAD;
    }
    return edge < l->pavement_m ? SCENE_PAVEMENT : SCENE_GRASS;
}

static void ground_look(const layout *l, double x, double y, double distance, float rgb[3])
{
    double kerb;
    const scene_class what = ground_class(l, x, y, &kerb);
    const double fine = distance < 40.0 ? noise(6.0 * x, 6.0 * y) - 0.5 : 0.0;
    const double coarse = noise_octaves(0.35 * x, 0.35 * y, 3) - 0.5;
    switch (what) {
    case SCENE_ROAD: {
        const double v = 0.115 + 0.035 * coarse + 0.012 * fine;
        set_rgb(rgb, v, v, 1.04 * v);
        break;
    }
    case SCENE_MARKING: {
        const double v = 0.74 + 0.16 * coarse;
        set_rgb(rgb, v, v, 0.96 * v);
        break;
    }
    case SCENE_PAVEMENT: {
        if (kerb < 0.22) {
            set_rgb(rgb, 0.46, 0.45, 0.43);
            break;
        }
        const bool joint = distance < 30.0 && (phase(x, 0.8) < 0.03 || phase(y, 0.8) < 0.03);
        const double tile = lattice((int64_t)floor(x / 0.8), (int64_t)floor(y / 0.8)) - 0.5;
        const double v = (0.33 + 0.05 * coarse + 0.03 * tile) * (joint ? 0.75 : 1.0);
        set_rgb(rgb, v, 0.965 * v, 0.90 * v);
        break;
    }
    default: {
        const double v = 1.0 + 0.5 * coarse + 0.25 * fine;
        set_rgb(rgb, 0.115 * v, 0.205 * v, 0.05 * v);
        break;
    }
    }
}

static void sky_look(const double direction[3], float rgb[3])
{
    const double length = sqrt(direction[0] * direction[0] + direction[1] * direction[1] +
                               direction[2] * direction[2]);
    const double up = direction[2] / length;
    const double t = up > 0.0 ? pow(up, 0.55) : 0.0;
    double r = 0.70 + t * (0.13 - 0.70), g = 0.80 + t * (0.33 - 0.80), b = 0.90 + t * (0.72 - 0.90);
    if (up > 0.02) {
        const double x = direction[0] / direction[2], y = direction[1] / direction[2];
        const double cloud = noise_octaves(0.55 * x + 3.0, 0.55 * y, 5);
        double cover = (cloud - 0.50) / 0.22;
        cover = cover < 0.0 ? 0.0 : cover > 1.0 ? 1.0 : cover;
        cover *= up < 0.12 ? (up - 0.02) / 0.10 : 1.0;
        r += 0.8 * cover * (0.95 - r), g += 0.8 * cover * (0.95 - g), b += 0.8 * cover * (0.96 - b);
    }
    set_rgb(rgb, r, g, b);
}

static void facade_look(const object *o, const double local[3], const double normal[3],
                        const double world_normal[3], const double direction[3], float rgb[3])
{
    if (normal[2] > 0.5) { // the roof
        set_rgb(rgb, 0.20, 0.19, 0.19);
        return;
    }
    const bool x_face = fabs(normal[0]) > 0.5;
    const double u = (x_face ? local[1] + o->half[1] : local[0] + o->half[0]);
    const double width = 2.0 * (x_face ? o->half[1] : o->half[0]);
    const double z = local[2] + o->half[2];
    const int columns = (int)(width / 2.6);
    if (columns < 1) return;
    const double column = width / columns, cu = phase(u, column) - 0.5 * column;
    const bool shop = z < 3.2 && o->seed > 0.45f;
    const double storey = shop ? z : phase(z - 0.2, 3.2);
    const double half_width = shop ? 0.5 * column - 0.22 : 0.62;
    const double low = shop ? 0.5 : 0.95, high = shop ? 2.75 : 2.55;
    if (z > 2.0 * o->half[2] - 1.1 || storey < low - 0.1 || storey > high + 0.1 ||
        fabs(cu) > half_width + 0.1)
        return;
    if (storey < low || storey > high || fabs(cu) > half_width) { // the frame
        set_rgb(rgb, 0.62, 0.60, 0.56);
        return;
    }
    // Glass: a dim room, and the sky mirrored in it.
    const double away = direction[0] * world_normal[0] + direction[1] * world_normal[1];
    const double mirrored[3] = {direction[0] - 2.0 * away * world_normal[0],
                                direction[1] - 2.0 * away * world_normal[1],
                                fabs(direction[2]) + 0.25};
    float sky[3];
    sky_look(mirrored, sky);
    const double room =
        lattice((int64_t)floor(u / column) + (int64_t)(1000.0f * o->seed), (int64_t)floor(z / 3.2));
    const double dim = room < 0.2 ? 0.30 : 0.05;
    set_rgb(rgb, 0.22 * sky[0] + dim, 0.23 * sky[1] + 0.9 * dim, 0.25 * sky[2] + 0.7 * dim);
}

static void object_look(const object *o, const double point[3], const double direction[3],
                        double normal[3], float rgb[3], double *shine)
{
    const double dx = point[0] - o->centre[0], dy = point[1] - o->centre[1];
    const double c = o->cos_yaw, n = o->sin_yaw;
    const double local[3] = {c * dx + n * dy, c * dy - n * dx, point[2] - o->centre[2]};
    const double own[3] = {normal[0], normal[1], normal[2]};
    normal[0] = c * own[0] - n * own[1], normal[1] = n * own[0] + c * own[1];
    memcpy(rgb, o->rgb, sizeof o->rgb);
    *shine = 0.0;
    switch (o->surface) {
    case SURFACE_FACADE: facade_look(o, local, own, normal, direction, rgb); break;
    case SURFACE_PAINT: *shine = 0.10; break;
    case SURFACE_GLASS: *shine = 0.30; break;
    case SURFACE_BRICKS: {
        const double u = fabs(own[0]) > 0.5 ? local[1] : local[0], z = local[2] + o->half[2];
        const double row = floor(z / 0.09), shift = 0.13 * phase(row, 2.0);
        const bool joint = phase(z, 0.09) < 0.014 || phase(u + shift, 0.26) < 0.014;
        scale_rgb(rgb,
                  joint ? 1.35
                        : 0.85 + 0.3 * lattice((int64_t)floor((u + shift) / 0.26), (int64_t)row));
        break;
    }
    case SURFACE_LEAVES: {
        const double a = noise(3.1 * point[0] + 1.7 * point[2], 3.1 * point[1] - 2.3 * point[2]);
        const double b = noise(2.7 * point[0] - 2.1 * point[2], 2.9 * point[1] + 1.9 * point[2]);
        scale_rgb(rgb, 0.65 + 0.7 * a);
        normal[0] += 0.9 * (a - 0.5), normal[1] += 0.9 * (b - 0.5);
        const double length =
            sqrt(normal[0] * normal[0] + normal[1] * normal[1] + normal[2] * normal[2]);
        for (int i = 0; i < 3; ++i)
            normal[i] /= length;
        break;
    }
    default: break;
    }
}

// Sun, sky and light from the ground on a surface; what is mirrored; haze.
static void light_up(const scene *s, const double point[3], const double normal[3],
                     const double direction[3], double distance_m, double shine, float rgb[3])
{
    double facing = 0.0, towards = 0.0, sight = 0.0;
    for (int i = 0; i < 3; ++i) {
        facing += normal[i] * s->sun[i];
        towards += normal[i] * direction[i];
        sight += direction[i] * direction[i];
    }
    sight = sqrt(sight);
    double sun = facing > 0.0 ? facing : 0.0;
    if (sun > 0.0) {
        const double from[3] = {point[0] + 2e-3 * normal[0], point[1] + 2e-3 * normal[1],
                                point[2] + 2e-3 * normal[2]};
        double t = 60.0, other[3];
        if (first_object(s, from, s->sun, true, &t, other) >= 0) sun = 0.0;
    }
    const double sky = 0.5 + 0.5 * normal[2], ground = 0.5 - 0.5 * normal[2];
    const double light[3] = {1.50 * sun + 0.34 * sky + 0.16 * ground,
                             1.41 * sun + 0.38 * sky + 0.15 * ground,
                             1.22 * sun + 0.47 * sky + 0.13 * ground};
    for (int i = 0; i < 3; ++i)
        rgb[i] *= (float)light[i];
    if (shine > 0.0) {
        const double grazing = 1.0 - fabs(towards) / sight;
        const double part = shine + (1.0 - shine) * pow(grazing, 5.0) * 0.6;
        double mirrored[3];
        float seen[3];
        for (int i = 0; i < 3; ++i)
            mirrored[i] = direction[i] - 2.0 * towards * normal[i];
        if (mirrored[2] > 0.0)
            sky_look(mirrored, seen);
        else
            set_rgb(seen, 0.12, 0.12, 0.12);
        for (int i = 0; i < 3; ++i)
            rgb[i] += (float)part * (seen[i] - rgb[i]);
    }
    const double clear = exp(-distance_m / HAZE_M);
    static const double haze[3] = {0.70, 0.80, 0.90};
    for (int i = 0; i < 3; ++i)
        rgb[i] = (float)(clear * rgb[i] + (1.0 - clear) * haze[i]);
}

// Where a ray meets the ground before *t, and the class there; SCENE_SKY where it does not. With
// kerbs, pavements and gardens lie higher than the road, and the step between is the pavement's.
static scene_class meet_ground(const scene *s, const double origin[3], const double direction[3],
                               double *t, double normal[3])
{
    const layout *l = &s->lay;
    double kerb;
    if (!(direction[2] < 0.0) || !(origin[2] > 0.0)) return SCENE_SKY;
    double low = -origin[2] / direction[2]; // on the road's plane
    double at = (l->kerb_m - origin[2]) / direction[2];
    bool step = false;
    if (l->kerb_m > 0.0 && at > 0.0 && low < 1e4) {
        ground_class(l, origin[0] + at * direction[0], origin[1] + at * direction[1], &kerb);
        if (kerb <= 0.0) { // over the road there: does it reach the kerb before the road?
            ground_class(l, origin[0] + low * direction[0], origin[1] + low * direction[1], &kerb);
            step = kerb > 0.0;
            double over = at;
            for (int i = 0; step && i < 24; ++i) {
                const double middle = 0.5 * (over + low);
                ground_class(l, origin[0] + middle * direction[0],
                             origin[1] + middle * direction[1], &kerb);
                *(kerb > 0.0 ? &low : &over) = middle;
            }
            at = low;
        }
    } else {
        at = low;
    }
    if (!(at < *t)) return SCENE_SKY;
    *t = at;
    normal[0] = normal[1] = 0.0, normal[2] = 1.0;
    if (step) { // upright, towards the ray
        const double flat = hypot(direction[0], direction[1]);
        normal[0] = -direction[0] / flat, normal[1] = -direction[1] / flat, normal[2] = 0.0;
    }
    return ground_class(l, origin[0] + at * direction[0], origin[1] + at * direction[1], &kerb);
}

static double length3(const double v[3])
{
    return sqrt(v[0] * v[0] + v[1] * v[1] + v[2] * v[2]);
}

scene_hit scene_cast(const scene *s, const double origin[3], const double direction[3],
                     bool colours)
{
    scene_hit hit = {INFINITY, SCENE_SKY, {0.0f, 0.0f, 0.0f}};
    const double sight = length3(direction);
    if (!(sight > 0.0) || isinf(sight)) return hit;
    double t = 3000.0 / sight, normal[3] = {0.0, 0.0, 1.0};
    const scene_class ground = meet_ground(s, origin, direction, &t, normal);
    const int found = first_object(s, origin, direction, false, &t, normal);
    if (found < 0 && ground == SCENE_SKY) {
        if (colours) sky_look(direction, hit.rgb);
        return hit;
    }
    const double point[3] = {origin[0] + t * direction[0], origin[1] + t * direction[1],
                             origin[2] + t * direction[2]};
    double shine = 0.0;
    hit.distance = t;
    if (found >= 0) {
        const object *o = &s->objects[found];
        hit.what = o->what;
        if (!colours) return hit;
        object_look(o, point, direction, normal, hit.rgb, &shine);
        if (o->surface == SURFACE_LIGHT) return hit;
    } else {
        hit.what = ground;
        if (!colours) return hit;
        ground_look(&s->lay, point[0], point[1], t * sight, hit.rgb);
    }
    light_up(s, point, normal, direction, t * sight, shine, hit.rgb);
    return hit;
}

// ---- Echoes of a laser --------------------------------------------------------------------------

// Shares of the light that surfaces send back in the near infrared; chosen to be plausible and to
// overlap between classes, not measured.
static double ground_reflectance(scene_class what, double x, double y)
{
    const double coarse = noise_octaves(0.35 * x, 0.35 * y, 3) - 0.5;
    switch (what) {
    case SCENE_ROAD: return 0.14 + 0.10 * coarse;
    case SCENE_MARKING: return 0.72 + 0.16 * coarse;
    case SCENE_PAVEMENT: return 0.28 + 0.12 * coarse;
    default: return 0.46 + 0.24 * coarse;
    }
}

static double object_reflectance(const object *o)
{
    const double grey = 0.2126 * o->rgb[0] + 0.7152 * o->rgb[1] + 0.0722 * o->rgb[2];
    switch (o->surface) {
    case SURFACE_LEAVES: return 0.50 + 0.15 * o->seed;
    case SURFACE_BRICKS: return 0.32 + 0.10 * o->seed;
    case SURFACE_FACADE: return 0.24 + 0.30 * o->seed;
    case SURFACE_GLASS: return 0.08;
    case SURFACE_LIGHT: return 0.85;
    default: return 0.10 + 0.9 * grey;
    }
}

scene_echo scene_probe(const scene *s, const double origin[3], const double direction[3])
{
    scene_echo echo = {INFINITY, SCENE_SKY, 0.0, 0.0, false, false};
    const double sight = length3(direction);
    if (!(sight > 0.0) || isinf(sight)) return echo;
    double t = 3000.0 / sight, normal[3] = {0.0, 0.0, 1.0};
    const scene_class ground = meet_ground(s, origin, direction, &t, normal);
    const int found = first_object(s, origin, direction, false, &t, normal);
    if (found < 0 && ground == SCENE_SKY) return echo;
    echo.distance = t;
    if (found >= 0) {
        const object *o = &s->objects[found];
        const double c = o->cos_yaw, n = o->sin_yaw, nx = normal[0];
        normal[0] = c * nx - n * normal[1];
        normal[1] = n * nx + c * normal[1];
        echo.what = o->what;
        echo.reflectance = object_reflectance(o);
        echo.leaves = o->surface == SURFACE_LEAVES;
        echo.glass = o->surface == SURFACE_GLASS;
    } else {
        echo.what = ground;
        echo.reflectance =
            ground_reflectance(ground, origin[0] + t * direction[0], origin[1] + t * direction[1]);
    }
    for (int i = 0; i < 3; ++i)
        echo.facing -= normal[i] * direction[i] / sight;
    echo.facing = fabs(echo.facing);
    return echo;
}
