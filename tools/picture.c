#include "tools/picture.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <png.h>

#define MAX_SIDE_PX 16384
#define FONT_ROWS   9
#define FONT_FIRST  32
#define FONT_COUNT  95

// A glyph is nine rows from the top, each five pixels as one digit to base 32 (0-9, A-V; 16 is the
// leftmost pixel). The last two rows lie below the line.
static const char font[FONT_COUNT][FONT_ROWS + 1] = {
    "000000000", "444440400", "AAA000000", "AAVAVAA00", "4FKE5U400", "OP248J300", "CIK8LID00",
    "448000000", "248884200", "842224800", "04LEL4000", "044V44000", "00000CC48", "000V00000",
    "00000CC00", "01248G000", "EHJLPHE00", "4C4444E00", "EH1248V00", "V2421HE00", "26AIV2200",
    "VGU11HE00", "68GUHHE00", "V12488800", "EHHEHHE00", "EHHF12C00", "0CC0CC000", "0CC0CC480",
    "248G84200", "00V0V0000", "842124800", "EH1240400", "EH1DLLE00", "EHHVHHH00", "UHHUHHU00",
    "EHGGGHE00", "SIHHHIS00", "VGGUGGV00", "VGGUGGG00", "EHGNHHF00", "HHHVHHH00", "E44444E00",
    "72222IC00", "HIKOKIH00", "GGGGGGV00", "HRLLHHH00", "HHPLJHH00", "EHHHHHE00", "UHHUGGG00",
    "EHHHLID00", "UHHUKIH00", "FGGE11U00", "V44444400", "HHHHHHE00", "HHHHHA400", "HHHLLLA00",
    "HHA4AHH00", "HHHA44400", "V1248GV00", "E88888E00", "0G8421000", "E22222E00", "4AH000000",
    "0000000V0", "842000000", "00E1FHF00", "GGMPHHU00", "00EGGHE00", "11DJHHF00", "00EHVGE00",
    "698S88800", "00FHHHF1E", "GGMPHHH00", "40C444E00", "2062222IC", "GGIKOKI00", "C44444E00",
    "00QLLHH00", "00MPHHH00", "00EHHHE00", "00UHHHUGG", "00FHHHF11", "00MPGGG00", "00FGE1U00",
    "88S889600", "00HHHJD00", "00HHHA400", "00HHLLA00", "00HA4AH00", "00HHHHF1E", "00V248V00",
    "244844200", "444444400", "844244800", "008L20000",
};

bool picture_create(int width, int height, colour fill, picture *out)
{
    memset(out, 0, sizeof *out);
    if (width < 1 || height < 1 || width > MAX_SIDE_PX || height > MAX_SIDE_PX) return false;
    out->rgb = malloc((size_t)width * (size_t)height * 3);
    if (out->rgb == NULL) return false;
    out->width = width, out->height = height;
    for (size_t i = 0; i < (size_t)width * (size_t)height; ++i) {
        out->rgb[3 * i] = fill.r, out->rgb[3 * i + 1] = fill.g, out->rgb[3 * i + 2] = fill.b;
    }
    return true;
}

void picture_destroy(picture *p)
{
    free(p->rgb);
    memset(p, 0, sizeof *p);
}

void picture_blend(picture *p, int x, int y, colour c, double alpha)
{
    if (x < 0 || y < 0 || x >= p->width || y >= p->height || !(alpha > 0.0)) return;
    if (alpha > 1.0) alpha = 1.0;
    uint8_t *at = p->rgb + 3 * ((size_t)y * (size_t)p->width + (size_t)x);
    const uint8_t over[3] = {c.r, c.g, c.b};
    for (int i = 0; i < 3; ++i)
        at[i] = (uint8_t)lrint(at[i] + alpha * (over[i] - at[i]));
}

void picture_rect(picture *p, int x, int y, int width, int height, colour c, double alpha)
{
    for (int j = y; j < y + height; ++j)
        for (int i = x; i < x + width; ++i)
            picture_blend(p, i, j, c, alpha);
}

void picture_ring(picture *p, double cx, double cy, double radius, double line_px, colour c,
                  double alpha)
{
    const double reach = radius + line_px;
    for (int y = (int)floor(cy - reach); y <= (int)ceil(cy + reach); ++y)
        for (int x = (int)floor(cx - reach); x <= (int)ceil(cx + reach); ++x) {
            const double off = fabs(hypot(x + 0.5 - cx, y + 0.5 - cy) - radius);
            const double cover = 0.5 * line_px + 0.5 - off;
            picture_blend(p, x, y, c, alpha * (cover > 1.0 ? 1.0 : cover));
        }
}

static bool inside_polygon(const double (*xy)[2], int num_points, double x, double y)
{
    bool inside = false;
    for (int i = 0, j = num_points - 1; i < num_points; j = i++)
        if ((xy[i][1] > y) != (xy[j][1] > y) &&
            x < xy[i][0] + (xy[j][0] - xy[i][0]) * (y - xy[i][1]) / (xy[j][1] - xy[i][1]))
            inside = !inside;
    return inside;
}

