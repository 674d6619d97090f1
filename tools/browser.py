"""Pages in a headless Chromium, each in a frame as wide as a screen: what a script finds on them,
and what they say to the console.

    found, said = look(folder, ["index.html"], "return page.document.title")

The folder is served to this machine alone; no other host can be reached, so that a page which asks
for one complains.
"""

import functools
import http.server
import json
import re
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.parse
from importlib.resources import files
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
CHROMIUM = next((path for name in NAMES if (path := shutil.which(name))), None)
WIDTHS = (1280, 390)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--enable-logging=stderr", "--disable-background-networking"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
CONSOLE = r'CONSOLE[:(]\d+\)?\] "(.*?)", source: (\S*) \(\d+\)'
FRAMES = """<!doctype html><title>frames</title><link rel="icon" href="data:,"><body><script>
const script = new (async () => {}).constructor("page", SCRIPT), found = {};
const axe = fetch("axe.min.js").then(answer => answer.text());
async function violations(page, exclude = []) {
  const own = page.document.createElement("script");
  own.textContent = await axe;
  page.document.head.append(own);
  const found = await page.axe.run({ include: [page.document], exclude },
    { resultTypes: ["violations"] });
  return found.violations.filter(one => ["serious", "critical"].includes(one.impact)).map(
    ({ id, impact, nodes }) => `${id} (${impact}): ${nodes.length} times, as in ${nodes[0].html}`);
}
const pause = milliseconds => new Promise(done => setTimeout(done, milliseconds));
(async () => {
  for (const path of PAGES) for (const width of WIDTHS) {
    const frame = document.createElement("iframe");
    frame.style = `width: ${width}px; height: 900px; border: 0`;
    frame.src = "folder/" + path;
    console.log(`PAGE ${path} at ${width} px`);
    document.body.append(frame);
    await new Promise(done => frame.onload = done);
    try { found[`${path} at ${width} px`] = await script(frame.contentWindow); }
    catch (error) { console.error(String(error)); }
    frame.remove();
  }
  console.log("FOUND " + encodeURIComponent(JSON.stringify(found)));
})();
</script></body>"""
# What a reader would trip over. Left out of what is checked for readers with aids: what is folded,
# and formulas, of which MathJax makes thousands of elements, with MathML beside them.
FAULTS = """
const images = [...page.document.querySelectorAll("img")], found = [];
const seen = images.filter(image => image.getClientRects().length);
await Promise.all(seen.map(image => image.decode().catch(() => {})));
if (page.MathJax?.startup?.promise) await page.MathJax.startup.promise;
for (const image of seen) if (!image.naturalWidth) found.push(`no picture: ${image.src}`);
for (const image of images) if (!image.alt.trim()) found.push(`no words: ${image.src}`);
for (const { name, responseStatus } of page.performance.getEntriesByType("resource"))
  if (responseStatus >= 400) found.push(`it lacks ${name}`);
  else if (!name.startsWith(page.location.origin) && !/^(data|blob):/.test(name))
    found.push(`it asks for ${name}`);
const root = page.document.documentElement, count = what => root.querySelectorAll(what).length;
if (root.scrollWidth > root.clientWidth) found.push(`it is ${root.scrollWidth} px wide`);
if (count("mjx-container") < count(".math") || count("mjx-merror, [data-mjx-error]"))
  found.push(`${count("mjx-container")} of ${count(".math")} formulas are typeset`);
return found.concat(await violations(page, [["mjx-container"], ["details:not([open])"]]));
"""


def look(folder, pages, script=FAULTS, widths=WIDTHS, patience=1800):
    """What `script` returns for each page and width, by "PAGE at WIDTH px", and the lines on the
    console, each with its page.

    script: the body of an asynchronous function of the page's window, `page`; it can call
    `violations(page)`, what axe-core finds, and `pause(milliseconds)`. RuntimeError where there is
    no browser, or none that answers within `patience` seconds.
    """
    if CHROMIUM is None:
        raise RuntimeError(f"no browser found: install one of {', '.join(NAMES)}")
    given = {"SCRIPT": script, "PAGES": list(pages), "WIDTHS": list(widths)}
    frames = FRAMES
    for name, value in given.items():
        frames = frames.replace(name, json.dumps(value).replace("</", "<\\/"), 1)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        served, log = Path(scratch, "served"), Path(scratch, "log")
        served.mkdir()
        (served / "folder").symlink_to(folder.resolve())
        (served / "frames.html").write_text(frames, encoding="utf-8")
        shutil.copy(str(files("axe_core_python") / "axe.min.js"), served)
        handler = functools.partial(_Quiet, directory=str(served))
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}/frames.html"
        line = [CHROMIUM, *FLAGS, f"--user-data-dir={scratch}/profile", address]
        with open(log, "wb") as said:
            process = subprocess.Popen(line, stdout=said, stderr=said)
        try:
            return _answer(log, time.monotonic() + patience)
        finally:
            process.kill()
            process.wait()
            server.shutdown()


def _answer(log, until):
    """What the page of frames and the pages in them have said, once it has said what it found."""
    while time.monotonic() < until:
        text, lines, page = log.read_text(encoding="utf-8", errors="replace"), [], ""
        for words, source in re.findall(CONSOLE, text, re.S):
            if words.startswith("FOUND "):
                return json.loads(urllib.parse.unquote(words.removeprefix("FOUND "))), lines
            if words.startswith("PAGE "):
                page = words.removeprefix("PAGE ")
            elif not words.startswith("[PST]"):  # the theme says which colours it chose
                lines.append(f"{page}: {words} ({source})")
        time.sleep(0.2)
    raise RuntimeError("the browser did not answer in time")


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass
