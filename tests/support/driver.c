/* SPDX-License-Identifier: Apache-2.0 */
#include "support/driver.h"

#include <dlfcn.h>
#include <stdbool.h>

const driver *driver_open(void) {
    static driver table;
    static bool tried, complete;
    if (tried) {
        return complete ? &table : NULL;
    }
    tried = true;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    complete = library != NULL;
#define DRIVER_LOAD(member, symbol, parameters)                                                                        \
    *(void **)&table.member = complete ? dlsym(library, #symbol) : NULL;                                               \
    complete = table.member != NULL;
    DRIVER_FUNCTIONS(DRIVER_LOAD)
#undef DRIVER_LOAD
    complete = complete && table.init(0) == 0;
    return complete ? &table : NULL;
}
