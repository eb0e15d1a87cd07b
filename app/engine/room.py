"""How many bytes a model may take here and now."""

import sys

import psutil

from accel.types import Machine, Room
from app.machine_memory import free_memory, resident


def room_of(machine: Machine) -> Room:
    """What this process holds already and what is free besides, on the machine and its largest GPU. A GPU that can't be
    asked before torch is imported is taken to be free.
    """
    free = free_memory()[0] + resident()
    torch = sys.modules.get("torch")
    usable = [gpu for gpu in machine.usable_gpus() if gpu.vendor != "apple"]
    if not usable:
        return Room(free)
    gpu = max(usable, key=lambda gpu: gpu.memory)
    if torch is None or not torch.cuda.is_available():
        return Room(free, gpu.memory)
    return Room(free, torch.cuda.mem_get_info(gpu.index)[0] + torch.cuda.memory_reserved(gpu.index))


def held_by_children() -> int:
    """Resident bytes of the processes that this one started."""
    total = 0
    for child in psutil.Process().children(recursive=True):
        total += resident(child.pid)
    return total
