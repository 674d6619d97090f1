"""A GPU that nobody has: tensors that compute on the CPU and claim to be on cuda:0, so that
mistakes only a GPU shows are found here.

Import this module before curlnb, in a process of its own: it replaces parts of torch for good. Then

    with pretended():
        model.to("cuda") ...

raises RuntimeError where a GPU would: devices mixed, a generator of another device, numpy of a
GPU's tensor. For torch's own code the tensors are on the CPU; they say "cuda:0" in Python, and
every operation is looked at twice: as Python calls it (`_Calls`, which sees devices and generators
that are asked for) and as torch carries it out (`_Operations`). Kernels, cuDNN, torch.compile, TF32
and several GPUs are not exercised.
"""

import contextlib

import safetensors.torch
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
INDEXES = {
    "index",
    "index_put",
    "index_put_",
    "_index_put_impl_",
}  # which take the indices of a GPU's tensor from the CPU, too
MADE_OF_VALUES = {"tensor", "as_tensor", "asarray", "scalar_tensor", "new_tensor"}
PLAIN = {
    int,
    float,
    bool,
    str,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
}  # which hold no tensors


# --- tensors --------------------------------------------------------------------------------------


class OnGPU(Tensor):
    """A tensor that claims to be on cuda:0; `values` is what it really is."""

    device = property(lambda self: GPU)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    @staticmethod
    def __new__(cls, values):
        made = Tensor._make_wrapper_subclass(
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=CPU,
            requires_grad=values.requires_grad,
        )
        made.values = values
        return made

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise AssertionError("a tensor of the pretended GPU is used outside `pretended`")


def values_of(tensor):
    return tensor.values if isinstance(tensor, OnGPU) else tensor


def _on_gpu(value):
    kind = type(value)
    if kind is OnGPU:
        return True
    if kind in PLAIN or not isinstance(value, list | tuple | dict):
        return False
    return any(map(_on_gpu, value.values() if isinstance(value, dict) else value))


def _tensors(value, found=None):
    """All tensors of an argument; torch's own way through nested lists takes longer than the
    operations do.
    """
    found = [] if found is None else found
    if isinstance(value, Tensor):
        found.append(value)
    elif isinstance(value, list | tuple | dict):
        for part in value.values() if isinstance(value, dict) else value:
            if type(part) not in PLAIN:
                _tensors(part, found)
    return found


