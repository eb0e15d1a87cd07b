"""Messages arrive whole or not at all, and nothing that is no message is believed."""

from __future__ import annotations

import io
import os
import struct
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.worker.wire import MAX_BLOB, MAX_TEXT, Channel, Closed

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def reading(data: bytes) -> Channel:
    return Channel(io.BytesIO(data), io.BytesIO())


@given(st.lists(st.tuples(st.dictionaries(st.text(), JSON, max_size=4), st.binary(max_size=200)), max_size=5))
def test_what_is_sent_arrives(messages: list[tuple[dict[str, Any], bytes]]) -> None:
    sent = io.BytesIO()
    channel = Channel(io.BytesIO(), sent)
    for message, blob in messages:
        channel.send(message, blob)
    other = reading(sent.getvalue())
    assert [other.receive() for _ in messages] == messages
    with pytest.raises(Closed):
        other.receive()


@given(st.binary(max_size=60))
def test_noise_is_no_message(data: bytes) -> None:
    channel = reading(data)
    try:
        while True:
            message, _ = channel.receive()
            assert isinstance(message, dict)
    except Closed:
        pass


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">II", MAX_TEXT + 1, 0),
        struct.pack(">II", 2, MAX_BLOB + 1) + b"{}",
        struct.pack(">II", 2, 0) + b"[]",
        struct.pack(">II", 2, 0) + b"{x",
        struct.pack(">II", 1, 0) + b"\xff",
        struct.pack(">II", 10, 0) + b"{}",
    ],
)
def test_a_bad_frame_ends_the_conversation(data: bytes) -> None:
    with pytest.raises(Closed):
        reading(data).receive()


def test_a_stranger_may_not_say_much() -> None:
    sent = io.BytesIO()
    Channel(io.BytesIO(), sent).send({"x": "y" * 2000})
    with pytest.raises(Closed):
        reading(sent.getvalue()).receive(1024)
    assert reading(sent.getvalue()).receive(4096)


def test_many_threads_may_send() -> None:
    read, write = os.pipe()
    channel = Channel(io.BytesIO(), os.fdopen(write, "wb"))

    def say(i: int) -> None:
        for j in range(50):
            channel.send({"i": i, "j": j}, b"z" * 3000)

    threads = [threading.Thread(target=say, args=(i,)) for i in range(4)]
    other = Channel(os.fdopen(read, "rb"), io.BytesIO())
    for thread in threads:
        thread.start()
    found = [other.receive() for _ in range(200)]
    for thread in threads:
        thread.join()
    for i in range(4):
        assert [message["j"] for message, _ in found if message["i"] == i] == list(range(50))
    assert {blob for _, blob in found} == {b"z" * 3000}


def test_sending_to_nobody_is_the_end() -> None:
    read, write = os.pipe()
    os.close(read)
    with pytest.raises(Closed):
        Channel(io.BytesIO(), os.fdopen(write, "wb")).send({})


@pytest.mark.parametrize("text", [b"[" * 1024, b'{"a":' * 100_000])
def test_a_message_nested_without_end_closes_the_conversation(text: bytes) -> None:
    with pytest.raises(Closed, match="no message"):
        Channel(io.BytesIO(struct.pack(">II", len(text), 0) + text), io.BytesIO()).receive()
