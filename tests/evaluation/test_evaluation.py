"""Evaluation: exact averages over tasks, ties at chance, no test data in any choice."""

import itertools
import math
import os
from fractions import Fraction

import numpy as np
import pytest
import torch
from formulas import generator, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, PredefinedSplit
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.nn import functional as F

from curlnb.evaluation import (
    accuracy,
    average_accuracy,
    class_ranks,
    extract_features,
    knn,
    linear_classifier,
    linear_probe,
    mean_classifier,
    probes,
    released_probe,
    sentence_tasks,
    svm_cross_validation,
    top_r,
    tr_accuracy,
)


def blobs(n, classes, d, spread, seed=0):
    """Gaussian classes around fixed random centres: n samples of them, balanced."""
    centres = torch.randn(classes, d, generator=generator(99))
    labels = torch.arange(n) % classes
    return centres[labels] + spread * torch.randn(n, d, generator=generator(seed)), labels


# scores with many ties: a few values over few classes
tied_scores = st.integers(2, 6).flatmap(
    lambda c: st.lists(
        st.tuples(st.lists(st.integers(0, 2), min_size=c, max_size=c), st.integers(0, c - 1)),
        min_size=1,
        max_size=5,
    )
)


def unpack(samples):
    return torch.tensor([row for row, _ in samples]).float(), torch.tensor(
        [label for _, label in samples]
    )


def brute_average(samples, k):
    """Every task of every sample; a tie counts 1 / (number tied for the first place)."""
    total = Fraction(0)
    for row, label in samples:
        others = [score for c, score in enumerate(row) if c != label]
        tasks = list(itertools.combinations(others, k - 1))
        won = sum(
            Fraction(row[label] >= max(task), 1 + sum(score == row[label] for score in task))
            for task in tasks
        )
        total += Fraction(won) / len(tasks)
    return total / len(samples)


def brute_top(samples, r):
    """Every order in which the classes can be named that respects their scores."""
    total = Fraction(0)
    for row, label in samples:
        orders = [
            o
            for o in itertools.permutations(range(len(row)))
            if all(row[i] >= row[j] for i, j in itertools.pairwise(o))
        ]
        total += Fraction(sum(label in o[:r] for o in orders), len(orders))
    return total / len(samples)


class TestRankAccuracies:
    @given(tied_scores, st.data())
    @settings(deadline=None, max_examples=30)
    def test_average_accuracy_is_the_mean_over_all_tasks_ties_included(self, samples, data):
        k = data.draw(st.integers(2, len(samples[0][0])))
        assert average_accuracy(*unpack(samples), k) == pytest.approx(
            float(brute_average(samples, k)), abs=1e-14
        )

    @given(tied_scores, st.data())
    @settings(deadline=None, max_examples=20)
    def test_top_r_is_the_mean_over_all_ways_to_break_ties(self, samples, data):
        r = data.draw(st.integers(1, len(samples[0][0])))
        assert top_r(*unpack(samples), r) == pytest.approx(float(brute_top(samples, r)), abs=1e-14)

    @pytest.mark.parametrize("k", [2, 7, 20])
    def test_a_constant_representation_scores_at_chance(self, k):
        """For all class sizes; the means must be equal to the last bit."""
        features, labels = (
            torch.full((60, 5), 0.1),
            torch.cat([torch.arange(20), torch.full((40,), 3)]),
        )
        means = mean_classifier(features, labels, 20)
        assert average_accuracy(features, labels, k, classifier=means) == pytest.approx(
            1 / k, abs=1e-14
        )
        assert top_r(features, labels, k, classifier=means) == pytest.approx(k / 20, abs=1e-14)

    @pytest.mark.parametrize("k", [2, 100, 1515, 3029])
    def test_exact_for_the_classes_of_wiki_3029(self, k):
        """binom(3029, 1515) has 911 digits; compared with the formula in whole numbers."""
        c = 3029
        own = torch.tensor([0, 1, 2, 30, 1000, 3028])
        scores = torch.arange(c).flip(0).float().repeat(len(own), 1)  # class i has i above it
        # and class 30 of the fourth sample ties with 20 further ones
        scores[3, 40:60] = scores[3, 30]

        def solved(a, e):
            return Fraction(
                math.comb(c - a, k) - math.comb(c - 1 - a - e, k), (e + 1) * math.comb(c - 1, k - 1)
            )

        expected = (
            sum(solved(a, e) for a, e in [(0, 0), (1, 0), (2, 0), (30, 20), (1000, 0), (3028, 0)])
            / 6
        )
        assert average_accuracy(scores, own, k) == pytest.approx(float(expected), abs=1e-12)

    def test_chunks_and_the_form_of_the_scores_do_not_matter(self, monkeypatch):
        """Features with a classifier mean the same as the scores they give.

        Small integers make the products exact.
        """
        features, labels = (
            torch.randint(-2, 3, (97, 4), generator=generator()).float(),
            torch.arange(97) % 13,
        )
        means = torch.randint(-2, 3, (13, 4), generator=generator(1)).float()
        whole = class_ranks(features @ means.T, labels)
        assert int(whole[1].max()) > 0  # ties are among them
        for chunk in (1, 14, 10_000):
            monkeypatch.setattr(accuracy, "CHUNK", chunk)
            for again in (
                class_ranks(features @ means.T, labels),
                class_ranks(features, labels, classifier=means),
            ):
                assert torch.equal(torch.stack(whole), torch.stack(again))

    def test_errors_name_what_would_be_right(self):
        scores, labels = torch.zeros(3, 4), torch.tensor([0, 1, 2])
        with refused(r"k must lie in 2\.\.4.*got 5"):
            average_accuracy(scores, labels, 5)
        with refused(r"labels must lie in 0\.\.3.*got 0\.\.4"):
            top_r(scores, torch.tensor([0, 1, 4]), 1)
        for value in (math.nan, math.inf, -math.inf):
            # of a class that is not the true one: it must not count as beaten, nor as ahead
            scores[1, 3] = value
            with refused("NaN or infinity"):
                average_accuracy(scores, labels, 2)


