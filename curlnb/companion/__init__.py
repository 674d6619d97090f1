"""What the notebooks share: settings, claims and verdicts, figures, reproduction and report."""

from curlnb.extras import need

need(
    __name__,
    "notebooks",
    "IPython",
    "filelock",
    "jinja2",
    "markupsafe",
    "matplotlib",
    "nbformat",
    "pandas",
    "papermill",
    "scipy",
)
