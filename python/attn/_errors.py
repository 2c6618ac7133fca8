# SPDX-License-Identifier: Apache-2.0
"""Exceptions that name the argument, the value given and what it must be."""
import re

from . import _library as lib

# What the C interface calls otherwise.
_NAMES = {"o": "out", "band.left": "window[0]", "band.right": "window[1]", "band.globals": "global_tokens", "band.kind": "causal",
          "band.corner": "corner", "block_q": "tile_q", "block_kv": "tile_kv"}
# Sizes, which Python reads off the shapes of these.
_SHAPES = {"batch": "q", "heads_q": "q", "heads_kv": "k", "tokens_q": "q", "tokens_kv": "k", "dim_qk": "q", "dim_v": "v"}
_TOLD = re.compile(r"(?:^|[ ;])is (.+?)(?:, must be |, must |, but |: )([^;]*)")


class Error(Exception):
    """status: the C name without ATTN_; field: the argument; value and limit as text, where the message tells them."""

    def __init__(self, field, message, status="ERR_INVALID", value=None, limit=None):
        super().__init__(f"{field} {message}" if field else message)
        self.field, self.message, self.status = field, message, status
        told = _TOLD.search(message)
        self.value = value if value is not None else told and told.group(1)
        self.limit = limit if limit is not None else told and told.group(2)

    def __reduce__(self):
        return type(self), (self.field, self.message, self.status, self.value, self.limit)

    def renamed(self, names):
        """The same about the argument that names calls the field; self where it calls it nothing else."""
        first, rest = re.match(r"(\w*)(.*)", self.field).groups()
        return type(self)(names[first] + rest, *self.__reduce__()[1][1:]) if first in names else self


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
    message = error.message.decode(errors="replace")
    if field in _SHAPES:
        raise kind(_SHAPES[field], f"({field}) {message}", name)
    field = _NAMES.get(field) or (_NAMES[first] + "." + rest if first in _NAMES and rest else field)
    raise kind(field, message, name)
