"""AdamE, and Adam's sharpness from its own state."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import spiritlevel as sl
from sam_oracles import build, flat
from spiritlevel.errors import ArgumentError
from spiritlevel.optim import SAM, AdamE, root_diagonal_from_state

F = nn.functional


def train(optimizer: torch.optim.Optimizer, model: nn.Module, x: Tensor, y: Tensor, steps: int = 20) -> np.ndarray:
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return flat(model)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_power_one_half_is_adam(decay: float) -> None:
    # Kills: the root taken twice, eps inside of it, decay through the gradient, bias correction of one moment.
    (a, x, y), (b, _, _) = build(), build()
    theirs = train(torch.optim.AdamW(a.parameters(), lr=0.01, weight_decay=decay), a, x, y)
    ours = train(AdamE(b.parameters(), lr=0.01, weight_decay=decay), b, x, y)
    np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("power", "correct"), [(0.0, False), (0.25, False), (0.25, True), (1.0, True)])
def test_any_power_is_its_formula(power: float, correct: bool) -> None:
    # In NumPy, from the template of the paper. Kills: 1 - power for power, correction where there is to be none.
    (model, x, y), (probe, _, _) = build(), build()
    w, m, v = flat(model), 0.0, 0.0
    optimizer = AdamE(model.parameters(), lr=0.01, betas=(0.8, 0.9), power=power, eps=1e-3, bias_correction=correct)
    for step in range(1, 6):
        with torch.no_grad():
            nn.utils.vector_to_parameters(torch.from_numpy(w), probe.parameters())
        probe.zero_grad()
        F.cross_entropy(probe(x), y).backward()
        g = np.concatenate([p.grad.numpy().ravel() for p in probe.parameters()])
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g**2
        m_hat, v_hat = (m / (1 - 0.8**step), v / (1 - 0.9**step)) if correct else (m, v)
        w = w - 0.01 * m_hat / (v_hat**power + 1e-3 if power else 1.0)
        train(optimizer, model, x, y, 1)
    np.testing.assert_allclose(flat(model), w, rtol=1e-9, atol=1e-12)


def test_adam_e_resumes_and_takes_closures() -> None:
    (a, x, y), (b, _, _) = build(), build()
    whole = train(AdamE(a.parameters(), power=0.25), a, x, y, 6)
    first = AdamE(b.parameters(), power=0.25)
    train(first, b, x, y, 3)
    again = AdamE(b.parameters(), power=0.5)
    again.load_state_dict(first.state_dict())
    assert np.array_equal(train(again, b, x, y, 3), whole)

    def closure() -> Tensor:
        again.zero_grad()
        loss = F.cross_entropy(b(x), y)
        loss.backward()
        return loss

    assert float(again.step(closure).detach()) > 0
    assert isinstance(SAM(again).base, AdamE)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": -1.0}, "expected a learning rate"),
        ({"power": 1.5}, "expected a power between 0 and 1"),
        ({"betas": (1.0, 0.9)}, "expected betas"),
        ({"eps": -1.0}, "expected eps and weight_decay"),
    ],
)
def test_settings_of_adam_e(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        AdamE([nn.Parameter(torch.ones(1))], **settings)  # type: ignore[arg-type]


def test_sparse_gradients_are_refused() -> None:
    embedding = nn.Embedding(3, 2, sparse=True)
    embedding(torch.tensor([0])).sum().backward()
    with pytest.raises(ArgumentError, match="expected dense gradients"):
        AdamE(embedding.parameters()).step()


def interpolating() -> tuple[nn.Module, Tensor, Tensor]:
    """A network that fits its labels exactly: they are its own outputs."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    x = torch.randn(20, 3, dtype=torch.float64)
    return model, x, model(x).detach()


@pytest.mark.parametrize("make", ["adam", "rmsprop"])
def test_the_state_of_adam_is_the_diagonal_under_label_noise(make: str) -> None:
    # v -> s^2 / batch H_jj, against the exact diagonal of the same loss. Kills: no root of the noise, no bias
    # correction, |w|^2 for |w|. The tolerance is three standard errors of a mean over 2 / (1 - beta2) steps.
    model, x, y = interpolating()
    optimizer = {
        "adam": lambda p: torch.optim.Adam(p, lr=0.0, betas=(0.0, 0.9995)),
        "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.0, alpha=0.9995),
    }[make](model.parameters())
    g, noise, size = torch.Generator().manual_seed(1), 0.3, 4
    for _ in range(3000):
        rows = torch.randint(20, (size,), generator=g)
        labels = y[rows] + noise * torch.randn(size, 1, generator=g, dtype=torch.float64)
        optimizer.zero_grad()
        (0.5 * (model(x[rows]) - labels).square().mean()).backward()
        optimizer.step()
    half = lambda output, batch: 0.5 * (output - batch[1]).square().mean()  # noqa: E731
    problem = sl.Problem(model, [(x, y)], loss=half)
    for elementwise, geometry in ((False, sl.Euclidean()), (True, sl.Elementwise())):
        exact = sl.root_diagonal_trace(problem, geometry, method="exact")
        found = root_diagonal_from_state(optimizer, noise=noise**2 / size, elementwise=elementwise)
        assert found.value == pytest.approx(exact.value, rel=0.03)
        assert -0.001 < found.stats["bias of Gaussian gradients, to first order"] / found.value < 0


def test_without_bias_correction_the_state_is_taken_as_it_is() -> None:
    model, x, y = build()
    optimizer = AdamE(model.parameters(), bias_correction=False)
    train(optimizer, model, x, y, 3)
    v = np.concatenate([optimizer.state[p]["exp_avg_sq"].numpy().ravel() for p in model.parameters()])
    assert root_diagonal_from_state(optimizer, noise=0.5).value == pytest.approx(np.sqrt(v / 0.5).sum())


def test_what_the_state_cannot_give() -> None:
    model, x, y = build()
    with pytest.raises(ArgumentError, match="expected an optimizer that has made steps"):
        root_diagonal_from_state(torch.optim.Adam(model.parameters()))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(sgd, model, x, y, 1)
    with pytest.raises(ArgumentError, match="expected a second moment in the state"):
        root_diagonal_from_state(sgd)
    with pytest.raises(ArgumentError, match="expected a noise above 0"):
        root_diagonal_from_state(sgd, noise=0.0)
    with pytest.raises(ArgumentError, match="expected a power above 0"):
        root_diagonal_from_state(sgd, power=0.0)
