/* SPDX-License-Identifier: Apache-2.0 */
#include "canvas.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "font.h"

static void append(canvas *sheet, const canvas_item *item) {
    if (sheet->count == sheet->room) {
        int room = sheet->room ? 2 * sheet->room : 256;
        canvas_item *grown = realloc(sheet->items, (size_t)room * sizeof *grown);
        if (!grown) {
            sheet->failed = true;
            return;
        }
        sheet->items = grown;
        sheet->room = room;
    }
    sheet->items[sheet->count++] = *item;
}

void canvas_rectangle(canvas *sheet, int x, int y, int width, int height, uint32_t colour) {
    append(sheet, &(canvas_item){.x = x, .y = y, .width = width, .height = height, .colour = colour});
}

void canvas_text(canvas *sheet, int x, int y, int size, canvas_anchor anchor, bool upwards, uint32_t colour,
                 const char *format, ...) {
    canvas_item item = {.x = x, .y = y, .colour = colour, .size = size, .anchor = anchor, .upwards = upwards};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(item.text, sizeof item.text, format, arguments);
    va_end(arguments);
    append(sheet, &item);
}

void canvas_release(canvas *sheet) {
    free(sheet->items);
    *sheet = (canvas){0};
}

static void svg_escaped(FILE *file, const char *text) {
    for (; *text; text++) {
        switch (*text) {
        case '&': fputs("&amp;", file); break;
        case '<': fputs("&lt;", file); break;
        case '>': fputs("&gt;", file); break;
        default: fputc(*text, file);
        }
    }
}

static void svg_text(FILE *file, const canvas_item *item) {
    static const char *const anchors[] = {"start", "middle", "end"};
    fprintf(file, "<text x=\"%d\" y=\"%d\" font-size=\"%d\" fill=\"#%06x\" text-anchor=\"%s\"", item->x, item->y,
            item->size * (FONT_HEIGHT - 1), (unsigned)item->colour, anchors[item->anchor]);
    if (item->upwards) {
        fprintf(file, " transform=\"rotate(-90 %d %d)\"", item->x, item->y);
    }
    fputs(" dominant-baseline=\"central\">", file);
    svg_escaped(file, item->text);
    fputs("</text>\n", file);
}

bool canvas_write_svg(const canvas *sheet, const char *path) {
    FILE *file = fopen(path, "w");
    if (!file) {
        return false;
    }
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
            "font-family=\"sans-serif\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
            sheet->width, sheet->height, sheet->width, sheet->height);
    for (int i = 0; i < sheet->count; i++) {
        const canvas_item *item = &sheet->items[i];
        if (item->size > 0) {
            svg_text(file, item);
        } else {
            fprintf(file, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"#%06x\"/>\n", item->x, item->y,
                    item->width, item->height, (unsigned)item->colour);
        }
    }
    fputs("</svg>\n", file);
    bool written = !ferror(file);
    return fclose(file) == 0 && written && !sheet->failed;
}
