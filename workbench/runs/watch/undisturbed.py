"""Run a model in the middle of its training without changing the training."""

from __future__ import annotations

import random
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch import nn


@contextmanager
def undisturbed(module: nn.Module) -> Generator[None]:
    """Put ``module`` into eval mode, without gradients and autocast; afterwards everything is as it was.

    That is the mode of every submodule, every buffer (also one that a forward pass replaces), the random state of
    Python, numpy and torch on the model's devices, autocast and its cache of weights, and the number of threads.
    Weights and their gradients are not touched by a forward pass without gradients.
    """
    with ExitStack() as stack:
        stack.enter_context(_random_state(module))
        stack.enter_context(_eval_mode(module))
        stack.enter_context(_buffers(module))
        stack.enter_context(_plain_precision(module))
        stack.enter_context(torch.no_grad())
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        yield


@contextmanager
def _random_state(module: nn.Module) -> Generator[None]:
    used = {parameter.device for parameter in module.parameters()}
    cuda = sorted(device.index for device in used if device.type == "cuda")
    python, torch_state = random.getstate(), torch.get_rng_state()
    numbers = np.random.get_state()  # noqa: NPY002 - the state that other people's code draws from
    on_cuda = {index: torch.cuda.get_rng_state(index) for index in cuda}
    on_mps = torch.mps.get_rng_state() if any(device.type == "mps" for device in used) else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numbers)  # noqa: NPY002 - the same
        torch.set_rng_state(torch_state)
        for index, state in on_cuda.items():
            torch.cuda.set_rng_state(state, index)
        if on_mps is not None:
            torch.mps.set_rng_state(on_mps)


@contextmanager
def _eval_mode(module: nn.Module) -> Generator[None]:
    # Not by eval(): some libraries override it, and merge adapters into the weights; and what a user froze in one mode
    # must not come back in another.
    modes = {child: child.training for child in module.modules()}
    try:
        for child in modes:
            child.training = False
        yield
    finally:
        for child, training in modes.items():
            child.training = training


@contextmanager
def _buffers(module: nn.Module) -> Generator[None]:
    buffers = [
        (child, name, buffer, buffer._version, buffer.detach().clone())
        for child in module.modules()
        for name, buffer in child._buffers.items()
        if buffer is not None
    ]
    try:
        yield
    finally:
        for child, name, buffer, version, copy in buffers:
            child._buffers[name] = buffer
            if buffer._version != version:
                with torch.no_grad():
                    buffer.copy_(copy)


@contextmanager
def _plain_precision(module: nn.Module) -> Generator[None]:
    types = {"cpu", *(parameter.device.type for parameter in module.parameters())}
    with ExitStack() as stack:
        # Weights that were cast without gradients must not be found by the next training step.
        stack.callback(torch.clear_autocast_cache)
        for kind in sorted(types):
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield
