# SPDX-License-Identifier: Apache-2.0
"""What a call on a GPU needs of PyTorch: the current stream, workspace of the caching allocator, words of status.

A call whose lengths lie on the device gets a word there in which it says what it found wrong, and a copy of it that
arrives in pinned memory by itself, so that a later call can raise it without waiting. Words are used in turn. Of those
for calls run at once there are more than a stream can hold launches, so that none is overwritten before it was looked
at; a call that a CUDA graph records keeps a word of its own, which its replays write."""
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from . import _library as lib
from ._errors import raise_status

_TURN, _RECORDED = 2048, 1024
_CLEAN = bytes(4 * (_TURN + _RECORDED))
_boards = {}
_lock = threading.Lock()

stream = torch._C._cuda_getCurrentRawStream if hasattr(torch._C, "_cuda_getCurrentRawStream") else None


def apart(make):
    """What make() allocates to outlive a call. A thread and stream that record a graph may have memory of the graph's own,
    so it is made in another thread."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make).result()


def workspace(device, size):
    """(tensor that holds it, address)."""
    if not size:
        return None, None
    space = torch.empty(size, dtype=torch.uint8, device=device)
    return space, space.data_ptr()


class _Board:
    def __init__(self, device):
        words = _TURN + _RECORDED
        self.words = apart(lambda: torch.zeros(words, dtype=torch.int32, device=device))
        torch.cuda.current_stream(device).wait_stream(torch.cuda.default_stream(device))
        self.seen = torch.zeros(words, dtype=torch.int32, device="cpu", pin_memory=True)
        self.word, self.copy = self.words.split(1), self.seen.split(1)
        self.bytes = memoryview(self.seen.numpy()).cast("B")
        self.turn, self.recorded = itertools.count(), itertools.count()

    def look(self):
        if self.bytes.tobytes() == _CLEAN:
            return
        at = int(self.seen.nonzero()[0])
        word = int(self.seen[at])
        self.seen[at] = 0
        error = lib.Status()
        lib.status_word(word, error)
        raise_status(error)

    def take(self):
        if torch.cuda.is_current_stream_capturing():
            return _TURN + next(self.recorded) % _RECORDED
        self.look()
        return next(self.turn) % _TURN


def status_word(device):
    """(board, number, address) of the word for one call; raises what earlier calls were found to be."""
    board = _boards.get(device)
    if board is None:
        with _lock:
            board = _boards.setdefault(device, _Board(device))
    at = board.take()
    return board, at, board.words.data_ptr() + 4 * at


def note_status(board, at):
    board.copy[at].copy_(board.word[at], non_blocking=True)


def check_device():
    """Waits for the devices and raises what earlier calls found wrong with lengths that lie there."""
    for device, board in list(_boards.items()):
        torch.cuda.synchronize(device)
        board.look()
