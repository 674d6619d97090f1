"""Bounds, finite worlds and searches: what the papers prove, computed exactly."""

from curlnb.extras import need

need(__name__, "notebooks", "scipy")
