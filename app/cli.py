"""The command line: arguments to one of the verbs. Imports nothing heavy, so that `--help` answers at once."""

import argparse
import contextlib
import errno
import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from app.arguments import parser
from app.environment.handover import stopping
from app.errors import CannotRunError, KinetileError, UsageError

if TYPE_CHECKING:
    from app.request import Assignment


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return the exit code. Errors that are a person's to know come as one sentence on
    stderr.
    """
    for stream in (sys.stdout, sys.stderr):
        # A log or terminal that can't hold a character of a prompt (a Windows log is cp1252) shows its escape.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with stopping():
            return _dispatch(parser().parse_args(argv))
    except KinetileError as error:
        return _complain(error, error.exit_code)
    except KeyboardInterrupt:
        return _complain(KeyboardInterrupt("Stopped."), 130)
    except OSError as error:
        return _refused(error)


def _dispatch(options: argparse.Namespace) -> int:
    verb = _verb(options)
    if verb and (flag := _given(options, _FOR_PAGE)):
        raise UsageError(f"{flag} is for the page, which does not open with {verb}: leave one of the two out.")
    if verb in ("--bench", "--verify"):
        return _bench(options)
    if isinstance(options.as_json, Path):
        raise UsageError(f"--json {options.as_json}: only --bench and --verify write a file; leave its name out.")
    if others := _given(options, _FOR_BENCHES):
        raise UsageError(f"{others} works only with --bench or --verify: leave it out.")
    if flag := _given(options, _IGNORED_BY.get(verb, ())):
        raise UsageError(f"{flag} works only with --headless, not with {verb}: leave it out.")
    if options.resume and not options.headless and (flag := _given(options, _CHANGES)):
        raise UsageError(
            f"{flag} changes nothing of what is queued already, which --resume without a SOURCE goes on with: leave it "
            "out, or name the SOURCE."
        )
    if verb == "--doctor":
        return _doctor(options)
    if verb in ("--models", "--fetch"):
        return _catalogue(options)
    if not verb:
        return _page(options)
    from app import headless
    from app.paths import home

    settings = headless.BatchSettings(
        assignments=_assignments(options),
        count=options.count,
        out=options.out,
        strict=options.strict,
        dry_run=options.dry_run,
        resume=options.resume,
        fail_fast=options.fail_fast,
        as_json=options.as_json,
        download=options.download,
        ray="" if options.ray is None else options.ray,
        pictures={name: path for name in ("image", "last_image") if (path := vars(options)[name]) is not None},
        home=home(options.home),
    )
    if options.share is not None:
        return headless.share(options.share, settings)
    return headless.run_batch(options.headless or (), settings)


def _page(options: argparse.Namespace) -> int:
    """No verb: the page opens here."""
    from app.paths import home
    from app.ui.server import serve, settings_of

    if flag := _given(options, _FOR_BATCHES):
        raise UsageError(f"{flag} works only with --headless: add that, or leave {flag} out and set it on the page.")
    return serve(
        settings_of(
            home(options.home), options.port, options.open_browser, options.listen, options.auth, options.no_auth
        )
    )


def _verb(options: argparse.Namespace) -> str:
    """What is to be done, as it is written; empty for the page. --resume alone goes on with the queue."""
    asked = vars(options)
    verbs = ("headless", "share", "models", "fetch", "doctor", "bench", "verify", "resume")
    return next((f"--{name}" for name in verbs if asked[name] not in (None, False)), "")


def _given(options: argparse.Namespace, names: Sequence[str]) -> str:
    """The first of these options that was given, as it is written; empty when none was."""
    asked = vars(options)
    name = next((name for name in names if not (asked[name] is None or asked[name] is False or asked[name] == [])), "")
    return _WRITTEN.get(name) or (name and f"--{name.replace('_', '-')}")


def _bench(options: argparse.Namespace) -> int:
    from app.bench import BenchSettings, run_bench
    from app.paths import home

    if flag := _given(options, _NOT_MEASURED):
        raise UsageError(f"{flag} works only with --headless, not with --bench or --verify: leave it out.")
    if options.verify is not None and (flag := _given(options, ("model", "quick", "quality", "plot"))):
        raise UsageError(f"{flag} works only with --bench, not with --verify: leave it out.")
    return run_bench(
        BenchSettings(
            home(options.home),
            options.model if options.verify is None else options.verify,
            options.preset,
            tuple(options.assignments),
            quick=options.quick,
            quality=True if options.quality else None,
            json=options.as_json,
            plot=options.plot,
            verify=options.verify is not None,
        )
    )


_BATCH_ONLY = ("image", "last_image", "count", "strict", "out", "resume", "ray", "download", "fail_fast", "dry_run")
_NOT_MEASURED = (*_BATCH_ONLY, "accel", "lora", "gpus")
_CHANGES = ("assignments", "image", "last_image", "count", "accel", "lora", "gpus", "strict", "out", "download")
"""What a request and its place are given when it is put into the queue."""
_FOR_BENCHES = ("model", "preset", "quick", "quality", "plot")
_FOR_BATCHES = ("assignments", *_NOT_MEASURED, "as_json")
_FOR_PAGE = ("port", "open_browser", "listen", "auth", "no_auth")
_IGNORED_BY = {
    "--share": (*_BATCH_ONLY, "as_json"),
    "--models": ("assignments", *_NOT_MEASURED),
    "--fetch": ("assignments", *_NOT_MEASURED),
    "--doctor": ("assignments", "lora", "gpus", *_BATCH_ONLY),
}
_WRITTEN = {"assignments": "--set", "as_json": "--json", "open_browser": "--open"}


def _catalogue(options: argparse.Namespace) -> int:
    from app import catalogue

    if options.fetch is None:
        return catalogue.list_models(options.as_json)
    return catalogue.run_fetch(options.fetch, options.as_json)


def _doctor(options: argparse.Namespace) -> int:
    from accel import AccelError, Preferences, doctor
    from app.engine import acceleration
    from app.models.starter import STARTER
    from app.paths import home

    wishes = dict(item.removeprefix("accel.").split("=", 1) for item in _accel_assignments(options.accel))
    try:
        data = home(options.home)
        try:
            traits = acceleration.as_shipped(STARTER, data)
        except CannotRunError:  # whatever is missing is what the doctor is there to tell
            traits = doctor.TYPICAL
        return doctor.main(
            as_json=options.as_json,
            traits=traits,
            preferences=Preferences(**wishes),
            results=acceleration.results_in(data.cache),
            model=STARTER.name,
        )
    except TypeError as error:
        raise UsageError(f"--accel {','.join(options.accel)}: there is no such setting ({error}).") from error
    except AccelError as error:
        raise CannotRunError(f"{error}.") from error


def _accel_assignments(groups: Sequence[str]) -> list[str]:
    """`attention=sdpa,linear=stock` as assignments to the request's accel section."""
    parts = [part.strip() for group in groups for part in group.split(",") if part.strip()]
    for part in parts:
        if "=" not in part:
            raise UsageError(
                f"--accel {part}: KEY=VALUE was expected, for example --accel attention=sdpa,dtype=float32."
            )
    return [f"accel.{part}" for part in parts]


