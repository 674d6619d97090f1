"""Sentences to vectors: a bidirectional GRU on fixed word vectors, fast on a CPU and on a GPU.

Source: arora2019, Appendix D.2. Sentences of a batch are packed, not padded: sorted by length, step
t computes only those that have a t-th word. On a GPU cuDNN does this for `nn.GRU`. On a CPU
`nn.GRU` multiplies matrices step by step three times over in its backward pass; `_Recurrence` runs
both directions as one batched product and leaves the weights' gradients to a single product at the
end, with `nn.GRU`'s own parameters and results.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from curlnb.data.texts import Texts


class PackedSentences(NamedTuple):
    """m packed sentences. Row i of step t is the t-th word of the i-th longest sentence.

    ahead, back: int [words] word numbers in packed order, each sentence read from its beginning and
    from its end; sizes: int64 [steps] on the CPU, how many sentences have a t-th word, decreasing;
    place: [m] the row of each sentence in the original order.
    """

    ahead: Tensor
    back: Tensor
    sizes: Tensor
    place: Tensor


def pack(texts: Texts, samples: Tensor, words: int | None = None) -> PackedSentences:
    """Pack the sentences `samples` [m] of `texts`, each truncated to `words` words (None: whole).

    One transfer from a GPU: the lengths.
    """
    start = texts.starts[samples]
    length = texts.starts[samples + 1] - start
    if words is not None:
        length = length.clamp_max(words)
    length, order = length.sort(descending=True, stable=True)
    start, known, device = start[order], length.cpu(), length.device
    total = int(known.sum())
    step = torch.arange(int(known[0]), device=device)
    size = (step[:, None] < length).sum(1)
    step = step.repeat_interleave(size, output_size=total)  # [words], in packed order
    row = torch.arange(total, device=device) - (size.cumsum(0) - size)[step]
    return PackedSentences(
        texts.tokens[start[row] + step],
        texts.tokens[(start + length - 1)[row] - step],
        len(known) - known.bincount().cumsum(0)[:-1],  # `size`, without another transfer
        torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=device)),
    )


class BiGRU(nn.Module):
    """A bidirectional GRU: m sentences -> [m, 2 hidden], the last states of both directions.

    arora2019 has an "output dimension of 300" and "dropout 0.3": read as 150 per direction, and as
    dropout of the representation in training, where `nn.GRU` of several layers would put it. The
    representation is not normalised. vectors: [V, d] word vectors, fixed.
    """

    def __init__(self, vectors: Tensor, hidden: int = 150, dropout: float = 0.3) -> None:
        super().__init__()
        self.register_buffer("vectors", vectors, persistent=False)
        self.vectors: Tensor
        self.gru = nn.GRU(vectors.shape[1], hidden, bidirectional=True)
        self.dropout = nn.Dropout(dropout)

    @property
    def dim(self) -> int:
        return 2 * self.gru.hidden_size

    def forward(self, batch: PackedSentences) -> Tensor:
        last = self.native(batch) if batch.ahead.is_cuda else self.unrolled(batch)  # [2, m, hidden]
        return self.dropout(torch.cat([last[0], last[1]], 1)[batch.place])

    def native(self, batch: PackedSentences) -> Tensor:
        """Last states [2, m, hidden], rows by length, by torch's own GRU."""
        return self.gru(PackedSequence(self.vectors[batch.ahead], batch.sizes))[1]

    def unrolled(self, batch: PackedSentences) -> Tensor:
        """Last states [2, m, hidden], rows by length, by `_Recurrence`."""
        with torch.autocast(batch.ahead.device.type, enabled=False):
            # [different words], [2, words]
            known, word = torch.stack([batch.ahead, batch.back]).unique(return_inverse=True)
            w_ih, w_hh, b_ih, b_hh = (
                torch.stack(
                    [getattr(self.gru, f"{name}_l0"), getattr(self.gru, f"{name}_l0_reverse")]
                )
                for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            return _Recurrence.apply(
                self.vectors[known],
                word,
                w_ih,
                w_hh,
                b_ih,
                b_hh,
                batch.sizes.tolist(),
                torch.is_grad_enabled(),
            )


class MeanOfVectors(nn.Module):
    """m sentences -> [m, d]: the mean of their known words' vectors, zero where none is known.

    It has nothing to train. vectors: [V, d].
    """

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.register_buffer("vectors", vectors, persistent=False)
        self.vectors: Tensor

    def forward(self, batch: PackedSentences) -> Tensor:
        row = torch.cat([torch.arange(size) for size in batch.sizes.tolist()]).to(
            batch.place.device
        )
        x = self.vectors[batch.ahead]
        total = x.new_zeros(len(batch.place), x.shape[1]).index_add_(0, row, x)
        known = x.new_zeros(len(batch.place)).index_add_(0, row, (batch.ahead > 0).to(x.dtype))
        return (total / known.clamp_min(1)[:, None])[batch.place]


@torch.no_grad()
def encode(
    model: nn.Module, texts: Texts, *, words: int | None = None, batch: int = 1000
) -> Tensor:
    """Representations [n, d] of all sentences, in evaluation mode.

    words: truncate sentences to that many (None: whole). Batches hold sentences of similar length.
    """
    training, parts = model.training, []
    model.eval()
    try:
        order = texts.starts.diff().argsort(stable=True)
        for samples in order.split(batch):
            parts.append(model(pack(texts, samples, words)).float())
    finally:
        model.train(training)
    return torch.empty(len(order), parts[0].shape[1], device=order.device).index_copy_(
        0, order, torch.cat(parts)
    )


class _Recurrence(torch.autograd.Function):
    """Both directions of a GRU over packed inputs, to their last states.

    With gates r, z and candidate n as in `nn.GRU`: h' = (1 - z) n + z h, n = tanh(x W_in + b_in + r
    (h W_hn + b_hn)). A sentence's state stays as it is after its last word, so that the state after
    the last step is each sentence's last one.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        word: Tensor,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor,
        b_hh: Tensor,
        sizes: list[int],
        keep: bool,
    ) -> Tensor:
        """x: [different words, d], each multiplied by the weights once; word: [2, words] rows of x.

        word is in packed order.
        """
        hidden = w_hh.shape[2]
        # [2, different words, 3 hidden]
        each = torch.baddbmm(b_ih[:, None], x.expand(2, -1, -1), w_ih.transpose(1, 2))
        # r, z, n in the end
        gates = torch.stack(
            [each[direction].index_select(0, word[direction]) for direction in range(2)]
        )
        h = x.new_zeros(2, sizes[0], hidden)
        total = gates.shape[1] if keep else 0
        # h and h W_hn + b_hn of each step
        before, inner = (x.new_empty(2, total, hidden), x.new_empty(2, total, hidden))
        recurrent, bias, at = w_hh.transpose(1, 2), b_hh[:, None], 0
        for size in sizes:
            own, state = gates[:, at : at + size], h[:, :size]
            product = torch.baddbmm(bias, state, recurrent)
            own[..., : 2 * hidden].add_(product[..., : 2 * hidden]).sigmoid_()
            r, z, n = own.chunk(3, 2)
            candidate = product[..., 2 * hidden :]
            n.addcmul_(r, candidate).tanh_()
            if keep:
                before[:, at : at + size] = state
                inner[:, at : at + size] = candidate
            torch.lerp(n, state, z, out=state)
            at += size
        ctx.save_for_backward(x, word, w_hh, gates, before, inner)
        ctx.sizes = sizes
        return h

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        x, word, w_hh, gates, before, inner = ctx.saved_tensors
        hidden, sizes = w_hh.shape[2], ctx.sizes
        r, z, n = gates.chunk(3, 2)
        # what does not depend on the gradient, for every step at once: from dh to the gates before
        # their nonlinearities
        to_n = (1 - z).mul_(1 - n * n)
        to_z = (before - n).mul_(z).mul_(1 - z)
        to_r = (to_n * inner).mul_(r).mul_(1 - r)
        d_hh = torch.cat([to_r, to_z, to_n * r], 2)
        at, dh = gates.shape[1], grad.clone()
        for size in reversed(sizes):
            at -= size
            own, d = d_hh[:, at : at + size], dh[:, :size]
            own.unflatten(2, (3, hidden)).mul_(d[:, :, None])
            to_n[:, at : at + size].mul_(d)
            torch.baddbmm(d * z[:, at : at + size], own, w_hh, out=d)
        d_in = torch.cat([d_hh[..., : 2 * hidden], to_n], 2)
        to_w_ih, to_w_hh = (
            torch.bmm(d_in.transpose(1, 2), x[word]),
            torch.bmm(d_hh.transpose(1, 2), before),
        )
        return None, None, to_w_ih, to_w_hh, d_in.sum(1), d_hh.sum(1), None, None
