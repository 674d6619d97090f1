"""The rows of `make bench` about text: sentences a second through training of the bidirectional
GRU, against the usual ways.
"""

from collections.abc import Iterable
from typing import Any

import torch
from bench_steps import in_turn, row
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from curlnb.data import datasets
from curlnb.experiments.latent import curl_block_loss
from curlnb.models.gru import BiGRU, pack

BATCH, BLOCK, NEGATIVES, STEPS = 320, 10, 8, 4


def sentences_against_padded(device: torch.device) -> dict[str, Any]:
    """Packed batches from tensors on the device, against the same tensors padded to the batch's
    longest sentence, through nn.GRU.
    """
    texts, samples = _texts(device)
    (ours, its), (plain, their) = _model(texts), _model(texts)
    a, b = in_turn(
        lambda: _epoch(ours, its, (ours(pack(texts, some)) for some in samples)),
        lambda: _epoch(plain, their, (_padded(plain, *_pad(texts, some)) for some in samples)),
        device,
        repeats=3,
    )
    return row(
        "training a GRU on packed sentences against padded ones",
        samples.numel() / a,
        samples.numel() / b,
        "sentences/s",
    )


def sentences_against_loader(device: torch.device) -> dict[str, Any]:
    """The same against a DataLoader that fetches and collates a sentence at a time."""
    texts, samples = _texts(device)
    (ours, its), (plain, their) = _model(texts), _model(texts)
    loader = DataLoader(_Sentences(texts), batch_sampler=samples.tolist(), collate_fn=_collate)
    a, b = in_turn(
        lambda: _epoch(ours, its, (ours(pack(texts, some)) for some in samples)),
        lambda: _epoch(
            plain,
            their,
            (_padded(plain, tokens.to(device), length.to(device)) for tokens, length in loader),
        ),
        device,
        repeats=3,
    )
    return row(
        "training a GRU on packed sentences against a loader of samples",
        samples.numel() / a,
        samples.numel() / b,
        "sentences/s",
    )


def _texts(device: torch.device) -> tuple[datasets.Texts, Tensor]:
    """wiki-mini and STEPS random batches of its sentences, whole."""
    texts = datasets.load_text("wiki-mini", "train", device)
    chosen = torch.randperm(len(texts), generator=torch.Generator().manual_seed(0))[: STEPS * BATCH]
    return texts, chosen.to(device).unflatten(0, (STEPS, BATCH))


def _model(texts: datasets.Texts) -> tuple[BiGRU, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = BiGRU(texts.vectors).to(texts.vectors.device)
    return model, torch.optim.Adam(model.parameters(), fused=texts.vectors.device.type != "mps")


def _epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, representations: Iterable[Tensor]
) -> None:
    """A step of CURL with blocks for each batch of representations [BATCH, d], which are computed
    as they are asked for.
    """
    for z in representations:
        loss = curl_block_loss(
            z.unflatten(0, (-1, BLOCK)), NEGATIVES, torch.Generator(z.device).manual_seed(0)
        )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


def _pad(texts: datasets.Texts, samples: Tensor) -> tuple[Tensor, Tensor]:
    """Sentences [m, longest] in the order given, zeros behind, and their lengths [m]."""
    start, length = texts.starts[samples], texts.starts.diff()[samples]
    step = torch.arange(int(length.max()), device=start.device)
    there = step < length[:, None]
    return torch.where(
        there, texts.tokens[(start[:, None] + step).clamp_max(len(texts.tokens) - 1)], 0
    ), length


def _padded(model: BiGRU, tokens: Tensor, length: Tensor) -> Tensor:
    """What one writes first: nn.GRU over the padded batch, then each sentence's state at its last
    word, and at the first backwards.
    """
    states, _ = model.gru(model.vectors[tokens].transpose(0, 1))  # [longest, m, 2 hidden]
    ahead, back = states.chunk(2, 2)
    last = ahead[length - 1, torch.arange(len(length), device=length.device)]
    return model.dropout(torch.cat([last, back[0]], 1))


class _Sentences(Dataset[Any]):
    """A sentence a sample, as a Dataset usually is."""

    def __init__(self, texts: datasets.Texts) -> None:
        self.tokens, self.starts = texts.tokens.cpu(), texts.starts.tolist()

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: int) -> Tensor:
        return self.tokens[self.starts[index] : self.starts[index + 1]]


def _collate(sentences: list[Tensor]) -> tuple[Tensor, Tensor]:
    return pad_sequence(sentences, batch_first=True), torch.tensor(
        [len(sentence) for sentence in sentences]
    )
