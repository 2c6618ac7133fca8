"""Rows: on the terminal as they come, in a CSV file at once, and in a summary at the end."""
import csv
import datetime
import math
import os
import statistics
import subprocess

import torch

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
COLUMNS = ["date", "gpu", "driver", "cuda", "pytorch", "cudnn", "commit", "part", "problem", "note", "contender", "detail",
           "median_ms", "spread", "clock_mhz", "power_w", "tflops", "tb_s", "error_share", "ours_over_it", "rms_o", "rms_dq",
           "rms_dk", "rms_dv"]
BEST_OF = ("fa3", "fa4", "cudnn")  # the fastest of these on a row is what ours is held against


def command_output(*words):
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def best_peer(rows):
    return max((row for row in rows if row["contender"] in BEST_OF), key=lambda row: row["tflops"], default=None)


def row_of(rows, name):
    return next((row for row in rows if row["contender"] == name), None)


class Table:
    def __init__(self, options):
        gpu = torch.cuda.get_device_name()
        self.common = {"date": datetime.date.today().isoformat(), "gpu": gpu, "cuda": torch.version.cuda,
                       "driver": command_output("nvidia-smi", "--id=0", "--query-gpu=driver_version", "--format=csv,noheader"),
                       "pytorch": torch.__version__, "cudnn": torch.backends.cudnn.version(), "commit": options.commit}
        short = gpu.lower().replace("nvidia ", "").replace(" ", "-")
        self.path = options.out or os.path.join(ROOT, "bench", "results", f"{self.common['date']}-peers-{short}.csv")
        os.makedirs(os.path.dirname(os.path.abspath(self.path)), exist_ok=True)
        self.file = open(self.path, "w", newline="")
        self.csv = csv.DictWriter(self.file, COLUMNS)
        self.csv.writeheader()
        self.groups = {}  # (part, pass, type, head size) -> ours / best peer, one a row
        print(", ".join(f"{key} {value}" for key, value in self.common.items()), flush=True)

    def write(self, part, rows):
        for row in rows:
            shown = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()}
            self.csv.writerow({**self.common, "part": part, **shown})
        self.file.flush()

    def show(self, part, case, backward, rows):
        """One line: ours, then each peer's rate and ours over it."""
        ours, best = row_of(rows, "libattn"), best_peer(rows)
        unit = "tb_s" if "tb_s" in rows[0] else "tflops"
        number = (lambda row: f"{row[unit]:.2f}") if unit == "tb_s" else (lambda row: f"{row[unit]:.0f}")
        beside = "  ".join(f"{row['contender']} {number(row)} ({row['ours_over_it']:.3f})" for row in rows if row is not ours)
        mine = f"{number(ours):>5} {ours['detail']}" if ours else "    - -"
        clock = f"{ours['clock_mhz']:.0f} MHz, spread {100 * ours['spread']:.1f} %" if ours else ""
        print(f"{case.text(backward)} {case.note}: {mine} | {beside} | {clock}", flush=True)
        if ours and best:
            key = (part, "bwd" if backward else "fwd", case.dtype, f"d{case.dim}")
            self.groups.setdefault(key, []).append(ours["tflops"] / best["tflops"])

    def close(self):
        self.file.close()
        if self.groups:
            print(f"ours over the fastest of {', '.join(BEST_OF)}: lowest, geometric mean, highest of the rows")
        for key, ratios in self.groups.items():
            mean = math.exp(statistics.fmean(math.log(r) for r in ratios))
            print(f"  {' '.join(key):24} {min(ratios):.3f} {mean:.3f} {max(ratios):.3f}  ({len(ratios)} rows)")
        print(f"rows: {os.path.relpath(self.path)}")
