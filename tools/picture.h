// SPDX-License-Identifier: Apache-2.0
// Pictures: an sRGB image in memory, drawing on it with cairo, and PNG files.
#ifndef SPOPS_TOOLS_PICTURE_H
#define SPOPS_TOOLS_PICTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct _cairo_surface;

typedef struct picture {
    int width, height;
    struct _cairo_surface *surface;
    uint32_t *pixels; // [height][stride] of 0xffrrggbb
    int stride;       // pixels
} picture;

typedef struct colour {
    uint8_t r, g, b;
} colour;

// False (and an empty picture) when there is no memory.
bool picture_create(int width, int height, colour fill, picture *out);
void picture_destroy(picture *p);

// One pixel, which must be inside.
static inline colour picture_at(const picture *p, int x, int y)
{
    const uint32_t v = p->pixels[(size_t)y * (size_t)p->stride + (size_t)x];
    const colour c = {(uint8_t)(v >> 16), (uint8_t)(v >> 8), (uint8_t)v};
    return c;
}
static inline void picture_set(picture *p, int x, int y, colour c)
{
    p->pixels[(size_t)y * (size_t)p->stride + (size_t)x] =
        0xff000000u | (uint32_t)c.r << 16 | (uint32_t)c.g << 8 | c.b;
}

// Drawing is anti-aliased and clipped to the picture. alpha 0 leaves what is there, 1 covers it.
void picture_rect(picture *p, double x, double y, double width, double height, colour c,
                  double alpha);
void picture_ring(picture *p, double cx, double cy, double radius, double line_px, colour c,
                  double alpha);
void picture_polygon(picture *p, const double (*xy)[2], int num_points, colour c, double alpha);
void picture_copy(picture *p, int x, int y, const picture *from);

// Text in the system's sans-serif font; (x, y) is the left end of its base line. Returns its width
// in px: 0 where the system has no font.
double picture_text(picture *p, double x, double y, double size_px, colour c, const char *text);
double picture_text_width(double size_px, const char *text);

// A bar of that length with its ends marked, and its label after it; (x, y) is the left end.
void picture_scale_bar(picture *p, double x, double y, double length_px, double size_px, colour c,
                       const char *label);

// Linear light 0 to 1 to an sRGB byte.
uint8_t picture_srgb(double linear);

// A perceptually even ramp from black over red to yellow, t in 0 to 1.
colour picture_ramp(double t);

// error gets one line.
bool picture_write_png(const picture *p, const char *path, char *error, size_t error_bytes);
bool picture_read_png(const char *path, picture *out, char *error, size_t error_bytes);

#endif
