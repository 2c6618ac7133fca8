/* SPDX-License-Identifier: Apache-2.0
 * attn_device.h on a GPU, beside the driver's own view of the same memory; and on the CPU, where it works on the
 * host's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "attn/attn_device.h"
#include "support/device.h"
#include "support/machine.h"

enum { SIZE = 100003 };

static void good(attn_status status, const attn_error *error) {
    if (status != ATTN_OK) {
        fail_msg("%s %s", error->field, error->message);
    }
}

static void copies(const attn_context *context, bool device) {
    unsigned char *host = malloc(SIZE), *back = calloc(SIZE, 1);
    void *a, *b, *none;
    attn_stream stream;
    attn_error error;
    assert_non_null(host);
    assert_non_null(back);
    for (int i = 0; i < SIZE; i++) {
        host[i] = (unsigned char)(i * 7 % 251);
    }
    good(attn_memory_create(&a, context, SIZE, &error), &error);
    good(attn_memory_create(&b, context, SIZE, &error), &error);
    good(attn_memory_create(&none, context, 0, &error), &error);
    assert_null(none);
    assert_int_equal((uintptr_t)a % 256, 0);
    good(attn_stream_create(&stream, context, &error), &error);
    good(attn_memory_fill(context, b, 0x5a, SIZE, stream, &error), &error);
    good(attn_memory_copy(context, a, host, SIZE, stream, &error), &error);
    good(attn_memory_copy(context, (char *)b + 1, (char *)a + 1, SIZE - 2, stream, &error), &error);
    good(attn_memory_copy(context, back, b, SIZE, stream, &error), &error);
    assert_int_equal(back[0], 0x5a);
    assert_int_equal(back[SIZE - 1], 0x5a);
    assert_memory_equal(back + 1, host + 1, SIZE - 2);
    if (device) {
        device_download(back, a, SIZE);
        assert_memory_equal(back, host, SIZE);
    }
    good(attn_stream_wait(context, stream, &error), &error);
    attn_stream_destroy(context, stream);
    attn_memory_destroy(context, a);
    attn_memory_destroy(context, b);
    attn_memory_destroy(context, NULL);
    free(host);
    free(back);
}

static void events(const attn_context *context) {
    attn_event *events[2];
    attn_error error;
    double milliseconds = -1;
    for (int n = 0; n < 2; n++) {
        good(attn_event_create(&events[n], context, &error), &error);
        good(attn_event_record(events[n], NULL, &error), &error);
    }
    good(attn_event_elapsed(events[0], events[1], &milliseconds, &error), &error);
    assert_true(milliseconds >= 0 && milliseconds < 10000);
    attn_event_destroy(events[0]);
    attn_event_destroy(events[1]);
    attn_event_destroy(NULL);
}

static void facts(const attn_context *context, bool device) {
    attn_device_info info = {.struct_size = sizeof info};
    attn_error error;
    good(attn_device_query(context, &info, &error), &error);
    assert_int_equal(info.arch >= 75 && info.device_arch >= info.arch, device);
    assert_int_equal(info.processors > 0, device);
    assert_int_equal(strncmp(info.device, "cuda:", 5) == 0, device);
}

static void test_on_the_cpu(void **state) {
    (void)state;
    copies(machine_context(1), false);
    events(machine_context(1));
    facts(machine_context(1), false);
}

static void test_on_the_device(void **state) {
    (void)state;
    if (machine_lacks_gpu()) {
        return;
    }
    device_note("memory, copies, events");
    copies(machine_device(), true);
    events(machine_device());
    facts(machine_device(), true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_on_the_cpu),
        cmocka_unit_test(test_on_the_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
