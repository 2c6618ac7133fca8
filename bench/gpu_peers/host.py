"""What a plan and a call cost the host."""
import os
import shutil
import subprocess
import sys
import tempfile

from .problems import Case
from .table import ROOT


def host(bench):
    """Seconds until a plan stands, with nothing cached and with a filled cache on disk; then what a call costs the host.
    The compiler keeps a cache of its own, so the first plan is made in a process that is told to leave it alone."""
    options, folder = bench.options, tempfile.mkdtemp()
    case = Case("bf16", 8, 16, 16, 2048, 128, True)
    for state in ("empty", "filled"):
        for backward in (False, True):
            text = case.text(backward)
            code = ("import sys, time; sys.path.insert(0, sys.argv[1])\n"
                    "from attn_ctypes import Library, Plan\n"
                    "library = Library(sys.argv[2]); context = library.context(cache=sys.argv[3])\n"
                    "start = time.perf_counter(); Plan(library, context, sys.argv[4])\n"
                    "print(time.perf_counter() - start)")
            run = subprocess.run([sys.executable, "-c", code, os.path.join(ROOT, "bench"), options.library, folder, text],
                                 capture_output=True, text=True, check=False,
                                 env={**os.environ, "CUDA_CACHE_DISABLE": "1"})
            if run.returncode:
                print(f"    left out: first plan of {text}: {run.stderr.strip().splitlines()[-1]}")
                continue
            milliseconds = 1e3 * float(run.stdout)
            print(f"first plan, {state} cache: {text}: {milliseconds:.1f} ms", flush=True)
            bench.table.write("host", [{"problem": text, "contender": "libattn", "detail": f"first plan, {state} cache",
                                        "median_ms": milliseconds}])
    shutil.rmtree(folder)
    program = os.path.join(os.path.dirname(options.library), "bench", "host_gpu")
    if not os.path.exists(program):
        print(f"    left out: host time of a call: no {program}")
        return
    print(subprocess.run([program], capture_output=True, text=True, check=False).stdout, end="")
