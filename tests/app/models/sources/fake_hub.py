"""A local HTTP server in the place of the hub, with a small model in it, that misbehaves as a test wants.

It answers what huggingface_hub asks for: the model's commit, the listing of its files, and the files with Range.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "c" * 40
INDEX = {
    "_class_name": "WanPipeline",
    "scheduler": ["diffusers", "UniPCMultistepScheduler"],
    "tokenizer": ["transformers", "T5TokenizerFast"],
    "text_encoder": ["transformers", "UMT5EncoderModel"],
    "transformer": ["diffusers", "WanTransformer3DModel"],
    "vae": ["diffusers", "AutoencoderKLWan"],
    "image_encoder": [None, None],
}


def safetensors(numbers: int, value: int = 0) -> bytes:
    """A whole safetensors file with one tensor of that many bytes."""
    table = {"weight": {"dtype": "U8", "shape": [numbers], "data_offsets": [0, numbers]}}
    text = json.dumps(table).encode()
    return struct.pack("<Q", len(text)) + text + bytes([value % 256]) * numbers


def model(size: int = 300_000) -> dict[str, bytes]:
    """A model as hubs hold them: needed files, and much that is not."""
    config = b'{"_class_name": "X"}'
    shards = {f"diffusion_pytorch_model-0000{at}-of-00002.safetensors": safetensors(size, at) for at in (1, 2)}
    listed = {"weight_map": {f"w{at}": name for at, name in enumerate(shards)}}
    return {
        "model_index.json": json.dumps(INDEX).encode(),
        "README.md": b"# A model",
        "wan.safetensors": safetensors(size * 3, 9),
        "assets/clip.mp4": b"a picture",
        "scheduler/scheduler_config.json": config,
        "tokenizer/tokenizer.json": b"{}",
        "tokenizer/spiece.model": b"pieces",
        "text_encoder/config.json": config,
        "text_encoder/model.safetensors": safetensors(size // 2, 3),
        "text_encoder/model.fp16.safetensors": safetensors(size // 4, 4),
        "text_encoder/pytorch_model.bin": b"pickled",
        "transformer/config.json": config,
        "transformer/diffusion_pytorch_model.safetensors.index.json": json.dumps(listed).encode(),
        **{f"transformer/{name}": content for name, content in shards.items()},
        "vae/config.json": config,
        "vae/diffusion_pytorch_model.safetensors": safetensors(size // 3, 5),
    }


NEEDED = sorted(
    name
    for name in model(9)
    if "/" in name and not name.startswith("assets") and not name.endswith(("fp16.safetensors", ".bin"))
) + ["model_index.json"]


@dataclass
class Hub:
    """The server's state; a test changes it at any time.

    files: of the one repository. delay: seconds before each piece of a file. cut: bytes after which the connection to a
    file breaks off, by its name, each once for every number. missing: listed files that are not there. status: code and
    X-Error-Code of every answer. ignores_range: sends files from their beginning whatever is asked for. asked: method,
    path and Range of every request. elsewhere: weights are sent on to another host, as the hub's are; tokens: path and
    Authorization of every request.
    """

    repo: str = "someone/model"
    files: Mapping[str, bytes] = field(default_factory=model)
    delay: float = 0.0
    piece: int = 20_000
    cut: dict[str, list[int]] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)
    spoiled: set[str] = field(default_factory=set)
    status: tuple[int, str] | None = None
    ignores_range: bool = False
    hangs: bool = False
    elsewhere: bool = False
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    tokens: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""

    def gets(self, name: str) -> list[str]:
        """The Range of each request for the content of a file."""
        return [span for method, path, span in self.asked if method == "GET" and path.endswith(f"/{COMMIT}/{name}")]

    @property
    def size(self) -> int:
        """Bytes of the files that the model needs."""
        return sum(len(self.files[name]) for name in NEEDED)

    def listing(self) -> list[dict[str, Any]]:
        """The repository's files as the hub lists them: weights with their checksum, the rest with git's."""
        rows: list[dict[str, Any]] = []
        for name, content in self.files.items():
            row = {"type": "file", "path": name, "size": len(content), "oid": git_sum(content)}
            if name.endswith((".safetensors", ".bin", ".mp4")):
                sha256 = hashlib.sha256(content).hexdigest()
                row["lfs"] = {"oid": sha256, "size": len(content), "pointerSize": 134}
            rows.append(row)
        folders = {name.rpartition("/")[0] for name in self.files if "/" in name}
        return [{"type": "directory", "path": folder, "oid": "d" * 40, "size": 0} for folder in folders] + rows


def git_sum(content: bytes) -> str:
    """What git calls a file of this content."""
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        hub, path = self.hub, self.path.partition("?")[0]
        hub.asked.append((self.command, path, self.headers.get("Range", "")))
        hub.tokens.append((path, self.headers.get("Authorization", "")))
        while hub.hangs:
            time.sleep(0.05)
        if hub.status is not None:
            self.send(hub.status[0], b"", {"X-Error-Code": hub.status[1]})
        elif path in (f"/api/models/{hub.repo}", f"/api/models/{hub.repo}/revision/{COMMIT}"):
            self.json({"id": hub.repo, "sha": COMMIT, "siblings": []})
        elif path == f"/api/models/{hub.repo}/tree/{COMMIT}":
            self.json(hub.listing())
        elif match := re.fullmatch(f"/{hub.repo}/resolve/{COMMIT}/(.+)", path):
            if hub.elsewhere and match[1].endswith(".safetensors"):
                host = hub.url.replace("127.0.0.1", "localhost")
                self.send(302, b"", {"Location": f"{host}/elsewhere/{COMMIT}/{match[1]}"})
            else:
                self.file(match[1])
        elif path.startswith(f"/elsewhere/{COMMIT}/"):
            self.file(path.removeprefix(f"/elsewhere/{COMMIT}/"))
        else:
            self.send(404, b"", {"X-Error-Code": "RepoNotFound"})

    def json(self, value: object) -> None:
        self.send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def file(self, name: str) -> None:
        hub = self.hub
        if name not in hub.files or name in hub.missing:
            self.send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        content = hub.files[name]
        tag = hashlib.sha256(content).hexdigest() if name.endswith(".safetensors") else git_sum(content)
        if name in hub.spoiled:
            content = content[:-1] + bytes([content[-1] ^ 1])
        begin = 0
        if (span := self.headers.get("Range")) and not hub.ignores_range:
            begin = int(span.removeprefix("bytes=").partition("-")[0])
        headers = {"ETag": f'"{tag}"', "X-Repo-Commit": COMMIT}
        if begin:
            headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        self.send(206 if begin else 200, content[begin:], headers, hub.cut.get(name))

    def send(self, code: int, content: bytes, headers: Mapping[str, str], cut: list[int] | None = None) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "HEAD":
            return
        end = len(content)
        if cut:
            end = min(end, cut.pop(0))
        try:
            for at in range(0, end, self.hub.piece):
                time.sleep(self.hub.delay)
                self.wfile.write(content[at : min(end, at + self.hub.piece)])
            self.wfile.flush()
        except OSError:  # whoever asked is gone
            pass
        if end < len(content):
            self.close_connection = True
            self.connection.close()

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """The hub at `hub.url` while entered."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield hub
    finally:
        hub.hangs = False
        server.shutdown()
        server.server_close()
