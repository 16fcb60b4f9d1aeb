# SPDX-License-Identifier: Apache-2.0
"""Who loads the next tiles: threads, or processes, which do not take turns in Python with the thread that calls kernels."""
from __future__ import annotations

import mmap
import multiprocessing
import multiprocessing.connection
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from math import prod

import numpy as np

from ._grid import Key, Tile
from ._job import Job, arrays_of

ALIGNED = 64  # bytes
BREAKS = 3  # so often processes are started anew, after one of them ended


def end_with_parent() -> None:
    """In a process of a pool: it ends when its parent does, however that ends. Else it would wait for work for good."""

    def wait() -> None:
        multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


class Threads:
    """Threads of this process."""

    def __init__(self, job: Job, readers: int):
        self.job, self.pool = job, ThreadPoolExecutor(readers)

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *_) -> None:
        self.pool.shutdown(cancel_futures=True)

    def submit(self, key: Key) -> Future:
        return self.pool.submit(self.job.load, key)

    def result(self, key: Key, loading: Future) -> Tile | None:
        """None: it failed."""
        return None if loading.exception() else loading.result()

    def release(self, key: Key) -> None:
        pass


# ---- Memory that processes share ----------------------------------------------------------------


class Memory:
    """Bytes that a process shares with those that it starts.

    They have no name, so nothing is left behind: they go with the last process that has them. They take memory once
    they are written.
    """

    def __init__(self, num_bytes: int, fd: int | None = None):
        self.file = os.fdopen(os.memfd_create("tile") if fd is None else fd, "r+b")
        if fd is None:
            self.file.truncate(num_bytes)
        self.bytes = np.frombuffer(mmap.mmap(self.file.fileno(), num_bytes), np.uint8)

    def __reduce__(self) -> tuple:  # while a process is started, which inherits it
        from multiprocessing.reduction import DupFd

        return _inherited, (len(self.bytes), DupFd(self.file.fileno()))


def _inherited(num_bytes: int, fd) -> Memory:
    return Memory(num_bytes, fd.detach())


class Room:
    """Arrays in given bytes, one after the other."""

    def __init__(self, given: np.ndarray):
        self.given, self.used = given, 0

    def empty(self, shape: int | tuple, dtype: type = np.float64) -> np.ndarray:
        begin = -(-self.used // ALIGNED) * ALIGNED
        end = begin + prod(np.atleast_1d(shape).tolist()) * np.dtype(dtype).itemsize
        if end > len(self.given):
            raise MemoryError(f"a tile takes {end} bytes and more, of {len(self.given)}")
        self.used = end
        return self.given[begin:end].view(dtype).reshape(shape)


def bytes_of(points: int) -> int:
    """What the arrays of a tile take, and a bit more."""
    arrays = arrays_of(1, np.empty).values()
    return points * sum(a.nbytes for a in arrays) + len(arrays) * ALIGNED


# ---- Processes ----------------------------------------------------------------------------------

_here: dict = {}  # of a process that loads


def _begin(job: Job, memory: list[Memory]) -> None:
    end_with_parent()
    _here.update(job=job, memory=memory)


def _load(key: Key, piece: int) -> int:
    return len(_here["job"].load(key, Room(_here["memory"][piece].bytes).empty))


class Processes:
    """Processes that load tiles into memory that this one sees.

    Parameters
    ----------
    job, keys : what is loaded
    readers : how many processes; there are two more pieces of memory, of a tile at work and of one that is kept
    pin : (bytes) -> what undoes it, or None where it cannot be; told of memory before tiles in it are given

    A tile's arrays lie in that memory until it is released.
    """

    def __init__(self, job: Job, keys: Sequence[Key], readers: int, pin: Callable | None = None):
        self.job, self.readers, self.pin = job, readers, pin
        num_bytes = bytes_of(job.points_at_most(keys))
        self.memory = [Memory(num_bytes) for _ in range(readers + 2)]
        self.pinned: list[tuple[int, Callable | None]] = [(0, None)] * len(self.memory)
        self.free, self.piece_of = deque(range(len(self.memory))), {}
        self.pool, self.breaks = None, 0

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_) -> None:
        self._end()
        for _, undo in self.pinned:
            if undo:
                undo()
        for memory in self.memory:
            memory.file.close()
        self.memory.clear(), self.pinned.clear()

    def _end(self) -> None:
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)  # nobody writes to the memory from here on
            self.pool = None

    def _start(self) -> ProcessPoolExecutor:
        if self.pool is None:
            self.pool = ProcessPoolExecutor(self.readers, multiprocessing.get_context("spawn"), _begin, (self.job, self.memory))
        return self.pool

    def _broke(self, pool: ProcessPoolExecutor) -> None:
        if pool is self.pool:
            self._end()
            self.breaks += 1

    def submit(self, key: Key) -> tuple | None:
        """None: processes ended too often, and are no longer tried."""
        piece = self.free.popleft()
        self.piece_of[key] = piece
        while self.breaks < BREAKS:
            pool = self._start()
            try:
                return pool, pool.submit(_load, key, piece)
            except BrokenProcessPool:
                self._broke(pool)
        return None

    def result(self, key: Key, loading: tuple | None) -> Tile | None:
        """None: it failed."""
        if loading is None:
            self.release(key)
            return None
        pool, future = loading
        try:
            n = future.result()
        except BrokenProcessPool:
            self._broke(pool)
        except Exception:  # whoever loads the tile again says what is wrong
            pass
        else:
            piece = self.piece_of[key]
            room = Room(self.memory[piece].bytes)
            tile = Tile(key, self.job.grid, **arrays_of(n, room.empty))
            self._pin(piece, room.used)
            return tile
        self.release(key)
        return None

    def _pin(self, piece: int, used: int) -> None:
        most, undo = self.pinned[piece]
        if self.pin is None or used <= most:
            return
        if undo:
            undo()
        most = min(used + used // 8, len(self.memory[piece].bytes))  # the next tile may be a bit larger
        undo = self.pin(self.memory[piece].bytes[:most])
        self.pinned[piece] = most if undo else 0, undo
        if undo is None:
            self.pin = None

    def release(self, key: Key) -> None:
        """The tile's arrays are read no more."""
        if key in self.piece_of:
            self.free.append(self.piece_of.pop(key))


def loaders(job: Job, keys: Sequence[Key], readers: int, pin: Callable | None = None) -> Threads | Processes:
    """Processes for several readers, where they can share memory; else threads."""
    if readers > 1 and len(keys) > 1 and hasattr(os, "memfd_create"):
        try:
            return Processes(job, keys, readers, pin)
        except OSError:
            pass  # no such memory, or not as much
    return Threads(job, readers)
