"""The reproducible companion to three papers on contrastive learning; `curlnb.losses` stands on
torch alone.
"""

__version__ = "0.1.0"
