"""The random numbers that a network draws in a pass: they follow from numbers that name the pass.

Any process that computes the pass again, in this pod or in another, therefore draws the same ones. They are those of
torch's default generators, as dropout draws them; other generators of a network are not seeded.
"""

from __future__ import annotations

from hashlib import blake2b

import torch


def seed_draws(device: torch.device, *names: int) -> None:
    """Seed torch's default generators, on the CPU and on `device`, for the pass with these numbers."""
    text = ",".join(map(str, names)).encode()
    seed = int.from_bytes(blake2b(text, digest_size=8).digest())
    # torch.manual_seed would also record a seed for devices that nothing uses, which takes longer than this.
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def draws_state() -> bytes:
    """Return the state of the CPU's default generator: it changes with each draw."""
    return torch.get_rng_state().numpy().tobytes()
