"""`make site`: the project as static pages in results/site/html, from what is committed; nothing is
executed and no network is used.

    python tools/build_site.py [--browse]

Pages are gathered in results/site/source: the notebooks with their committed outputs, the README
and the other guides, a page for each paper with its claims and their best evidence, the exercises,
the modules of the package. Sphinx makes HTML of them (docs/site/conf.py), and the report is written
beside it. Then every link inside the site is followed, and --browse opens every page in a headless
Chromium.
"""

import argparse
import hashlib
import html
import json
import os
import re
import shutil
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

HOME = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(HOME), str(HOME / "tools")]

from colab import repository  # noqa: E402

from curlnb.companion import ledger, notebooks, report  # noqa: E402
from curlnb.runs import environment  # noqa: E402

SETTINGS = HOME / "docs" / "site"
ADDRESS = {"repository": repository(), "branch": "main"}
GUIDES = {
    "README.md": "readme",
    "CONTRIBUTING.md": "contributing",
    "SECURITY.md": "security",
    "data/README.md": "data",
}
NAMES = {
    "readme": "Two commands, and what is here"
}  # of guides whose own title would not do in a list
PAPERS = {  # page: title, its notebooks, where to read it
    "arora2019": (
        "1 · CURL: Arora et al. 2019",
        "1_curl",
        "1902.09229",
        "A Theoretical Analysis of Contrastive Unsupervised Representation Learning",
    ),
    "chuang2020": (
        "2 · DCL: Chuang et al. 2020",
        "2_dcl",
        "2007.00224",
        "Debiased Contrastive Learning",
    ),
    "robinson2021": (
        "3 · HCL: Robinson et al. 2021",
        "3_hcl",
        "2010.04592",
        "Contrastive Learning with Hard Negative Samples",
    ),
}
MODULES = {  # page: title and what it documents; a package stands for its modules
    "losses": ("Losses", ["losses"]),
    "augment": ("Augmentation", ["data.augment"]),
    "models": ("Models", ["models"]),
    "evaluation": ("Evaluation", ["evaluation"]),
    "theory": ("Theory on finite worlds", ["theory"]),
    "runs": ("Sweeps, the store, training", ["runs.sweep", "runs.store", "runs.training"]),
    "experiments": ("Experiments", ["experiments"]),
    "ledger": (
        "The ledger of claims",
        ["companion.ledger", "companion.claims", "companion.statistics"],
    ),
}
PYTHON = [sys.executable]  # which runs Sphinx
MATHJAX = ("tex-chtml.js", "output/chtml/fonts", "input/tex/extensions")  # what a page can ask for


# --- gathering the pages


def gather(source: Path, chosen: Iterable[Path] | None = None) -> dict[str, str]:
    """Write all pages for Sphinx below `source`; returns the notebooks' titles by name. chosen:
    only these notebooks whole, for a trial.
    """
    paths = notebooks.find()
    whole = set(paths if chosen is None else chosen)
    kept = {source / "conf.py"}
    pages: dict[str, str] = {}
    words: dict[str, dict[str, str]] = {}
    titles: dict[str, str] = {}
    for path in paths:
        name = notebooks.name_of(path)
        content = notebooks.read(path)
        if path not in whole:
            content["cells"] = content["cells"][:1]
        titles[name] = _heading(content) or name
        words[f"notebooks/{name}"] = alternative_texts(content, titles[name])
        pages[f"notebooks/{name}.ipynb"] = json.dumps(for_the_web(content), ensure_ascii=False)
    pages["alternative_texts.json"] = json.dumps(words, ensure_ascii=False)
    guides = {
        **GUIDES,
        **{f"docs/{path.name}": path.stem for path in sorted((HOME / "docs").glob("*.md"))},
    }
    for file, page in guides.items():
        if (HOME / file).exists():
            pages[f"guides/{page}.md"] = relinked(file, guides, titles)
    best = ledger.best_evidence(committed=True)
    rows = [report.claim_row(row, []) for row in ledger.records(best)]
    single = set(ledger.once(best)["id"])
    table = counts([row for row in rows if row["id"] in single])
    pages |= paper_pages(rows, titles) | {"findings.md": findings(rows, table)}
    pages |= {f"api/{page}.rst": text for page, text in api_pages().items()}
    pages["exercises.md"] = exercises(paths, titles)
    pages["notebooks/index.md"] = map_of(paths, titles)
    pages["index.md"] = start_page(
        table, sorted(page for page in guides.values() if f"guides/{page}.md" in pages)
    )
    for picture in sorted(
        {
            name
            for text in pages.values()
            for name in re.findall(r"[(\"]/pictures/([^)\"\s]+)", text)
        }
    ):
        kept.add(source / "pictures" / picture)
        (source / "pictures" / picture).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(HOME / picture, source / "pictures" / picture)
    for name, text in pages.items():
        path = source / name
        kept.add(path)
        if (
            not path.exists() or path.read_text(encoding="utf-8") != text
        ):  # Sphinx reads again what is newer
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    for path in [path for path in source.rglob("*") if path.is_file() and path not in kept]:
        path.unlink()
    return titles


