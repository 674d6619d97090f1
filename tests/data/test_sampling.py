"""Pairs come from one latent class, uniformly, and never pair a sample with itself."""

import torch
from formulas import generator

from curlnb.data.sampling import class_index, positives


def test_positives_share_the_class_are_others_and_uniform():
    labels = torch.tensor([2, 0, 1, 0, 2, 2, 0, 2])
    index, g = class_index(labels), generator()
    samples = torch.arange(8).repeat(3000)
    partner = positives(index, labels, samples, g)
    assert torch.equal(labels[partner][labels[samples] != 1], labels[samples][labels[samples] != 1])
    assert (partner != samples)[labels[samples] != 1].all()
    counts = torch.bincount(partner[samples == 0], minlength=8)
    assert counts[[0, 1, 2, 3, 6]].sum() == 0
    assert (counts[[4, 5, 7]] - 1000).abs().max() < 4 * (3000 * 2 / 9) ** 0.5


def test_a_class_with_a_single_sample_gives_that_sample():
    labels = torch.tensor([0, 1, 1])
    assert positives(
        class_index(labels), labels, torch.tensor([0]), torch.Generator()
    ).tolist() == [0]
