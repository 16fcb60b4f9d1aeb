# SPDX-License-Identifier: Apache-2.0
"""spconv 2's names on spops: ``import spops.spconv.pytorch as spconv`` in place of ``import
spconv.pytorch as spconv``; weights are [C_out, *kernel_size, C_in], as in spconv 2's checkpoints.

``spops.compat.install("spconv")`` puts this package under spconv's own name."""
from . import constants, core, pytorch  # noqa: F401

__version__ = "2.3.8"  # whose names these are
