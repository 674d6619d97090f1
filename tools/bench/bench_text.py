"""The rows of `make bench` about text: sentences a second through training of the bidirectional
GRU, packed batches from tensors on the device against the usual ways.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from bench_steps import adam, higher, in_turn
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from curlnb.data import datasets
from curlnb.experiments.latent import curl_block_loss
from curlnb.models.gru import BiGRU, pack

BATCH, BLOCK, NEGATIVES, STEPS = 320, 10, 8, 4


def rows(device: torch.device) -> Iterator[dict[str, Any]]:
    """Against the same tensors padded to the batch's longest sentence, and against a DataLoader
    that fetches and collates a sentence at a time; both through nn.GRU.
    """
    texts = datasets.load_text("wiki-mini", "train", device)
    chosen = torch.randperm(len(texts), generator=torch.Generator().manual_seed(0))[: STEPS * BATCH]
    samples = chosen.to(device).unflatten(0, (STEPS, BATCH))
    tokens, starts = texts.tokens.cpu(), texts.starts.tolist()
    single = [tokens[start:end] for start, end in itertools.pairwise(starts)]
    batches: Any = samples.tolist()
    loader = DataLoader(single, batch_sampler=batches, collate_fn=_collate)  # type: ignore[arg-type]

    def time_of(name: str, batches: Callable[[BiGRU], Iterable[Tensor]]) -> dict[str, Any]:
        ours, plain = _trained(texts), _trained(texts)
        seconds = in_turn(
            lambda: ours(lambda model: (model(pack(texts, some)) for some in samples)),
            lambda: plain(batches),
            device,
            repeats=3,
        )
        rates = (samples.numel() / each for each in seconds)
        what = f"training a GRU on packed sentences against {name}"
        return higher(what, *rates, "sentences/s")

    yield time_of(
        "padded ones", lambda model: (_padded(model, *_pad(texts, some)) for some in samples)
    )
    yield time_of(
        "a loader of samples",
        lambda model: (_padded(model, *(part.to(device) for part in batch)) for batch in loader),
    )


def _trained(texts: datasets.Texts) -> Callable[[Callable[[BiGRU], Iterable[Tensor]]], None]:
    """A function that trains a new GRU by CURL with blocks, one step for each batch of
    representations [BATCH, d] that its argument computes.
    """
    torch.manual_seed(0)
    model = BiGRU(texts.vectors).to(texts.vectors.device)
    optimizer = adam(model)

    def epoch(batches: Callable[[BiGRU], Iterable[Tensor]]) -> None:
        for z in batches(model):
            generator = torch.Generator(z.device).manual_seed(0)
            loss = curl_block_loss(z.unflatten(0, (-1, BLOCK)), NEGATIVES, generator)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()

    return epoch


def _pad(texts: datasets.Texts, samples: Tensor) -> tuple[Tensor, Tensor]:
    """Sentences [m, longest] in the order given, zeros behind, and their lengths [m]."""
    start, length = texts.starts[samples], texts.starts.diff()[samples]
    step = torch.arange(int(length.max()), device=start.device)
    at = (start[:, None] + step).clamp_max(len(texts.tokens) - 1)
    return torch.where(step < length[:, None], texts.tokens[at], 0), length


def _padded(model: BiGRU, tokens: Tensor, length: Tensor) -> Tensor:
    """What one writes first: nn.GRU over the padded batch, then each sentence's state at its last
    word, and at the first backwards.
    """
    states, _ = model.gru(model.vectors[tokens].transpose(0, 1))  # [longest, m, 2 hidden]
    ahead, back = states.chunk(2, 2)
    last = ahead[length - 1, torch.arange(len(length), device=length.device)]
    return model.dropout(torch.cat([last, back[0]], 1))


def _collate(sentences: list[Tensor]) -> tuple[Tensor, Tensor]:
    return pad_sequence(sentences, batch_first=True), torch.tensor([len(s) for s in sentences])
