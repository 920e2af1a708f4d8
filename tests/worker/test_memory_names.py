"""What is a lack of device memory, and what only looks like one (C-170, C-171)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rex_worker.errors import UsageError
from rex_worker.memory import is_out_of_memory

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)

PLAIN = [
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.77 GiB",
    "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
    "HIP out of memory. Tried to allocate 256.00 MiB",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "NCCL error in: ProcessGroupNCCL.cpp, unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'",
    "NCCL error: unhandled cuda error\nLast error:\nFailed to CUDA calloc async 608 bytes",
]
AMBIGUOUS = [
    "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous input.",
    "Unable to find a valid cuDNN algorithm to run convolution",
    "GET was unable to find an engine to execute this computation",
]


@pytest.mark.parametrize("text", PLAIN)
def test_c_171_full_memory_has_many_names(text: str) -> None:
    for scarce in (True, False):
        assert is_out_of_memory(RuntimeError(text), CUDA, scarce=scarce)
        assert is_out_of_memory(torch.OutOfMemoryError(text), CUDA, scarce=scarce)


@pytest.mark.parametrize("text", AMBIGUOUS)
def test_c_171_what_has_other_meanings_too_counts_where_memory_is_scarce(text: str) -> None:
    assert is_out_of_memory(RuntimeError(text), CUDA, scarce=True)
    assert not is_out_of_memory(RuntimeError(text), CUDA, scarce=False)


def real_error(call: object) -> BaseException:
    with pytest.raises(Exception) as caught:
        call()  # type: ignore[operator]
    return caught.value


def test_c_170_errors_of_another_kind_are_no_lack_of_memory() -> None:
    lone = real_error(lambda: nn.BatchNorm1d(4)(torch.randn(1, 4)))
    assert "more than 1 value per channel" in str(lone)
    shapes = real_error(lambda: nn.Linear(4, 2)(torch.randn(3, 5)))
    index = real_error(lambda: torch.zeros(3)[7])
    device = RuntimeError("CUDA error: device-side assert triggered")
    blamed = ValueError("CUDA out of memory")
    for error in (lone, shapes, index, device, blamed, UsageError("the memory of this script"), KeyboardInterrupt()):
        for place in (None, CPU, CUDA):
            assert not is_out_of_memory(error, place)


def test_c_170_the_hosts_memory_is_the_devices_only_on_the_cpu() -> None:
    full = real_error(lambda: torch.empty(2**60, dtype=torch.uint8))
    assert is_out_of_memory(full, CPU) and is_out_of_memory(full)
    assert is_out_of_memory(MemoryError(), CPU)
    assert not is_out_of_memory(full, CUDA)
    assert not is_out_of_memory(MemoryError(), CUDA)
