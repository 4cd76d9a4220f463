"""Rope rows: the formula, the same bits however many are asked for, and nothing that grows."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.models import rope
from ostinato.models.rope import BLOCK, RopeSpec, RopeTable, rope_table

SPECS = (
    RopeSpec(10000.0, 8),
    RopeSpec(500000.0, 8, linear=4.0),
    RopeSpec(100.0, 8, factors=(1.0, 2.0, 4.0, 8.0)),
)


@pytest.mark.parametrize("specs", [SPECS[:1], SPECS], ids=["one", "three"])
@pytest.mark.parametrize("start", [0, 1, BLOCK - 1, BLOCK, 5 * BLOCK + 3, 131071])
def test_the_formula(specs: tuple[RopeSpec, ...], start: int) -> None:
    for count in (1, 2, BLOCK, 3 * BLOCK + 1):
        cos, sin = RopeTable(specs).rows(start, count)
        assert cos.shape == sin.shape == (len(specs), count, 4)
        assert cos.dtype == sin.dtype == np.float32
        for i, spec in enumerate(specs):
            for pair in range(4):
                factor = spec.factors[pair] if spec.factors else 1.0
                angle = np.arange(start, start + count) / (spec.base ** (2 * pair / 8) * spec.linear * factor)
                np.testing.assert_allclose(cos[i, :, pair], np.cos(angle), atol=1e-6)
                np.testing.assert_allclose(sin[i, :, pair], np.sin(angle), atol=1e-6)


def test_rows_alone_and_together_have_the_same_bits() -> None:
    table = RopeTable(SPECS)
    start, count = BLOCK - 5, 2 * BLOCK
    together = table.rows(start, count)
    for at in range(count):
        for whole, alone in zip(together, RopeTable(SPECS).rows(start + at, 1), strict=True):
            assert whole[:, at : at + 1].tobytes() == alone.tobytes()
    pieces = [table.rows(start + at, 7) for at in range(0, 70, 7)]
    assert np.concatenate([cos for cos, _ in pieces], axis=1).tobytes() == together[0][:, :70].tobytes()


def test_a_token_s_rows_are_contiguous_and_nobody_can_change_them() -> None:
    """The same memory is handed to every step, and to every model of these ropes."""
    for array in rope_table(SPECS).rows(17, 1):
        assert array.flags.c_contiguous
        with pytest.raises(ValueError, match="read-only"):
            array[:] = 0
    kept = rope_table(SPECS).rows(17, 2)[0]
    kept[:] = 0  # several rows are the caller's
    assert rope_table(SPECS).rows(17, 2)[0].all()


def test_a_table_keeps_so_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rope, "KEPT", 3)
    table = RopeTable(SPECS)
    first = table.rows(0, 1)[0].tobytes()
    for block in range(10):
        table.rows(block * BLOCK, 1)
    assert table._block.cache_info().currsize == 3
    assert table.rows(0, 1)[0].tobytes() == first


def test_equal_ropes_have_one_table() -> None:
    assert rope_table(SPECS) is rope_table(tuple(SPECS))
    assert rope_table(SPECS) is not rope_table(SPECS[:1])
