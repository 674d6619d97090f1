"""Sphinx's settings for the site, whose source is the checkout (tools/build_site.py)."""

import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import course
import pages
from colab import repository

from curlnb.companion import notebooks
from curlnb.companion.ledger import best_evidence

REPOSITORY = repository()

project = "curlnb"
author = "The curlnb authors"
copyright = author
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx-mathjax-offline"]
root_doc = "docs/site/index"
include_patterns = ["*.md", "data/README.md", "docs/**", "notebooks/**"]
exclude_patterns = [".*", "CHANGELOG.md", "data/cache", "results", "**.ipynb_checkpoints"]
html_static_path = ["_static"]
html_css_files = ["site.css"]

# --- notebooks: their committed outputs, nothing executed
nb_execution_mode = "off"
nb_merge_streams = True
nb_ipywidgets_js = {}  # the widgets' scripts would come from another host
nb_render_markdown_format = "myst"
nb_number_source_lines = False
myst_enable_extensions = [
    "dollarmath",
    "amsmath",
    "colon_fence",
    "attrs_inline",
    "attrs_block",
    "html_image",
]
myst_heading_anchors = 4
suppress_warnings = ["myst.header", "myst.mathjax", "config.cache"]

# --- formulas: MathJax is served with the site, without its menu and its speech, which would load f
mathjax3_config = {"options": {"enableMenu": False}}

# --- the theme
html_theme = "sphinx_book_theme"
html_context = {"default_mode": "auto"}
html_title = "curlnb"
html_copy_source = True
html_show_sphinx = False
html_show_copyright = False
html_last_updated_fmt = None
pygments_style = "a11y-light"
html_theme_options: dict = {
    "show_toc_level": 2,
    "navbar_start": [],
    "navbar_center": [],
    "navbar_end": [],
    "navbar_persistent": [],
    "home_page_in_toc": False,
    "use_download_button": True,
    "use_fullscreen_button": False,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
    "show_navbar_depth": 1,
    "extra_footer": "Three papers on contrastive learning, computed again.",
}
if REPOSITORY:
    html_theme_options |= {
        "repository_url": REPOSITORY,
        "repository_branch": "main",
        "path_to_docs": "",
        "use_repository_button": True,
        "use_issues_button": True,
        "use_source_button": True,
        "launch_buttons": {
            "colab_url": "https://colab.research.google.com",
            "binderhub_url": "https://mybinder.org",
        },
    }

# --- the interface, from docstrings
autodoc_default_options = {"members": True, "undoc-members": False, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_inherit_docstrings = False  # torch's own are reStructuredText, and say nothing of ours
autodoc_preserve_defaults = True
add_module_names = False
highlight_language = "none"  # of code blocks that name none, docstrings' formulas say


def as_rst(text: str) -> list[str]:
    """A docstring in plain text as reStructuredText: paragraphs, lists and code stay, and no
    character means anything else.
    """
    done: list[str] = []
    for block in re.split(r"\n\s*\n", text.strip()):
        lines = block.splitlines()
        if lines and all(line.startswith("    ") for line in lines):
            done += ["::", "", *("    " + line for line in lines), ""]
        elif any(re.match(r"- ", line) for line in lines):
            for line in lines:
                item = re.match(r"- (.*)", line)
                if item:
                    done += ["", f"- {_inline(item[1])}"]
                elif line.startswith("  ") and done and done[-1]:
                    done.append(f"  {_inline(line.strip())}")
                else:
                    done += [
                        *([""] if done and done[-1].startswith(("-", " ")) else []),
                        _inline(line.strip()),
                    ]
            done.append("")
        else:
            for line in lines:  # what an argument is, "name: words", begins a line of its own
                fresh = re.match(r"\w+(, \w+)*: ", line) and done and done[-1]
                done += [*([""] if fresh else []), _inline(line.strip())]
            done.append("")
    return done


def _inline(line: str) -> str:
    """One line: what stands between backticks is code, the rest is text."""
    parts = re.split(r"`([^`]+)`", line)
    done = ""
    for i, part in enumerate(parts):
        if i % 2:  # a backslash and a blank let code stand beside a word
            before = "\\ " if done and re.search(r"\S$", done) else ""
            after = "\\ " if re.match(r"\w", parts[i + 1]) else ""
            done += f"{before}``{part}``{after}"
        else:
            done += re.sub(r"([\\*_`|])", r"\\\1", part)
    return done


def _docstring(app, what, name, obj, options, lines):
    lines[:] = as_rst("\n".join(lines))


def _experiments_as_functions(app):
    """autodoc passes over what `@experiment` makes of a function, which is an object; in this
    process they are functions again.
    """
    from curlnb.experiments import all_experiments

    for experiment in all_experiments():
        setattr(
            sys.modules[experiment.function.__module__],
            experiment.function.__name__,
            experiment.function,
        )


# --- the pages as the site shows them


def _read(app, docname, source):
    """Notebooks folded and described; lists that are made of what there is."""
    if docname.startswith("notebooks/"):
        short = app.config.whole and docname.removeprefix("notebooks/") not in app.config.whole
        source[0] = json.dumps(for_the_web(json.loads(source[0]), short), ensure_ascii=False)
        return
    folder = (PACKAGE.parent / docname).parent

    def linked(match):  # the site has no page of a folder
        return match[1] if (folder / match[2]).is_dir() else match[0]

    text = re.sub(r"<!-- (\w+) -->\n", lambda m: MADE.get(m[1], lambda: m[0])(), source[0])
    if whole := app.config.whole:
        listed = r"\.\. automodule:: curlnb\.(\S+)\n"
        text = re.sub(listed, lambda m: m[0] if m[1] in whole else "", text)
    text = re.sub(r"(?<!!)\[([^\[\]]*)\]\(([\w./-]+)\)", linked, text)
    # Badges, which a page would fetch from elsewhere, become their words.
    source[0] = re.sub(r"\[?!\[([^\]]*)\]\(https?:[^)]*\)(?:\]\([^)]*\))?", r"\1", text)


def for_the_web(content, short=False):
    """A notebook with solutions folded, and what they lead to; its pictures with their words; no
    widgets, whose scripts would come from elsewhere, and no cell that sets Colab up.

    short: its first cell alone, for a trial.
    """
    cells, before = [], []
    for cell in content["cells"][: 1 if short else None]:
        tags, about = cell["metadata"].get("tags", []), {}
        if "colab" in tags:
            continue
        text = "".join(cell["source"])
        for output in cell.get("outputs", []):
            output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)
            if html := output.get("data", {}).get("text/html"):
                html = re.sub(r'(href="[^":#]+)\.ipynb"', r'\1.html"', "".join(html))
                output["data"]["text/html"] = html
            if alt := output.get("metadata", {}).get("image/png", {}).get("alt"):
                about["image"] = {"alt": alt}
        if "solution" in tags:
            tags = [*tags, "hide-cell" if cell["outputs"] else "hide-input"]
            about["code_prompt_show"] = "Show the solution"
        elif {"check", "solution"} & {*before} and cell[
            "cell_type"
        ] == "markdown":  # what the solution shows
            answer, mark, rest = re.match(r"(.*?)(^#+ |\Z)(.*)", text, re.S | re.M).groups()
            folded = (
                f"<details>\n<summary>What it shows</summary>\n\n{answer.strip()}\n\n</details>"
            )
            text = (folded + "\n\n" if answer.strip() else "") + mark + rest
        before = tags
        cells.append(cell | {"source": text, "metadata": {"tags": tags, "mystnb": about}})
    return content | {"cells": cells}


