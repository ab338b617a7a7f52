from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, relu

from cpr_contract.model import ModelSpec, OptimizerSpec, SparseOptimizerSpec, TableSpec
from cpr_trainer.model.dlrm import Dlrm, pair_numbers, pairwise_dots

SPEC = ModelSpec(
    embedding_dim=4,
    bottom_mlp=(8, 4),
    top_mlp=(6, 5, 1),
    tables=tuple(TableSpec(f"t{place}", 10) for place in range(3)),
    dense_optimizer=OptimizerSpec("SGD", 0.1),
    sparse_optimizer=SparseOptimizerSpec("SGD", 0.1),
)


def inputs(samples: int = 7) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(samples, 13, generator=generator), torch.randn(samples, 3, 4, generator=generator)


def by_hand(model: Dlrm, dense: Tensor, embeddings: Tensor) -> Tensor:
    """One sample's logit, written as the paper draws it."""
    weights = [parameter.detach() for parameter in model.parameters()]
    summary = relu(linear(relu(linear(dense, *weights[0:2])), *weights[2:4]))
    vectors = [summary, *embeddings]
    dots = [vectors[i] @ vectors[j] for i in range(len(vectors)) for j in range(i)]
    hidden = relu(linear(torch.cat((summary, torch.stack(dots))), *weights[4:6]))
    return linear(relu(linear(hidden, *weights[6:8])), *weights[8:10])


def test_dlrm_logit_follows_the_paper() -> None:
    model, (dense, embeddings) = Dlrm(SPEC, seed=1), inputs()
    expected = torch.cat([by_hand(model, *sample) for sample in zip(dense, embeddings, strict=True)])
    torch.testing.assert_close(model(dense, embeddings), expected)


def test_dlrm_without_numeric_features_is_built_without_a_warning() -> None:
    model, (_, embeddings) = Dlrm(replace(SPEC, numeric=0), seed=1), inputs()
    logits = model(torch.empty(7, 0), embeddings)
    assert logits.shape == (7,)
    assert logits.unique().numel() == 7


def test_gradients_of_the_interaction_are_those_of_finite_differences() -> None:
    vectors = torch.randn(3, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    rows, columns = torch.tril_indices(5, 5, offset=-1)
    numbers = pair_numbers(5)
    assert numbers[rows, columns].tolist() == numbers[columns, rows].tolist() == list(range(10))
    assert torch.autograd.gradcheck(pairwise_dots, (vectors, rows * 5 + columns, numbers.flatten()))


def test_seed_fixes_all_parameters_and_leaves_the_state_of_torch_unchanged() -> None:
    before = torch.get_rng_state()
    one, same, other = (torch.cat([p.flatten() for p in Dlrm(SPEC, seed).parameters()]) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert (one == other).sum() == 0
    assert torch.equal(torch.get_rng_state(), before)


def test_first_parameters_are_the_same_in_every_release() -> None:
    # A job starts again from its seed after every loss of step 0, also under a newer image.
    weight, bias = next(iter(Dlrm(SPEC, seed=1).bottom.children())).parameters()
    assert weight.flatten()[:3].tolist() == [0.27541977167129517, -0.2359265834093094, -0.10362332314252853]
    assert bias[:3].tolist() == [-0.39584192633628845, -0.5207796096801758, 0.5878093838691711]


@pytest.mark.parametrize("spec", [replace(SPEC, bottom_mlp=(8, 5)), replace(SPEC, top_mlp=(6, 2))])
def test_networks_that_do_not_fit_are_refused(spec: ModelSpec) -> None:
    with pytest.raises(ValueError, match="must end in"):
        Dlrm(spec, seed=1)
