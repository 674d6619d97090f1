"""The package stays a house that can be held in the head: floors, no circles, no long module, tests
where their module is.

Everything is read off the code by grimp; nothing is kept by hand but the order of the floors.
"""

import graphlib
import re

import grimp
import pytest

from curlnb.runs import environment

HOME = environment.home()
PACKAGE = HOME / "curlnb"
FLOORS = [
    {"extras", "choices", "losses", "theory", "evaluation"},
    {"runs", "data", "models"},
    {"experiments"},
    {"companion", "__main__"},
]
"""From the ground floor up: a module imports from its own floor and from floors below."""
ROOMS = set.union(*FLOORS)

GRAPH = grimp.build_graph("curlnb", exclude_type_checking_imports=True, cache_dir=None)
IMPORTS = {module: GRAPH.find_modules_directly_imported_by(module) for module in GRAPH.modules}


def floor(module):
    if "." not in module:
        return -1
    return next(at for at, rooms in enumerate(FLOORS) if module.split(".")[1] in rooms)


def test_every_folder_is_a_floor():
    found = {
        path.stem
        for path in PACKAGE.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert found - {"__init__"} == ROOMS


def test_contributing_lists_the_floors():
    rows = re.findall(r"^\| (\d) \| (`[^|]*`) \|", (HOME / "CONTRIBUTING.md").read_text(), re.M)
    listed = [(int(at), set(re.findall(r"`(\w+)`", rooms))) for at, rooms in rows]
    assert listed == [*enumerate(FLOORS)]


def test_modules_import_downwards_only():
    assert [
        f"{module} imports {other}"
        for module, others in IMPORTS.items()
        for other in others
        if floor(other) > floor(module)
    ] == []


def test_no_circle_of_imports():
    try:
        tuple(graphlib.TopologicalSorter(IMPORTS).static_order())
    except graphlib.CycleError as circle:
        pytest.fail(" -> ".join(circle.args[1]))


def test_no_module_is_over_400_lines():
    lines = {
        path.relative_to(PACKAGE): len(path.read_text().splitlines())
        for path in PACKAGE.rglob("*.py")
    }
    assert {str(path): count for path, count in lines.items() if count > 400} == {}


def test_tests_stand_in_the_folder_of_what_they_test():
    folders = {
        path.name
        for path in (HOME / "tests").iterdir()
        if path.is_dir() and list(path.glob("test_*.py"))
    }
    assert folders == {name for name in ROOMS if (PACKAGE / name).is_dir()} | {"tools"}


def test_the_losses_stand_alone():
    assert IMPORTS["curlnb"] == set()
    inside = {module for module in IMPORTS if module.startswith("curlnb.losses")}
    assert set.union(*(IMPORTS[module] for module in inside)) < inside