def _assignments(options: argparse.Namespace) -> "tuple[Assignment, ...]":
    """What --set and the options that stand for one set in every request."""
    from app.request import Assignment

    accel = [Assignment(text, f"--accel {text.removeprefix('accel.')}") for text in _accel_assignments(options.accel)]
    loras = [Assignment(text, " ".join(f"--lora {one}" for one in options.lora)) for text in _loras(options.lora)]
    gpus = [] if options.gpus is None else [Assignment(f"accel.gpus={options.gpus}", f"--gpus {options.gpus}")]
    return (*map(Assignment, options.assignments), *accel, *loras, *gpus)


def _loras(given: Sequence[str]) -> list[str]:
    """`soft.safetensors=0.6` as an assignment to the request's list of LoRAs, which it replaces."""
    found = []
    for text in given:
        name, _, strength = text.rpartition("=")
        try:
            found.append({"name": name, "weight": float(strength)} if name else {"name": text})
        except ValueError:  # an = of the name's own
            found.append({"name": text})
    return [f"loras={json.dumps(found)}"] if found else []


def _refused(error: OSError) -> int:
    """The system refused something that nobody foresaw: our own output, as a rule."""
    try:
        sys.stdout.flush()
    except OSError:  # keep Python from complaining about it once more on its way out
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):  # whoever read it has seen enough
        return 1
    full = errno.errorcode.get(error.errno or 0) in ("ENOSPC", "EDQUOT")
    fix = "free some space" if full else "let this user read and write there, or name another place"
    refusal = CannotRunError(f"Something can't be printed or written ({error}): {fix}, and start again.")
    refusal.__cause__ = error
    return _complain(refusal, refusal.exit_code)


def _complain(error: BaseException, code: int) -> int:
    from app.console import complain

    with contextlib.suppress(OSError):  # nobody can be told
        complain(error, sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
