// SPDX-License-Identifier: Apache-2.0
#include "tools/picture.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <cairo.h>

#define MAX_SIDE_PX 16384
#define PI          3.14159265358979323846

bool picture_create(int width, int height, colour fill, picture *out)
{
    memset(out, 0, sizeof *out);
    if (width < 1 || height < 1 || width > MAX_SIDE_PX || height > MAX_SIDE_PX) return false;
    out->surface = cairo_image_surface_create(CAIRO_FORMAT_RGB24, width, height);
    if (cairo_surface_status(out->surface) != CAIRO_STATUS_SUCCESS) {
        picture_destroy(out);
        return false;
    }
    out->width = width, out->height = height;
    out->pixels = (uint32_t *)(void *)cairo_image_surface_get_data(out->surface);
    out->stride = cairo_image_surface_get_stride(out->surface) / (int)sizeof *out->pixels;
    picture_rect(out, 0, 0, width, height, fill, 1.0);
    return true;
}

void picture_destroy(picture *p)
{
    if (p->surface != NULL) cairo_surface_destroy(p->surface);
    memset(p, 0, sizeof *p);
}

// A pen on pixels that may have been written directly; lift it when done.
static cairo_t *pen(picture *p, colour c, double alpha)
{
    cairo_surface_mark_dirty(p->surface);
    cairo_t *cr = cairo_create(p->surface);
    cairo_set_source_rgba(cr, c.r / 255.0, c.g / 255.0, c.b / 255.0, alpha);
    return cr;
}

static void lift(picture *p, cairo_t *cr)
{
    cairo_destroy(cr);
    cairo_surface_flush(p->surface);
}

void picture_rect(picture *p, double x, double y, double width, double height, colour c,
                  double alpha)
{
    cairo_t *cr = pen(p, c, alpha);
    cairo_rectangle(cr, x, y, width, height);
    cairo_fill(cr);
    lift(p, cr);
}

void picture_ring(picture *p, double cx, double cy, double radius, double line_px, colour c,
                  double alpha)
{
    cairo_t *cr = pen(p, c, alpha);
    cairo_set_line_width(cr, line_px);
    cairo_arc(cr, cx, cy, radius, 0.0, 2.0 * PI);
    cairo_stroke(cr);
    lift(p, cr);
}

void picture_polygon(picture *p, const double (*xy)[2], int num_points, colour c, double alpha)
{
    cairo_t *cr = pen(p, c, alpha);
    for (int i = 0; i < num_points; ++i)
        cairo_line_to(cr, xy[i][0], xy[i][1]);
    cairo_fill(cr);
    lift(p, cr);
}

void picture_copy(picture *p, int x, int y, const picture *from)
{
    const colour black = {0, 0, 0};
    cairo_t *cr = pen(p, black, 1.0);
    if (from->pixels != NULL) cairo_surface_mark_dirty(from->surface); // none: as it was read
    cairo_set_source_surface(cr, from->surface, x, y);
    cairo_paint(cr);
    lift(p, cr);
}