class TestMeanClassifier:
    def test_mu_5_averages_five_distinct_samples_of_each_class(self):
        """With one-hot features a mean says which samples went into it.

        Five times 1/5 on its own class's samples.
        """
        labels = torch.arange(30) % 3
        all_of_them = (F.one_hot(labels).T / 10).float()
        assert torch.equal(mean_classifier(torch.eye(30), labels, 3), all_of_them)
        means = mean_classifier(torch.eye(30), labels, 3, per_class=5, generator=generator())
        for c, row in enumerate(means):
            assert set(labels[row > 0].tolist()) == {c}
            assert sorted(row[row > 0].tolist()) == pytest.approx([0.2] * 5)

    def test_the_draw_is_the_generators_and_fair(self):
        labels, features = torch.arange(20) % 2, torch.eye(20)

        def draw(seed):
            return mean_classifier(features, labels, 2, per_class=5, generator=generator(seed))

        assert torch.equal(draw(3), draw(3))
        # each sample: one of ten, five drawn, weight 1/5 each
        share = torch.stack([draw(seed) for seed in range(100)]).mean(0)
        assert torch.allclose(share.sum(0), torch.full((20,), 0.1), atol=4 * 0.1 / math.sqrt(100))

    def test_errors(self):
        features, labels = torch.zeros(5, 2), torch.tensor([0, 0, 0, 1, 1])
        with refused("class 1 has 2 samples, 3 are needed"):
            mean_classifier(features, labels, 2, per_class=3, generator=generator())
        with refused("with a generator"):
            mean_classifier(features, labels, 2, per_class=2)


