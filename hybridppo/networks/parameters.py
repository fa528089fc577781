"""Parameters in one contiguous buffer, so that a copy, a norm or an optimizer step is one operation; and Adam over it.

Source: Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015, algorithm 1.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hybridppo.errors import ConfigurationError


def bind(tensor: Tensor, storage: Tensor) -> None:
    """Let a parameter or a buffer use other memory, on any device; the Python object stays the same.

    Its gradient is dropped, because it must be on the device of its parameter.
    """
    tensor.grad = None
    if torch._has_compatible_shallow_copy_type(tensor, storage):
        tensor.data = storage
        return
    # torch sets `data` only between devices that it has built in. For all other devices there is the
    # exchange of whole tensors, which `module.to` uses as well.
    is_parameter = isinstance(tensor, nn.Parameter)
    other = nn.Parameter(storage, tensor.requires_grad) if is_parameter else storage.detach()
    torch.utils.swap_tensors(tensor, other)  # type: ignore[no-untyped-call]


def require_float32(what: str, module: nn.Module) -> None:
    """Refuse a module with other parameters.

    Raises:
        ConfigurationError: naming the module and the types.
    """
    if others := sorted({str(p.dtype) for p in module.parameters() if p.dtype != torch.float32}):
        raise ConfigurationError(f"the parameters of {what} must be float32, got {', '.join(others)}")


def place_of(parameter: Tensor, values: Tensor) -> int:
    """Where a parameter begins in the buffer of all parameters."""
    return (parameter.data_ptr() - values.data_ptr()) // parameter.element_size()


class FlatParameters:
    """The parameters of several networks as views of one 1-D tensor, and their gradients as views of another.

    `values` is the leaf that the optimizer steps; `loss.backward()` fills `values.grad` through the networks'
    parameters. The networks stay ordinary modules.

    A device may compute faster on tensors that begin at aligned addresses. There are then gaps between parameters,
    which stay zero because no gradient reaches them. Files have no gaps (`dense`, `spread`).

    Args:
        networks: the networks by name. Parameters lie in this order; shared ones lie with the first network.
        alignment: each parameter begins at a multiple of so many numbers.

    Raises:
        ConfigurationError: if a network holds parameters that are not float32.
    """

    def __init__(self, networks: Mapping[str, nn.Module], alignment: int = 1) -> None:
        seen: set[nn.Parameter] = set()
        self._parameters: dict[str, list[nn.Parameter]] = {}
        for name, network in networks.items():
            self._parameters[name] = [parameter for parameter in network.parameters() if parameter not in seen]
            seen.update(self._parameters[name])
        everything = self.everything()
        if any(parameter.dtype != torch.float32 for parameter in everything):
            found = ", ".join(sorted({str(parameter.dtype) for parameter in everything}))
            raise ConfigurationError(
                f"parameters must be float32, got {found}: agents are made and trained with torch's own default type, "
                "torch.set_default_dtype(torch.float32)"
            )
        self.values = nn.Parameter(torch.cat([parameter.detach().reshape(-1) for parameter in everything]))
        self.binding = 0
        """How often the buffers were bound to memory: views must be made anew when this changes."""
        self._lay_out(1)
        self.rebind(self.values.data)
        self.align(alignment)

    def _lay_out(self, alignment: int) -> None:
        """Find the places of all parameters."""
        self.alignment, self._size = alignment, 0
        self._parts: list[slice] = []
        self._ranges: dict[str, slice] = {}
        for name, parameters in self._parameters.items():
            start = self._size
            for parameter in parameters:
                self._parts.append(slice(self._size, self._size + parameter.numel()))
                self._size += -(-parameter.numel() // alignment) * alignment
            self._ranges[name] = slice(start, self._size)

    def __getstate__(self) -> dict[str, Any]:
        """The attributes for copies and pickles, without gradients."""
        return {**vars(self), "_gradients": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Let the networks of a copy be views of its buffer, since copied tensors share no memory."""
        vars(self).update(state)
        self.rebind(self.values.data)

    def align(self, alignment: int) -> Callable[[Tensor], Tensor]:
        """Let each parameter begin at a multiple of so many numbers, in another buffer if necessary.

        Returns:
            A function that changes the layout of another tensor in the same way, such as the optimizer's moments; it
            returns tensors of another size unchanged.
        """
        if alignment == self.alignment:
            return lambda tensor: tensor
        before, old_size = self._parts, self._size
        self._lay_out(alignment)

        def laid_out_anew(tensor: Tensor) -> Tensor:
            is_like_before = tensor.shape == (old_size,)
            return self.spread(torch.cat([tensor[part] for part in before])) if is_like_before else tensor

        self.rebind(laid_out_anew(self.values.data))
        return laid_out_anew

    def dense(self, tensor: Tensor) -> Tensor:
        """A tensor with the layout of the buffer, without the gaps; any other tensor unchanged."""
        if self.alignment == 1 or tensor.shape != (self._size,):
            return tensor
        return torch.cat([tensor[part] for part in self._parts])

    def spread(self, tensor: Tensor) -> Tensor:
        """The result of `dense` with the present gaps of the buffer; any other tensor unchanged."""
        sizes = [part.stop - part.start for part in self._parts]
        if self.alignment == 1 or tensor.shape != (sum(sizes),):
            return tensor
        spread = tensor.new_zeros(self._size)
        for part, own in zip(self._parts, torch.split(tensor, sizes), strict=True):
            spread[part] = own
        return spread

    def everything(self) -> list[nn.Parameter]:
        """All parameters in their order in the buffer."""
        return [parameter for network in self._parameters.values() for parameter in network]

    @property
    def frozen(self) -> tuple[slice, ...]:
        """The slices of the parameters that do not learn because their `requires_grad` is False."""
        pairs = zip(self.everything(), self._parts, strict=True)
        return tuple(part for parameter, part in pairs if not parameter.requires_grad)

    def zero_frozen(self) -> None:
        """Set the gradient of frozen parameters to zero, if it was computed nevertheless."""
        for part in self.frozen:
            self.gradient[part] = 0.0

    def of_network(self, name: str) -> list[nn.Parameter]:
        """The parameters of one network."""
        return self._parameters[name]

    def rebind(self, storage: Tensor) -> None:
        """Replace the buffer by `storage`, on any device, which has the same layout and values; all views follow."""
        self.binding += 1
        bind(self.values, storage)
        gradient = torch.zeros_like(storage)
        pairs = list(zip(self.everything(), self._parts, strict=True))
        self._gradients = [gradient[part].view(parameter.shape) for parameter, part in pairs]
        for parameter, part in pairs:
            bind(parameter, storage[part].view(parameter.shape))
        self.attach_gradients()
        self.values.grad = gradient

    def require_all_of(self, *networks: nn.Module) -> None:
        """Refuse networks with parameters that are not views of the buffer: no optimizer step would change them.

        Raises:
            ConfigurationError: naming the parameter.
        """
        if not (self.values.is_cpu or self.values.is_cuda):  # torch knows no addresses of some other devices
            return
        ours = self.values.untyped_storage().data_ptr()
        for name, parameter in (named for network in networks for named in network.named_parameters()):
            if parameter.untyped_storage().data_ptr() != ours:
                raise ConfigurationError(
                    f"the parameter {name} of a network was replaced, and would not be trained: write into it, by "
                    "parameter.data.copy_(values) or load_state_dict(..., assign=False); for other networks, pass "
                    "networks=... to train"
                )

    def attach_gradients(self) -> None:
        """Let backward passes fill the flat gradient, also after an optimizer of the user's has set others, or None."""
        for parameter, own in zip(self.everything(), self._gradients, strict=True):
            if parameter.grad is not own:
                parameter.grad = own

    @property
    def gradient(self) -> Tensor:
        """The gradient `[P]`, which `backward` fills."""
        assert self.values.grad is not None  # made with the buffer and never dropped
        return self.values.grad

    def range_of(self, name: str) -> slice:
        """The slice of the values of one network."""
        return self._ranges[name]

    def of(self, name: str) -> Tensor:
        """The values of one network, `[P_name]`; a view."""
        return self.values.data[self._ranges[name]]


