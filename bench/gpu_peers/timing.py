"""Time: each contender in turn launches N times between two synchronisations, N such that this takes about
options.batch seconds; the median of options.rounds such batches counts. The turn starts with another contender each
round. A thread reads the processors' clock and the power meanwhile."""
import math
import statistics
import threading
import time

import torch


class Meter(threading.Thread):
    """Samples (time, MHz, W) every 10 ms until stopped; none where NVML cannot be asked."""

    def __init__(self):
        super().__init__(daemon=True)
        self.samples, self.stopped = [], threading.Event()
        try:
            import pynvml

            pynvml.nvmlInit()
            uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
            handle = pynvml.nvmlDeviceGetHandleByUUID("GPU-" + uuid)
            self.read = lambda: (pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
                                 pynvml.nvmlDeviceGetPowerUsage(handle) / 1000)
            self.read()
        except Exception as problem:
            print(f"    no clocks: {problem!r}")
            self.read = None

    def run(self):
        while self.read and not self.stopped.wait(0.01):
            at = time.perf_counter()
            self.samples.append((at, *self.read()))

    def mean(self, spans):
        """Clock and power over the spans of time given; NaN where none was read."""
        found = [s[1:] for s in self.samples if any(a <= s[0] <= b for a, b in spans)]
        return tuple(statistics.fmean(column) for column in zip(*found)) if found else (math.nan, math.nan)


def batch_span(runner, launches):
    """Begin and end of a batch."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(launches):
        runner.run()
    runner.finish()
    return start, time.perf_counter()


def alternate(runners, options, meter):
    """For each runner: seconds a launch of every batch, mean clock, mean power."""
    launches = []
    for runner in runners:
        batch_span(runner, 2)
        start, end = batch_span(runner, 2)
        launches.append(max(1, math.ceil(options.batch / ((end - start) / 2))))
    spans = [[] for _ in runners]
    for turn in range(options.rounds):
        for n in range(len(runners)):
            at = (n + turn) % len(runners)
            time.sleep(options.pause)
            spans[at].append(batch_span(runners[at], launches[at]))
    out = []
    for mine, n in zip(spans, launches):
        out.append(([(end - start) / n for start, end in mine], *meter.mean(mine)))
        meter.samples = meter.samples[-1000:] if mine is spans[-1] else meter.samples
    return out