def _heading(content: dict[str, Any]) -> str:
    found = (
        re.match(r"#\s+(.+)", "".join(content["cells"][0]["source"])) if content["cells"] else None
    )
    return found[1].strip() if found else ""


def for_the_web(content: dict[str, Any]) -> dict[str, Any]:
    """A notebook as the site shows it: solutions folded, and what they lead to; no widgets, whose
    scripts would come from elsewhere.

    The cell that sets Colab up has nothing to say there.
    """
    cells: list[dict[str, Any]] = []
    before = ""
    for cell in content["cells"]:
        tags = cell.get("metadata", {}).get("tags", [])
        if "colab" in tags:
            continue
        text = "".join(cell["source"])
        cell = {**cell, "metadata": dict(cell.get("metadata", {}))}
        if cell["cell_type"] == "code":
            cell["outputs"] = [_output(output) for output in cell.get("outputs", [])]
            if "solution" in tags:
                folded = "hide-cell" if cell["outputs"] else "hide-input"
                cell["metadata"] |= {
                    "tags": [*tags, folded],
                    "mystnb": {
                        "code_prompt_show": "Show the solution",
                        "code_prompt_hide": "Hide the solution",
                    },
                }
        elif "check" in before and not text.startswith("#"):  # what the solution shows
            answer, mark, rest = re.match(r"(.*?)(^#+ |\Z)(.*)", text, re.S | re.M).groups()  # type: ignore[union-attr]
            folded = f'<details class="answer">\n<summary>What it shows</summary>\n\n{answer.strip()}\n\n</details>\n\n'
            cell["source"] = (folded if answer.strip() else "") + mark + rest
        before = "check" if "check" in tags else ""
        cells.append(cell)
    return {**content, "cells": cells}


def _output(output: dict[str, Any]) -> dict[str, Any]:
    """An output without widgets, its links to notebooks turned to their pages."""
    if "data" not in output:
        return output
    data = {kind: value for kind, value in output["data"].items() if "widget" not in kind}
    if "text/html" in data:
        data["text/html"] = re.sub(
            r'(href="[^":#]+)\.ipynb"', r'\1.html"', "".join(data["text/html"])
        )
    return {**output, "data": data}


def alternative_texts(content: dict[str, Any], title: str) -> dict[str, str]:
    """What the notebook says in words of each of its pictures, by the SHA-256 of the picture, which
    MyST-NB names its file by.
    """
    found: dict[str, str] = {}
    for cell in content["cells"]:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                picture = b64decode("".join(output["data"]["image/png"]))
                alt = output.get("metadata", {}).get("image/png", {}).get("alt", "")
                found[hashlib.sha256(picture).hexdigest()] = (
                    alt or f"Figure {len(found) + 1} of {title}"
                )
    return found


def relinked(file: str, guides: dict[str, str], titles: dict[str, str]) -> str:
    """A guide of the repository, its links turned to the site's pages; those to other files go to
    the repository, or lose their link.
    """
    folder = (HOME / file).parent

    def turned(match: re.Match[str]) -> str:
        words, target = match[1], match[2]
        if re.match(r"\w+:|#|//", target):
            return match[0]
        path, _, fragment = target.partition("#")
        within = os.path.relpath((folder / path).resolve(), HOME)
        mark = f"#{fragment}" if fragment else ""
        if within in guides:
            return f"[{words}]({guides[within]}.md{mark})"
        if (
            within.startswith("notebooks/")
            and within.removeprefix("notebooks/").removesuffix(".ipynb") in titles
        ):
            return f"[{words}](../{within}{mark})"
        return (
            f"[{words}]({ADDRESS['repository']}/blob/{ADDRESS['branch']}/{within}{mark})"
            if ADDRESS["repository"]
            else words
        )

    def pictured(match: re.Match[str]) -> str:
        before, target, after = match.groups()
        if re.match(r"\w+:|//", target):  # a badge, which a page would fetch from elsewhere
            return before[2:-2] if before.startswith("!") else ""  # its words alone
        return f"{before}/pictures/{os.path.relpath((folder / target).resolve(), HOME)}{after}"

    text = (HOME / file).read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^\]]*\]\()([^)\s]+)(\))", pictured, text)
    text = re.sub(r'(<img [^>]*src=")([^"]+)("[^>]*>)', pictured, text)
    return re.sub(r"(?<!!)\[((?:[^\[\]]|!\[[^\]]*\]\([^)]*\))*)\]\(([^)\s]+)\)", turned, text)


