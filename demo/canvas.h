/* SPDX-License-Identifier: Apache-2.0
 * A sheet that keeps rectangles and texts in the order drawn, so that one description becomes an SVG and a PNG.
 * Units are pixels, the origin is the top left corner, colours are 0xRRGGBB. */
#ifndef DEMO_CANVAS_H
#define DEMO_CANVAS_H

#include <stdbool.h>
#include <stdint.h>

typedef enum canvas_anchor { CANVAS_START, CANVAS_MIDDLE, CANVAS_END } canvas_anchor;

typedef struct canvas_item {
    int x, y, width, height; /* rectangle; text: x, y of its anchor on the line's middle, width 0 */
    uint32_t colour;
    int size; /* text: dots of the font are this many pixels wide */
    canvas_anchor anchor;
    bool upwards; /* text: reads from bottom to top */
    char text[160];
} canvas_item;

typedef struct canvas {
    int width, height;
    canvas_item *items;
    int count, room;
    bool failed; /* an allocation failed: what was drawn is incomplete */
} canvas;

void canvas_rectangle(canvas *sheet, int x, int y, int width, int height, uint32_t colour);
void canvas_text(canvas *sheet, int x, int y, int size, canvas_anchor anchor, bool upwards, uint32_t colour,
                 const char *format, ...) __attribute__((format(printf, 8, 9)));
void canvas_release(canvas *sheet);

/* False if the file could not be written. */
bool canvas_write_svg(const canvas *sheet, const char *path);
/* Likewise; *why says what is missing if this build has no libpng. */
bool canvas_write_png(const canvas *sheet, const char *path, const char **why);

#endif