void picture_polygon(picture *p, const double (*xy)[2], int num_points, colour c, double alpha)
{
    enum { SUB = 4 };
    double low[2] = {INFINITY, INFINITY}, high[2] = {-INFINITY, -INFINITY};
    for (int i = 0; i < num_points; ++i)
        for (int k = 0; k < 2; ++k) {
            low[k] = fmin(low[k], xy[i][k]);
            high[k] = fmax(high[k], xy[i][k]);
        }
    const int x0 = (int)fmax(floor(low[0]), 0.0), x1 = (int)fmin(ceil(high[0]), p->width);
    const int y0 = (int)fmax(floor(low[1]), 0.0), y1 = (int)fmin(ceil(high[1]), p->height);
    for (int y = y0; y < y1; ++y)
        for (int x = x0; x < x1; ++x) {
            int covered = 0;
            for (int k = 0; k < SUB * SUB; ++k)
                covered += inside_polygon(xy, num_points, x + (k % SUB + 0.5) / SUB,
                                          y + (k / SUB + 0.5) / SUB);
            picture_blend(p, x, y, c, alpha * covered / (SUB * SUB));
        }
}

void picture_copy(picture *p, int x, int y, const picture *from)
{
    for (int j = 0; j < from->height; ++j)
        for (int i = 0; i < from->width; ++i) {
            const uint8_t *at = from->rgb + 3 * ((size_t)j * (size_t)from->width + (size_t)i);
            const colour c = {at[0], at[1], at[2]};
            picture_blend(p, x + i, y + j, c, 1.0);
        }
}

void picture_text(picture *p, int x, int y, int scale, colour c, const char *text)
{
    for (; *text != '\0'; ++text, x += PICTURE_FONT_WIDTH * scale) {
        int code = (unsigned char)*text;
        if (code < FONT_FIRST || code >= FONT_FIRST + FONT_COUNT) code = '?';
        const char *glyph = font[code - FONT_FIRST];
        for (int row = 0; row < FONT_ROWS; ++row) {
            const int bits = glyph[row] <= '9' ? glyph[row] - '0' : glyph[row] - 'A' + 10;
            for (int col = 0; col < 5; ++col)
                if (bits >> (4 - col) & 1)
                    picture_rect(p, x + col * scale, y + row * scale, scale, scale, c, 1.0);
        }
    }
}

int picture_text_width(int scale, const char *text)
{
    return (int)strlen(text) * PICTURE_FONT_WIDTH * scale;
}

uint8_t picture_srgb(double linear)
{
    if (!(linear > 0.0)) return 0;
    if (linear >= 1.0) return 255;
    const double v = linear <= 0.0031308 ? 12.92 * linear : 1.055 * pow(linear, 1.0 / 2.4) - 0.055;
    return (uint8_t)lrint(255.0 * v);
}

colour picture_ramp(double t)
{
    static const double stops[][3] = {{8, 8, 28},    {42, 28, 96},   {98, 34, 128},  {166, 50, 116},
                                      {224, 92, 74}, {250, 160, 52}, {252, 240, 150}};
    const int last = (int)(sizeof stops / sizeof stops[0]) - 1;
    if (!(t > 0.0)) t = 0.0;
    if (t > 1.0) t = 1.0;
    const int i = t >= 1.0 ? last - 1 : (int)(t * last);
    const double f = t * last - i;
    const colour c = {(uint8_t)lrint(stops[i][0] + f * (stops[i + 1][0] - stops[i][0])),
                      (uint8_t)lrint(stops[i][1] + f * (stops[i + 1][1] - stops[i][1])),
                      (uint8_t)lrint(stops[i][2] + f * (stops[i + 1][2] - stops[i][2]))};
    return c;
}

static bool fail_png(const char *path, const char *why, char *error, size_t error_bytes)
{
    snprintf(error, error_bytes, "%s: %s", path, why);
    return false;
}

bool picture_write_png(const picture *p, const char *path, char *error, size_t error_bytes)
{
    png_image image;
    memset(&image, 0, sizeof image);
    image.version = PNG_IMAGE_VERSION;
    image.width = (png_uint_32)p->width;
    image.height = (png_uint_32)p->height;
    image.format = PNG_FORMAT_RGB;
    if (!png_image_write_to_file(&image, path, 0, p->rgb, 0, NULL))
        return fail_png(path, image.message, error, error_bytes);
    return true;
}

bool picture_read_png(const char *path, picture *out, char *error, size_t error_bytes)
{
    const colour black = {0, 0, 0};
    png_image image;
    memset(&image, 0, sizeof image);
    memset(out, 0, sizeof *out);
    image.version = PNG_IMAGE_VERSION;
    if (!png_image_begin_read_from_file(&image, path))
        return fail_png(path, image.message, error, error_bytes);
    image.format = PNG_FORMAT_RGB;
    if (image.width > MAX_SIDE_PX || image.height > MAX_SIDE_PX ||
        !picture_create((int)image.width, (int)image.height, black, out)) {
        png_image_free(&image);
        return fail_png(path, "too large", error, error_bytes);
    }
    if (!png_image_finish_read(&image, NULL, out->rgb, 0, NULL)) {
        picture_destroy(out);
        return fail_png(path, image.message, error, error_bytes);
    }
    return true;
}
