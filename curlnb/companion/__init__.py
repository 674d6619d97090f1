from curlnb.extras import need

need(
    __name__,
    "IPython",
    "filelock",
    "jinja2",
    "markupsafe",
    "matplotlib",
    "pandas",
    "papermill",
    "scipy",
)
