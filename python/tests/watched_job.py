# SPDX-License-Identifier: Apache-2.0
"""A job for tests of processes, which import this and no more."""
import os
import signal
from pathlib import Path

import numpy as np

from spops.tiles import Job


class Watched(Job):
    """A job that says in files which tiles were loaded, and whose processes die or fail where a file says so."""

    def load(self, key, empty=np.empty):
        place, name = Path(self.out), f"{key[0]}_{key[1]}"
        self._ends(f"load_{name}")
        loader = empty is not np.empty
        if loader and (place / f"dies_{name}").exists():
            (place / f"dies_{name}").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        if loader and (place / f"fails_{name}").exists():
            raise RuntimeError("not this one")
        tile = super().load(key, empty)
        (place / f"loaded_{name}_{'loader' if loader else 'here'}_{os.getpid()}").touch()
        return tile

    def _ends(self, name):
        """In a process of a pool: it ends where a file says so, once or always."""
        place = Path(self.out, f"{name}_once")
        if place.exists() or Path(self.out, f"{name}_always").exists():
            place.unlink(missing_ok=True)
            os.kill(os.getpid(), signal.SIGKILL)

    def cut(self, file):
        self._ends(f"cut_{file}")
        return super().cut(file)

    def keep(self, tile, *said):
        for place in Path(self.out).glob(f"keep_{tile.key[0]}_{tile.key[1]}_*"):
            if place.name.endswith("_once"):
                place.unlink()
            raise OSError("not this one")
        return super().keep(tile, *said)

    def write(self, file):
        self._ends(f"write_{file}")
        return super().write(file)

    @classmethod
    def seen(cls, job):
        return [p.name.split("_")[1:] for p in Path(job.out).glob("loaded_*")]
