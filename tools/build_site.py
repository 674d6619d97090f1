"""`make site`: the project as static pages in results/site/html, from what is committed; nothing is
executed and no network is used.

    python tools/build_site.py [--browse]

Sphinx reads the notebooks, the README and the guides where they lie (docs/site/conf.py), and the
report is written beside them. --browse opens every page in a headless Chromium.
"""

import subprocess
import sys
import time
from pathlib import Path

from browser import look

from curlnb.companion import notebooks, report
from curlnb.runs import environment

HOME = Path(__file__).resolve().parent.parent
PYTHON = [sys.executable]  # which runs Sphinx
START = "docs/site/index.html"
INDEX = f"""<!doctype html><html lang="en"><title>curlnb</title>
<meta http-equiv="refresh" content="0; url={START}"><a href="{START}">curlnb</a>"""


def build(folder, *options):
    """Build the site in `folder`/html and return that. RuntimeError with Sphinx's warnings where
    there are any: links that lead nowhere are among them. options: further ones of Sphinx.
    """
    out = folder / "html"
    sphinx = ["-m", "sphinx", "-b", "html", "-j", "auto", "-q", "-W", "--keep-going", *options]
    places = ["-c", "docs/site", "-d", folder / "doctrees", ".", out]
    done = subprocess.run([*PYTHON, *sphinx, *places], capture_output=True, text=True, cwd=HOME)
    if done.returncode:
        raise RuntimeError("Sphinx complains:\n" + done.stderr)
    links = {name: f"notebooks/{name}.html" for name in map(notebooks.name_of, notebooks.find())}
    report.write_report(None, out / "report.html", links=links, home=START)
    (out / "index.html").write_text(INDEX, encoding="utf-8")
    (out / ".nojekyll").touch()  # a host that hides folders with an underscore must not
    return out


def main():
    start, wrong = time.monotonic(), []
    try:
        out = build(environment.results_folder() / "site")
        pages = [path.relative_to(out) for path in sorted(out.rglob("*.html"))]
        pages = [path for path in pages if path.parts[0] not in ("_static", "index.html")]
        print(f"{len(pages)} pages, {time.monotonic() - start:.0f} s: {out / START}")
        if "--browse" in sys.argv:
            found, wrong = look(out, map(str, pages))
            wrong += [f"{page}: {fault}" for page, own in found.items() for fault in own]
    except RuntimeError as error:
        wrong = [str(error)]
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