class FlatAdam:
    """Adam over one buffer of parameters, with a learning rate for each network in it.

    It calls torch's fused kernel, so its result equals that of `torch.optim.Adam(fused=True)` bit by bit. For small
    networks, the bookkeeping of that class takes three times as long as the kernel.

    Args:
        parameters: the buffer and its gradient.
        learning_rates: the learning rate of each network, by name.
        betas: decay of the first and second moments.
        eps: added to the root of the second moment.
        apart: whether each network has its own number of steps (`step_part`), because one learns less often.
    """

    def __init__(
        self,
        parameters: FlatParameters,
        learning_rates: Mapping[str, float],
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        apart: bool = False,
    ) -> None:
        self._parameters, self.betas, self.eps, self._apart = parameters, betas, eps, apart
        values, steps = parameters.values, [f"step_{name}" for name in learning_rates] if apart else ["step"]
        self.state: dict[Tensor, dict[str, Tensor]] = {
            values: {
                **{name: torch.zeros((), device=values.device) for name in steps},
                "exp_avg": torch.zeros_like(values.data),
                "exp_avg_sq": torch.zeros_like(values.data),
            }
        }
        """The number of steps and both moments for the flat parameter, as torch's optimizers keep them."""
        self._rates_on_device: dict[str, Tensor] = {}
        self.set_learning_rates(learning_rates)

    def set_learning_rates(self, learning_rates: Mapping[str, float]) -> None:
        """Set the learning rates of the next steps, by network."""
        self.learning_rates = dict(learning_rates)
        self._is_one_rate = len(set(learning_rates.values())) == 1
        for name, rate in self._rates_on_device.items():
            rate.fill_(learning_rates[name])

    def keep_learning_rates_on_device(self) -> None:
        """Keep the rates in a tensor on the device, so that a recorded and replayed step sees a change of the rates.

        This holds until `keep_learning_rates_on_host`, which must be called after the parameters have moved: recordings
        are invalid then, and the kernel refuses rates and parameters on different devices.
        """
        device = self._parameters.values.device
        self._rates_on_device = {
            name: torch.full((), rate, device=device) for name, rate in self.learning_rates.items()
        }

    def keep_learning_rates_on_host(self) -> None:
        """Keep the rates on the host, as at first: each step uses the rates that are set when it is made."""
        self._rates_on_device = {}

    def forget(self, parts: Iterable[slice]) -> None:
        """Set the moments of these parts of the buffer to zero: without a gradient, they then stay as they are."""
        slots = self.state[self._parameters.values]
        for part in parts:
            slots["exp_avg"][part] = slots["exp_avg_sq"][part] = 0.0

    def step(self, networks: Iterable[str] | None = None) -> None:
        """Step along the gradient; only these networks, if they are given."""
        if self._apart:
            for name in self.learning_rates if networks is None else networks:
                self.step_part(name)
            return
        step = self.state[self._parameters.values]["step"]
        step.add_(1.0)
        rates: Mapping[str, float | Tensor] = self._rates_on_device or self.learning_rates
        if (
            networks is None and self._is_one_rate and not self._rates_on_device
        ):  # one kernel for all networks, unless rates may part later
            self._step(None, step, next(iter(rates.values())))
            return
        for name in rates if networks is None else networks:
            self._step(self._parameters.range_of(name), step, rates[name])

    def step_part(self, name: str) -> None:
        """Step one network, if they are `apart`; the parameters and moments of the others stay as they are."""
        step = self.state[self._parameters.values][f"step_{name}"]
        step.add_(1.0)
        self._step(self._parameters.range_of(name), step, (self._rates_on_device or self.learning_rates)[name])

    def _step(self, part: slice | None, step: Tensor, learning_rate: float | Tensor) -> None:
        """Step a part of the parameters; None for all."""
        slots = self.state[self._parameters.values]
        everything = self._parameters.values.data, self._parameters.gradient, slots["exp_avg"], slots["exp_avg_sq"]
        values, gradient, exp_avg, exp_avg_sq = everything if part is None else (tensor[part] for tensor in everything)
        torch._fused_adam_(
            [values], [gradient], [exp_avg], [exp_avg_sq], [], [step],
            lr=learning_rate, beta1=self.betas[0], beta2=self.betas[1], eps=self.eps,
            weight_decay=0.0, amsgrad=False, maximize=False,
        )  # fmt: skip
