/* SPDX-License-Identifier: Apache-2.0 */
#include "picture.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static float weight(const attention_map *map, int head, int query, int key) {
    return map->weights[((size_t)head * (size_t)map->tokens + (size_t)query) * (size_t)map->tokens + (size_t)key];
}

/* head -1: mean over heads. */
static float shown(const attention_map *map, int head, int query, int key) {
    if (head >= 0) {
        return weight(map, head, query, key);
    }
    float sum = 0;
    for (int h = 0; h < map->heads; h++) {
        sum += weight(map, h, query, key);
    }
    return sum / (float)map->heads;
}

static float largest(const attention_map *map, int head) {
    float most = 0;
    for (int i = 0; i < map->tokens * map->tokens; i++) {
        most = fmaxf(most, shown(map, head, i / map->tokens, i % map->tokens));
    }
    return most;
}

static int label_width(const attention_map *map) {
    int width = 0;
    for (int t = 0; t < map->tokens; t++) {
        int length = (int)strlen(map->label[t]);
        width = length > width ? length : width;
    }
    return width;
}

/* --- Terminal --- */

/* Column labels stand upright, one letter a line, ending just above the blocks. */
static void print_columns(const attention_map *map, int width) {
    for (int line = 0; line < width; line++) {
        printf("%*s  ", width, "");
        for (int key = 0; key < map->tokens; key++) {
            int length = (int)strlen(map->label[key]), at = line - (width - length);
            printf("%c ", at >= 0 ? map->label[key][at] : ' ');
        }
        putchar('\n');
    }
}

/* The strongest pair of a head, leaving aside the two marks around the sentence. */
static void print_strongest(const attention_map *map, int head) {
    int best_query = 1, best_key = 1;
    for (int query = 1; query + 1 < map->tokens; query++) {
        for (int key = 1; key + 1 < map->tokens; key++) {
            if (weight(map, head, query, key) > weight(map, head, best_query, best_key)) {
                best_query = query;
                best_key = key;
            }
        }
    }
    printf("  head %2d  %-14s looks at  %-14s %.3f\n", head, map->label[best_query], map->label[best_key],
           weight(map, head, best_query, best_key));
}

void picture_print(const attention_map *map) {
    static const char *const shade[] = {"  ", "░░", "▒▒", "▓▓", "██"};
    int width = label_width(map);
    float most = largest(map, -1);
    printf("Which token (row) attends to which (column), mean over %d heads\n\n", map->heads);
    print_columns(map, width);
    for (int query = 0; query < map->tokens; query++) {
        printf("%*s  ", width, map->label[query]);
        for (int key = 0; key < map->tokens; key++) {
            int step = (int)(sqrtf(shown(map, -1, query, key) / most) * 4.999f); /* small weights show too */
            fputs(shade[step], stdout);
        }
        putchar('\n');
    }
    printf("\n%*s  ", width, "scale");
    for (int step = 0; step < 5; step++) {
        printf("%s from %.3f   ", shade[step], most * (float)(step * step) / 25);
    }
    printf("\n\nThe strongest pair of each head\n");
    for (int head = 0; head < map->heads; head++) {
        print_strongest(map, head);
    }
}

/* --- Sheet --- */

enum { MARGIN = 24, CELL = 18, SMALL = 5, GAP = 18, COLUMNS = 3, LETTER = 12 };
static const uint32_t ink = 0x222222, faint = 0x777777, frame = 0xdddddd;

/* Light to dark through one hue; the square root lets small weights show. */
static uint32_t colour_of(float value, float most) {
    static const float stop[4][3] = {{247, 251, 255}, {158, 202, 225}, {33, 113, 181}, {8, 29, 88}};
    float place = 3 * sqrtf(most > 0 ? fminf(value / most, 1) : 0);
    int low = place >= 3 ? 2 : (int)place;
    uint32_t colour = 0;
    for (int part = 0; part < 3; part++) {
        float mixed = stop[low][part] + (stop[low + 1][part] - stop[low][part]) * (place - (float)low);
        colour = colour << 8 | (uint32_t)(mixed + 0.5f);
    }
    return colour;
}

static void draw_cells(const attention_map *map, int head, canvas *sheet, int x, int y, int cell, float most) {
    int side = map->tokens * cell;
    canvas_rectangle(sheet, x - 1, y - 1, side + 2, side + 2, frame);
    for (int query = 0; query < map->tokens; query++) {
        for (int key = 0; key < map->tokens; key++) {
            canvas_rectangle(sheet, x + key * cell, y + query * cell, cell, cell,
                             colour_of(shown(map, head, query, key), most));
        }
    }
}

static void draw_scale(canvas *sheet, int x, int y, int width, float most) {
    for (int i = 0; i < width; i++) {
        canvas_rectangle(sheet, x + i, y, 1, 12, colour_of(most * (float)i / (float)width, most));
    }
    for (int tick = 0; tick <= 4; tick++) {
        canvas_anchor anchor = tick == 0 ? CANVAS_START : tick == 4 ? CANVAS_END : CANVAS_MIDDLE;
        canvas_text(sheet, x + width * tick / 4, y + 26, 2, anchor, false, faint, "%.2f", most * (float)tick / 4);
    }
}

void picture_draw(const attention_map *map, canvas *sheet) {
    int labels = label_width(map) * LETTER + 12, side = map->tokens * CELL, small = map->tokens * SMALL;
    int left = MARGIN + labels, top = MARGIN + 50 + labels, right = left + side + 2 * GAP;
    int panel = small + GAP + 16, rows = (map->heads + COLUMNS - 1) / COLUMNS;
    float most = largest(map, -1), most_of_heads = 0;
    int below = top + side > MARGIN + 50 + rows * panel ? top + side : MARGIN + 50 + rows * panel;
    sheet->width = right + COLUMNS * (small + GAP) + MARGIN - GAP;
    sheet->height = below + 50 + MARGIN;

    canvas_text(sheet, MARGIN, MARGIN + 8, 2, CANVAS_START, false, ink, "%s", map->title);
    canvas_text(sheet, left + side, MARGIN + 34, 2, CANVAS_END, false, faint, "mean over heads");
    for (int t = 0; t < map->tokens; t++) {
        canvas_text(sheet, left - 8, top + t * CELL + CELL / 2, 2, CANVAS_END, false, ink, "%s", map->label[t]);
        canvas_text(sheet, left + t * CELL + CELL / 2, top - 8, 2, CANVAS_START, true, ink, "%s", map->label[t]);
    }
    draw_cells(map, -1, sheet, left, top, CELL, most);
    draw_scale(sheet, left, below + 16, side, most);

    for (int head = 0; head < map->heads; head++) {
        most_of_heads = fmaxf(most_of_heads, largest(map, head));
    }
    for (int head = 0; head < map->heads; head++) {
        int x = right + head % COLUMNS * (small + GAP), y = MARGIN + 50 + head / COLUMNS * panel;
        canvas_text(sheet, x, y - 10, 2, CANVAS_START, false, faint, "head %d", head);
        draw_cells(map, head, sheet, x, y, SMALL, most_of_heads);
    }
    draw_scale(sheet, right, below + 16, COLUMNS * (small + GAP) - GAP, most_of_heads);
}