# --- pages of claims


def paper_pages(rows: list[dict[str, Any]], titles: dict[str, str]) -> dict[str, str]:
    """A page for each paper and one for this project's own findings: the claims by kind, each with
    its best evidence.
    """
    macros = report.environment().get_template("claims.html").module
    links = {name: f"../notebooks/{name}.html" for name in titles}
    pages = {}
    for paper in report.papers_of(rows):
        title, folder, number, work = PAPERS.get(
            paper["slug"], ("What this project adds", "", "", "")
        )
        lines = [f"# {title}", ""]
        if number:
            lines += [f"*{work}*, [arXiv:{number}](https://arxiv.org/abs/{number}).", ""]
        else:
            lines += [
                "Claims that the papers do not make: what their experiments leave open, what their proofs yield, what speed is worth.",
                "",
            ]
        lines += [
            f"{paper['total']} claims, each with its best evidence so far. [How a claim is judged](../findings.md#how-a-claim-is-judged).",
            "",
        ]
        lines += [_raw(str(macros.tally(paper["counts"]))), ""]
        own = [name for name in titles if folder and name.startswith(f"{folder}/")]
        if own:
            lines += [
                "## Notebooks",
                "",
                *(f"- [{titles[name]}](../notebooks/{name}.ipynb)" for name in own),
                "",
            ]
            lines += [
                "```{toctree}",
                ":hidden:",
                "",
                *(f"/notebooks/{name}" for name in own),
                "```",
                "",
            ]
        for group in paper["groups"]:
            heading = group["title"][0].upper() + group["title"][1:]
            lines += [
                f"## {heading}",
                "",
                _raw(str(macros.tally(group["counts"])) + str(macros.table(group["rows"], links))),
                "",
            ]
        pages[f"papers/{paper['slug']}.md"] = "\n".join(lines)
    return pages


def findings(rows: list[dict[str, Any]], table: str) -> str:
    """The headline claims, the counts by paper, and how a claim is judged."""
    macros = report.environment().get_template("claims.html").module
    heads = [row for id in report.HEADLINES for row in rows if row["id"] == id]
    links = {row["id"]: f"papers/{row['paper']}.html#{row['id']}" for row in heads}
    lines = [
        "# What was found",
        "",
        "What the abstracts and main theorems claim, with the best evidence so far.",
        "",
    ]
    lines += [_raw(str(macros.headlines(heads, links))), "", "## All claims", "", _raw(table), ""]
    lines += [
        "Claims that are one slip or one measurement count once here.",
        f"The {len(rows)} claims stand on the papers' pages, and all together, with filters and a search, in",
    ]
    lines += ['<a href="report.html">the report</a>.', ""]
    return "\n".join([*lines, "## How a claim is judged", "", _raw(str(macros.how_judged())), ""])


def counts(rows: list[dict[str, Any]]) -> str:
    """A table in HTML of how often each verdict was reached, by paper."""
    macros = report.environment().get_template("claims.html").module
    lines = []
    for paper in report.papers_of(rows):
        link = f'<a href="papers/{paper["slug"]}.html">{html.escape(paper["title"])}</a>'
        lines.append(
            f'<tr><th scope="row">{link}</th><td>{paper["total"]}</td><td>{macros.tally(paper["counts"])}</td></tr>'
        )
    head = "".join(
        f'<th scope="col">{words}</th>'
        for words in ("paper", "claims", "verdicts on the best evidence")
    )
    return f'<table class="counts"><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'


def _raw(text: str) -> str:
    lines = (line.strip() for line in text.splitlines())
    return (
        "```{raw} html\n"
        + '<div class="claims">\n'
        + "\n".join(line for line in lines if line)
        + "\n</div>\n```"
    )