class TestKnn:
    @pytest.mark.parametrize(("k", "temperature"), [(1, None), (5, None), (50, 0.07)])
    def test_is_scikit_learns(self, k, temperature):
        """On unit vectors with cosine distance 1 - s and the same weights."""
        (x, y), (x_test, y_test) = blobs(150, 5, 8, 1.5), blobs(80, 5, 8, 1.5, seed=1)
        x, x_test = x.double(), x_test.double()
        weights = (
            "uniform"
            if temperature is None
            else lambda distance: np.exp((1 - distance) / temperature)
        )
        theirs = KNeighborsClassifier(k, weights=weights, metric="cosine").fit(x.numpy(), y.numpy())
        # of equal votes scikit-learn's `score` names the first, which is not a share
        votes = theirs.predict_proba(x_test.numpy())
        expected = top_r(torch.from_numpy(votes.round(12)), y_test, 1)
        assert knn(x, y, x_test, y_test, k=k, temperature=temperature) == pytest.approx(
            expected, abs=1e-12
        )

    def test_small_temperatures_do_not_overflow(self):
        """exp(1 / 0.001) is infinite in any float: the limit is the nearest neighbour's vote."""
        sets = *blobs(100, 5, 8, 1.5), *blobs(60, 5, 8, 1.5, seed=1)
        assert knn(*sets, k=50, temperature=1e-6) == knn(*sets, k=1)

    def test_chunks_do_not_matter(self, monkeypatch):
        sets = *blobs(100, 5, 8, 1.5), *blobs(61, 5, 8, 1.5, seed=1)
        whole = knn(*sets, k=10)
        monkeypatch.setattr(accuracy, "CHUNK", 700)
        assert knn(*sets, k=10) == whole

    def test_errors(self):
        x, y = blobs(10, 2, 3, 1.0)
        for k in (0, 200):
            with refused(rf"k must lie in 1\.\.10.*got {k}"):
                knn(x, y, x, y, k=k)
        with refused(r"temperature must be positive.*got 0"):
            knn(x, y, x, y, k=2, temperature=0.0)
        with refused("labels must be numbered from 0, got -1"):
            knn(x, y - 1, x, y, k=2)


class TestLinearProbe:
    @pytest.mark.parametrize("classes", [2, 7])
    def test_is_scikit_learns_on_standardised_features(self, classes):
        (x, y), (x_test, y_test) = (
            blobs(300, classes, 12, 3.0),
            blobs(200, classes, 12, 3.0, seed=1),
        )
        # unequal units, far from the origin
        x, x_test = (x * torch.arange(1, 13) + 50, x_test * torch.arange(1, 13) + 50)
        theirs = make_pipeline(StandardScaler(), LogisticRegression(C=0.3, max_iter=1000)).fit(
            x.double().numpy(), y.numpy()
        )
        ours = linear_probe(x, y, x_test, y_test, C=0.3)
        assert ours.accuracy == pytest.approx(
            theirs.score(x_test.double().numpy(), y_test.numpy()), abs=1 / 200 + 1e-9
        )
        assert ours.iterations == pytest.approx(theirs[-1].n_iter_[0], abs=3)
        scores = (
            F.pad(x_test, (0, 1), value=1.0).double() @ probes._logistic(x, y, 0.3)[0].T.double()
        )
        theirs_log = torch.from_numpy(theirs.predict_log_proba(x_test.double().numpy()))
        assert torch.allclose(scores.log_softmax(1), theirs_log, atol=1e-6), (
            "the coefficients are theirs"
        )

    @pytest.mark.parametrize("classes", [2, 5])
    def test_tensors_handed_to_scikit_learn_give_the_same_fit(self, classes):
        """The path of a CUDA device, here with tensors on the CPU; the environment is restored."""
        x, y = blobs(200, classes, 8, 2.0)
        before = dict(os.environ)
        on_device, _ = probes._logistic(x, y, 1.0, array_api=True)
        assert dict(os.environ) == before
        assert torch.allclose(on_device, probes._logistic(x, y, 1.0, array_api=False)[0], atol=1e-3)

    @pytest.mark.parametrize(("n", "d", "spread"), [(60, 40, 6.0), (100, 6, 2.0)])
    def test_cross_validation_chooses_C_without_the_test_set(self, n, d, spread):
        """As scikit-learn's grid search; other test labels give the same choice."""
        (x, y), (x_test, y_test) = blobs(n, 3, d, spread), blobs(90, 3, d, spread, seed=1)
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        # every class has its share of each fold
        folds = PredefinedSplit(torch.arange(n).div(3, rounding_mode="floor").numpy() % 5)
        grid = {"logisticregression__C": [10.0**p for p in range(-4, 3)]}
        theirs = GridSearchCV(model, grid, cv=folds).fit(x.double().numpy(), y.numpy())
        chosen = linear_probe(x, y, x_test, y_test, C="cv")
        assert theirs.best_params_["logisticregression__C"] == chosen.C
        assert chosen.C == linear_probe(x, y, x_test, y_test.flip(0), C="cv").C
        assert chosen == linear_probe(x, y, x_test, y_test, C=chosen.C)

    def test_errors(self):
        x, y = blobs(12, 3, 4, 1.0)
        with refused("class 2 is among the test labels"):
            linear_probe(x[y < 2], y[y < 2], x, y)
        with refused("smallest has 4"):
            linear_probe(x, y, x, y, C="cv")
        with refused("C must be a positive number"):
            linear_probe(x, y, x, y, C=0.0)


