"""Experiments, one module per family: functions of keyword arguments to a dict of metrics."""

import importlib
import pkgutil

from curlnb.runs.experiment import Experiment


def all_experiments() -> list[Experiment]:
    """Every experiment of every module here, by name."""
    modules = [
        importlib.import_module(f"{__name__}.{module.name}")
        for module in pkgutil.iter_modules(__path__)
    ]
    found = {
        value.name: value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, Experiment)
    }
    return [found[name] for name in sorted(found)]
