# SPDX-License-Identifier: Apache-2.0
"""Exceptions that name the argument, the value given and what it must be."""
import re

from . import _library as lib

# What the C interface calls otherwise.
_NAMES = {"o": "out", "band.left": "window[0]", "band.right": "window[1]", "band.globals": "global_tokens", "band.kind": "causal",
          "band.corner": "corner", "block_q": "tile_q", "block_kv": "tile_kv"}


class Error(Exception):
    """status: the C name without ATTN_; field: the argument; value and limit as text, where the message tells them."""

    def __init__(self, field, message, status="ERR_INVALID", value=None, limit=None):
        super().__init__(f"{field} {message}" if field else message)
        self.field, self.message, self.status = field, message, status
        told = re.match(r"is (.*?), (?:must be |must |but )(.*)", message)
        self.value = value if value is not None else told and told.group(1)
        self.limit = limit if limit is not None else told and told.group(2)


class InvalidError(Error, ValueError):
    pass


class UnsupportedError(Error, NotImplementedError):
    pass


class DeviceError(Error, RuntimeError):
    pass


class MemoryError_(Error, MemoryError):
    pass


_STATUS = {1: ("ERR_INVALID", InvalidError), 2: ("ERR_UNSUPPORTED", UnsupportedError), 3: ("ERR_WORKSPACE", DeviceError),
           4: ("ERR_MEMORY", MemoryError_), 5: ("ERR_COMPILE", DeviceError), 6: ("ERR_DEVICE", DeviceError),
           7: ("ERR_COMM", DeviceError), 8: ("ERR_INTERNAL", DeviceError)}


def invalid(field, value, limit):
    return InvalidError(field, f"is {value}, must {limit}", value=value, limit=limit)


def raise_status(error: "lib.Status"):
    name, kind = _STATUS.get(error.status, ("ERR_INTERNAL", DeviceError))
    field = error.field.decode(errors="replace")
    field = field.removeprefix("hints.")
    first, _, rest = field.partition(".")
    field = _NAMES.get(field) or (_NAMES[first] + "." + rest if first in _NAMES and rest else field)
    raise kind(field, error.message.decode(errors="replace"), name)
