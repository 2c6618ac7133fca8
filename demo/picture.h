/* SPDX-License-Identifier: Apache-2.0
 * Which token attends to which: as text for a terminal, and as a sheet for SVG and PNG. */
#ifndef DEMO_PICTURE_H
#define DEMO_PICTURE_H

#include "canvas.h"

enum { PICTURE_MAX_TOKENS = 64 };

typedef struct attention_map {
    int tokens, heads;
    const float *weights; /* (heads, tokens, tokens): head, query, key */
    const char *label[PICTURE_MAX_TOKENS];
    const char *title;
} attention_map;

/* Mean over heads as shaded blocks, and for each head the pair of words with the largest weight. */
void picture_print(const attention_map *map);

/* Mean over heads with labels, and every head small beside it. */
void picture_draw(const attention_map *map, canvas *sheet);

#endif
