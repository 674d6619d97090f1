"""`make site`: the project as static pages in results/site/html, from what is committed; nothing is
executed and no network is used.

    python tools/build_site.py [--browse]

Sphinx reads the notebooks, the README and the guides where they lie (docs/site/conf.py), and the
report is written beside them. --browse opens every page in a headless Chromium.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(HOME), str(HOME / "tools")]

from curlnb.companion import notebooks, report  # noqa: E402
from curlnb.runs import environment  # noqa: E402

PYTHON = [sys.executable]  # which runs Sphinx
START = "docs/site/index.html"


def build(folder: Path, *options: str) -> Path:
    """Build the site in `folder`/html and return that. RuntimeError with Sphinx's warnings where
    there are any: links that lead nowhere are among them. options: further ones of Sphinx.
    """
    out = folder / "html"
    line = ["-m", "sphinx", "-b", "html", "-c", str(HOME / "docs" / "site"), "-j", "auto", "-q"]
    line += ["-d", str(folder / "doctrees"), *options, str(HOME), str(out)]
    paths = os.pathsep.join([str(HOME), str(HOME / "tools"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*PYTHON, *line],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        cwd=HOME,
    )
    warnings = re.findall(r"^.*\b(?:WARNING|ERROR)\b.*$", done.stderr, re.M)
    if done.returncode or warnings:
        raise RuntimeError("Sphinx complains:\n" + ("\n".join(warnings) or done.stderr))
    links = {name: f"notebooks/{name}.html" for name in map(notebooks.name_of, notebooks.find())}
    references = environment.reference_folder()
    report.write_report(None, references, out / "report.html", links=links, home=START)
    moved = f'<meta http-equiv="refresh" content="0; url={START}">'
    page = (
        f'<!doctype html><html lang="en"><title>curlnb</title>{moved}<a href="{START}">curlnb</a>'
    )
    (out / "index.html").write_text(page, encoding="utf-8")
    (out / ".nojekyll").touch()  # a host that hides folders with an underscore must not
    return out


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build the site in results/site/html.")
    parser.add_argument("--browse", action="store_true", help="then open every page in Chromium")
    given = parser.parse_args(arguments)
    start, wrong = time.monotonic(), []
    try:
        out = build(environment.results_folder() / "site")
        pages = [path.relative_to(out) for path in sorted(out.rglob("*.html"))]
        pages = [path for path in pages if path.parts[0] not in ("_static", "index.html")]
        print(f"{len(pages)} pages, {time.monotonic() - start:.0f} s: {out / START}")
        if given.browse:
            from browser import look

            found, wrong = look(out, map(str, pages))
            wrong += [f"{page}: {fault}" for page, own in found.items() for fault in own]
    except RuntimeError as error:
        wrong = [str(error)]
    print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
