"""Remove what was computed here: results/ but its committed reference, and the tools' caches."""

import os
import shutil

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RESULTS = os.path.join(ROOT, "results")

for name in os.listdir(RESULTS) if os.path.isdir(RESULTS) else []:
    if name != "reference":
        path = os.path.join(RESULTS, name)
        shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
for name in (".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"):
    shutil.rmtree(os.path.join(ROOT, name), ignore_errors=True)
