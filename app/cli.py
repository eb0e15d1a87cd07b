"""The command line: arguments to one of the verbs. Imports nothing heavy, so that `--help` answers at once."""

import argparse
import contextlib
import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from app import __version__
from app.environment.handover import stopping
from app.errors import CannotRunError, KinetileError, UsageError

if TYPE_CHECKING:
    from app.request import Assignment

_USAGE = """python launch.py [--headless [SOURCE ...] | --share SOURCE | --models |
                         --fetch MODEL | --doctor | --bench | --verify MODEL] [options]"""

_DESCRIPTION = "Kinetile turns a prompt into a short video, on this machine."

_EPILOG = """\
examples:
  python launch.py
      open the page, at http://127.0.0.1:7860 or the next free port
  python launch.py --headless
      make the first example clip: nothing to download, nothing to set
  python launch.py --headless starter-rocket --set steps=12 --set "prompt=a red ball"
      start from an example and change what you like
  python launch.py --headless presets/starter-rocket.json --count 4 --out clips
      four variations, with seeds one apart
  python launch.py --headless clips/starter-rocket-7.mp4
      every clip carries its own request: make it again
  python launch.py --share clips/starter-rocket-7.mp4
      a short text to send to someone, who gives it to --headless
  python launch.py --models
      which models there are, and how to bring one to this machine (--fetch)
  python launch.py --bench --quick
      how fast and how right every backend is on this machine, in a minute
  python launch.py --verify starter
      one clip with plain PyTorch and one with what is chosen: speed, likeness

A SOURCE is a preset (.json), a batch with one request per line (.jsonl), a clip
made by Kinetile (.mp4), a share code, or the name of an example in presets.

exit codes: 0 all clips made, 1 some failed, 2 bad usage or preset, 3 this
machine can't, 130 stopped with Ctrl-C (once: after the step; twice: at once)
KINETILE_DEBUG=1 in the environment shows where an error came from.
"""


