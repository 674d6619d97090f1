"""The encoders are the papers' architectures; split batch norm sees what two GPUs would."""

import copy

import pytest
import torch
from formulas import generator, refused
from torch import nn
from torch.testing import assert_close

from curlnb.models.encoders import SimCLR, encoder, projection_head, resnet9, split_batch_norm

# torchvision's documented counts, less the classifier of 1,000 classes and with a 3x3 stem in place
# of the 7x7 one.
STEM = 64 * 3 * (7 * 7 - 3 * 3)
VGG_HEAD = 25_089 * 4096 + 4097 * 4096 + 4097 * 1000
SIZES = {  # parameters and features
    "cnn": (9 * (3 * 32 + 32 * 64 + 64 * 128) + 2 * (32 + 64 + 128), 128),
    "resnet18": (11_689_512 - STEM - 513 * 1000, 512),
    "resnet34": (21_797_672 - STEM - 513 * 1000, 512),
    "resnet50": (25_557_032 - STEM - 2049 * 1000, 2048),
    "resnet50-imagenet": (25_557_032 - 2049 * 1000, 2048),
    "vgg16": (138_357_544 - VGG_HEAD + 513 * 100, 100),
    "vgg16_bn": (138_365_992 - VGG_HEAD + 513 * 100, 100),
}


def noise(*shape):
    return torch.randn(*shape, generator=generator())


def seeded(name, **arguments):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return encoder(name, **arguments)[0]


@pytest.mark.parametrize("name", SIZES)
def test_encoders_have_the_published_size_and_feature_length(name):
    """Also for one channel and STL-10's images, with shapes alone: nothing is computed."""
    with torch.device("meta"):
        network, feature_dim = encoder(name)
        assert (sum(p.numel() for p in network.parameters()), feature_dim) == SIZES[name]
        for size in (32, 96):
            assert network.eval()(torch.zeros(2, 3, size, size)).shape == (2, feature_dim)
        gray = encoder(name, in_channels=1)[0].eval()
        assert gray(torch.zeros(2, 1, 32, 32)).shape == (2, feature_dim)


def test_the_stem_keeps_the_resolution():
    """CIFAR images shrink three times, from 32 to 4, not five times to 1."""
    with torch.device("meta"):
        network, sizes = encoder("resnet18")[0], []
        for layer in (network.layer1, network.layer4):
            layer.register_forward_hook(lambda *call: sizes.append(call[-1].shape[-1]))
        network.eval()(torch.zeros(1, 3, 32, 32))
    assert sizes == [32, 4]


def test_the_head_has_two_layers_and_their_size():
    head = projection_head(128)
    assert [type(layer) for layer in head] == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]
    assert sum(p.numel() for p in head.parameters()) == 128 * 512 + 2 * 512 + 512 * 128 + 128
    assert head(noise(4, 128)).shape == (4, 128)


def test_resnet9_has_nine_convolutions_and_blocks_that_add_to_what_they_are_given():
    stages = [(3, 32), (32, 64), (64, 128)]
    network = resnet9(3)
    expected = sum(
        9 * (before * after + 2 * after * after) + 3 * 2 * after for before, after in stages
    )
    assert sum(p.numel() for p in network.parameters()) == expected == 481_440
    assert sum(isinstance(layer, nn.Conv2d) for layer in network.modules()) == 9
    blocks = [layer for layer in network.eval() if len([*layer.children()]) == 6]
    assert len(blocks) == len(stages)
    x = noise(2, 64, 6, 6)
    assert_close(blocks[1](x) - x, nn.Sequential(*blocks[1].children())(x))
    assert resnet9(1).eval()(noise(2, 1, 28, 28)).shape == (2, 128)


def test_plain_vgg_does_not_lose_the_signal_at_its_start():
    """With torch's default weights the outputs of two unlike images agree to three digits."""
    features = seeded("vgg16").eval()(noise(8, 3, 32, 32))
    assert features.std(0).mean() > 0.05 * features.abs().mean()