# --- pages of the package, of exercises, the map, the start


def api_pages() -> dict[str, str]:
    """reStructuredText that lets autodoc write each module's public names."""
    pages = {}
    for page, (title, parts) in MODULES.items():
        names = []
        for part in parts:
            folder = HOME / "curlnb" / part.replace(".", "/")
            inside = (
                sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_"))
                if folder.is_dir()
                else []
            )
            names += [f"curlnb.{part}.{name}" for name in inside] or [f"curlnb.{part}"]
        lines = [title, "=" * len(title), ""]
        for name in names:
            heading = f"``{name}``"
            lines += [heading, "-" * len(heading), "", f".. automodule:: {name}", ""]
        pages[page] = "\n".join(lines)
    listed = "\n".join(f"   {page}" for page in MODULES)
    text = "What can be imported, from the docstrings. Tensors' shapes stand in brackets."
    pages["index"] = (
        f"The package\n===========\n\n{text}\n\n.. toctree::\n   :maxdepth: 2\n\n{listed}\n"
    )
    return pages


def exercises(paths: list[Path], titles: dict[str, str]) -> str:
    """All exercises with their difficulty and minutes, by notebook."""
    lines = [
        "# Exercises",
        "",
        "Each is a task with a stub, a check of plain asserts, and a solution, which is folded on these pages.",
        "",
    ]
    total = minutes = 0
    for path in paths:
        text = "\n".join(notebooks.sources(path, "markdown"))
        found = re.findall(r"^### (\d+)\. (.+?) \*\((\w+), (\d+) minutes?\)\*", text, re.M)
        if found:
            name = notebooks.name_of(path)
            lines += [
                f"## [{titles[name]}](notebooks/{name}.ipynb)",
                "",
                "| exercise | difficulty | minutes |",
                "|---|---|---|",
            ]
            lines += [
                f"| {number}. {words} | {level} | {time} |" for number, words, level, time in found
            ] + [""]
            total, minutes = total + len(found), minutes + sum(int(row[3]) for row in found)
    lines[3:3] = ["", f"{total} exercises, about {minutes / 60:.0f} hours of work."]
    return "\n".join(lines)


def map_of(paths: list[Path], titles: dict[str, str]) -> str:
    """The table of contents with every notebook's question, as the README asks it."""
    readme = (HOME / "README.md").read_text(encoding="utf-8")
    asked = dict(re.findall(r"\]\(notebooks/([\w./-]+)\.ipynb\) \| (.+?) \|", readme))
    parts = {
        "": "To begin with",
        **{folder: title for title, folder, *_ in PAPERS.values()},
        "last": "Across the papers",
    }
    lines = [
        "# The notebooks",
        "",
        "Each computes what a paper claims, puts it beside what was published, and ends with verdicts and exercises.",
        "",
    ]
    for part, heading in parts.items():
        own = []
        for name in map(notebooks.name_of, paths):
            folder = name.rpartition("/")[0] or ("" if name.startswith("0") else "last")
            own += [name] if folder == part else []
        if own:
            lines += [f"## {heading}", "", "| notebook | what it asks |", "|---|---|"]
            lines += [
                f"| [{titles[name]}]({name}.ipynb) | {asked.get(name, '')} |" for name in own
            ] + [""]
    loose = [name for name in map(notebooks.name_of, paths) if "/" not in name]
    return "\n".join([*lines, "```{toctree}", ":hidden:", "", *loose, "```", ""])


def start_page(table: str, guides: list[str]) -> str:
    """docs/site/index.md with the counts of the ledger and the list of guides put in."""
    parts = {"counts": _raw(table)}
    first = [page for page in ("readme", "night", "cluster") if page in guides]
    teach = [
        page for page in guides if page not in (*first, "contributing", "security", "data", "terms")
    ]
    parts |= {
        name: "\n".join(
            f"{NAMES[page]} <guides/{page}>" if page in NAMES else f"guides/{page}"
            for page in pages
        )
        for name, pages in (("run", first), ("teach", teach))
    }
    text = (SETTINGS / "index.md").read_text(encoding="utf-8")
    return re.sub(r"<!-- (\w+) -->", lambda match: parts[match[1]], text)


# --- building


