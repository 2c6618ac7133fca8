/* SPDX-License-Identifier: Apache-2.0
 * Letters for the raster picture, 5 x 7 dots each and two rows below the line. */
#ifndef DEMO_FONT_H
#define DEMO_FONT_H

#include <stdbool.h>

enum { FONT_WIDTH = 5, FONT_HEIGHT = 9, FONT_ADVANCE = 6 };

/* Is the dot in this column and row of the letter set? Characters that are not in the font show as a box. */
bool demo_font_dot(char letter, int column, int row);

#endif
