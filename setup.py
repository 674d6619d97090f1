"""A wheel carries what the package reads of the checkout: the catalogue of the data sets, the
reference's ledger and where it was made.

They stay where a reader looks for them, and are copied to curlnb/carried/ when a wheel is built
(`curlnb.runs.environment.home`). All else stands in pyproject.toml.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

CARRIED = [
    "data/catalogue.json",
    "results/reference/*/claims.csv",
    "results/reference/*/provenance.json",
]


class Build(build_py):
    def run(self) -> None:
        super().run()
        root = Path(__file__).resolve().parent
        for pattern in () if self.editable_mode else CARRIED:
            for path in sorted(root.glob(pattern)):
                target = Path(self.build_lib, "curlnb", "carried", path.relative_to(root))
                self.mkpath(str(target.parent))
                self.copy_file(str(path), str(target))


setup(cmdclass={"build_py": Build})