class _Parser(argparse.ArgumentParser):
    """Complains in one sentence instead of with the whole usage."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message[:1].upper()}{message[1:]}: see python launch.py --help.")


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    made = _Parser(
        prog="python launch.py",
        usage=_USAGE,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    verbs = made.add_argument_group("what to do").add_mutually_exclusive_group()
    verbs.add_argument("--headless", nargs="*", metavar="SOURCE", help="make clips; with no SOURCE, the first example")
    verbs.add_argument("--share", metavar="SOURCE", help="print the share code of a preset or clip")
    verbs.add_argument("--models", action="store_true", help="list the models, and what of them is on this machine")
    verbs.add_argument(
        "--fetch", metavar="MODEL", help="bring a model here, or the rest of it: a name, or hf:OWNER/NAME"
    )
    verbs.add_argument("--doctor", action="store_true", help="say what this machine has and what will be used")
    verbs.add_argument("--bench", action="store_true", help="measure this machine: speed, error, share of its peak")
    verbs.add_argument("--verify", metavar="MODEL", help="compare a model's clips: plain PyTorch, and what is chosen")
    verbs.add_argument("--version", action="version", version=f"Kinetile {__version__}")
    request = made.add_argument_group("what to change")
    request.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="assignments",
        help="change a setting, such as steps=12",
    )
    request.add_argument("--image", type=Path, metavar="FILE", help="begin the clip with this picture")
    request.add_argument("--last-image", type=Path, metavar="FILE", help="end it with this one")
    request.add_argument(
        "--lora",
        action="append",
        default=[],
        metavar="NAME[=STRENGTH]",
        help="use this LoRA, such as soft.safetensors=0.6; can be given several times",
    )
    request.add_argument("--count", type=_count, metavar="N", help="clips per request, with seeds one apart")
    request.add_argument("--gpus", type=_gpus, metavar="N", help="make each clip on this many GPUs together")
    request.add_argument("--strict", action="store_true", help="refuse what would have to be adjusted")
    request.add_argument(
        "--accel",
        action="append",
        default=[],
        metavar="KEY=VALUE,...",
        help="choose accelerators, such as attention=sdpa,dtype=float32",
    )
    where = made.add_argument_group("where and how")
    where.add_argument(
        "--out", type=_folder, metavar="DIR", help="folder for the clips (default: outputs in the data folder)"
    )
    where.add_argument(
        "--home", metavar="DIR", help="data folder (default: KINETILE_HOME, else your system's place for data)"
    )
    where.add_argument("--resume", action="store_true", help="skip what is made; with no SOURCE, go on with the queue")
    where.add_argument(
        "--ray",
        type=_ray,
        metavar="ADDRESS",
        help="make the clips on the machines of a Ray cluster (HOST:PORT), or with Ray here (local, local:N engines)",
    )
    where.add_argument("--download", action="store_true", help="fetch the models that are not on this machine first")
    where.add_argument("--fail-fast", action="store_true", help="stop at the first clip that fails")
    where.add_argument("--dry-run", action="store_true", help="check and estimate everything, make nothing")
    where.add_argument(
        "--json",
        nargs="?",
        const=True,
        default=False,
        type=Path,
        metavar="FILE",
        dest="as_json",
        help="print the result as JSON; progress goes to stderr; --bench and --verify can write it into a FILE",
    )
    bench = made.add_argument_group("for --bench and --verify")
    bench.add_argument("--model", metavar="M", help="measure this model (default: the preset's, else the starter)")
    bench.add_argument("--preset", metavar="SOURCE", help="measure the clip of this preset, clip or code")
    bench.add_argument("--quick", action="store_true", help="under a minute for the starter, and less certain")
    bench.add_argument("--quality", action="store_true", help="compare 20 clips per approximate backend, however long")
    bench.add_argument("--plot", type=Path, metavar="FILE", help="draw the speed-ups and errors, as .svg or .png")
    page = made.add_argument_group("the page, which opens when nothing else is asked for")
    page.add_argument("--port", type=int, metavar="N", help="port of the page (default: the first free one from 7860)")
    page.add_argument("--open", action="store_true", dest="open_browser", help="open the page in a browser")
    page.add_argument("--listen", action="store_true", help="let other machines connect; needs --auth or --no-auth")
    page.add_argument("--auth", metavar="USER:PASSWORD", help="ask for this user and password")
    page.add_argument("--no-auth", action="store_true", help="with --listen: ask for nothing")
    return made


def _count(text: str) -> int:
    from app.request import MAX_COUNT

    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MAX_COUNT):
        raise UsageError(f"--count {text}: a whole number of clips from 1 to {MAX_COUNT} is allowed.")
    return int(text)


def _gpus(text: str) -> int:
    from app.request import MAX_GPUS

    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MAX_GPUS):
        raise UsageError(f"--gpus {text}: a whole number of GPUs from 1 to {MAX_GPUS} is allowed.")
    return int(text)


def _ray(text: str) -> str:
    if not text.strip():  # an unset variable of a shell
        raise UsageError("--ray is empty; write local, or a cluster's address as HOST:PORT.")
    return text


def _folder(text: str) -> Path:
    from app.paths import is_text

    if not text.strip():  # an unset variable of a shell
        raise UsageError("--out is empty; name a folder for the clips.")
    if not is_text(text):
        raise UsageError(f"--out {text}: the name holds a byte that is not UTF-8; name another folder.")
    return Path(text)


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
        raise UsageError(f"--json {options.as_json}: a file goes with --bench or --verify; here --json has none.")
    if others := _given(options, _FOR_BENCHES):
        raise UsageError(f"{others} goes with --bench or --verify.")
    if flag := _given(options, _IGNORED_BY.get(verb, ())):
        raise UsageError(f"{flag} goes with --headless, not with {verb}.")
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
    return headless.run_batch(options.headless, settings)


def _page(options: argparse.Namespace) -> int:
    """No verb: the page opens here."""
    from app.paths import home
    from app.ui.server import serve, settings_of

    if flag := _given(options, _FOR_BATCHES):
        raise UsageError(f"{flag} goes with --headless: the page has its own place for that.")
    return serve(
        settings_of(
            home(options.home), options.port, options.open_browser, options.listen, options.auth, options.no_auth
        )
    )


def _verb(options: argparse.Namespace) -> str:
    """What is to be done, as it is written; empty for the page."""
    asked = vars(options)
    verbs = ("headless", "share", "models", "fetch", "doctor", "bench", "verify")
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
        raise UsageError(f"{flag} goes with --headless, not with --bench or --verify.")
    if options.verify is not None and (flag := _given(options, ("model", "quick", "quality", "plot"))):
        raise UsageError(f"{flag} goes with --bench, not with --verify.")
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
    refusal = CannotRunError(f"Something can't be printed or written ({error}): free some space, and start again.")
    refusal.__cause__ = error
    return _complain(refusal, refusal.exit_code)


def _complain(error: BaseException, code: int) -> int:
    from app.console import complain

    with contextlib.suppress(OSError):  # nobody can be told
        complain(error, sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
