from curlnb.extras import need

need(__name__, "IPython", "filelock", "jinja2", "matplotlib", "pandas", "scipy", "seaborn")
