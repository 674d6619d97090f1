"""Image encoders and the projection head; weights are never pretrained."""

import functools
import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from curlnb.choices import Choices


class SimCLR(nn.Module):
    """Encoder and projection head as in the code released with chuang2020 and robinson2021.

    images [n, c, h, w] -> (features [n, feature_dim], projections [n, out]), both of unit length
    and at least float32, also under autocast: the loss is computed on projections, probes on
    features.
    """

    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.encoder(images)
        return _unit(features), _unit(self.head(features))


def _unit(vectors: Tensor) -> Tensor:
    return F.normalize(vectors.to(torch.promote_types(vectors.dtype, torch.float32)), dim=-1)


def encoder(name: str, in_channels: int = 3) -> tuple[nn.Module, int]:
    """A freshly initialised encoder and the length of its features.

    It maps images [n, in_channels, h, w] to features [n, feature_dim]. name: "cnn", a small network
    for the CPU (128 features, 0.09 M parameters); "resnet18", "resnet34", "resnet50", torchvision's
    with the stem for CIFAR (3x3 convolution of stride 1, no max-pooling) and without classifier
    (512, 512, 2048 features), as in the released code; "resnet50-imagenet" with its own stem (7x7
    of stride 2, max-pooling), for pictures of 224 pixels; "vgg16" with an additional 512 x 100
    linear layer (arora2019, Section 8.1; 100 features), and "vgg16_bn", the same with batch
    normalisation, since the paper does not state which it used; both need images of at least 32 x
    32 pixels. Initial weights come from torch's global generator. ValueError for an unknown name or
    in_channels < 1.
    """
    if in_channels < 1:
        raise ValueError(f"in_channels is {in_channels}: it must be at least 1")
    return ENCODERS[name](in_channels)


def projection_head(in_dim: int, hidden: int = 512, out: int = 128) -> nn.Module:
    """Linear (no bias), batch norm, ReLU, linear, as released; the output is not normalised.

    Features [n, in_dim] -> projections [n, out].
    """
    return nn.Sequential(
        nn.Linear(in_dim, hidden, bias=False),
        nn.BatchNorm1d(hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, out),
    )


@torch.no_grad()
def momentum_update(slow: nn.Module, fast: nn.Module, rate: float) -> None:
    """Move the parameters of the momentum copy `slow` by `rate` of the way to those of `fast`.

    Each network keeps its own running statistics.
    """
    for theirs, ours in zip(slow.parameters(), fast.parameters(), strict=True):
        theirs.lerp_(ours, rate)


class _Average(nn.Module):
    """[n, c, h, w] -> [n, c], the mean over positions, with a gradient in channels-last layout.

    The outputs of channels-last convolutions have that layout. The gradient of
    `nn.AdaptiveAvgPool2d` does not: on a CPU the ReLU before it then takes ten times as long, 7% of
    the small network's step.
    """

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1).flatten(1, 2).mean(1)


def _cnn(in_channels: int) -> tuple[nn.Module, int]:
    # Wide and shallow: about half the time of six layers of 16-32-32-64-64-128 channels.
    channels = (in_channels, 32, 64, 128)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(channels):
        layers += [
            nn.Conv2d(before, after, 3, 2, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers, _Average()), channels[-1]


def resnet9(in_channels: int) -> nn.Module:
    """A small residual network for `simclr(encoder=encoders.resnet9)`, with nine convolutions.

    Images [n, in_channels, h, w] -> features [n, 128]; 0.48 M parameters. Like "cnn" it has three
    stages of 32, 64 and 128 channels, each begun by a convolution of stride 2; here a residual
    block of two convolutions follows. A training step takes about three times as long.
    """

    def convolution(before: int, after: int, stride: int) -> list[nn.Module]:
        return [
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
        ]

    layers: list[nn.Module] = []
    for before, after in itertools.pairwise((in_channels, 32, 64, 128)):
        layers += [
            *convolution(before, after, 2),
            _Residual(*convolution(after, after, 1), *convolution(after, after, 1)),
        ]
    return nn.Sequential(*layers, _Average())


class _Residual(nn.Sequential):
    """x -> x + layers(x)."""

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


def _resnet(in_channels: int, name: str, small_images: bool = True) -> tuple[nn.Module, int]:
    from torchvision import models  # two seconds, which a run of the small network need not pay

    network = getattr(models, name)(weights=None)
    if small_images:
        # torch's default initial weights, as released
        network.conv1 = nn.Conv2d(in_channels, 64, 3, 1, 1, bias=False)
        network.maxpool = nn.Identity()
    else:
        network.conv1 = nn.Conv2d(in_channels, 64, 7, 2, 3, bias=False)
    features, network.fc = network.fc.in_features, nn.Identity()
    return network, features


def _vgg16(in_channels: int, batch_norm: bool) -> tuple[nn.Module, int]:
    from torchvision.models.vgg import cfgs, make_layers

    # vgg16() would first fill 120 M parameters of a classifier
    features = make_layers(cfgs["D"], batch_norm=batch_norm)
    features[0] = nn.Conv2d(in_channels, 64, 3, 1, 1)
    for layer in features:
        # as torchvision's VGG; thirteen layers do not train from torch's default
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return nn.Sequential(features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 100)), 100