def _toctrees():
    """The notebooks in reading order, by paper."""
    parts = {title: [] for title in PAPERS.values()}
    for lesson in map(notebooks.name_of, notebooks.find()):
        parts[PAPERS[course.Lesson(lesson, {}).folder]].append(f"/notebooks/{lesson}")
    return "".join(
        "```{toctree}\n:hidden:\n:caption: " + title + "\n\n" + "\n".join(names) + "\n```\n\n"
        for title, names in parts.items()
    )


def _modules():
    """Each module of MODULES for autodoc; a package stands for its modules."""
    text = ""
    for title, names in MODULES.items():
        text += f"## {title}\n\n```{{eval-rst}}\n"
        for name in names.split():
            path = PACKAGE / name.replace(".", "/")
            inside = sorted(each.stem for each in path.glob("[a-z]*.py"))
            for module in [f"{name}.{each}" for each in inside] or [name]:
                text += f".. automodule:: curlnb.{module}\n"
        text += "```\n\n"
    return text


def _exercises():
    table = "\n".join([*course.listing(course.lessons())][1:])
    return table.replace("](release/", "](/notebooks/") + "\n"


PACKAGE = Path(notebooks.__file__).parents[1]
PAPERS = {
    "0_start": "Start here",
    "1_curl": "1 · CURL, 2019",
    "2_dcl": "2 · DCL, 2020",
    "3_hcl": "3 · HCL, 2021",
    "4_across": "Across the papers",
}
MODULES = {
    "Losses": "losses",
    "Augmentation": "data.augment",
    "Models": "models",
    "Evaluation": "evaluation",
    "Theory on finite worlds": "theory",
    "Sweeps, the store, training": "runs.sweep runs.store runs.training",
    "Experiments": "experiments",
    "The ledger of claims": "companion.ledger companion.claims companion.statistics",
}
MADE = {
    "notebooks": _toctrees,
    "modules": _modules,
    "exercises": _exercises,
    "counts": lambda: pages.counts(best_evidence(committed=True)),
}


def _safe_in_parallel(app, config):
    """sphinx-mathjax-offline copies files after the build, and does not say that it disturbs no
    reader.
    """
    app.extensions["sphinx-mathjax-offline"].parallel_read_safe = True


def setup(app):
    # for a trial: the notebooks that are shown whole and the modules that are shown at all
    app.add_config_value("whole", "", "env", str)
    app.connect("config-inited", _safe_in_parallel)
    app.connect("builder-inited", _experiments_as_functions)
    app.connect("autodoc-process-docstring", _docstring)
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
