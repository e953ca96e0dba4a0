"""Muon: momentum whose update of each matrix is made orthogonal, for the matrices of the layers.

Source: https://kellerjordan.github.io/posts/muon/. PyTorch's own computes in bfloat16, slow on CPUs that lack it.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
NUM_ITERATIONS = 5


def orthogonal(matrices: Tensor) -> Tensor:
    """Bring all singular values of a matrix, or of a stack of them, near 1, by Newton-Schulz iteration."""
    if matrices.shape[-2] > matrices.shape[-1]:
        return orthogonal(matrices.transpose(-2, -1)).transpose(-2, -1)
    a, b, c = COEFFICIENTS
    x: Tensor = matrices / (matrices.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(NUM_ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


class Muon(torch.optim.Optimizer):
    """For the matrices between the layers; embeddings and gains belong to AdamW."""

    def __init__(
        self, matrices: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # no closure
        for group in self.param_groups:
            for matrix in group["params"]:
                momentum = self.state[matrix].setdefault("momentum", torch.zeros_like(matrix))
                momentum.lerp_(matrix.grad, 1 - group["momentum"])
                update = orthogonal(matrix.grad.lerp(momentum, group["momentum"]))
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                matrix.add_(update, alpha=-group["lr"] * max(1, matrix.shape[0] / matrix.shape[1]) ** 0.5)
