# SPDX-License-Identifier: Apache-2.0
"""Engines: this process, or Ray. Both take the parts of a job that are not done, and report each one."""
from __future__ import annotations

import contextlib
import logging
import math
import multiprocessing
import os
import shlex
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial

from ._grid import Key, Tile
from ._job import Job, Refused, said
from ._loaders import Processes, Threads, end_with_parent, loaders


ENDED = "its process ended each time"


class Failed(RuntimeError):
    """Parts of a job that failed as often as they may; the others are done."""


class Progress:
    """Lines about a pass: parts, points a second, and what is left."""

    def __init__(self, name: str, total: int, show: bool = True):
        self.name, self.total, self.show = name, total, show
        self.parts, self.points, self.started = 0, 0, time.monotonic()

    def add(self, points: int) -> None:
        self.parts, self.points = self.parts + 1, self.points + points
        if self.show:
            seconds = max(time.monotonic() - self.started, 1e-9)
            left = seconds / self.parts * (self.total - self.parts)
            print(f"{self.name}: {self.parts} of {self.total}, {self.points / seconds:,.0f} points a second, {left:.0f} s left", file=sys.stderr, flush=True)


def attempt(job: Job, key: Key, function: Callable, retries: int, tile: Tile | None = None, keep: Callable | None = None,
            error: str = ENDED) -> tuple[int, str]:  # fmt: skip
    """Label a tile, again after an exception. Returns the points of the core, and "" or what failed last.

    Tries are counted in the job's folder before they begin: a tile that takes its process down counts too.
    keep: instead of job.keep
    error: of the tries that were
    """
    while job.begin(key) <= retries:
        try:
            if job.is_labelled(key):
                return 0, ""
            tile = job.load(key) if tile is None else tile
            (keep or job.keep)(tile, *said(key, function(tile)))
            return int(tile.is_core.sum()), ""
        except Exception:
            error = traceback.format_exc(limit=4)
    return 0, error


# ---- This process -------------------------------------------------------------------------------


def _ahead(loads: Threads | Processes, keys: list[Key], readers: int):
    """Tiles in order; as many are loaded, or wait, as there are readers. None: a tile that could not be loaded."""
    waiting: deque = deque()
    for key in keys:
        waiting.append((key, loads.submit(key)))
        if len(waiting) > readers:
            first, loading = waiting.popleft()
            yield first, loads.result(first, loading)
    for first, loading in waiting:
        yield first, loads.result(first, loading)


def _tried(function: Callable, part: int, retries: int) -> tuple[int, str]:
    error = ""
    for _ in range(retries + 1):
        try:
            return function(part), ""
        except Exception:
            error = traceback.format_exc(limit=4)
    return 0, error


def _with_one_thread() -> None:
    """A process beside others: LAZ would be read and written by as many threads as there are cores, in each."""
    end_with_parent()
    os.environ.setdefault("RAYON_NUM_THREADS", "1")


def _files_here(job: Job, name: str, parts: list[int], retries: int, show: bool, failed: dict, workers: int) -> None:
    """A pass over files, cut or write, in processes where there are several."""
    progress, function, paths = Progress(name, len(parts), show), getattr(job, name), [f.path for f in job.files]

    def done(part: int, points: int, error: str) -> None:
        if error:
            failed[f"{name} {paths[part]}"] = error
        progress.add(points)

    if workers == 1 or len(parts) < 2:
        for part in parts:
            done(part, *_tried(function, part, retries))
        return
    left = dict.fromkeys(parts)
    for _ in range(retries + 1):  # a process that ends takes the parts of all others with it
        for part, result in _in_processes(list(left), function, retries, workers):
            del left[part]
            done(part, *result)
        if not left:
            return
    for part in left:  # alone, so that each ends its own process at most
        result = (0, ENDED)
        for _, result in _in_processes([part], function, retries, 1):
            pass
        done(part, *result)


def _in_processes(parts: list[int], function: Callable, retries: int, workers: int):
    """Parts that were tried, and how it went; without those that were not when a process ended."""
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _with_one_thread) as pool, contextlib.suppress(BrokenProcessPool):
        running: dict = {}
        try:
            for part in parts:
                running[pool.submit(_tried, function, part, retries)] = part
        except BrokenProcessPool:
            pass  # those that run say so too
        for future in as_completed(running):
            if not isinstance(future.exception(), BrokenProcessPool):
                yield running[future], future.result()


