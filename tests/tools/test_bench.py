"""What `make bench` divides by: operations are counted right. Its timings are never tested."""

import bench_losses
import bench_stages
import pytest
import torch


@pytest.mark.parametrize(("name", "giga_multiply_adds"), [("resnet18", 0.56), ("resnet50", 1.30)])
def test_a_network_costs_three_times_its_published_forward_pass(name, giga_multiply_adds):
    """For 32 x 32 images without the first pooling, as many repositories list them; the first layer
    needs no gradient of its input.
    """
    assert bench_stages.operations_a_view(name) == pytest.approx(
        3 * 2 * giga_multiply_adds * 1e9, rel=0.02
    )


@pytest.mark.parametrize(
    ("name", "most"),
    [("InfoNCE", 4.0), ("HardNegative", 4.5), (f"HardNegative, tile={bench_losses.TILE}", 2.5)],
)
def test_a_loss_takes_few_similarity_matrices(name, most):
    """Its peak holds the matrix, or a tile of it, and its gradient; cross-entropy takes 3.1."""
    cpu, matrix = torch.device("cpu"), 4 * (2 * 1024) ** 2
    memory = bench_stages.peak(bench_losses.both_passes(name, 1024, cpu), cpu)
    assert (0.5 if "tile" in name else 2) * matrix < memory < most * matrix
