"""The pictures of one clip, as its pipeline takes them: kept ones, opened and cut to the clip's size."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from PIL.Image import Image

from app import pictures
from app.errors import UsageError
from app.models.base import Normalised
from app.paths import Home


@dataclass(frozen=True)
class Given:
    """RGB pictures of exactly the clip's size, by the request's field: "image", "last_image"."""

    by_field: Mapping[str, Image] = field(default_factory=dict)

    @property
    def first(self) -> Image | None:
        """The one that the clip begins with."""
        return self.by_field.get("image")

    def as_files(self) -> dict[str, bytes]:
        """What the clip's file carries: PNG, so that the same clip can be made of it."""
        return {name: pictures.as_png(picture) for name, picture in self.by_field.items()}


def given(normalised: Normalised, home: Home | None) -> tuple[Normalised, Given]:
    """The request with what is changed of its pictures, and these.

    Raises UsageError for pictures that are not kept in `home` or can't be read.
    """
    request = normalised.request
    if not (request.image or request.last_image):
        return normalised, Given()
    if home is None:
        raise UsageError("image: pictures are kept in Kinetile's data folder, and this engine was given none.")
    size = int(request.width or 0), int(request.height or 0)
    found: dict[str, Image] = {name: pictures.fit(one, *size) for name, one in pictures.opened(home, request).items()}
    return pictures.fitted(normalised, home), Given(found)