def _label_here(job: Job, keys: list[Key], make: Callable[[], Callable], retries: int, show: bool, failed: dict, readers: int) -> None:
    """The function runs here, one tile after the other, while the next tiles are loaded and what was said of the last is kept."""
    if not keys:
        return
    function, progress, kept = make(), Progress("label", len(keys), show), deque()
    with loaders(job, keys, readers, getattr(function, "pin", None)) as loads, ThreadPoolExecutor(1) as writer:

        def keep(tile: Tile, *what) -> None:
            kept.append((tile.key, writer.submit(job.keep, tile, *what)))

        def settle(most: int) -> None:
            while len(kept) > most:
                key, future = kept.popleft()
                loads.release(key)
                if future.exception() is not None:
                    again = attempt(job, key, function, retries, error=repr(future.exception()))[1]
                    if again:
                        failed[key] = again

        for key, tile in _ahead(loads, keys, readers):
            points, error = attempt(job, key, function, retries, tile, keep)
            if error:
                failed[key] = error
            if not kept or kept[-1][0] != key:
                loads.release(key)
            del tile
            settle(1)
            progress.add(points)
        settle(0)


def _run_here(job: Job, make: Callable[[], Callable], retries: int, show: bool, failed: dict, workers: int, readers: int) -> None:
    _files_here(job, "cut", [i for i in range(len(job.files)) if not job.is_cut(i)], retries, show, failed, workers)
    if failed:
        return
    _label_here(job, [k for k in job.tiles() if not job.is_labelled(k)], make, retries, show, failed, readers)
    written_not = [i for i in range(len(job.files)) if not job.is_written(i) and job.is_complete(i)]
    _files_here(job, "write", written_not, retries, show, failed, workers)


# ---- Ray ----------------------------------------------------------------------------------------


class _Worker:
    """An actor: one function, made once."""

    def __init__(self, job: Job, make: Callable[[], Callable], retries: int):
        self.job, self.function, self.retries = job, make(), retries

    def __call__(self, batch: dict) -> dict:
        import pickle

        out: dict = {"key": [], "points": [], "error": []}
        for key, data in zip(batch["key"], batch["tile"]):
            tile = pickle.loads(data) if data else None
            points, error = attempt(self.job, _key_of(key), self.function, self.retries, tile)
            for name, value in zip(out, (key, points, error)):
                out[name].append(value)
        return out


def _key_of(text: str) -> Key:
    i, j = str(text).split("_")
    return int(i), int(j)


def _read(job: Job, retries: int, row: dict) -> dict:
    import pickle

    if job.begin(f"read_{row['item']}") > retries:  # Ray would start it anew for good; who labels the tile counts too
        return {"key": row["item"], "tile": b""}
    try:
        return {"key": row["item"], "tile": pickle.dumps(job.load(_key_of(row["item"])), protocol=5)}
    except Exception:  # the try itself loads again, and says what is wrong
        return {"key": row["item"], "tile": b""}


def runtime_env(**others: object) -> dict:
    """What Ray's workers start in. Ray hands the path of Python to a shell as it is, spaces too, and then waits for its workers for good."""
    quoted = {"py_executable": shlex.quote(sys.executable)} if shlex.quote(sys.executable) != sys.executable else {}
    return {**quoted, **others}


