# SPDX-License-Identifier: Apache-2.0
"""The examples end well as programs of their own, those for PyTorch on the tests' device."""
import os
import pathlib
import subprocess
import sys

import conftest
import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "examples" / "python"


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.py")))
def test_example(name):
    if name != "numpy_attention.py":
        pytest.importorskip("torch")
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if conftest.DEVICE == "cpu" else {}
    done = subprocess.run([sys.executable, FOLDER / name], env={**os.environ, **hidden}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
