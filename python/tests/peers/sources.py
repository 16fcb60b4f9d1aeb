# SPDX-License-Identifier: Apache-2.0
"""Networks of others, run from their own source.

The files are theirs and not here: environment variables name checkouts (POINTCEPT_SOURCE,
OPENPCDET_SOURCE). What they import and do not need for what is run here has a stand-in of a few lines.
"""
from __future__ import annotations

import contextlib
import importlib
import os
import sys
import types
from pathlib import Path

import torch
from torch import nn


def folder(variable: str) -> Path | None:
    """The checkout that the tester names, if any."""
    named = os.environ.get(variable)
    return Path(named) if named else None


@contextlib.contextmanager
def standing_in(modules: dict[str, types.ModuleType], prefixes: tuple[str, ...]):
    """These modules under these names while the sources are imported; what was there comes back."""
    heads = (*modules, *prefixes)

    def mine(name: str) -> bool:
        return any(name == h or name.startswith(h + ".") for h in heads)

    kept = {n: sys.modules.pop(n) for n in list(sys.modules) if mine(n)}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for n in [n for n in sys.modules if mine(n)]:
            del sys.modules[n]
        sys.modules.update(kept)


def module(name: str, path: Path | None = None, **values) -> types.ModuleType:
    """A module of these values; with a path, a package without its __init__."""
    m = types.ModuleType(name)
    if path is not None:
        m.__path__ = [str(path)]
    vars(m).update(values)
    return m


class Registry:
    """Classes by the names of configurations; here nothing is looked up."""

    def register_module(self, *_, **__):
        return lambda cls: cls


class Dict(dict):
    """addict.Dict, as far as it is read: keys are attributes."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name, value):
        self[name] = value


class DropPath(nn.Module):
    """timm's: leaves a branch out of some samples in training."""

    def __init__(self, drop_prob=0.0):
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x):
        if not self.training or not self.drop_prob:
            return x
        keep = 1 - self.drop_prob
        return x * x.new_empty((x.shape[0],) + (1,) * (x.dim() - 1)).bernoulli_(keep) / keep


def installed(package: str) -> dict[str, types.ModuleType]:
    """spconv itself, by the names that imports look for."""
    return {package + n: importlib.import_module(package + n) for n in ("", ".pytorch")}


def _scatter(*_, **__):
    raise NotImplementedError("torch_geometric's scatter")


def pointcept(root: Path, modules: dict[str, types.ModuleType], name: str) -> types.ModuleType:
    """A module of pointcept.models, such as "sparse_unet.spconv_unet_v1m1_base".

    modules: what is imported under which names, spconv's among them.
    """
    models = root / "pointcept/models"
    packages = {
        "pointcept": module("pointcept", root / "pointcept"),
        "pointcept.models": module("pointcept.models", models),
        "pointcept.engines": module("pointcept.engines", root / "pointcept/engines"),
        "pointcept.engines.hooks": module("pointcept.engines.hooks", HookBase=object),
        "pointcept.models.builder": module("pointcept.models.builder", MODELS=Registry(), MODULES=Registry(), build_model=None),
    }
    for p in ("sparse_unet", "point_transformer_v3", "point_prompt_training"):
        packages["pointcept.models." + p] = module("pointcept.models." + p, models / p)
    packages["pointcept.models.point_prompt_training"].PDNorm = None
    packages |= {
        "timm": module("timm"),
        "timm.layers": module("timm.layers", trunc_normal_=nn.init.trunc_normal_, DropPath=DropPath),
        "addict": module("addict", Dict=Dict),
        "torch_geometric": module("torch_geometric"),
        "torch_geometric.utils": module("torch_geometric.utils", scatter=_scatter),
    }
    with standing_in({**packages, **modules}, ("pointcept", "flash_attn", "torch_scatter")):
        return importlib.import_module("pointcept.models." + name)



def openpcdet(root: Path, modules: dict[str, types.ModuleType]) -> types.ModuleType:
    """pcdet.models.backbones_3d.spconv_backbone: the encoders of CenterPoint, SECOND and others."""
    packages = {n: module(n, root / n.replace(".", "/")) for n in ("pcdet", "pcdet.utils", "pcdet.models", "pcdet.models.backbones_3d")}
    with standing_in({**packages, **modules}, ("pcdet",)):
        return importlib.import_module("pcdet.models.backbones_3d.spconv_backbone")
