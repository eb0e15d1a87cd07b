"""Counts and the sentences made of them."""

from __future__ import annotations

import json
from threading import Thread

from accel.report import Tally, Unreached


def test_summary_names_reasons_most_frequent_first() -> None:
    tally = Tally("transformer", "attention", "sgl_amx")
    assert tally.summary() == "sgl_amx: not called"
    for reason in ("a mask", "head size 40", "a mask"):
        tally.fell_back(reason)
    for _ in range(7):
        tally.served()
    assert tally.summary() == "sgl_amx served 7 of 10 calls, 3 fell back: a mask (2); head size 40 (1)"
    data = json.loads(json.dumps(tally.to_dict()))
    assert (data["calls"], data["served"], data["fallen_back"]) == (10, 7, 3)
    assert data["reasons"] == {"a mask": 2, "head size 40": 1}
    tally.reset()
    assert tally.calls == 0


def test_counting_from_several_threads_loses_nothing() -> None:
    tally = Tally("transformer", "linear", "onednn_bf16")

    def work() -> None:
        for _ in range(5000):
            tally.served()
            tally.fell_back("no rows")

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tally.served_calls, tally.fallen_back) == (20000, 20000)


def test_unreachable_calls_say_how_many() -> None:
    unreached = Unreached("transformer", 30, "X calls PyTorch itself", calls=60)
    assert unreached.summary() == "not reachable, 0 of 60 calls: X calls PyTorch itself"
    unreached.compiled = True
    assert unreached.summary() == "not reachable, 0 of 60 or more calls: X calls PyTorch itself"
    assert json.loads(json.dumps(unreached.to_dict()))["modules"] == 30
