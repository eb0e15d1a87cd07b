"""The table of a GGUF file: names and shapes, whatever stands before them; broken ones are refused, never crash."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.models.sources import gguf as gguf_module
from app.models.sources.gguf import read_tensors

SHAPES = {"blocks.0.attn.q.weight": (64, 32), "head.bias": (16,), "patch.weight": (8, 4, 1, 2, 2)}


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def gguf(shapes: dict[str, tuple[int, ...]] | None = None, version: int = 3) -> bytes:
    """A GGUF file as the specification writes it, with entries of every kind before its tensors."""
    shapes = SHAPES if shapes is None else shapes
    entries = [
        text("general.architecture") + struct.pack("<I", 8) + text("wan"),
        text("a.number") + struct.pack("<If", 6, 1.5),
        text("a.flag") + struct.pack("<I?", 7, True),
        text("numbers") + struct.pack("<IIQ3i", 9, 5, 3, 1, 2, 3),
        text("words") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("bc"),
        text("nested") + struct.pack("<IIQ", 9, 9, 1) + struct.pack("<IQ2H", 2, 2, 7, 8),
    ]
    made = b"GGUF" + struct.pack("<IQQ", version, len(shapes), len(entries)) + b"".join(entries)
    for name, shape in shapes.items():
        made += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape)) + struct.pack("<IQ", 8, 0)
    return made


def read(content: bytes) -> dict[str, tuple[int, ...]]:
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "x.gguf"
        file.write_bytes(content)
        return read_tensors(file)


@pytest.mark.parametrize("version", [2, 3])
def test_names_and_shapes(version: int) -> None:
    assert read(gguf(version=version) + b"\0" * 100) == SHAPES


@given(st.integers(0, len(gguf()) - 1))
def test_a_file_that_was_cut_short_is_refused(end: int) -> None:
    with pytest.raises(ValueError, match=r"ends inside its table|no GGUF file"):
        read(gguf()[:end])


@given(st.integers(0, len(gguf()) - 1), st.integers(1, 255))
def test_any_changed_byte_is_read_or_refused(at: int, change: int) -> None:
    content = bytearray(gguf())
    content[at] ^= change
    try:
        assert isinstance(read(bytes(content)), dict)
    except ValueError as error:
        assert str(error)  # noqa: PT017


def test_another_version_is_named() -> None:
    with pytest.raises(ValueError, match="version 1; 2 and 3"):
        read(gguf(version=1))


def text_list(count: int) -> bytes:
    return text("words") + struct.pack("<IIQ", 9, 8, count)


@pytest.mark.parametrize(
    "table",
    [
        struct.pack("<IQQ", 3, 2**20, 2**20),
        struct.pack("<IQQ", 3, 1, 3) + text_list(2**20),
        struct.pack("<IQQ", 3, 1, 1) + text("a") + struct.pack("<IIQ", 9, 9, 2**19) + struct.pack("<IQ", 9, 2**19),
    ],
)
def test_a_file_of_many_nothings_is_refused_at_once(
    tmp_path: Path, table: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file with holes holds gigabytes of empty texts for nothing."""
    reads: list[int] = []
    take = gguf_module._Table.take

    def taken(table: gguf_module._Table, size: int) -> bytes:
        reads.append(size)
        return take(table, size)

    monkeypatch.setattr(gguf_module._Table, "take", taken)
    file = tmp_path / "x.gguf"
    file.write_bytes(b"GGUF" + table)
    with file.open("ab") as opened:
        opened.truncate(2 * 1024**3)
    with pytest.raises(ValueError, match="its table is none"):
        read_tensors(file)
    assert len(reads) < 100
