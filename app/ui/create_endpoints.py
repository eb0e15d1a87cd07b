"""Create for programs: make clips, and what they will take, as named endpoints with plain data."""

from __future__ import annotations

from typing import Any

from app import catalogue
from app.models import family_for
from app.pictures import fitted
from app.plain import to_data
from app.request import parse_request
from app.ui.context import Context
from app.ui.endpoints import add_endpoints
from app.ui.queue_endpoints import job_data


def add(context: Context) -> None:
    """Register the endpoints on the page that is being built."""

    def generate(request: dict[str, Any]) -> list[dict[str, Any]]:
        """Put the clips that a request asks for into the queue and return their jobs. `request` is the request part of
        a preset, such as {"prompt": "a red ball", "steps": 12, "count": 2}.
        """
        return [job_data(job) for job in context.service.submit(context.specs(parse_request(request, "request")))]

    def estimate(request: dict[str, Any]) -> dict[str, Any]:
        """Seconds, memory and disk that one clip of a request will take under the preferences, and what stands against
        it.
        """
        asked = context.wished(parse_request(request, "request"))
        normalised = fitted(family_for(asked.model).normalise(asked), context.home)
        found = context.service.estimate(normalised.request)
        return {
            **to_data(found),
            "fits": found.fits,
            "request": normalised.request.model_dump(mode="json"),
            "adjustments": [item.model_dump(mode="json") for item in normalised.adjustments],
            "notes": list(normalised.notes.values()),
            "tokens": to_data(normalised.prompt_tokens) if normalised.prompt_tokens else None,
        }

    def models() -> list[dict[str, Any]]:
        """The models that clips can be made with: their rules and defaults, and what of them is on this machine."""
        return [
            {
                "name": family.name,
                "title": family.title,
                "summary": family.summary,
                "licence": family.licence,
                "here": (found := catalogue.listed(family)).state == "here",
                "state": found.state,
                "repo": found.repo,
                "download": found.download,
                "problems": list(found.problems),
                "defaults": to_data(family.defaults),
                "rules": to_data(family.rules),
                "token_limit": family.token_limit,
                "schedulers": list(family.schedulers),
                "takes": sorted(family.takes),
            }
            for family in context.families
        ]

    add_endpoints(generate, estimate, models)
