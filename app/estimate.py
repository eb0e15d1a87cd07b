"""What a clip will take: minutes, memory and disk, and the sentences a person needs when it will not fit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """What one clip will take.

    seconds: of the whole clip, None before anything like it was measured here; `stages` has its parts (keys load,
    text, denoise, decode, save), `basis` says in a sentence what it is reckoned from. memory and disk: bytes needed;
    memory_free and disk_free: bytes there are now. blocked: why it can't be made as things are, one sentence each with
    what to do, empty when nothing stands in the way.
    """

    seconds: float | None
    stages: dict[str, float]
    basis: str
    memory: int
    memory_free: int
    disk: int
    disk_free: int
    blocked: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether it can be made as things are."""
        return not self.blocked
