"""For all tests: random inputs are judged by what comes out, never by how long it took on a busy machine."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("kinetile", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kinetile")
