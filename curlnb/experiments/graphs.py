"""Contrastive learning of graphs: InfoGraph with hard negatives.

Source: robinson2021, Section 5.2 and Appendix B.
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from curlnb import evaluation, losses
from curlnb.choices import check_known
from curlnb.data import graphs
from curlnb.models.gin import InfoGraph
from curlnb.runs.environment import kept_in_memory
from curlnb.runs.experiment import experiment
from curlnb.runs.store import Run
from curlnb.runs.training import Optimisation, train

OBJECTIVES = ("hard", "released")


@dataclass(frozen=True)
class NodeContrast:
    """The loss that contrasts nodes with graphs.

    objective: "hard" is `losses.jsd_loss` with beta, tau_plus, weight_clip and weight_sign as
    there; beta = 0 is InfoGraph. "released" is `released_loss`, which takes only beta. ValueError
    for an unknown objective, and for "released" with other settings.
    """

    objective: str = "hard"
    beta: float = 0.0
    tau_plus: float = 0.0
    weight_clip: str | None = "rescale"
    weight_sign: int = 1

    def __post_init__(self) -> None:
        check_known("objective", self.objective, OBJECTIVES)
        if self.objective == "released" and (
            self.tau_plus != 0 or self.weight_clip != "rescale" or self.weight_sign != 1
        ):
            raise ValueError(
                "objective 'released' takes beta only: its tau_plus, weight_clip and weight_sign "
                "are built in; leave them out"
            )


@experiment(name="graphs.infograph", data=lambda parameters: graphs.digest(parameters["dataset"]))
def infograph(
    run: Run,
    *,
    seed: int,
    dataset: str = "MUTAG",
    loss: NodeContrast = NodeContrast(),
    width: int = 32,
    layers: int = 3,
    optimisation: Optimisation = Optimisation(epochs=200, batch=128),
    folds: int = 10,
) -> dict[str, Any]:
    """Train GIN on all graphs of a set without their labels, then probe its graph features.

    The probe is an SVM under nested cross-validation. width: of a layer, and layers: of GIN. epochs
    = 0 leaves the network untrained. The graphs are shuffled once, by the seed, into batches that
    stay as they are, the last short one kept, as in the released code; their order within an epoch
    changes. folds: outer folds; the seed draws them, so that arms of one seed are probed on the
    same folds.

    Returns svm and svm_fold_sd (accuracy, a share; its standard deviation over folds), effective
    (see `effective_negatives`, on the first batch); if trained also, of the last epoch, loss and
    with "hard" align and uniform (Appendix B.2: loss = align + uniform - 2 log 2). ValueError,
    before any training, where a class has fewer graphs than folds.
    """
    data = _load(dataset, run.device)
    smallest = int(torch.bincount(data.labels).min())
    if smallest < folds:
        raise ValueError(
            f"{dataset} has a class with {smallest} graphs, and {folds} folds need {folds} of "
            "each; use fewer folds"
        )
    parts = batches(data, optimisation.batch, seed)
    model = InfoGraph(data.x.shape[1], width, layers).to(run.device)

    options = {name: value for name, value in asdict(loss).items() if name != "objective"}

    def step(index: Tensor, _: float) -> tuple[Tensor, dict[str, Tensor]]:
        part = parts[int(index)]
        scores = model(part.x, part.edges, part.batch, len(part))
        if loss.objective == "released":
            return released_loss(scores, part.batch, loss.beta), {}
        value = losses.jsd_loss(scores, part.batch, **options).mean()
        align = F.softplus(-scores.detach().gather(1, part.batch[:, None])).mean()
        return value, {"align": align, "uniform": value.detach() - align + 2 * math.log(2)}

    log = train(
        run,
        model,
        step,
        replace(optimisation, batch=1),
        samples=len(parts),
        seed=seed,
        generator=torch.Generator(run.device).manual_seed(seed),
        order_on=torch.device("cpu"),  # `parts` is a list
    )
    model.eval()
    with torch.no_grad():
        scores = model(parts[0].x, parts[0].edges, parts[0].batch, len(parts[0]))
        sign = -1 if loss.objective == "released" else loss.weight_sign
        effective = effective_negatives(scores, parts[0].batch, loss.beta, loss.weight_clip, sign)
        features = torch.cat(
            [model.encoder(part.x, part.edges, part.batch, len(part))[1] for part in parts]
        )
    labels = torch.cat([part.labels for part in parts])
    accuracy, spread = evaluation.svm_cross_validation(
        features, labels, generator=torch.Generator().manual_seed(seed), outer=folds
    )
    return {
        "svm": accuracy,
        "svm_fold_sd": spread,
        "effective": effective,
        **{name: curve[-1] for name, curve in log.items()},
    }


def batches(data: graphs.Graphs, size: int, seed: int) -> list[graphs.Graphs]:
    """The graphs in random order, in batches of `size`.

    A last batch of one graph, which has no negatives, joins the one before it. ValueError for a
    size or a set below 2, since a graph is contrasted with others.
    """
    if size < 2 or len(data) < 2:
        raise ValueError(
            f"a batch needs at least 2 graphs to contrast; got batch {size} and {len(data)} graphs"
        )
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed)).to(
        data.labels.device
    )
    parts = list(order.split(size))
    if len(parts[-1]) == 1 and len(parts) > 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return [data.subset(part) for part in parts]


def effective_negatives(
    scores: Tensor,
    own: Tensor,
    beta: float,
    weight_clip: str | None = "rescale",
    weight_sign: int = 1,
) -> float:
    """The share of the other graphs that the weights q of `losses.jsd_loss` leave in effect.

    It is exp of the entropy of q over the number of other graphs, averaged over nodes: 1 for equal
    weights, as at beta = 0, and 1 / (graphs - 1) where a single graph has all the weight. scores:
    [nodes, graphs]; own: [nodes], each node's graph.
    """
    mine = F.one_hot(own, scores.shape[1]).bool()
    seen = scores.double()
    if weight_clip == "rescale":
        seen = (
            2
            * seen
            / seen.masked_fill(mine, 0.0).abs().max().clamp_min(torch.finfo(torch.float32).eps)
        )
    elif weight_clip == "clamp":
        seen = seen.clamp(-2, 2)
    q = (weight_sign * beta * seen).masked_fill(mine, -math.inf).softmax(1)
    return float((torch.special.entr(q).sum(1).exp() / (scores.shape[1] - 1)).mean())


def released_loss(scores: Tensor, own: Tensor, beta: float) -> Tensor:
    """The loss of the code released for robinson2021's graphs, with its faults, without loops.

    scores: [nodes, graphs], own: [nodes]. Returns the mean, 0-dim. It differs from
    `losses.jsd_loss`: tau+ is fixed at 1/2, and its term has the wrong sign, sp(T_own) is added
    where Eq. 4 subtracts it; the weights e^{-2 beta T/max|T|} favour easy negatives; a node's own
    graph stays in sum and normaliser, with score 0; the constant is subtracted for every pair. beta
    = 0 keeps tau+ and so is not InfoGraph.
    """
    tau_plus, log_2 = 0.5, math.log(2)
    mine = F.one_hot(own, scores.shape[1]).bool()
    nodes, count = scores.shape
    # an entry that is masked to 0 still passes through the functions below, in both sums
    positive, negative = scores.masked_fill(~mine, 0.0), scores.masked_fill(mine, 0.0)
    expected = log_2 - F.softplus(-positive) - tau_plus / (1 - tau_plus) * F.softplus(positive)
    if beta == 0:
        against = (F.softplus(negative) - log_2) / (1 - tau_plus)
    else:
        log_w = -2 * beta * negative / torch.maximum(negative.max(), negative.min().abs())
        weight = (log_w - log_w.logsumexp(1, keepdim=True)).exp() * count
        against = weight * F.softplus(negative) / (1 - tau_plus) - log_2
    return against.sum() / (nodes * (count - 1)) - expected.sum() / nodes


@kept_in_memory(3)
def _load(name: str, device: torch.device) -> graphs.Graphs:
    return graphs.load(name, device)
