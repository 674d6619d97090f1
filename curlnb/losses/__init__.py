"""Every objective of the three papers, as pure functions of similarities, and as modules for your
own training loop: `InfoNCE`, `Debiased`, `HardNegative`, `Unbiased`.

One formula holds them all. For an anchor x with a positive x+ and k samples u_i of the marginal,

    loss = -log e^{s+/t} / (e^{s+/t} + N g),    s = f(x).f(.), N negatives, temperature t,

and only g, the estimate of a negative's mean e^{s/t}, tells the objectives apart:

    info_nce        mean_i e^{s_i/t}: the marginal, as it is
    unbiased        the same over the u_i of other classes (needs labels)
                    chuang2020, Eq. 4 (2 in print), Q = N
    debiased        (mean_i e^{s_i/t} - tau+ mean_j e^{v_j/t}) / tau-
                    chuang2020, Eq. 16 (7 in print)
    hard            the same with means under weights w = e^{beta s/t}
                    robinson2021, Eq. 4
    hard_corrected  (E w e^{s/t} - tau+ E+ w e^{s/t}) / (E w - tau+ E+ w)
                    derived here, where robinson2021's Eq. 2 fails

with v_j the similarities to M positives, tau+ the share of the anchor's class, tau- = 1 - tau+. All
of it is computed in logarithms: e^{(1+beta)s/t} overflows float32 at (1+beta)/t = 88.7. Half
precision is computed in float32, also under autocast; float64 is kept. `curl_loss` (arora2019) and
`jsd_loss` (InfoGraph) have forms of their own. No function reads a value back from a GPU. An anchor
that meets NaN or +inf has a loss that is not finite. Tensors of the wrong type, shape or device and
numbers out of range raise a one-line ValueError.
"""

from curlnb.losses.batches import Pairs, pairwise, positives, same_label_mask, subsample
from curlnb.losses.contrastive import (
    clamped_fraction,
    contrastive_loss,
    debiased,
    hard,
    hard_consistent,
    hard_corrected,
    info_nce,
    loss_and_clamped,
    unbiased,
)
from curlnb.losses.modules import Debiased, HardNegative, InfoNCE, Unbiased
from curlnb.losses.other_forms import curl_loss, jsd_loss

__all__ = [
    "Debiased",
    "HardNegative",
    "InfoNCE",
    "Pairs",
    "Unbiased",
    "clamped_fraction",
    "contrastive_loss",
    "curl_loss",
    "debiased",
    "hard",
    "hard_consistent",
    "hard_corrected",
    "info_nce",
    "jsd_loss",
    "loss_and_clamped",
    "pairwise",
    "positives",
    "same_label_mask",
    "subsample",
    "unbiased",
]
