"""The batched augmentations against torchvision's and PIL's: same numbers, same distributions."""

import pytest
import torch
from formulas import generator, refused
from scipy import stats
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close
from torchvision import transforms
from torchvision.transforms.v2 import functional as reference

from curlnb.data import augment, photometric

DRAWS = 4000


def noise(n, height=32, width=32, channels=3):
    return torch.randint(
        0, 256, (n, channels, height, width), dtype=torch.uint8, generator=generator(1)
    )


def colours(n):
    """Float images with the hard cases of a hue: black, white, grey, primaries, noise."""
    levels = torch.tensor([0.0, 0.3, 1.0])
    table = torch.cartesian_prod(levels, levels, levels).T  # [3, 27]
    images = noise(n, 12, 12).float() / 255
    images.flatten(2)[:, :, :27] = table
    return images


@pytest.mark.parametrize(
    ("height", "width", "size"),
    [(32, 32, 32), (96, 96, 32), (20, 50, 32), (28, 28, 28)],
    ids=["enlarging", "shrinking", "not square", "one size"],
)
def test_crop_agrees_with_torchvision(height, width, size):
    images = noise(40, height, width).float() / 255
    drawn = augment.draw(40, height, width, generator(2))
    expected = []
    for image, box, flip in zip(
        images, drawn.crop.long().tolist(), drawn.flip.tolist(), strict=True
    ):
        view = reference.resized_crop(image, *box, size=[size, size], antialias=True)
        expected.append(reference.horizontal_flip(view) if flip else view)
    assert_close(
        augment.crop(images, drawn.crop, drawn.flip, size), torch.stack(expected), atol=1e-5, rtol=0
    )


OPERATIONS = [
    reference.adjust_brightness,
    reference.adjust_contrast,
    reference.adjust_saturation,
    reference.adjust_hue,
]


@pytest.mark.parametrize("operation", range(4), ids=["brightness", "contrast", "saturation", "hue"])
def test_each_colour_operation_agrees_with_torchvision(operation):
    """Each image with its own factor, those that clamp and the ends of the range among them."""
    values = (
        torch.linspace(-0.5, 0.5, 21)
        if operation == photometric.HUE
        else torch.linspace(0, 2.5, 21)
    )
    images = colours(21)
    factors = torch.tensor([1.0, 1.0, 1.0, 0.0]).repeat(21, 1)
    factors[:, operation] = values
    expected = torch.stack(
        [
            OPERATIONS[operation](image, value)
            for image, value in zip(images, values.tolist(), strict=True)
        ]
    )
    assert_close(
        photometric.colour_jitter(images, factors, torch.arange(4).repeat(21, 1)),
        expected,
        atol=1e-5,
        rtol=0,
    )


def test_blur_agrees_with_torchvision():
    images = noise(6, 9, 14, channels=1).float() / 255
    sigma = torch.tensor([0.1, 0.3, 0.5, 1.0, 2.0, 0.0])
    views = photometric.blur(images, sigma)
    expected = [
        reference.gaussian_blur(image, [3, 3], [s, s])
        for image, s in zip(images[:5], sigma[:5].tolist(), strict=True)
    ]
    assert_close(views[:5], torch.stack(expected), atol=1e-6, rtol=0)
    assert torch.equal(views[5], images[5])  # sigma 0 is no blur