@pytest.mark.parametrize("autocast", [False, True])
def test_simclr_gives_unit_vectors_in_float32_in_channels_last_and_bfloat16(autocast):
    network = seeded("cnn")
    model = SimCLR(network, projection_head(128)).to(memory_format=torch.channels_last)
    images = noise(8, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        features, projections = model(images)
    assert (features.shape, projections.shape) == ((8, 128), (8, 128))
    assert features.dtype == projections.dtype == torch.float32
    for vectors in (features, projections):
        assert_close(vectors.norm(dim=1), torch.ones(8), atol=1e-6, rtol=0)
    if not autocast:  # the head reads the features as they are, not the normalised ones
        assert_close(
            projections, nn.functional.normalize(model.head(network(images))), atol=1e-5, rtol=0
        )
    projections.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def blocks():
    """A network twice, the second with weights moved from their start; float64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        below = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
        above = nn.Flatten(), nn.Linear(4, 5), nn.BatchNorm1d(5)
        network = nn.Sequential(*below, *above).double()
    for p in network.parameters():
        p.data += 0.1
    return network, copy.deepcopy(network)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_split_batch_norm_is_each_group_run_by_itself(memory_format):
    """Outputs, gradients and running statistics equal those of replicas with 6 images each."""
    network, whole = blocks()
    split = split_batch_norm(whole, 4)
    images = noise(24, 3, 8, 8).double().contiguous(memory_format=memory_format)
    replicas = [copy.deepcopy(network) for _ in range(4)]
    parts = [replica(part) for replica, part in zip(replicas, images.chunk(4), strict=True)]
    outputs = split(images)
    assert_close(outputs, torch.cat(parts))
    # one batch of 24 is something else
    assert not torch.allclose(outputs, network(images), atol=1e-3)
    weights = noise(24, 5).double()
    (outputs * weights).sum().backward()
    (torch.cat(parts) * weights).sum().backward()
    for name, p in split.named_parameters():
        assert_close(p.grad, sum(dict(r.named_parameters())[name].grad for r in replicas))
    for name, running in split.named_buffers():
        theirs = torch.stack([dict(r.named_buffers())[name] for r in replicas]).double().mean(0)
        assert_close(running.double(), theirs)
    assert_close(split.eval()(images), torch.cat([split(part) for part in images.chunk(4)]))


def test_split_batch_norm_keeps_state_and_optimisers_valid_and_can_be_undone():
    network, split = blocks()
    parameters, keys = list(map(id, split.parameters())), list(split.state_dict())
    split_batch_norm(split, 2)
    assert (list(map(id, split.parameters())), list(split.state_dict())) == (parameters, keys)
    images = noise(6, 3, 8, 8).double()
    assert_close(split.eval()(images), network.eval()(images))
    split_batch_norm(split, 1).train()
    assert torch.equal(split(images), network.train()(images))
    for mine, theirs in zip(split.buffers(), network.buffers(), strict=True):
        assert torch.equal(mine, theirs)
    # a layer by itself, with cumulative averages
    layer = split_batch_norm(nn.BatchNorm1d(3, momentum=None), 2)
    first, second = noise(8, 3), noise(8, 3) + 1
    layer(first), layer(second)
    assert_close(layer.running_mean, torch.cat([first, second]).mean(0))


def test_encoders_train_with_split_batch_norm_under_autocast_and_as_one_graph():
    model = split_batch_norm(SimCLR(seeded("cnn"), projection_head(128)), 2)
    images = noise(8, 3, 32, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(images)[1].sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    expected = model(images)
    assert_close(torch.compile(model, fullgraph=True, backend="eager")(images), expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: encoder("resnet"), "encoder 'resnet' is unknown; use one of cnn, resnet18"),
        (lambda: encoder("cnn", in_channels=0), "in_channels is 0"),
        (lambda: split_batch_norm(nn.BatchNorm1d(2), 0), "groups is 0"),
        (
            lambda: split_batch_norm(nn.BatchNorm1d(2), 2)(noise(5, 2)),
            "batch of 5 cannot be split into 2",
        ),
    ],
)
def test_errors_are_one_line(call, message):
    with refused(message):
        call()
