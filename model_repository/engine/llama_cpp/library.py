"""llama.cpp's binding, loaded with a setting that the libraries below it read only then."""

from __future__ import annotations

import os

# The number of times that OpenMP's threads poll for work before they sleep, read as the library loads. The threads wait
# for each other a hundred times in a step, for microseconds: to wake up takes longer than to compute. This number is at
# most half a millisecond; the usual one, thirty times as large, takes the cores from Triton and the frontend.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

from cyllama.llama import llama_cpp as llama

__all__ = ["llama"]
