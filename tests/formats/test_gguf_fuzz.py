"""Mutations of valid files, field by field: each opens and can be read, or is a `ModelFormatError`."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from ggufbuilder import ARRAY, F32, STRING, U32, Entry, Layout, Pair, Span, build, small
from rewriting import rewrite

from ostinato.errors.formats import ModelFormatError
from ostinato.formats.encodings import codec_for
from ostinato.formats.gguf import GgufFile, guards

FACTOR, SLACK = 32, 8 << 20  # memory: at most FACTOR bytes for one of the file's, and SLACK
EXPENSIVE = 1 << 20  # far more than any mutation of these small files may cost

BASES = (
    small(2),
    small(3),
    build(),
    build(
        (Pair(b"general.alignment", U32, 64),),
        (Entry(b"a", (32, 2), 8, 68), Entry(b"b", (3,), 0, 12)),
        alignment=64,
    ),
    build((Pair(b"t", ARRAY, [b"one", b"two", b""] * 20, STRING), Pair(b"s", ARRAY, [1.0] * 60, F32))),
    build((), tuple(Entry(b"blk.%d.w" % i, (64, 2), 3, 80) for i in range(8))),
)


def mutate(rng: random.Random, bases: Sequence[Layout] = BASES) -> bytes:
    """A valid file with one to three fields changed, and sometimes an end, a gap or a repetition."""
    base = rng.choice(bases)
    layout = Layout(bytearray(base.data), base.spans)
    heads = [name for name in base.spans if name not in ("padding", "data")]
    for _ in range(rng.choice([1, 1, 2, 3])):
        name = rng.choice(heads)
        span = base.spans[name]
        if span.number:
            layout.patch(name, interesting(rng, base, name) % (1 << 8 * span.size))
        elif span.size and rng.random() < 0.3:  # a name or text twice
            layout.patch(name, rng.choice(same_size(base, span)))
        elif span.size:
            at = span.offset + rng.randrange(span.size)
            layout.data[at] = rng.choice([0, 0x80, 0xFF, layout.data[at] ^ (1 << rng.randrange(8))])

    data = bytes(layout.data)
    span = base.spans[rng.choice(heads)]
    match rng.randrange(8):
        case 0:  # cut in a field, or anywhere
            return data[: rng.choice([span.offset + rng.randint(0, span.size), rng.randrange(len(data))])]
        case 1:  # a field is missing
            return data[: span.offset] + data[span.offset + span.size :]
        case 2:  # a field comes twice
            return data[: span.offset + span.size] + data[span.offset :]
    return data


def same_size(base: Layout, span: Span) -> list[bytes]:
    """The contents of the fields that are as long as this one, itself included."""
    spans = [each for each in base.spans.values() if each.size == span.size and not each.number]
    return [bytes(base.data[each.offset : each.offset + each.size]) for each in spans]


def interesting(rng: random.Random, base: Layout, name: str) -> int:
    """A value near a limit of its width, of the file or of the field's own value; or another field's."""
    span = base.spans[name]
    now = int.from_bytes(base.data[span.offset : span.offset + span.size], "little")
    other = rng.choice([each for each in base.spans.values() if each.number])
    return rng.choice(
        [
            *range(14),
            *(1 << bit for bit in (5, 8, 15, 16, 24, 31, 32, 40, 61, 62, 63)),
            *((1 << bit) - 1 for bit in (8, 16, 31, 32, 63, 64)),
            (1 << 64) - 32,
            now - 1,
            now + 1,
            now + 32,
            now * 2,
            now << 8 * (span.size - 1),
            len(base.data) - span.offset,
            len(base.data) - span.offset - span.size,
            len(base.data),
            rng.getrandbits(8 * span.size),
            int.from_bytes(base.data[other.offset : other.offset + other.size], "little"),
        ]
    )


def examine(path: Path) -> str:
    """Opens the file and reads all that it offers; returns `opened` or the guard that refused it."""
    try:
        file = GgufFile.open(path)
    except ModelFormatError as error:
        return refusal(error, path)
    with file:
        size = path.stat().st_size
        assert file.metadata_bytes <= size
        spans = sorted((t.offset, t.offset + t.nbytes) for t in file.tensors.values())
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
        for tensor in file.tensors.values():
            assert file.metadata_bytes <= tensor.offset <= tensor.offset + tensor.nbytes <= size
            assert 1 <= len(tensor.shape) <= 4
            assert all(dim > 0 for dim in tensor.shape)
            data = file.data(tensor)
            assert data.nbytes == tensor.nbytes
            int(data.sum())
            decoder = codec_for(tensor.encoding)
            if decoder is not None:
                assert decoder.decode(data).shape == tensor.shape
    return "opened"


def refusal(error: ModelFormatError, path: Path) -> str:
    """The guard that raised, after a look at what it says."""
    assert error.field
    assert error.offset is not None
    assert str(error).startswith(f"{path}: ")
    return raiser(error)


def raiser(error: Exception) -> str:
    """The function that raised it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    assert trace is not None
    return trace.tb_frame.f_code.co_name


def fuzz(path: Path, seeds: range) -> Counter[str]:
    """Examines one mutation a seed; the seed of a failure is in the assertion."""
    seen: Counter[str] = Counter()
    tracemalloc.start()
    try:
        for seed in seeds:
            data = mutate(random.Random(seed))
            rewrite(path, data)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                seen[examine(path)] += 1
            except Exception as error:
                raise AssertionError(f"seed {seed}: {error!r}") from error
            cost = tracemalloc.get_traced_memory()[1] - before
            assert cost <= min(FACTOR * len(data) + SLACK, EXPENSIVE), f"seed {seed}: {cost} bytes"
    finally:
        tracemalloc.stop()
    return seen


def expect_variety(seen: Counter[str], count: int) -> None:
    """The mutations reached every guard, and were not all refused."""
    assert seen.total() == count
    assert seen["opened"] >= count // 20
    named = {name for name in vars(guards) if name.startswith(("check_", "refuse_"))}
    assert set(seen) - {"opened"} == named


def test_3000_mutations(tmp_path: Path) -> None:
    expect_variety(fuzz(tmp_path / "m.gguf", range(3_000)), 3_000)


@pytest.mark.slow
def test_100000_mutations(tmp_path: Path) -> None:
    expect_variety(fuzz(tmp_path / "m.gguf", range(1_000_000, 1_100_000)), 100_000)


@pytest.mark.parametrize("guard", ["check_room", "check_inside", "check_disjoint", "check_dims", "check_row"])
def test_the_fuzzer_notices_a_missing_guard(
    guard: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guards, guard, lambda *_: None)
    with pytest.raises(AssertionError, match="seed"):
        fuzz(tmp_path / "m.gguf", range(3_000))


def test_the_bases_are_valid(tmp_path: Path) -> None:
    for index, base in enumerate(BASES):
        path = tmp_path / f"{index}.gguf"
        path.write_bytes(base.data)
        assert examine(path) == "opened"