def test_a_whole_view_agrees_with_torchvision():
    """The recipe on smooth images of bytes, each with its own parameters in its own order."""
    ramp = torch.linspace(0, 255, 48)
    red, green = torch.meshgrid(ramp, ramp, indexing="ij")
    images = torch.stack([red, green, (red - green).abs()]).to(torch.uint8).repeat(60, 1, 1, 1)
    drawn = augment.draw(60, 48, 48, generator(5))
    assert len(drawn.order.unique(dim=0)) == 24
    expected = []
    for i, image in enumerate(images):
        box = drawn.crop[i].long().tolist()
        view = reference.resized_crop(image.float() / 255, *box, size=[32, 32], antialias=True)
        if drawn.flip[i]:
            view = reference.horizontal_flip(view)
        for operation in drawn.order[i].tolist():
            view = OPERATIONS[operation](view, drawn.factors[i, operation].item())
        if drawn.grayscale[i]:
            view = reference.rgb_to_grayscale(view, num_output_channels=3)
        if drawn.sigma[i] > 0:
            view = reference.gaussian_blur(view, [3, 3], [drawn.sigma[i].item()] * 2)
        expected.append(view)
    expected = reference.normalize(torch.stack(expected), augment.CIFAR10_MEAN, augment.CIFAR10_STD)
    views = augment.apply(images, drawn)
    assert_close(views, expected, atol=0.02 / 255 / min(augment.CIFAR10_STD), rtol=0)


# Distributions: two-sample Kolmogorov-Smirnov tests against torchvision's own draws, at fixed
# seeds; a wrong distribution gives p < 1e-6.


def same_distribution(ours, theirs):
    return stats.ks_2samp(ours.double().numpy(), theirs.double().numpy()).pvalue > 1e-3