ENCODERS = Choices(
    "encoder",
    {
        "cnn": _cnn,
        "resnet18": functools.partial(_resnet, name="resnet18"),
        "resnet34": functools.partial(_resnet, name="resnet34"),
        "resnet50": functools.partial(_resnet, name="resnet50"),
        "resnet50-imagenet": functools.partial(_resnet, name="resnet50", small_images=False),
        "vgg16": functools.partial(_vgg16, batch_norm=False),
        "vgg16_bn": functools.partial(_vgg16, batch_norm=True),
    },
)
"""The encoders by name: from a number of channels to a network and the length of its features."""


class _SplitBatchNorm(_BatchNorm):
    """Batch norm with the training statistics of groups of the batch (`split_batch_norm`)."""

    groups: int = 1

    def forward(self, input: Tensor) -> Tensor:
        if self.groups == 1 or not self.training:
            return super().forward(input)
        if input.shape[0] % self.groups:
            raise ValueError(
                f"a batch of {input.shape[0]} cannot be split into {self.groups} equal groups for "
                "batch norm"
            )
        self._check_input_dim(input)
        dtype = (
            torch.promote_types(input.dtype, torch.float32)
            if self.running_mean is None
            else self.running_mean.dtype
        )
        outputs, means, variances = [], [], []
        for part in input.chunk(self.groups):
            # momentum 1 fills it with the group's own
            mean = torch.zeros(self.num_features, device=input.device, dtype=dtype)
            variance = torch.ones_like(mean)
            outputs.append(
                F.batch_norm(part, mean, variance, self.weight, self.bias, True, 1.0, self.eps)
            )
            means.append(mean)
            variances.append(variance)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            new = (
                1 / self.num_batches_tracked
                if self.momentum is None
                else torch.full((), self.momentum, device=input.device)
            )
            for running, own in ((self.running_mean, means), (self.running_var, variances)):
                if running is not None:
                    running.lerp_(torch.stack(own).mean(0), new.to(dtype))
        return torch.cat(outputs)


class SplitBatchNorm1d(_SplitBatchNorm, nn.BatchNorm1d):
    """See `split_batch_norm`."""


class SplitBatchNorm2d(_SplitBatchNorm, nn.BatchNorm2d):
    """See `split_batch_norm`."""


_SPLIT: dict[type[nn.Module], type[_SplitBatchNorm]] = {
    nn.BatchNorm1d: SplitBatchNorm1d,
    nn.BatchNorm2d: SplitBatchNorm2d,
}


def split_batch_norm(module: nn.Module, groups: int) -> nn.Module:
    """Make the batch norms in `module` use the statistics of `groups` equal parts of the batch.

    They are its BatchNorm1d and 2d, each used in one place. The parts are contiguous. The released
    code sends its two views of 256 images through the network one after the other, each split over
    2 GPUs: the batch of both views, concatenated, with groups=4 sees the same statistics (groups of
    128). Running statistics are updated once per batch, with the average over the groups of their
    means and of their unbiased variances; evaluation is unchanged. Replaces the layers in place by
    layers that hold the same parameters and buffers, so that state dicts and optimisers stay valid,
    and returns module, or the layer that replaces it if module is a batch norm itself. groups=1
    computes as ordinary batch norm does. ValueError for groups < 1, and in training for a batch
    that does not divide.
    """
    if groups < 1:
        raise ValueError(f"groups is {groups}: it must be at least 1")
    if isinstance(module, _BatchNorm) and type(module) in _SPLIT:
        split = _SPLIT[type(module)](
            module.num_features,
            module.eps,
            module.momentum,
            module.affine,
            module.track_running_stats,
        )
        for name, value in (*module.named_parameters(), *module.named_buffers()):
            setattr(split, name, value)
        module = split.train(module.training)
    if isinstance(module, _SplitBatchNorm):
        module.groups = groups
        return module
    for name, child in module.named_children():
        setattr(module, name, split_batch_norm(child, groups))
    return module
