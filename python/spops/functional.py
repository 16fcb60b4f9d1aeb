# SPDX-License-Identifier: Apache-2.0
"""Every operator of the library as a function of PyTorch tensors, under the name of its row.

Functions that make plans (``segments``, ``coords``, ``kernel_map``, ``sparseconv_plan``, ...) return
a :class:`spops.Plan`; the others take plans and tensors, allocate what they return, run on the
tensors' device and current stream, and have gradients where their docstring says so. Names of
enumerators are strings. ``help(spops.functional.segreduce)`` has shapes and dtypes.
"""
from ._generate import functions as _functions

globals().update(_functions)
__all__ = list(_functions)