@pytest.mark.parametrize(("height", "width"), [(96, 64), (20, 90)])
def test_crop_boxes_are_distributed_as_torchvisions(height, width):
    """The last shape is wider than the ratio allows.

    Most attempts fail and the central crop is frequent.
    """
    ours = augment.draw(DRAWS, height, width, generator(6)).crop
    assert torch.equal(ours, ours.round())
    assert (ours >= 0).all()
    assert (ours[:, 2:] >= 1).all()
    assert (ours[:, :2] + ours[:, 2:] <= torch.tensor([height, width])).all()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        image = torch.empty(3, height, width)
        get = transforms.RandomResizedCrop.get_params
        theirs = torch.tensor(
            [get(image, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(DRAWS)]
        ).float()
    for own, other in zip(quantities(ours), quantities(theirs), strict=True):
        assert same_distribution(own, other)


def quantities(boxes):
    top, left, height, width = boxes.T
    return [top, left, height, width, height * width, width / height, top + height, left + width]


@pytest.mark.parametrize("shape", [(20, 100), (100, 20), (32, 32)])
def test_central_crop_when_no_attempt_fits(shape):
    """An area of twice the image never fits: the fallback, which is deterministic."""
    theirs = transforms.RandomResizedCrop.get_params(
        torch.empty(3, *shape), [2.0, 2.0], [3 / 4, 4 / 3]
    )
    assert (
        augment.draw(3, *shape, generator(), scale=(2.0, 2.0)).crop.tolist()
        == [list(map(float, theirs))] * 3
    )


def test_colour_factors_and_orders_are_distributed_as_torchvisions():
    drawn = augment.draw(DRAWS, 32, 32, generator(8), jitter=(0.4, 1.5, 0.2, 0.1), jitter_p=1.0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(9)
        jitter = transforms.ColorJitter(0.4, 1.5, 0.2, 0.1)
        ranges = jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue
        theirs = torch.tensor([jitter.get_params(*ranges)[1:] for _ in range(DRAWS)])
    assert [i for i in range(4) if not same_distribution(drawn.factors[:, i], theirs[:, i])] == []
    code = (drawn.order * torch.tensor([64, 16, 4, 1])).sum(1)
    counts = code.unique(return_counts=True)[1]
    assert len(counts) == 24
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3
    assert torch.equal(drawn.order.sort(1).values, torch.arange(4).expand(DRAWS, 4))


def test_probabilities_are_the_recipes_and_choices_are_independent():
    """An off-by-one in the block of uniform numbers would tie two choices together.

    All pairs must be uncorrelated.
    """
    n = 20000
    drawn = augment.draw(n, 32, 32, generator(10))
    jittered, blurred = drawn.factors[:, 3] != 0, drawn.sigma > 0
    for chosen, p in ((drawn.flip, 0.5), (jittered, 0.8), (drawn.grayscale, 0.2), (blurred, 0.5)):
        assert stats.binomtest(int(chosen.sum()), n, p).pvalue > 1e-3
    assert torch.equal(
        drawn.factors[~jittered],
        torch.tensor([1.0, 1.0, 1.0, 0.0]).expand(int((~jittered).sum()), 4),
    )
    assert stats.kstest(drawn.sigma[blurred].numpy(), stats.uniform(0.1, 1.9).cdf).pvalue > 1e-3
    both = jittered & blurred
    columns = [*drawn.crop.T, drawn.flip, *drawn.factors.T, *drawn.order.T, drawn.grayscale]
    table = torch.stack([column[both].double() for column in (*columns, drawn.sigma)])
    correlation = torch.corrcoef(table).fill_diagonal_(0)
    correlation[:4, :4] = correlation[9:13, 9:13] = 0  # a box's fields, and an order's, are tied
    assert correlation.abs().max() < 4.5 / both.sum().sqrt()
    choices = torch.stack([drawn.flip, jittered, drawn.grayscale, blurred]).double()
    assert torch.corrcoef(choices).fill_diagonal_(0).abs().max() < 4.5 / n**0.5


def test_a_generators_state_decides_the_views_and_nothing_else_is_touched():
    images, before = noise(8), torch.random.get_rng_state()
    stream = generator(11)
    first, second = augment.simclr(images, stream), augment.simclr(images, stream)
    assert torch.equal(first, augment.simclr(images, generator(11)))
    assert not torch.equal(first, second)
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(images, noise(8))


@pytest.mark.parametrize(("shape", "size"), [((5, 3, 96, 96), 32), ((5, 1, 28, 28), 28)])
def test_views_are_float32_in_their_size_under_autocast_too(shape, size):
    images = noise(shape[0], *shape[2:], channels=shape[1])
    # training runs under it; the views must not lose grey levels
    with torch.autocast("cpu", dtype=torch.bfloat16):
        views = augment.simclr(images, generator(13), size=size)
    assert torch.equal(views, augment.simclr(images, generator(13), size=size))
    assert views.shape == (shape[0], shape[1], size, size)
    assert views.dtype == torch.float32


def test_operations_can_be_left_out():
    drawn = augment.draw(4, 32, 32, generator(), colour=False, blur=False)
    assert drawn.factors is drawn.order is drawn.grayscale is drawn.sigma is None
    same = augment.simclr(
        noise(4),
        generator(),
        scale=(1, 1),
        ratio=(1, 1),
        flip_p=0,
        jitter_p=0,
        grayscale_p=0,
        blur=False,
    )
    # nothing left to change
    assert_close(same, augment.normalise(noise(4)), atol=1e-5, rtol=0)


def test_no_step_waits_for_the_device_or_depends_on_data():
    """Fake tensors have no values.

    Anything that asked for one (.item(), a boolean index) would raise. And the compiler sees one
    graph.
    """
    with FakeTensorMode(allow_non_fake_inputs=True):
        images = torch.empty(6, 3, 96, 96, dtype=torch.uint8)
        assert augment.simclr(images, generator()).shape == (6, 3, 32, 32)
    images, drawn = noise(3), augment.draw(3, 32, 32, generator(14))
    graph = torch.compile(augment.apply, fullgraph=True, backend="eager")
    assert_close(graph(images, drawn), augment.apply(images, drawn))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: augment.simclr(noise(2).float(), generator()), "torch.uint8"),
        (lambda: augment.simclr(noise(2), generator(), blur_p=1.5), "blur_p is 1.5"),
        (lambda: augment.simclr(noise(2), generator(), scale=(0.5, 0.1)), "low <= high"),
        (
            lambda: augment.apply(noise(2), augment.draw(3, 32, 32, generator())),
            "3 images, the batch has 2",
        ),
        (
            lambda: augment.apply(noise(2, channels=1), augment.draw(2, 32, 32, generator())),
            "colour=False",
        ),
    ],
)
def test_errors_are_one_line(call, message):
    with refused(message):
        call()
