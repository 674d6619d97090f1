"""Sphinx's settings for the site: tools/build_site.py gathers the pages and calls Sphinx with this
folder as its configuration.
"""

import json
import re
import sys
from pathlib import Path

from colab import repository
from docutils import nodes

REPOSITORY = repository()

project = "curlnb"
author = "The curlnb authors"
copyright = author
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx-mathjax-offline"]
templates_path = ["_templates"]
html_static_path = ["_static"]
html_css_files = ["site.css", "claims.css"]
exclude_patterns = ["_build", "**.ipynb_checkpoints"]
nitpicky = False

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


# --- figures: the words that a notebook gave them


def _alternative_texts(app, doctree):
    texts = json.loads(
        (Path(app.srcdir) / "alternative_texts.json").read_text(encoding="utf-8")
    ).get(app.env.docname, {})
    for image in doctree.findall(nodes.image):
        for digest, text in texts.items():
            if digest in image["uri"]:
                image["alt"] = text
        image["loading"] = "lazy"


def _no_source_elsewhere(app, pagename, templatename, context, doctree):
    """A page that tools/build_site.py made has no source in the repository to edit, and nothing to
    launch.
    """
    if not pagename.startswith("notebooks/"):
        for name in ("use_edit_page_button", "launch_buttons"):
            context[f"theme_{name}"] = {} if name == "launch_buttons" else False


def _safe_in_parallel(app, config):
    """sphinx-mathjax-offline copies files after the build, and does not say that it disturbs no
    reader.
    """
    app.extensions["sphinx-mathjax-offline"].parallel_read_safe = True


def setup(app):
    app.connect("config-inited", _safe_in_parallel)
    app.connect("builder-inited", _experiments_as_functions)
    app.connect("autodoc-process-docstring", _docstring)
    app.connect("doctree-read", _alternative_texts)
    app.connect("html-page-context", _no_source_elsewhere, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
