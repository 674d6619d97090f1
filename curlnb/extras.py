"""Which extra of this package brings what its folders import beyond torch and numpy, and the one
line that says so where it is missing.

`pip install .` brings torch and numpy, on which `losses`, `models.encoders` and `evaluation` stand
(but ResNets and VGGs are torchvision's, and linear probes and SVMs scikit-learn's, both in the
extra notebooks). A folder that needs more says so in its `__init__.py`, so that an import fails
there with this line and not in the middle with the name of a package. Only that a package is there
is looked up; nothing is imported.
"""

import importlib.util
import sys

IMPORTED = {
    "notebooks": (
        "IPython", "PIL", "cloudpickle", "filelock", "ipykernel", "ipywidgets", "jinja2",
        "markupsafe", "matplotlib", "nbclient", "nbformat", "pandas", "papermill", "psutil",
        "safetensors", "scipy", "seaborn", "sklearn", "threadpoolctl", "torchvision", "tqdm",
        "yaml",
    ),
    "graphs": ("torch_geometric",),
    "control": ("absl", "dm_control", "mujoco"),
    "cluster": ("dask", "distributed"),
}  # fmt: skip
"""The modules that this package imports of each extra."""


def need(folder: str, *modules: str) -> None:
    """ModuleNotFoundError, whose one line names the extra to install, where one of the modules that
    a folder imports is not installed.
    """
    for name in modules:
        if name not in sys.modules and importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"{folder} needs {name}: {remedy(name)}", name=name)


def remedy(module: str) -> str:
    """What to install where a module is missing, in words; the empty string for a module that no
    extra brings.
    """
    name = module.partition(".")[0]
    return next(
        (
            f"install the extra {extra!r}, `pip install 'curlnb[{extra}]'`"
            for extra, own in IMPORTED.items()
            if name in own
        ),
        "",
    )