def build(folder: Path, chosen: Iterable[Path] | None = None) -> Path:
    """Build the site in `folder`/html and return that. RuntimeError with Sphinx's warnings where
    there are any.
    """
    source, out = folder / "source", folder / "html"
    titles = gather(source, chosen)
    style = report.environment().get_template("claims.html").module.style()
    (folder / "static").mkdir(parents=True, exist_ok=True)
    (folder / "static" / "claims.css").write_text(str(style), encoding="utf-8")
    paths = [str(HOME), str(HOME / "tools"), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [
        *PYTHON,
        "-m",
        "sphinx",
        "-b",
        "html",
        "-c",
        str(SETTINGS),
        "-d",
        str(folder / "doctrees"),
        "-j",
        "auto",
        "-q",
    ]
    done = subprocess.run(
        [*command, str(source), str(out)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
    )
    warnings = [
        line for line in done.stderr.splitlines() if re.search(r"\bWARNING\b|\bERROR\b", line)
    ]
    if done.returncode or warnings:
        raise RuntimeError("Sphinx complains:\n" + ("\n".join(warnings) or done.stderr))
    shutil.copyfile(folder / "static" / "claims.css", out / "_static" / "claims.css")
    for path in (out / "_sources" / "notebooks").rglob(
        "*.ipynb"
    ):  # who downloads one gets it as it is
        shutil.copyfile(
            environment.home() / "notebooks" / path.relative_to(out / "_sources" / "notebooks"),
            path,
        )
    _trim(out / "_static" / "mathjax")
    links = {name: f"notebooks/{name}.html" for name in titles}
    report.write_committed(
        environment.reference_folder(),
        environment.home() / "notebooks",
        out / "report.html",
        links=links,
        home="index.html",
    )
    (out / ".nojekyll").touch()  # a host that hides folders with an underscore must not
    return out


def _trim(mathjax: Path) -> None:
    """Keep of MathJax what a page can ask for."""
    for path in [path for path in mathjax.rglob("*") if path.is_file()]:
        if not path.relative_to(mathjax).as_posix().startswith(MATHJAX):
            path.unlink()
    for path in sorted((path for path in mathjax.rglob("*") if path.is_dir()), reverse=True):
        if not any(path.iterdir()):
            path.rmdir()


# --- checking


class _Page(HTMLParser):
    """The addresses that a page has and refers to, and its pictures without words."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.wordless: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif given.get("src"):
            self.loaded.append(given["src"])
        elif (
            tag == "link"
            and given.get("rel", "") not in ("canonical", "alternate")
            and given.get("href")
        ):
            self.loaded.append(given["href"])
        if tag == "img" and not given.get("alt", "").strip():
            self.wordless.append(given.get("src", ""))


def faults(out: Path) -> list[str]:
    """What is wrong with the built pages, read as text: links that lead nowhere, files from other
    hosts, pictures without words.
    """
    pages = {}
    for path in sorted(out.rglob("*.html")):
        if "_static" not in path.relative_to(out).parts:
            pages[path.resolve()] = _Page()
            pages[path.resolve()].feed(path.read_text(encoding="utf-8"))
    found = []
    for path, page in pages.items():
        name = path.relative_to(out.resolve())
        found += [
            f"{name}: loads {address} from elsewhere"
            for address in page.loaded
            if re.match(r"(\w+:)?//", address)
        ]
        found += [f"{name}: the picture {address} has no words" for address in page.wordless]
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                found.append(f"{name}: {link} leads nowhere")
            elif (
                parts.fragment
                and target in pages
                and unquote(parts.fragment) not in pages[target].ids
                and not _is_view(parts.fragment)
            ):
                found.append(f"{name}: {link} has no such place")
    return found


def _is_view(fragment: str) -> bool:
    """A filter of the report, #verdict=undecided."""
    return "=" in fragment


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Build the site as static pages in results/site/html."
    )
    parser.add_argument(
        "--browse", action="store_true", help="then open every page in a headless Chromium"
    )
    given = parser.parse_args(arguments)
    start, folder = time.monotonic(), environment.results_folder() / "site"
    try:
        out = build(folder)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    wrong = faults(out)
    pages = [path for path in out.rglob("*.html") if "_static" not in path.parts]
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) / 1e6
    print(
        f"{len(pages)} pages, {size:.0f} MB, {time.monotonic() - start:.0f} s: {out / 'index.html'}"
    )
    if given.browse:
        from browse_site import look

        wrong += look(out, folder / "browser")
    print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
