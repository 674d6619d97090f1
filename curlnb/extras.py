"""The one line that says which extra of this package brings what one of its folders imports beyond
torch and numpy, where that is missing.

`pip install .` brings torch and numpy, on which `losses`, `models.encoders` and `evaluation` stand
(but ResNets and VGGs are torchvision's, and linear probes and SVMs scikit-learn's, both in the
extra notebooks). A folder that needs more says so in its `__init__.py`, so that an import fails
there with this line and not in the middle with the name of a package. Only that a package is there
is looked up; nothing is imported.
"""

import importlib.util


def need(folder: str, extra: str, *modules: str) -> None:
    """ModuleNotFoundError, whose one line names the extra to install, where one of the modules that
    a folder imports is not installed.
    """
    for name in modules:
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(
                f"{folder} needs {name}: install the extra {extra!r}, "
                f"`pip install 'curlnb[{extra}]'`",
                name=name,
            )
