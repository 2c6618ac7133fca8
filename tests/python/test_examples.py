# SPDX-License-Identifier: Apache-2.0
"""The examples, and the Python of README and pages, end well as programs of their own, on the tests' device."""
import os
import pathlib
import re
import subprocess
import sys

import conftest
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = {path.name: path.read_text() for path in sorted((ROOT / "examples" / "python").glob("*.py"))}
PAGES = {}
for page in ("README.md", "docs/python.md", "docs/from-flash-attn.md", "docs/from-sdpa.md"):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    PAGES.update({f"{page} {n}": text for n, text in enumerate(blocks) if "from_pretrained" not in text})


@pytest.mark.parametrize("name", [*EXAMPLES, *PAGES])
def test_program(name):
    text = EXAMPLES.get(name) or PAGES[name]
    if "torch" in text or "attn.flash_attn" in text:
        pytest.importorskip("torch", reason="needs PyTorch")
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if conftest.DEVICE == "cpu" else {}
    done = subprocess.run([sys.executable, "-c", text], env={**os.environ, **hidden}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_page_has_a_program():
    assert len(EXAMPLES) == 3 and {name.split()[0] for name in PAGES} == {"README.md", "docs/python.md", "docs/from-flash-attn.md", "docs/from-sdpa.md"}
