"""Measures along the orbit of a network: the moves, the rows, the judgements."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from conftest import build_vit
from spiritlevel.cli import main
from spiritlevel.experiments.orbit import FLAT, claims, draw, reading
from spiritlevel.experiments.orbit_rows import (
    CONDITIONS,
    MEASURES,
    SCALES,
    Move,
    Row,
    Size,
    _moves,
    along_the_orbit,
    invariant,
    moved,
    radii_of_rise,
)
from spiritlevel.symmetry import find_symmetries


def test_a_move_has_the_stated_scale_and_condition_and_keeps_the_function() -> None:
    # Kills: the scale or the condition not used, a partner that is not moved by the inverse.
    model, move = build_vit(), Move(10.0, 100.0, 3)
    blocks = find_symmetries(model)
    other = moved(model, blocks, move)
    images = torch.randn(3, 1, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(other(images).logits, model(images).logits, rtol=1e-9, atol=1e-9)
    before, after = (dict(m.named_parameters()) for m in (model, other))
    for block in blocks:
        (g, h), (g2, h2) = block.read(before), block.read(after)
        a = torch.linalg.lstsq(h, h2).solution.mT  # H2 = H A*
        sizes = torch.linalg.svdvals(a)
        assert sizes.log().mean().exp().item() == pytest.approx(10.0)
        torch.testing.assert_close(sizes[:, 0] / sizes[:, -1], torch.full((2,), 100.0, dtype=torch.float64))
        torch.testing.assert_close(g2 @ a, g)
    assert not torch.equal(
        other.state_dict()["vit.layers.0.attention.q_proj.weight"],
        model.state_dict()["vit.layers.0.attention.q_proj.weight"],
    )


def test_the_moves_cover_scales_and_conditions() -> None:
    moves = list(_moves(2, 0))
    assert {m.scale for m in moves} == set(SCALES) == {1e-2, 1e-1, 1.0, 1e1, 1e2}
    assert {m.condition for m in moves} == set(CONDITIONS)
    assert max(CONDITIONS) == 1e4
    assert len({m.seed for m in moves}) == len(moves) == 22


@pytest.mark.slow  # all measures after eleven moves in two precisions
def test_quotient_measures_are_flat_and_others_are_not() -> None:
    # Kills: a measure of another geometry under a quotient's name, radii that are not used.
    model = build_vit().float()
    g = torch.Generator().manual_seed(1)
    data = torch.randn(6, 1, 8, 8, generator=g), torch.tensor([0, 1, 2, 0, 1, 2])
    radii = radii_of_rise(model, data, 0.05)
    rows = along_the_orbit(model, data, radii, Size(6, 1, 0.05, 2), 0)
    assert len(rows) == 2 * 11 * len(MEASURES)
    wide = [r for r in rows if r.precision == "float64"]
    assert all(r.before == pytest.approx(0.05, rel=0.02) for r in wide if r.measure.startswith("sharpness"))
    assert max(r.change for r in wide if invariant(r.measure)) < 1e-6
    for name in MEASURES:
        if not invariant(name):
            assert max(r.change for r in wide if r.measure == name) > 0.1, name


def made_up(change: float = 1e-9, dead: int = 0) -> list[Row]:
    """Quotient measures that change so much in float64, others by a factor of 5."""
    rows = []
    for precision in FLAT:
        for scale, condition in ((0.01, 1.0), (1.0, 1.0), (1.0, 1e4)):
            for name in MEASURES:
                after = 1 + change * condition if invariant(name) else 5.0 * scale
                row = Row(name, precision, scale, condition, 0, 1.0, after, 1e-12, 0)
                rows.append(replace(row, dead=dead) if condition > 1 else row)
    return rows


def test_claims_follow_the_worst_move() -> None:
    # Kills: the best or the mean change reported, a threshold of the other precision, verdicts turned round.
    found = {c.what: c for c in claims(made_up())}
    flat = found["sharpness, quotient: largest relative change, float64"]
    assert flat.here == pytest.approx(1e-5, rel=1e-3)
    assert flat.holds is False
    assert "condition 10000" in flat.note
    assert found["sharpness, quotient: largest relative change, float32"].holds is True
    assert found["sharpness, Euclidean: largest relative change, float64"].holds is True
    assert "times 0.05 to 5" in found["sharpness, Euclidean: largest relative change, float64"].note
    assert all(c.holds for c in claims(made_up(1e-12)))
    calm = [replace(r, after=r.before) for r in made_up()]
    assert [c.holds for c in claims(calm) if "Euclidean" in c.what] == [False] * 4


def test_the_reading_says_where_precision_ends() -> None:
    words = reading(made_up(dead=7))
    assert "leaves 7 singular values below the rounding" in words
    assert "float64" in words
    assert "float32" in words
    assert "singular values" not in reading(made_up())
    assert len(draw(made_up()).axes) == 4


@pytest.mark.slow  # trains a network and measures it a few hundred times
def test_the_quick_run(tmp_path: Path) -> None:
    assert main(["reproduce", "orbit", "--quick", "--out", str(tmp_path)]) == 0
    content = json.loads((tmp_path / "orbit.json").read_text())
    exact = [c for c in content["claims"] if c["claim"].endswith("float64")]
    assert len(exact) == len(MEASURES)
    assert all(c["holds"] == "yes" for c in exact), exact
