"""One run on several processes, started by torchrun: each takes its share of every batch, and all
take the same step.

    .venv/bin/torchrun --nproc-per-node 8 -m curlnb run images.simclr dataset=cifar10
    encoder=resnet50 batch=2048

Rank r encodes its contiguous share of the batch. The embeddings of all ranks are gathered, and each
rank computes the loss of the whole batch: N, the floor, the hard weights and a clip over all
negatives are those of one process. Backward then goes through the rank's own rows only, so that the
sum of the ranks' gradients is the gradient, and needs no communication but that sum. It is one
all-reduce of all gradients a step rather than DistributedDataParallel's overlapped buckets: 94 MB
for a ResNet-50, under a millisecond between GPUs of one machine. In a single process every function
here returns what it is given, and no bit changes.
"""

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from curlnb.runs.devices import default_device
from curlnb.runs.experiment import Experiment
from curlnb.runs.store import Record, Run, Store, in_force


def ranks() -> int:
    """How many processes share the run; 1 outside torchrun."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


# --- inside an experiment -------------------------------------------------------------------------


def wait() -> None:
    """Until all ranks are here: none writes a checkpoint while another still reads the one before."""
    if ranks() > 1:
        dist.barrier()


def share(samples: Tensor) -> Tensor:
    """This rank's contiguous part [B / ranks] of a batch's samples [B]. ValueError where the batch
    does not divide.
    """
    if len(samples) % ranks():
        raise ValueError(
            f"a batch of {len(samples)} cannot be shared by {ranks()} processes alike; use a multiple"
        )
    return samples.chunk(ranks())[rank()]


def stream(generator: torch.Generator) -> torch.Generator:
    """What this rank draws its own augmentations from in this step; `generator` itself where there
    is one process.

    All ranks hold one state of torch's CPU generator, which checkpoints keep: a number drawn from
    it, plus the rank, seeds the step's stream. So the streams differ between ranks and steps, and
    need no state of their own.
    """
    if ranks() == 1:
        return generator
    return torch.Generator(generator.device).manual_seed(int(torch.randint(2**62, ())) + rank())


def gather(z: Tensor, views: int) -> Tensor:
    """Embeddings [views x b, d] of this rank -> [views x B, d] of all ranks, view 1 first and
    samples in the batch's order.

    Gradients flow into this rank's own rows: where every rank computes the same loss of all rows,
    the sum over ranks is the gradient.
    """
    if ranks() == 1:
        return z
    parts = [torch.empty_like(z, memory_format=torch.contiguous_format) for _ in range(ranks())]
    dist.all_gather(parts, z.detach().contiguous())
    parts[rank()] = z
    return torch.cat([part.unflatten(0, (views, -1)) for part in parts], 1).flatten(0, 1)


def groups_here(bn_groups: int | None) -> int | None:
    """How many of the `bn_groups` groups of a view this rank holds. ValueError where a group would
    lie on two ranks.
    """
    if bn_groups and bn_groups % ranks():
        raise ValueError(
            f"bn_groups is {bn_groups}: {ranks()} processes need a multiple of {ranks()}, or None for statistics over all"
        )
    return bn_groups // ranks() if bn_groups else bn_groups


def join(run: Run, model: nn.Module, optimizer: Optimizer, *, synchronise: bool) -> None:
    """Let `optimizer` step with the gradients of all ranks, after averaging the running statistics.

    synchronise: batch norm takes its statistics over all ranks (see `synchronise_batch_norm`), else
    over each rank's own share or groups. The average over ranks of running statistics is what one
    process with these groups would have, since the update is linear.
    """
    if ranks() == 1:
        return
    run.notes["ranks"] = ranks()
    if synchronise:
        synchronise_batch_norm(model)

    @torch.no_grad()
    def reduce(*_: object) -> None:
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        buffers = [b for b in model.buffers() if b.is_floating_point()]
        flat = torch.cat(
            [*(g.flatten() for g in gradients), *(b.flatten() / ranks() for b in buffers)]
        )
        dist.all_reduce(flat)
        parts = flat.split([t.numel() for t in (*gradients, *buffers)])
        for tensor, part in zip((*gradients, *buffers), parts, strict=True):
            tensor.copy_(part.view(tensor.shape))

    optimizer.register_step_pre_hook(reduce)


class _Sum(torch.autograd.Function):
    """The sum over ranks of a tensor, differentiable: each rank's loss depends on it, so the
    gradients are summed too.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class _SyncBatchNorm(_BatchNorm):
    """Batch norm whose training statistics are those of all ranks' batches; on the CPU too, where
    torch's own is not.
    """

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        return _outside_of_graphs()(self, input)

    def _over_all_ranks(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        axes, shape = [0, *range(2, input.dim())], [1, -1, *[1] * (input.dim() - 2)]
        count = ranks() * input.numel() // input.shape[1]
        with torch.autocast(input.device.type, enabled=False):
            x = input.to(torch.promote_types(input.dtype, torch.float32))
            mean = _Sum.apply(x.mean(axes)) / ranks()
            centred = x - mean.view(shape)
            variance = _Sum.apply(centred.square().mean(axes)) / ranks()
            output = centred * (variance + self.eps).rsqrt().view(shape)
            if self.weight is not None:
                output = output * self.weight.view(shape) + self.bias.view(shape)
        if (
            self.num_batches_tracked is not None
            and self.running_mean is not None
            and self.running_var is not None
        ):
            self.num_batches_tracked.add_(1)
            momentum = (
                1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            )
            self.running_mean.lerp_(mean.detach(), momentum)
            self.running_var.lerp_(variance.detach() * (count / (count - 1)), momentum)
        return output.to(input.dtype)


class SyncBatchNorm1d(_SyncBatchNorm, nn.BatchNorm1d):
    """See `synchronise_batch_norm`."""


class SyncBatchNorm2d(_SyncBatchNorm, nn.BatchNorm2d):
    """See `synchronise_batch_norm`."""


def synchronise_batch_norm(module: nn.Module) -> nn.Module:
    """Replace every ordinary batch norm inside module by one that takes its training statistics
    over all ranks; returns module.

    Parameters and running statistics are the same objects as before, so that an optimiser goes on
    holding them.
    """
    kinds: dict[type, type[_SyncBatchNorm]] = {
        nn.BatchNorm1d: SyncBatchNorm1d,
        nn.BatchNorm2d: SyncBatchNorm2d,
    }
    for parent in list(module.modules()):
        for name, layer in parent.named_children():
            if (
                isinstance(layer, nn.modules.batchnorm._BatchNorm)
                and (kind := kinds.get(type(layer))) is not None
            ):
                shared = kind(
                    layer.num_features,
                    layer.eps,
                    layer.momentum,
                    layer.affine,
                    layer.track_running_stats,
                )
                for part, tensor in [*layer.named_parameters(), *layer.named_buffers()]:
                    setattr(shared, part, tensor)
                setattr(parent, name, shared.train(layer.training))
    return module


@functools.cache
def _outside_of_graphs() -> Callable[[_SyncBatchNorm, Tensor], Tensor]:
    """The layers' communication, which torch.compile leaves alone. As a decorator this would cost
    every import of curlnb a second.
    """
    return torch.compiler.disable(_SyncBatchNorm._over_all_ranks)


# --- around an experiment -------------------------------------------------------------------------


@contextmanager
def group() -> Iterator[None]:
    """The processes that torchrun started, joined: nccl on GPUs, one each, else gloo. Nothing
    outside torchrun.
    """
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        yield
        return
    cuda = default_device().type == "cuda"
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


class _OtherRank(Run):
    """What a rank other than 0 sees of the store: it reads the checkpoint, rank 0 alone writes."""

    def progress(self, done: float, total: float, **values: float) -> None:
        pass

    def save_checkpoint(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        pass


def _tell(work: bool) -> bool:
    """Rank 0's word on whether there is work, to all ranks."""
    word = torch.tensor(float(work), device=default_device())
    dist.broadcast(word, 0)
    return bool(word)


def refuse(experiment: Experiment, among: Iterable[Experiment] = ()) -> None:
    """ValueError, in one line, where torchrun started several processes and they would each compute
    the whole experiment.

    among: all experiments, of which the message names those that can share a batch.
    """
    count = max(ranks(), int(os.environ.get("WORLD_SIZE", 1)))
    if count > 1 and not experiment.shares_batch:
        able = ", ".join(other.name for other in among if other.shares_batch)
        advice = f"; {able} can" if able else ""
        raise ValueError(
            f"{experiment.name} cannot be shared by {count} processes, which would compute it {count} times: use one{advice}"
        )


def run(
    store: Store, experiment: Experiment, parameters: Mapping[str, Any], seed: int
) -> Record | None:
    """`Store.run` by all ranks of a `group` together: the record on rank 0, None on the others.

    The number of ranks is part of its key; a notebook takes it with CURLNB_ADOPT=any. It resumes
    from rank 0's checkpoint with as many ranks; another number begins anew. A rank that fails ends
    the run on all: torchrun sees to that. ValueError, before any work, for an experiment that
    cannot be shared.
    """
    refuse(experiment)
    if ranks() == 1:
        return store.run(experiment, parameters, seed)
    full = experiment.parameters(parameters)
    if rank() == 0:
        told: list[bool] = []
        record = Store(store.root).compute(
            experiment, full, seed, first=lambda: told.append(_tell(True))
        )
        if not told:
            _tell(False)
        return record
    if _tell(False):
        torch.manual_seed(seed)
        with in_force(full, default_device()):
            experiment.call(store.begin(experiment, full, seed, _OtherRank), full, seed)
    return None
