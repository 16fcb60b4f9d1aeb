# SPDX-License-Identifier: Apache-2.0
"""The Python code of the pages runs."""
import importlib.util
import re
import sys
from pathlib import Path

import pytest

root = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("page", ["docs/python.md", "docs/tiles.md", "docs/ranks.md", "docs/coming-from.md", "README.md"])
def test_code_of_page(page, device):
    if page == "docs/ranks.md" and device.type == "cuda":
        pytest.skip("ranks of this page are threads on the CPU")
    if not (root / page).is_file():
        pytest.skip(f"{page}: this is no checkout")
    blocks = re.findall(r"^```python\n(.*?)^```", (root / page).read_text(), re.M | re.S)
    assert blocks
    space, before = {}, set(sys.modules)
    try:
        for block in blocks:
            if re.search(r"^import jax\b", block, re.M) and importlib.util.find_spec("jax") is None:
                print(f"{page}: a program of JAX was left out, which is not installed")
                continue
            exec(compile(block, page, "exec"), space)
    finally:
        for name in set(sys.modules) - before:  # a page may install spops under other libraries' names
            if name.split(".")[0] in ("spconv", "flash_attn", "torch_scatter"):
                del sys.modules[name]