static double text_width(cairo_t *cr, double size_px, const char *text)
{
    cairo_text_extents_t extents;
    cairo_select_font_face(cr, "sans-serif", CAIRO_FONT_SLANT_NORMAL, CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(cr, size_px);
    cairo_text_extents(cr, text, &extents);
    return cairo_status(cr) == CAIRO_STATUS_SUCCESS ? extents.x_advance : 0.0;
}

double picture_text(picture *p, double x, double y, double size_px, colour c, const char *text)
{
    cairo_t *cr = pen(p, c, 1.0);
    const double width = text_width(cr, size_px, text);
    cairo_move_to(cr, x, y);
    cairo_show_text(cr, text);
    lift(p, cr);
    return width;
}

double picture_text_width(double size_px, const char *text)
{
    cairo_surface_t *surface = cairo_image_surface_create(CAIRO_FORMAT_RGB24, 1, 1);
    cairo_t *cr = cairo_create(surface);
    const double width = text_width(cr, size_px, text);
    cairo_destroy(cr);
    cairo_surface_destroy(surface);
    return width;
}

void picture_scale_bar(picture *p, double x, double y, double length_px, double size_px, colour c,
                       const char *label)
{
    const double tick = 0.35 * size_px;
    cairo_t *cr = pen(p, c, 1.0);
    cairo_set_line_width(cr, 2.0);
    cairo_move_to(cr, x, y - tick);
    cairo_line_to(cr, x, y + tick);
    cairo_move_to(cr, x + length_px, y - tick);
    cairo_line_to(cr, x + length_px, y + tick);
    cairo_move_to(cr, x, y);
    cairo_line_to(cr, x + length_px, y);
    cairo_stroke(cr);
    lift(p, cr);
    picture_text(p, x + length_px + 0.5 * size_px, y + tick, size_px, c, label);
}

uint8_t picture_srgb(double linear)
{
    if (!(linear > 0.0)) return 0;
    if (linear >= 1.0) return 255;
    const double v = linear <= 0.0031308 ? 12.92 * linear : 1.055 * pow(linear, 1.0 / 2.4) - 0.055;
    return (uint8_t)lrint(255.0 * v);
}

// Every sixteenth of the map "inferno" (N. Smith, S. van der Walt, E. Firing; CC0).
colour picture_ramp(double t)
{
    static const uint8_t stops[17][3] = {
        {0, 0, 4},       {11, 7, 36},    {33, 12, 74},  {61, 9, 101},   {87, 16, 110},
        {113, 25, 110},  {138, 34, 106}, {163, 44, 97}, {188, 55, 84},  {210, 70, 68},
        {228, 90, 49},   {241, 115, 29}, {249, 142, 9}, {252, 172, 17}, {249, 203, 53},
        {242, 234, 105}, {252, 255, 164}};
    if (!(t > 0.0)) t = 0.0;
    if (t > 1.0) t = 1.0;
    const int i = t >= 1.0 ? 15 : (int)(t * 16.0);
    const double f = t * 16.0 - i;
    uint8_t at[3];
    for (int k = 0; k < 3; ++k)
        at[k] = (uint8_t)lrint(stops[i][k] + f * (stops[i + 1][k] - stops[i][k]));
    const colour c = {at[0], at[1], at[2]};
    return c;
}

static bool check(const char *path, cairo_status_t status, char *error, size_t error_bytes)
{
    if (status == CAIRO_STATUS_SUCCESS) return true;
    snprintf(error, error_bytes, "%s: %s", path, cairo_status_to_string(status));
    return false;
}

static cairo_status_t write_part(void *file, const unsigned char *data, unsigned bytes)
{
    return fwrite(data, 1, bytes, file) == bytes ? CAIRO_STATUS_SUCCESS : CAIRO_STATUS_WRITE_ERROR;
}

bool picture_write_png(const picture *p, const char *path, char *error, size_t error_bytes)
{
    errno = 0;
    FILE *file = fopen(path, "wb");
    cairo_status_t status = CAIRO_STATUS_WRITE_ERROR;
    if (file != NULL) {
        cairo_surface_mark_dirty(p->surface);
        status = cairo_surface_write_to_png_stream(p->surface, write_part, file);
        if (fclose(file) != 0) status = CAIRO_STATUS_WRITE_ERROR;
    }
    if (status != CAIRO_STATUS_WRITE_ERROR || errno == 0)
        return check(path, status, error, error_bytes);
    snprintf(error, error_bytes, "%s: %s", path, strerror(errno));
    return false;
}

bool picture_read_png(const char *path, picture *out, char *error, size_t error_bytes)
{
    const colour black = {0, 0, 0};
    picture from = {0, 0, NULL, NULL, 0};
    memset(out, 0, sizeof *out);
    from.surface = cairo_image_surface_create_from_png(path);
    bool ok = check(path, cairo_surface_status(from.surface), error, error_bytes);
    if (ok) {
        ok = picture_create(cairo_image_surface_get_width(from.surface),
                            cairo_image_surface_get_height(from.surface), black, out);
        if (ok)
            picture_copy(out, 0, 0, &from);
        else
            snprintf(error, error_bytes, "%s: too large", path);
    }
    picture_destroy(&from);
    return ok;
}
