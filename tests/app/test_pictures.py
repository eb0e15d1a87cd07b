"""Pictures from strangers: read right or refused in a sentence, kept by content, cut and said."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageCms

from app import pictures
from app.errors import UsageError
from app.models import starter
from app.paths import Home
from app.pictures import Picture, adopt, fit, fitted, from_metadata, keep, read_picture, to_metadata
from app.request import GenerationRequest
from tests.app.drawn import drawn, saved

TAKES_PICTURES = replace(starter.STARTER, takes=starter.STARTER.takes | {"image", "last_image"})


def colours(image: Image.Image) -> list[tuple[int, ...]]:
    """The middle of each quarter: upper left, upper right, lower left, lower right."""
    assert image.mode == "RGB"
    pixels = np.asarray(image)
    height, width = pixels.shape[:2]
    return [
        tuple(int(v) for v in pixels[y, x])
        for y in (height // 4, height * 3 // 4)
        for x in (width // 4, width * 3 // 4)
    ]


def is_red(colour: tuple[int, ...]) -> bool:
    return colour[0] > 150 and colour[1] < 90


# -- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "GIF"])
def test_the_usual_formats_are_read(kind: str) -> None:
    picture = read_picture(saved(kind=kind), "it")
    assert picture.image.size == (96, 64)
    assert [is_red(colour) for colour in colours(picture.image)] == [True, False, False, False]
    assert picture.notes == ()


@pytest.mark.parametrize("turn", range(1, 9))
def test_a_camera_s_turn_is_undone(turn: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = turn
    picture = read_picture(saved(kind="JPEG", exif=exif, quality=95), "it")
    assert picture.image.size == ((96, 64) if turn < 5 else (64, 96))
    # where the red upper left quarter of the stored picture belongs, by the EXIF standard
    red = {1: 0, 2: 1, 3: 3, 4: 2, 5: 0, 6: 1, 7: 3, 8: 2}[turn]
    assert [is_red(colour) for colour in colours(picture.image)] == [place == red for place in range(4)]


def test_what_is_transparent_becomes_white_and_that_is_said() -> None:
    image = drawn().convert("RGBA")
    image.paste((0, 0, 0, 0), (0, 0, 48, 32))
    picture = read_picture(saved(image), "it", "last_image")
    assert colours(picture.image)[0] == (255, 255, 255)
    assert picture.notes == ("The last picture is transparent in places; white is put behind it.",)
    opaque = read_picture(saved(drawn().convert("RGBA")), "it")
    assert opaque.notes == ()
    palette = drawn().quantize(4)
    assert "transparent" in read_picture(saved(palette, transparency=0), "it").notes[0]


def test_sixteen_bits_of_grey_keep_their_brightness() -> None:
    ramp = np.linspace(0, 65535, 64 * 64, dtype=np.uint16).reshape(64, 64)
    picture = read_picture(saved(Image.fromarray(ramp)), "it")
    assert np.abs(np.asarray(picture.image)[..., 0].astype(int) - ramp // 257).max() <= 1


def test_a_picture_s_own_colours_become_srgb() -> None:
    """A profile whose red and blue are exchanged says red where blue is meant."""
    profile = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    # the table of tags: name, offset, length
    places = {bytes(profile[place : place + 4]): place + 4 for place in range(132, 400, 12)}
    red, blue = places[b"rXYZ"], places[b"bXYZ"]
    profile[red : red + 8], profile[blue : blue + 8] = profile[blue : blue + 8], profile[red : red + 8]
    picture = read_picture(saved(Image.new("RGB", (8, 8), (255, 0, 0)), icc_profile=bytes(profile)), "it")
    pixel = np.asarray(picture.image)[0, 0]
    assert pixel[2] > 200 > 100 > pixel[0]
    broken = read_picture(saved(icc_profile=b"no profile"), "it")
    assert broken.notes == ("The colour profile of the first picture can't be read; its colours are taken as sRGB.",)


def test_of_several_frames_the_first_is_taken_and_that_is_said() -> None:
    frames = [drawn(), Image.new("RGB", (96, 64), "blue")]
    picture = read_picture(saved(frames[0], "GIF", save_all=True, append_images=frames[1:]), "it")
    assert is_red(colours(picture.image)[0])
    assert picture.notes == ("The first picture has several frames; the first is taken.",)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "it is empty"),
        (b"\x89PNG\r\n\x1a\n", "it "),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "it is no picture that can be read; choose one in PNG, JPEG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "it is no picture that can be read"),
        (saved(kind="TIFF"), "it is no picture that can be read"),
        (saved()[:120], "it is damaged or was cut short"),
        (saved(kind="JPEG")[:400], "it is damaged or was cut short"),
    ],
)
def test_what_is_no_picture_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(UsageError, match=r"^it ") as caught:
        read_picture(data, "it")
    assert says in str(caught.value)


def test_a_small_file_that_unpacks_to_a_huge_picture_is_refused() -> None:
    for side in (12_000, 30_000):
        header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
        chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 1000)), (b"IEND", b"")]
        bomb = b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
            for name, body in chunks
        )
        with pytest.raises(UsageError, match="pixels"):
            read_picture(bomb, "it")


def test_a_huge_file_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "MAX_BYTES", 100)
    with pytest.raises(UsageError, match="at most 100 are read"):
        read_picture(saved(), "it")


WHOLE = {kind: saved(kind=kind) for kind in ("PNG", "JPEG", "WEBP", "BMP", "GIF")}


@given(kind=st.sampled_from(sorted(WHOLE)), data=st.data())
def test_any_damage_gives_a_picture_or_one_sentence(kind: str, data: st.DataObject) -> None:
    whole = bytearray(WHOLE[kind])
    for _ in range(data.draw(st.integers(1, 8))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    told = ""
    try:
        mode = read_picture(cut, "it").image.mode
    except UsageError as error:
        mode, told = "", str(error)
    assert mode == "RGB" or told.startswith("it ")


# -- kept -------------------------------------------------------------------------------------------------------------


def test_names_come_from_the_content(tmp_path: Path) -> None:
    home = Home(tmp_path)
    name = keep(home, saved(), r"C:\Users\me\My Photo!.PNG", "it")
    assert name.startswith("my-photo-")
    assert name.endswith(".png")
    assert (home.pictures / name).read_bytes() == saved()
    assert keep(home, saved(), name, "it") == name, "kept again under its name, it keeps the name"
    assert keep(home, saved(drawn(32, 32)), name, "it") != name
    assert keep(home, saved(kind="JPEG"), "../..", "it").startswith("picture-")
    assert [path.name for path in home.pictures.glob(".*")] == []


def test_a_picture_is_looked_for_in_the_clip_then_beside_the_preset_then_among_those_kept(tmp_path: Path) -> None:
    home, folder = Home(tmp_path / "home"), tmp_path / "presets"
    folder.mkdir()
    (folder / "a.png").write_bytes(saved())
    request = GenerationRequest(image="a.png")
    beside = adopt(request, home, folder)
    assert beside.image is not None
    assert (home.pictures / beside.image).read_bytes() == saved()
    assert adopt(beside, home) == beside
    other = saved(drawn(32, 32))
    inside = adopt(request, home, folder, {"image": other})
    assert inside.image is not None
    assert (home.pictures / inside.image).read_bytes() == other
    assert adopt(GenerationRequest(), home, folder) == GenerationRequest()


def test_a_missing_picture_is_one_sentence(tmp_path: Path) -> None:
    home = Home(tmp_path)
    (tmp_path / "secret.png").write_bytes(saved())
    (tmp_path / "bad.png").write_bytes(b"text")
    with pytest.raises(UsageError, match=r"^image: 'a.png' is not in "):
        adopt(GenerationRequest(image="a.png"), home, tmp_path)
    with pytest.raises(UsageError, match=r"^last_image: 'secret.png' is not in "):
        adopt(GenerationRequest(last_image="secret.png"), home)
    with pytest.raises(UsageError, match=r"^image: bad.png is no picture"):
        adopt(GenerationRequest(image="bad.png"), home, tmp_path)


# -- cut --------------------------------------------------------------------------------------------------------------


@given(
    own=st.tuples(st.integers(1, 300), st.integers(1, 300)), wanted=st.tuples(st.integers(1, 128), st.integers(1, 128))
)
def test_a_fitted_picture_has_exactly_the_clip_s_size(own: tuple[int, int], wanted: tuple[int, int]) -> None:
    assert fit(Picture(Image.new("RGB", own, "red"), ".png"), *wanted).size == wanted
    assert np.array_equal(np.asarray(fit(Picture(drawn(*own), ".png"), *own)), np.asarray(drawn(*own)))


def test_cutting_is_even_and_said(tmp_path: Path) -> None:
    home = Home(tmp_path)
    name = keep(home, saved(drawn(200, 100)), "wide.png", "it")
    request = GenerationRequest(prompt="x", image=name, last_image=name, width=128, height=128)
    made = TAKES_PICTURES.normalise(request)
    found = [item for item in fitted(made, home).adjustments if item.field in ("image", "last_image")]
    assert [item.field for item in found] == ["image", "last_image"]
    assert found[0].reason == (
        "The first picture has 200x100 pixels; 100 of its 200 columns are cut off at left and right so that it fills "
        "128x128."
    )
    assert (found[0].asked, found[0].used) == ("200x100", "128x128")
    image = fit(pictures.opened(home, request)["image"], 128, 128)
    assert is_red(colours(image)[0])
    with pytest.raises(UsageError, match="Refused because of --strict: The first picture"):
        fitted(made, home, strict=True)


def test_a_picture_of_the_clip_s_shape_is_not_worth_a_word(tmp_path: Path) -> None:
    home = Home(tmp_path)
    for size in ((256, 160), (512, 320), (128, 80), (1600, 1000)):
        name = keep(home, saved(drawn(*size)), "same.png", "it")
        made = TAKES_PICTURES.normalise(GenerationRequest(image=name))
        assert fitted(made, home, strict=True) is made


# -- in a clip's file -------------------------------------------------------------------------------------------------


def test_what_a_clip_carries_is_the_picture_and_nothing_of_the_camera() -> None:
    exif = Image.Exif()
    exif[0x010F] = "a camera"
    picture = read_picture(saved(kind="JPEG", exif=exif, comment=b"secret"), "it")
    data = pictures.as_png(fit(picture, 64, 64))
    assert b"camera" not in data
    assert b"secret" not in data
    held = from_metadata({"pictures": to_metadata({"image": data})}, "clip.mp4")
    assert held == {"image": data}
    back = read_picture(held["image"], "it").image
    assert np.array_equal(np.asarray(back), np.asarray(fit(picture, 64, 64)))
    assert pictures.as_png(back) == data, "made again from the clip it carries the same picture"


@pytest.mark.parametrize("held", [None, 5, [], {"image": None}, {"other": "x"}])
def test_metadata_without_pictures_has_none(held: object) -> None:
    assert from_metadata({"pictures": held}, "clip.mp4") == {}


def test_damaged_metadata_is_one_sentence() -> None:
    with pytest.raises(UsageError, match=r"^clip.mp4: the last picture in it is damaged"):
        from_metadata({"pictures": {"last_image": "%%%"}}, "clip.mp4")
