"""The row of `make bench` about text: sentences a second through training of the bidirectional GRU,
packed batches against padded ones.
"""

from collections.abc import Callable

import torch
from bench_steps import Row, Work, adam, compared
from torch import Tensor

from curlnb.data import datasets
from curlnb.experiments.latent import curl_block_loss
from curlnb.models.gru import BiGRU, pack

BATCH, BLOCK, NEGATIVES, STEPS = 320, 10, 8, 4


def packed_sentences(device: torch.device) -> Row:
    """Against the same tensors padded to the batch's longest sentence, through nn.GRU."""
    texts = datasets.load_text("wiki-mini", "train", device)
    chosen = torch.randperm(len(texts), generator=torch.Generator().manual_seed(0))[: STEPS * BATCH]
    batches = chosen.to(device).split(BATCH)

    def training(represent: Callable[[BiGRU, Tensor], Tensor]) -> Work:
        """CURL with blocks; `represent` gives the representations [BATCH, d] of some sentences."""
        torch.manual_seed(0)
        model = BiGRU(texts.vectors).to(device)
        optimizer = adam(model)

        def epoch() -> None:
            for some in batches:
                z = represent(model, some).unflatten(0, (-1, BLOCK))
                loss = curl_block_loss(z, NEGATIVES, torch.Generator(device).manual_seed(0))
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()

        return epoch

    return compared(
        "training a GRU on packed sentences against padded ones",
        training(lambda model, some: model(pack(texts, some))),
        training(lambda model, some: _padded(model, *_pad(texts, some))),
        device,
        "sentences/s",
        STEPS * BATCH,
        repeats=3,
    )


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
