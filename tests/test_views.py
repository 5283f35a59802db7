"""Factor views: every layout reads the right entries, and writing puts back what was read."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spiritlevel.core.views import Factor, Piece
from spiritlevel.errors import ModelError

H, D, N = 3, 2, 5  # heads, width, inputs

LAYOUTS = {
    "rows of a Linear": (
        (H * D, N),
        Piece("w", (H, D, N), batch=(0,), rows=(2,), column=1),
        lambda w, h, r, c: w[h * D + c, r],
    ),
    "columns of a Linear": (
        (N, H * D),
        Piece("w", (N, H, D), batch=(1,), rows=(0,), column=2),
        lambda w, h, r, c: w[r, h * D + c],
    ),
    "a third of a fused weight": (
        (3 * H * D, N),
        Piece("w", (3, H, D, N), batch=(0,), rows=(2,), column=1, index=(1,)),
        lambda w, h, r, c: w[H * D + h * D + c, r],
    ),
    "interleaved": (
        (H * 3 * D, N),
        Piece("w", (H, 3, D, N), batch=(0,), rows=(2,), column=1, index=(slice(None), 2)),
        lambda w, h, r, c: w[(h * 3 + 2) * D + c, r],
    ),
    "grouped queries, stacked": (
        (H * 2 * D, N),
        Piece("w", (H, 2, D, N), batch=(0,), rows=(1, 3), column=2),
        lambda w, h, r, c: w[(h * 2 + r // N) * D + c, r % N],
    ),
    "a bias": ((H * D,), Piece("w", (H, D), batch=(0,), rows=(), column=1), lambda w, h, r, c: w[h * D + c]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_piece_reads_the_entries_of_its_layout(layout: str) -> None:
    """Kills: swapped axes, a head stride in place of a column stride, a wrong third."""
    shape, piece, entry = LAYOUTS[layout]
    w = torch.randn(shape)
    got = piece.read({"w": w})
    assert got.shape == piece.size
    for h in range(piece.size[0]):
        for r in range(piece.size[1]):
            for c in range(piece.size[2]):
                assert got[h, r, c] == entry(w, h, r, c)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_write_puts_back_what_was_read_and_touches_nothing_else(layout: str) -> None:
    """Kills: writing into a copy, writing to entries the piece does not cover."""
    shape, piece, _ = LAYOUTS[layout]
    w = torch.randn(shape)
    target = torch.zeros(shape)
    piece.write({"w": target}, piece.read({"w": w}))
    counts = torch.zeros(shape, dtype=torch.uint8)
    piece.mark({"w": counts})
    assert torch.equal(target, torch.where(counts == 1, w, torch.zeros_like(w)))
    assert int(counts.sum()) == piece.size[0] * piece.size[1] * piece.size[2]


def test_complex_columns_pair_the_halves_of_rotary_heads() -> None:
    """Kills: interleaved pairing in place of halves, a conjugate."""
    w = torch.randn(H * 4, N)  # heads of width 4: pairs (i, i + 2)
    piece = Piece("w", (H, 2, 2, N), batch=(0, 2), rows=(3,), column=None, pair=1)
    got = piece.read({"w": w})
    assert got.shape == (H * 2, N, 1)
    for h in range(H):
        for i in range(2):
            assert torch.equal(got[h * 2 + i, :, 0].real, w[h * 4 + i])
            assert torch.equal(got[h * 2 + i, :, 0].imag, w[h * 4 + i + 2])
    target = torch.zeros_like(w)
    piece.write({"w": target}, got)
    assert torch.equal(target, w)


def test_factor_stacks_rows_and_splits_them_again() -> None:
    pieces = (LAYOUTS["rows of a Linear"][1], Piece("b", (H, D), batch=(0,), rows=(), column=1))
    factor = Factor(pieces)
    weights = {"w": torch.randn(H * D, N), "b": torch.randn(H * D)}
    got = factor.read(weights)
    assert got.shape == (H, N + 1, D)
    assert torch.equal(got[:, N], weights["b"].view(H, D))
    back = {n: torch.zeros_like(w) for n, w in weights.items()}
    factor.write(back, got)
    assert all(torch.equal(back[n], weights[n]) for n in weights)


def test_factor_refuses_pieces_that_do_not_fit() -> None:
    with pytest.raises(ModelError, match="equal heads and columns"):
        Factor((LAYOUTS["rows of a Linear"][1], Piece("b", (D, H), batch=(0,), rows=(), column=1)))


@given(heads=st.integers(1, 4), width=st.integers(1, 4), inputs=st.integers(1, 4), seed=st.integers(0, 99))
def test_reading_after_writing_is_the_identity(heads: int, width: int, inputs: int, seed: int) -> None:
    piece = Piece("w", (heads, width, inputs), batch=(0,), rows=(2,), column=1)
    value = torch.randn(piece.size, generator=torch.Generator().manual_seed(seed))
    target = torch.zeros(heads * width, inputs)
    piece.write({"w": target}, value)
    assert torch.equal(piece.read({"w": target}), value)
