"""Share codes: a request as one word that survives a chat window.

    KT1-  base32( crc32 of the rest, 4 bytes, big endian + raw deflate of the request as JSON )

Base32 (A-Z, 2-7) because chat programs turn "_" and "*" into italics and some change capitals; deflate with a
dictionary of our own keys and words, which halves a usual code. CRC-32 notices every single changed character.
The dictionary and the layout are frozen: a code made once must decode for ever, so a change needs "KT2-".
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from typing import Any

from app.errors import UsageError
from app.request import GenerationRequest, canonical
from app.strict_json import dumps, parse, short

PREFIX = "KT1-"
MAX_DECODED = 4 * 1024 * 1024
"""Most bytes of JSON that a code may unpack to."""
MAX_CODE = 8 * 1024 * 1024
"""Most characters of a code: MAX_DECODED incompressible bytes in base32 are 6.7 million."""

_SOURCE = "the share code"
_DAMAGED = "The share code is damaged (a character is changed, missing or added); copy it again, whole."
# White space and what chat programs and mails put around or into a long word: quote marks, markdown, full stops,
# zero-width characters. None of it belongs to the alphabet, so dropping it hides no damage: the checksum still counts.
_NOISE = re.compile(
    "[\\s\"'`<>|*_~(){},.;:=\\[\\]\u2018\u2019\u201c\u201d\u00ad\u200b-\u200f\u2028\u2029\u2060\ufeff]+"
)
_DICTIONARY = (
    b'"last_image":"image":"loras":[{"name":".safetensors","weight":0."text_encoder_linear":"accel":{"attention":"'
    b'"linear":"vae":"dtype":"bfloat16","compile":"cache":"offload":"sdpa"scheduler":"unipc","shift":"negative_prompt":"'
    b"blurry, low quality, cinematic, close-up of beside and next to a big small tiny balloon bird tree house boat "
    b"car box ball heart star fish rocket orange yellow green cyan blue purple pink white black red circles grows "
    b"shrinks stays still spins bounces moves left moves right flies up falls down the camera pans left pans right "
    b"zooms in at night city desert space snow underwater sunset over the sea plain studio in a meadow"
    b'","count":2,"fps":24,"fps":8.0,"frames":25,"guidance":4.0,"height":160,"width":256,'
    b'{"kinetile":1,"model":"starter","prompt":"a ","seed":1,"steps":20}'
)


def looks_like_code(text: str) -> bool:
    """Whether the text starts as a share code of any version does."""
    return bool(re.match(r"KT[0-9]+-", _NOISE.sub("", text[:200]), re.IGNORECASE | re.ASCII))


def encode_code(request: GenerationRequest) -> str:
    """The request as a share code.

    Raises UsageError for a request with pictures, which a code can't carry.
    """
    for name in ("image", "last_image"):
        if getattr(request, name) is not None:
            raise UsageError(f"A share code can't carry the picture in {name}; share the clip itself, which does.")
    packer = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_DEFAULT_STRATEGY, _DICTIONARY)
    packed = packer.compress(dumps(canonical(request), sort_keys=True).encode()) + packer.flush()
    body = zlib.crc32(packed).to_bytes(4, "big") + packed
    return PREFIX + base64.b32encode(body).decode("ascii").rstrip("=")


def decode_code(code: str) -> dict[str, Any]:
    """The partial request in a share code; white space, line breaks and quote marks around it don't matter.

    Raises UsageError for anything but an undamaged code, and for one that unpacks to more than MAX_DECODED bytes.
    """
    if len(code) > MAX_CODE:
        raise UsageError(f"The share code has {len(code):,} characters; at most {MAX_CODE:,} are read.")
    text = _NOISE.sub("", code)
    found = re.match(r"KT[0-9]+-", text, re.IGNORECASE | re.ASCII)
    if not found:
        raise UsageError(f"{short(code[:40])} is not a share code; one starts with {PREFIX}.")
    if found.group().upper() != PREFIX:
        raise UsageError(
            f"The share code starts with {found.group()[:12]}, but this Kinetile reads {PREFIX}; update it."
        )
    body = _unbase32(text[len(PREFIX) :])
    if len(body) < 5 or zlib.crc32(body[4:]) != int.from_bytes(body[:4], "big"):
        raise UsageError(_DAMAGED)
    value = parse(_inflate(body[4:]), _SOURCE, limit=MAX_DECODED, one_line=True).value
    if not isinstance(value, dict):
        raise UsageError(f"The share code holds {short(value)} instead of a request; ask for a new code.")
    return value


def _unbase32(text: str) -> bytes:
    stray = re.search(r"[^A-Za-z2-7]", text)
    if stray:
        raise UsageError(f"{short(stray.group())} does not belong in a share code; copy it again, whole.")
    text = text.upper()
    try:
        body = base64.b32decode(text + "=" * (-len(text) % 8))
    except binascii.Error as error:
        raise UsageError(_DAMAGED) from error
    # The last character may have bits that no byte uses: a code is read in its one spelling only.
    if base64.b32encode(body).decode("ascii").rstrip("=") != text:
        raise UsageError(_DAMAGED)
    return body


def _inflate(packed: bytes) -> bytes:
    unpacker = zlib.decompressobj(-15, _DICTIONARY)
    try:
        data = unpacker.decompress(packed, MAX_DECODED + 1)
    except zlib.error as error:
        raise UsageError(_DAMAGED) from error
    if len(data) > MAX_DECODED:
        raise UsageError(f"The share code unpacks to more than {MAX_DECODED:,} bytes; it is not read.")
    if not unpacker.eof or unpacker.unused_data:
        raise UsageError(_DAMAGED)
    return data