def small_encoder():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
        )


def pictures(n, seed=0):
    """Stripes along one axis or the other, with noise: two classes."""
    labels = torch.arange(n) % 2
    stripes = 80.0 * (torch.arange(8) % 2).expand(8, 8)
    clean = torch.where(labels[:, None, None] == 1, stripes.T, stripes)
    return (clean + 100 + 20 * torch.randn(n, 8, 8, generator=generator(seed))).clamp(0, 255).to(
        torch.uint8
    )[:, None], labels


def scaled(images):
    return images.float() / 255


def noisy(images, g):
    return scaled(images) + 0.05 * torch.randn(images.shape, generator=g)


class TestExtractFeatures:
    def test_evaluation_mode_and_flags_restored(self):
        """Batch statistics would make a sample's features depend on its neighbours.

        A frozen part must stay frozen.
        """
        encoder, (images, _) = small_encoder().train(), pictures(30)
        encoder[1].eval()
        one_by_one = extract_features(encoder, images, transform=scaled, batch=1)
        assert one_by_one.shape == (30, 6)
        assert not one_by_one.requires_grad
        assert torch.allclose(
            one_by_one, extract_features(encoder, images, transform=scaled, batch=7), atol=1e-6
        )
        assert [m.training for m in encoder.modules()] == [True, True, False, True, True]


class TestReleasedProbe:
    def probe(self, encoder, *, seed=0, augment=noisy, **settings):
        options = {"epochs": 5, "batch": 32} | settings
        return released_probe(
            encoder,
            *pictures(96),
            *pictures(64, seed=1),
            augment=augment,
            transform=scaled,
            generator=generator(seed),
            lr=0.1,
            **options,
        )

    def test_trains_the_layer_as_plain_torch_does(self):
        """nn.Linear, cross-entropy and Adam, written out.

        The draws are torch's start of a linear layer, then one order an epoch.
        """
        (x, y), (x_test, y_test) = blobs(96, 5, 8, 2.0), blobs(1000, 5, 8, 2.0, seed=1)
        result = released_probe(
            nn.Flatten(),
            *(x[:, :, None, None], y, x_test[:, :, None, None], y_test),
            augment=lambda images, _: images,
            transform=lambda images: images,
            generator=generator(),
            epochs=3,
            batch=20,
            lr=0.03,
            weight_decay=0.3,
        )
        g, layer = generator(), nn.Linear(8, 5)
        start = (2 * torch.rand(5, 9, generator=g) - 1) / math.sqrt(8)
        layer.load_state_dict({"weight": start[:, :8], "bias": start[:, 8]})
        optimiser = torch.optim.Adam(layer.parameters(), lr=0.03, weight_decay=0.3)
        for _ in range(3):
            for rows in torch.randperm(96, generator=g).split(20):
                optimiser.zero_grad()
                nn.CrossEntropyLoss()(layer(x[rows]), y[rows]).backward()
                optimiser.step()
        assert result.iterations == 15  # the last, smaller batch is kept
        assert result.accuracy == pytest.approx(
            (layer(x_test).argmax(1) == y_test).double().mean().item()
        )
        assert 0.25 < result.accuracy < result.top5 == 1.0

    def test_the_encoder_given_stays_and_its_copys_statistics_drift(self):
        """The released code lets batch norm drift; whoever evaluates next must not inherit it."""
        encoder = small_encoder().eval()
        before = {name: value.clone() for name, value in encoder.state_dict().items()}
        result = self.probe(encoder)
        assert all(torch.equal(before[name], value) for name, value in encoder.state_dict().items())
        assert not encoder.training
        assert result.drift is not None
        assert result.drift > 0.1

    def test_training_uses_batch_statistics_and_the_test_the_drifted_ones(self):
        """The mode of each forward pass, and the weights, recorded from inside."""
        passes = []

        class Watched(nn.BatchNorm2d):
            def forward(self, x):
                passes.append(
                    (
                        self.training,
                        len(x),
                        torch.is_grad_enabled(),
                        float(self.weight.detach().sum()),
                    )
                )
                return super().forward(x)

        encoder = small_encoder()
        encoder[1] = Watched(6)
        self.probe(encoder, epochs=2)
        train, test = [p for p in passes if p[0]], [p for p in passes if not p[0]]
        assert [n for _, n, _, _ in train] == [32, 32, 32] * 2  # every image once an epoch
        # the test set, once; and one image to learn the width
        assert sum(n for _, n, _, _ in test) == 64 + 1
        assert {(grad, weight) for _, _, grad, weight in passes} == {(False, 6.0)}
        assert passes[-1][0] is False

    def test_the_last_epoch_is_reported_not_the_best(self):
        """From the fourth epoch the augmentation shows each class as the other.

        So the best epoch is an earlier one.
        """
        calls = 0

        def turns(images, g):
            nonlocal calls
            calls += 1
            return noisy(images if calls <= 9 else images.transpose(2, 3), g)

        best = self.probe(nn.Flatten(), augment=turns, epochs=3).accuracy
        calls = 0
        assert best > 0.9
        assert self.probe(nn.Flatten(), augment=turns, epochs=20).accuracy < 0.2

    def test_seeded_by_its_generator_alone(self):
        """And the global generator is neither read nor moved."""
        torch.manual_seed(1)
        first, state = self.probe(small_encoder()), torch.get_rng_state()
        torch.manual_seed(2)
        assert self.probe(small_encoder()) == first
        torch.manual_seed(1)
        small_encoder()
        assert torch.equal(torch.get_rng_state(), state)

    def test_errors(self):
        with refused("must be at least 1, got 0, 32, 96"):
            self.probe(small_encoder(), epochs=0)


