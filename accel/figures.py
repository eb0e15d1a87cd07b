"""Figures as a person reads them: three digits that count, and never a power of ten."""

from __future__ import annotations

from decimal import Decimal


def figure(value: float, digits: int = 3) -> str:
    """Rounded to so many digits that count: "0.0123", "12.3", "2,210"."""
    return f"{Decimal(f'{value:.{digits}g}'):,f}"


def milliseconds(value: float) -> str:
    """Milliseconds, always in this unit, so that two of them can be held side by side: "2,210 ms"."""
    return f"{figure(value)} ms"


def duration(seconds: float) -> str:
    """In the unit that fits: "12 µs", "3.46 ms", "1.2 s", "3:05 min"."""
    if seconds < 0.9995e-3:
        return f"{figure(seconds * 1e6)} µs"
    if seconds < 0.9995:
        return milliseconds(seconds * 1e3)
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    return f"{whole // 60}:{whole % 60:02} min" if whole < 3600 else f"{whole / 3600:.1f} h"


def gib(size: float) -> str:
    """Bytes: "5.9 GiB"."""
    return f"{figure(size / 2**30)} GiB" if size < 999.5 * 2**30 else f"{figure(size / 2**40)} TiB"
