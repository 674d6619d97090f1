"""One module a family of experiments; each experiment is a function from keyword arguments to a flat dict of metrics."""