def _mapped(change, value):
    """The value with all its tensors changed."""
    if type(value) in PLAIN:
        return value
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: _mapped(change, part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        parts = [_mapped(change, part) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    return value


class _Operations(TorchDispatchMode):
    """Carries out operations on the values, and claims the results for the GPU where torch would
    have them there.
    """

    def __init__(self):
        super().__init__()
        self.place = None  # of tensors that are made out of nothing; None: as the arguments say
        self.forced = False  # also of tensors that are made of others

    @classmethod
    def _should_skip_dynamo(cls):
        """Nothing is compiled here, and torch's way around it would take as long as the rest."""
        return False

    @contextlib.contextmanager
    def at(self, place, *, forced=False):
        before = self.place, self.forced
        self.place, self.forced = place, forced
        try:
            yield
        finally:
            self.place, self.forced = before

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        leaves = _tensors((args, kwargs))
        name = function._schema.name.removeprefix("aten::")
        self._look(name, function, args, leaves)
        gpu = self.place == GPU if self.forced or not leaves else _on_gpu(leaves)
        if name == "copy_":
            gpu = isinstance(args[0], OnGPU)
        plain, named = _mapped(values_of, args), _mapped(values_of, kwargs)
        same = {
            id(tensor.values): tensor for tensor in leaves if isinstance(tensor, OnGPU)
        }  # what is changed in place stays itself

        def claimed(leaf):
            return same[id(leaf)] if id(leaf) in same else OnGPU(leaf) if gpu else leaf

        return _mapped(claimed, function(*plain, **named))

    def _look(self, name, function, args, leaves):
        """Refuse what a GPU refuses."""
        if self.forced or not _on_gpu(leaves) or name == "copy_":
            return
        if name in INDEXES:
            values = args[2] if len(args) > 2 else None
            if not isinstance(args[0], OnGPU):
                raise RuntimeError(f"{name}: a tensor of cpu is indexed by one of cuda:0")
            if values is not None and values.dim() and not isinstance(values, OnGPU):
                raise RuntimeError(f"{name}: values of cpu are put into a tensor of cuda:0")
            return
        # A single number may stay on the CPU where an operation goes element by element.
        by_element = ("fill_", "masked_fill", "masked_fill_", "where")
        pointwise = torch.Tag.pointwise in function.tags or name in by_element
        if any(not isinstance(leaf, OnGPU) and (leaf.dim() or not pointwise) for leaf in leaves):
            raise RuntimeError(f"{name}: tensors of cuda:0 and of cpu meet")


class _Calls(TorchFunctionMode):
    """Sees the devices and generators that Python asks for: torch's own code is told of the CPU
    alone.
    """

    def __init__(self, operations):
        super().__init__()
        self.operations = operations

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, getattr(function, "__name__", "")
        if (
            name in ("__get__", "_parse_to") or function is torch.device
        ):  # which only say what is asked for
            return function(*args, **kwargs)
        if name == "to" and isinstance(args[1:2] and args[1], Tensor):  # as another tensor
            args = (args[0], args[1].device, args[1].dtype, *args[2:])
        first = args[0] if args else None
        devices = (
            [CPU if name == "cpu" else GPU]
            if name in ("cpu", "cuda")
            else [d for d in map(_device, (*args, kwargs.get("device"))) if d]
        )
        here = GPU if _on_gpu((args, kwargs)) else CPU
        if (generator := kwargs.get("generator")) is not None:
            place = (devices or [here])[0]
            if generator.device.type != place.type:
                raise RuntimeError(f"{name}: a generator of {generator.device} draws for {place}")
        if isinstance(first, OnGPU) and name in ("numpy", "__array__", "tolist"):
            if name != "tolist":
                raise RuntimeError(f"{name} of a tensor of cuda:0")
            return function(first.detach().values, *args[1:], **kwargs)
        if name == "pin_memory":
            return first
        if not devices:
            with self.operations.at(
                here
            ):  # what an operation on the GPU makes on its way is there, too
                return function(*args, **kwargs)
        args = tuple(CPU if _device(value) else value for value in args)
        kwargs = {key: CPU if _device(value) else value for key, value in kwargs.items()}
        if isinstance(first, Tensor) and name in ("to", "cpu", "cuda"):
            with self.operations.at(here):
                result = first if name == "cuda" else function(*args, **kwargs)
            if isinstance(first, OnGPU) == (devices[0] == GPU):
                return result
            with self.operations.at(devices[0], forced=True):
                return result.clone()
        if name in MADE_OF_VALUES and devices[0] == GPU:
            with self.operations.at(CPU, forced=True):
                result = function(*args, **kwargs)
            with self.operations.at(GPU, forced=True):
                return result.clone()
        with self.operations.at(devices[0], forced=True):
            return function(*args, **kwargs)


def _device(value):
    """The device that an argument names, cuda as cuda:0; None where it names none."""
    if isinstance(value, str) and value.partition(":")[0] in ("cpu", "cuda"):
        value = torch.device(value)
    return None if not isinstance(value, torch.device) else GPU if value.type == "cuda" else value


@contextlib.contextmanager
def pretended():
    """Computes inside the block as if there were a GPU, and refuses what one would refuse."""
    operations = _Operations()
    with operations, _Calls(operations):
        yield


# --- torch, replaced ------------------------------------------------------------------------------


class _Generator(torch.Generator):
    """A generator of the CPU that says which device it was made for."""

    def __new__(cls, device="cpu"):
        made = super().__new__(cls)
        made.place = _device(device) or torch.device(device)
        return made

    @property
    def device(self) -> torch.device:
        return self.place

    def manual_seed(self, seed):
        super().manual_seed(seed)
        return self


class _Autocast(torch.autocast):
    def __init__(self, device_type, *rest, **named):
        super().__init__("cpu" if device_type == "cuda" else device_type, *rest, **named)


def _replace():
    save, load, tags = (
        safetensors.torch.save_file,
        safetensors.torch.load_file,
        LogisticRegression.__sklearn_tags__,
    )
    group = torch._C._group_tensors_by_device_and_dtype

    def without_array_api(self):
        found = tags(self)
        found.array_api_support = False  # scikit-learn's own way to a GPU asks the driver
        return found

    def grouped(lists, *rest):
        found = group(lists, *rest)
        return {
            (GPU if _on_gpu(values[0][0]) else device, dtype): values
            for (device, dtype), values in found.items()
        }

    torch.accelerator.current_accelerator = lambda check_available=False: (
        None
    )  # optimisers would ask for its streams
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 1
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.get_device_name = lambda *_: "pretended"
    torch.cuda.manual_seed_all = lambda _: None
    torch.cuda.get_rng_state = lambda *_: torch.get_rng_state()
    torch.cuda.set_rng_state = lambda *_: None
    torch.Generator = _Generator
    torch.autocast = _Autocast
    torch._C._group_tensors_by_device_and_dtype = grouped
    torch.__future__.set_swap_module_params_on_conversion(True)
    safetensors.torch.save_file = lambda tensors, *rest: save(
        {name: values_of(t) for name, t in tensors.items()}, *rest
    )
    safetensors.torch.load_file = lambda path, device="cpu": {
        name: t.to(device) for name, t in load(path).items()
    }
    LogisticRegression.__sklearn_tags__ = without_array_api


_replace()
