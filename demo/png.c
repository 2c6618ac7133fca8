/* SPDX-License-Identifier: Apache-2.0
 * The sheet as pixels, then as a PNG. libpng's simplified interface does the writing. */
#include "canvas.h"

#ifdef DEMO_HAVE_PNG

#include <png.h>
#include <stdlib.h>
#include <string.h>

#include "font.h"

typedef struct raster {
    int width, height;
    unsigned char *pixels; /* (height, width, 3) */
} raster;

static void fill(raster *image, int x, int y, int width, int height, uint32_t colour) {
    for (int row = y < 0 ? 0 : y; row < y + height && row < image->height; row++) {
        for (int column = x < 0 ? 0 : x; column < x + width && column < image->width; column++) {
            unsigned char *pixel = image->pixels + 3 * ((size_t)row * (size_t)image->width + (size_t)column);
            pixel[0] = (unsigned char)(colour >> 16);
            pixel[1] = (unsigned char)(colour >> 8);
            pixel[2] = (unsigned char)colour;
        }
    }
}

/* Along the line: `along` pixels from its start; across it: `across` from its top. */
static void fill_dot(raster *image, const canvas_item *item, int start, int top, int along, int across) {
    if (item->upwards) {
        fill(image, top + across, start - along - item->size, item->size, item->size, item->colour);
    } else {
        fill(image, start + along, top + across, item->size, item->size, item->colour);
    }
}

static void draw_text(raster *image, const canvas_item *item) {
    int length = (int)strlen(item->text) * FONT_ADVANCE * item->size - item->size;
    int before = item->anchor == CANVAS_START ? 0 : item->anchor == CANVAS_MIDDLE ? length / 2 : length;
    int start = item->upwards ? item->y + before : item->x - before;
    int top = (item->upwards ? item->x : item->y) - FONT_HEIGHT * item->size / 2;
    for (int i = 0; item->text[i]; i++) {
        for (int dot = 0; dot < FONT_WIDTH * FONT_HEIGHT; dot++) {
            int column = dot % FONT_WIDTH, row = dot / FONT_WIDTH;
            if (demo_font_dot(item->text[i], column, row)) {
                fill_dot(image, item, start, top, (i * FONT_ADVANCE + column) * item->size, row * item->size);
            }
        }
    }
}

bool canvas_write_png(const canvas *sheet, const char *path, const char **why) {
    raster image = {sheet->width, sheet->height, malloc(3 * (size_t)sheet->width * (size_t)sheet->height)};
    *why = "";
    if (!image.pixels) {
        return false;
    }
    fill(&image, 0, 0, image.width, image.height, 0xffffff);
    for (int i = 0; i < sheet->count; i++) {
        const canvas_item *item = &sheet->items[i];
        if (item->size > 0) {
            draw_text(&image, item);
        } else {
            fill(&image, item->x, item->y, item->width, item->height, item->colour);
        }
    }
    png_image png = {.version = PNG_IMAGE_VERSION,
                     .width = (png_uint_32)image.width,
                     .height = (png_uint_32)image.height,
                     .format = PNG_FORMAT_RGB};
    bool written = png_image_write_to_file(&png, path, 0, image.pixels, 0, NULL) != 0;
    free(image.pixels);
    return written && !sheet->failed;
}

#else

bool canvas_write_png(const canvas *sheet, const char *path, const char **why) {
    (void)sheet;
    (void)path;
    *why = "this build has no libpng: install libpng-dev and configure again";
    return false;
}

#endif