def _run_ray(
    job: Job, make: Callable[[], Callable], retries: int, show: bool, failed: dict, workers: int, cpus: float, gpus: float, readers: int,
    memory_bytes: int | None,
) -> None:  # fmt: skip
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ImportError("run: engine ray needs Ray: pip install 'spops[tiles]'") from error
    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False, runtime_env=runtime_env())
        for name, share, has in (("gpus", gpus, "GPU"), ("cpus", 0.0 if gpus else cpus, "CPU")):
            here = ray.cluster_resources().get(has, 0.0)
            if share > here and not os.environ.get("RAY_ADDRESS"):  # Ray would wait for good; a cluster of the caller's may grow
                ray.shutdown()
                raise Refused(f"run: {name} is {share:g}, expected at most the {here:g} that there are")
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    if memory_bytes is not None:
        context.execution_options.resource_limits = ray.data.ExecutionResources(object_store_memory=memory_bytes)

    def files(name: str, parts: list[int], function: Callable) -> None:
        progress = Progress(name, len(parts), show)

        def one(row: dict) -> dict:
            ends = job.begin(f"{name}_{row['item']}") > retries  # Ray would start it anew for good
            points, error = (0, ENDED) if ends else _tried(function, int(row["item"]), retries)
            return {"part": row["item"], "points": points, "error": error}

        for row in ray.data.from_items(parts, override_num_blocks=len(parts)).map(one, num_cpus=1).iter_rows() if parts else ():
            if row["error"]:
                failed[f"{name} {job.files[int(row['part'])].path}"] = row["error"]
            progress.add(int(row["points"]))

    files("cut", [i for i in range(len(job.files)) if not job.is_cut(i)], job.cut)
    if failed:
        return
    keys = [f"{i}_{j}" for i, j in job.tiles() if not job.is_labelled((i, j))]
    progress = Progress("label", len(keys), show)
    if keys:
        has = dict(num_gpus=gpus, num_cpus=0) if gpus else dict(num_cpus=cpus)
        # Actors hold what they have for the whole pass, so that readers must do with what is left, or with nothing.
        left = ray.cluster_resources().get("CPU", 0.0) - workers * has["num_cpus"]
        reading = dict(num_cpus=min(max(left / readers, 0.0), 1.0), compute=ray.data.TaskPoolStrategy(size=readers))
        tiles = ray.data.from_items(keys, override_num_blocks=len(keys)).map(partial(_read, job, retries), **reading)
        pool = ray.data.ActorPoolStrategy(size=workers)
        for row in tiles.map_batches(_Worker, fn_constructor_args=(job, make, retries), batch_size=1, compute=pool, **has).iter_rows():
            if row["error"]:
                failed[_key_of(row["key"])] = row["error"]
            progress.add(int(row["points"]))
    files("write", [i for i in range(len(job.files)) if not job.is_written(i) and job.is_complete(i)], job.write)


def run(
    job: Job,
    make: Callable[[], Callable],
    engine: str = "local",
    retries: int = 2,
    show: bool = True,
    workers: int = 1,
    cpus: float = 1.0,
    gpus: float = 0.0,
    readers: int = 1,
    memory_bytes: int | None = None,
) -> None:
    """Do what of a job is not done.

    Parameters
    ----------
    job : Job
    make : () -> function of a Tile, as :meth:`Job.label` takes it; called once in each worker
    engine : local: this process labels tiles, while the next ones are loaded and what was said of the last is kept.
        ray: Ray Data, with tasks that load tiles and a pool of actors that label them; Ray stops readers while its
        memory for what is on the way is full.
    retries : how often a tile is tried again after an exception, or after the end of its process
    show : lines of progress on stderr
    workers : processes that cut and write files; of Ray: actors that label
    cpus, gpus : of Ray: what an actor has
    readers : tiles that are loaded at a time; of this process: by as many processes, where there are more than one.
        A tile's arrays are then the function's until it returns. Scripts need "if __name__ == '__main__'", as with
        several workers.
    memory_bytes : of Ray: for tiles on the way; None: what Ray decides

    Raises
    ------
    Failed : once all else is done; it names the parts.
    ValueError : another process works on the job.
    """
    if engine not in ("local", "ray"):
        raise ValueError(f"run: engine is {engine!r}, expected local or ray")
    whole = dict(retries=(retries, 0), workers=(workers, 1), readers=(readers, 1), memory_bytes=(1 if memory_bytes is None else memory_bytes, 1))
    for name, (value, least) in whole.items():
        if not (least <= value < math.inf and value == int(value)):
            raise ValueError(f"run: {name} is {value}, expected a whole number of {least} or more")
    for name, share in dict(cpus=cpus, gpus=gpus).items():
        if not 0 <= share < math.inf:
            raise ValueError(f"run: {name} is {share}, expected a finite number of 0 or more")
    failed: dict = {}
    with job.alone():
        if engine == "local":
            _run_here(job, make, retries, show, failed, workers, readers)
        else:
            _run_ray(job, make, retries, show, failed, workers, cpus, gpus, readers, memory_bytes)
    if failed:
        raise Failed("\n".join([f"{len(failed)} parts failed", *(f"{key}: {error}" for key, error in failed.items())]))
