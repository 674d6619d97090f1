"""The reproducible companion to three papers on contrastive learning; `curlnb.losses` stands on
torch alone.
"""

__version__ = "1.0.0"
