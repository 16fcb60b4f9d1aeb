// Pictures: an sRGB image in memory, drawing on it, and PNG files.
#ifndef SPOPS_TOOLS_PICTURE_H
#define SPOPS_TOOLS_PICTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct picture {
    int width, height;
    uint8_t *rgb; // [height][width][3]
} picture;

typedef struct colour {
    uint8_t r, g, b;
} colour;

// False (and an empty picture) when there is no memory.
bool picture_create(int width, int height, colour fill, picture *out);
void picture_destroy(picture *p);

// Drawing is clipped to the picture. alpha 0 leaves what is there, 1 covers it.
void picture_blend(picture *p, int x, int y, colour c, double alpha);
void picture_rect(picture *p, int x, int y, int width, int height, colour c, double alpha);
void picture_ring(picture *p, double cx, double cy, double radius, double line_px, colour c,
                  double alpha);
void picture_polygon(picture *p, const double (*xy)[2], int num_points, colour c, double alpha);
void picture_copy(picture *p, int x, int y, const picture *from);

// Text in a built-in font of ASCII 32 to 126, PICTURE_FONT_* px times scale; others are drawn as
// '?'.
#define PICTURE_FONT_WIDTH  6
#define PICTURE_FONT_HEIGHT 10
void picture_text(picture *p, int x, int y, int scale, colour c, const char *text);
int picture_text_width(int scale, const char *text);

// Linear light 0 to 1 to an sRGB byte.
uint8_t picture_srgb(double linear);

// A perceptually even ramp from dark blue to yellow, t in 0 to 1.
colour picture_ramp(double t);

// error gets one line. Reading takes 8-bit RGB of the kind that is written.
bool picture_write_png(const picture *p, const char *path, char *error, size_t error_bytes);
bool picture_read_png(const char *path, picture *out, char *error, size_t error_bytes);

#endif