class TestTrainedTasks:
    def test_seeded_and_near_the_exact_value_of_all_tasks(self):
        """15 tasks can be taken all; 12 drawn ones must agree within four standard errors."""
        sets = *blobs(48, 6, 4, 1.5), *blobs(96, 6, 4, 1.5, seed=1)
        every, none = tr_accuracy(*sets, 2, tasks=15, generator=generator())
        assert none == 0.0
        drawn = tr_accuracy(*sets, 2, tasks=12, generator=generator())
        assert drawn == tr_accuracy(*sets, 2, tasks=12, generator=generator())
        whole = (linear_probe(*sets).accuracy, 0.0)  # the one task of all classes
        assert tr_accuracy(*sets, 6, generator=generator()) == whole
        assert 0 < drawn[1] < 0.05
        assert abs(drawn[0] - every) < 4 * drawn[1]

    def test_errors(self):
        x, y = blobs(20, 4, 3, 1.0)
        with refused(r"k must lie in 2\.\.4.*got 5"):
            tr_accuracy(x, y, x, y, 5, generator=generator())
        with refused("the same classes"):
            tr_accuracy(x, y, x[y > 0], y[y > 0], 2, generator=generator())


class TestSvm:
    def test_errors(self):
        x, y = blobs(12, 3, 4, 1.0)
        with refused(r"outer must lie in 2\.\.4.*got 10"):
            svm_cross_validation(x, y, generator=generator())


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_has_diverged_is_refused_by_every_classifier(value):
    x, y = blobs(24, 2, 3, 1.0)
    x[5, 1] = value
    for call in (
        lambda: mean_classifier(x, y, 2),
        lambda: linear_classifier(x, y),
        lambda: tr_accuracy(x, y, x, y, 2, generator=generator()),
        lambda: knn(x, y, x, y, k=2),
        lambda: svm_cross_validation(x, y, generator=generator(), outer=2, inner=2),
        lambda: sentence_tasks.cross_validated(x, y, count=4, inner=2),
    ):
        with refused(r"^features hold NaN or infinity: the representation has diverged$"):
            call()


def test_arrays_are_refused_with_the_remedy():
    x, y = (each.numpy() for each in blobs(24, 2, 3, 1.0))
    for call in (
        lambda: class_ranks(x, y),
        lambda: knn(x, y, x, y, k=2),
        lambda: mean_classifier(x, y, 2),
    ):
        with refused(r"must be tensors.*torch\.as_tensor"):
            call()
