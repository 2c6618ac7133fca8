# SPDX-License-Identifier: Apache-2.0
"""attn.install_as_flash_attn: `import flash_attn` and `import flash_attn_interface` find attn's drop-ins."""

import importlib
import sys

_NAMES = {
    "flash_attn": "attn.flash_attn",
    "flash_attn.flash_attn_interface": "attn.flash_attn.flash_attn_interface",
    "flash_attn.bert_padding": "attn.flash_attn.bert_padding",
    "flash_attn.layers": "attn.flash_attn.layers",
    "flash_attn.layers.rotary": "attn.flash_attn.layers.rotary",
    "flash_attn_interface": "attn.flash_attn_3",
}


def install(replace=False):
    """Puts the drop-ins in the place of the originals for imports from now on.

    If an original has been imported already, some code may hold its functions: that is refused with RuntimeError,
    unless replace=True, after which new imports get attn's and what was imported before stays as it is.
    """
    ours = {name: importlib.import_module(target) for name, target in _NAMES.items()}
    foreign = [
        name
        for name, module in sys.modules.items()
        if (name in ours or name.startswith("flash_attn.")) and module is not ours.get(name)
    ]
    if foreign and not replace:
        raise RuntimeError(
            f"{min(foreign)} has been imported already; call install_as_flash_attn() before that, or with replace=True"
        )
    for name in foreign:
        del sys.modules[name]
    sys.modules.update(ours)
