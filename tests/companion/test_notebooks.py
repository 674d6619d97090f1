"""Every notebook keeps the house's form, runs at every profile (dry), and says what the papers say in its `paper` settings."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from curlnb.companion import reproduce
from curlnb.runs import environment

NOTEBOOKS = reproduce.notebooks()
NAMES = [reproduce.name_of(path) for path in NOTEBOOKS]
HERE = Path(__file__).parent.parent


def cells_of(path: Path) -> list[dict]:
    return json.loads(path.read_text())["cells"]


def code_of(path: Path) -> list[str]:
    return ["".join(cell["source"]) for cell in cells_of(path) if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
class TestForm:
    def test_parameters_cell_holds_profile_and_seed_and_nothing_more(self, path):
        tagged = [cell for cell in cells_of(path) if "parameters" in cell["metadata"].get("tags", [])]
        assert ["".join(cell["source"]).strip() for cell in tagged] == ['profile = "quick"\nseed = 0']

    def test_it_is_committed_executed_from_top_to_bottom_without_error_or_stderr(self, path):
        cells = [cell for cell in cells_of(path) if cell["cell_type"] == "code"]
        assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1)), "run `make reproduce reference`"
        outputs = [out for cell in cells for out in cell["outputs"]]
        assert not [out for out in outputs if out["output_type"] == "error" or out.get("name") == "stderr"]

    def test_it_begins_with_a_title_and_ends_with_claims_compute_and_exercises(self, path):
        headings = [line for cell in cells_of(path) if cell["cell_type"] == "markdown" for line in "".join(cell["source"]).splitlines()]
        headings = [line.lstrip("# ").strip().lower() for line in headings if line.startswith("#")]
        assert "".join(cells_of(path)[0]["source"]).startswith("# ")
        assert headings[-3:] == ["claims", "compute", "exercises"] or path.name == "0_start_here.ipynb"

    def test_checked_cells_print_plain_text_only(self, path):
        for cell in cells_of(path):
            if "NBVAL_CHECK_OUTPUT" in cell["metadata"].get("tags", []):
                kinds = {kind for out in cell["outputs"] for kind in out.get("data", {"text/plain": ""})}
                assert kinds <= {"text/plain"}
                assert cell["outputs"], "a checked cell without output checks nothing"

    def test_names_no_path_of_a_machine_and_no_address_of_a_registry(self, path):
        text = path.read_text()
        assert not re.search(r"/(home|root|tmp|Users|work)/\w", text)
        assert not re.search(r"(pypi|npmjs|debian|anaconda|hosted)\.\w+", text)


@pytest.mark.parametrize("profile", ["gpu", "paper"])
@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_every_profile_runs_dry(path, profile, tmp_path):
    """The same code, two steps, synthetic data of the real shapes: no profile rots unseen."""
    lines = "\n".join(code_of(path)).replace('profile = "quick"', f'profile = "{profile}"')
    script = tmp_path / "notebook.py"
    script.write_text(lines)
    dry = {
        "CURLNB_DRY": "1",
        "CURLNB_RESULTS": str(tmp_path / "results"),
        "MPLBACKEND": "agg",
        "CURLNB_DEVICE": "cpu",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run([sys.executable, script], env={**os.environ, **dry}, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]


def profiles_of(path: Path) -> dict[str, dict]:
    """What the notebook's settings cell passes to `notebook.settings`, by profile."""
    from unittest.mock import patch

    class Seen(Exception):
        pass

    def capture(name, profile, **profiles):
        raise Seen(name, profiles)

    scope: dict = {}
    with patch("curlnb.companion.notebook.settings", capture):
        for code in code_of(path):
            try:
                exec(code, scope)
            except Seen as seen:
                name, profiles = seen.args
                assert name == reproduce.name_of(path), "the settings cell names another notebook"
                return profiles
    raise AssertionError(f"{path} has no settings cell")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_paper_settings_are_those_of_the_paper_field_by_field(path):
    """tests/paper_settings.csv cites the paper, or the released code, for every setting of the `paper` profile."""
    with open(HERE / "paper_settings.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["notebook"] == reproduce.name_of(path)]
    cited = {row["setting"]: json.loads(row["value"]) for row in rows}
    assert all(row["source"] for row in rows)
    assert json.loads(json.dumps(profiles_of(path)["paper"])) == cited


def test_settings_name_an_unknown_profile_and_a_missing_setting():
    from curlnb.companion.notebook import settings

    with pytest.raises(ValueError, match="profile 'papr' is unknown here; use one of quick, gpu"):
        settings("x", "papr", quick={}, gpu={})
    with pytest.raises(ValueError, match="profile 'gpu' lacks the setting 'epochs'"):
        settings("x", "quick", quick={"epochs": 1}, gpu={})
    with pytest.raises(AttributeError, match="no setting 'epoch'; it has epochs"):
        _ = settings("x", "quick", quick={"epochs": 1}).epoch


def test_reading_order_is_the_papers_own():
    from curlnb.companion.reproduce import _natural

    names = ["0_start_here", "1_curl", "2_dcl", "4_discrepancies", "10_last"]
    assert sorted(reversed(names), key=_natural) == names
    assert sorted(["C.1_moco", "6.20_x", "6.3_y", "5.1_z"], key=_natural) == ["5.1_z", "6.3_y", "6.20_x", "C.1_moco"]


def test_every_notebook_of_the_readme_exists():
    text = (environment.home() / "README.md").read_text()
    for name in re.findall(r"\((notebooks/[^)#]+\.ipynb)\)", text):
        assert (environment.home() / name).exists(), name
