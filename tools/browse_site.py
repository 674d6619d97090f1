"""Every page of the built site in a headless Chromium, on a wide and a narrow screen: what a reader
would trip over, a line each.
"""

import re
import shutil
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from browser import Browser

WIDTHS = (1280, 390)
SEEN = """(async () => {
  const images = [...document.querySelectorAll("img")];
  images.forEach(image => image.loading = "eager");
  const drawn = image => image.complete ? null : new Promise(done => image.onload = image.onerror = done);
  await Promise.all(images.filter(image => image.getClientRects().length).map(drawn));
  if (window.MathJax?.startup?.promise) await MathJax.startup.promise;
  return {
    room: document.documentElement.clientWidth, width: document.documentElement.scrollWidth,
    formulas: document.querySelectorAll(".math").length, set: document.querySelectorAll("mjx-container").length,
    wrong: document.querySelectorAll("mjx-merror, [data-mjx-error]").length,
    blank: images.filter(image => image.getClientRects().length && !image.naturalWidth).map(image => image.src),
    wordless: images.filter(image => !image.alt.trim()).map(image => image.src),
  };
})()"""
# Left out: what is folded, and formulas, of which MathJax makes thousands of elements, with MathML
# beside them for screen readers.
AXE = """(async () => {
  const part = { include: [document], exclude: [["mjx-container"], ["details:not([open])"]] };
  const found = await axe.run(part, { resultTypes: ["violations"] });
  return found.violations.filter(one => ["serious", "critical"].includes(one.impact))
    .map(({ id, impact, nodes }) => `${id} (${impact}): ${nodes.length} times, as in ${nodes[0].target} `
      + `${nodes[0].html.slice(0, 160)} ${(nodes[0].any[0] || {}).message || ""}`);
})()"""


def axe() -> str:
    """The script of axe-core, out of the package that brings it."""
    spec = find_spec("axe_core_python")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("axe-core-python is not installed: it belongs to the extra `dev`")
    return (Path(spec.submodule_search_locations[0]) / "axe.min.js").read_text(encoding="utf-8")


def look(
    out: Path, folder: Path, pages: Iterable[Path] | None = None, widths: Iterable[int] = WIDTHS
) -> list[str]:
    """What is wrong with the pages (all below `out` unless given) on screens of these widths;
    `folder` is for the browser's files.
    """
    chosen = sorted(
        pages
        if pages is not None
        else (path for path in out.rglob("*.html") if "_static" not in path.parts)
    )
    script, found = axe(), []
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with Browser(folder / "profile", patience=300) as browser:
        for path in chosen:
            for width in widths:
                browser.open(path.resolve().as_uri(), width)
                name = f"{path.relative_to(out)} at {width} px"
                found += [f"{name}: {fault}" for fault in _faults(browser, script)]
    return found


def _faults(browser: Browser, script: str) -> list[str]:
    seen = browser.evaluate(SEEN)
    found = [f"a picture is not there: {address}" for address in seen["blank"]]
    found += [f"a picture has no words: {address}" for address in seen["wordless"]]
    if seen["width"] > seen["room"]:
        found.append(f"it is {seen['width']} px wide")
    if seen["set"] < seen["formulas"] or seen["wrong"]:
        found.append(
            f"{seen['set']} of {seen['formulas']} formulas are typeset, {seen['wrong']} with an error"
        )
    found += [
        f"it asks for {address}"
        for address in browser.requests()
        if not re.match("(file|data|blob|about):", address)
    ]
    browser.evaluate(f"{script};0")
    found += browser.evaluate(AXE)
    return found + browser.complaints()
