# SPDX-License-Identifier: Apache-2.0
"""A job for tests of processes, which import this and no more."""
import os
import signal
from pathlib import Path

import numpy as np

from spops.tiles import Job


class Watched(Job):
    """A job that says in files which tiles were loaded, and whose loader dies or fails once where a file says so."""

    def load(self, key, empty=np.empty):
        place, name = Path(self.out), f"{key[0]}_{key[1]}"
        loader = empty is not np.empty
        if loader and (place / f"dies_{name}").exists():
            (place / f"dies_{name}").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        if loader and (place / f"fails_{name}").exists():
            raise RuntimeError("not this one")
        tile = super().load(key, empty)
        (place / f"loaded_{name}_{'loader' if loader else 'here'}_{os.getpid()}").touch()
        return tile

    @classmethod
    def seen(cls, job):
        return [p.name.split("_")[1:] for p in Path(job.out).glob("loaded_*")]
