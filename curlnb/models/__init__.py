"""Networks: encoders of images, sentences and graphs, an agent's, and four that are committed trained."""

from curlnb.models.committed import pretrained

__all__ = ["pretrained"]
