"""What can be typed on the command line, and what `--help` says of it."""

import argparse
import difflib
from pathlib import Path
from typing import Any, NoReturn

from app import __version__
from app.errors import UsageError

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


_HELP = "python launch.py --help shows every option"

LAUNCHERS = ("--test", "--long", "--no-install", "--torch-build")
"""Options that app/bootstrap.py takes before this parser sees a word; here they are only something to be meant."""


SAME = {"estimate": "dry-run"}
"""Options that people look for by another word."""
NEAR = 0.75
"""How alike two words are of which one may have been meant for the other, of 1."""


class _Parser(argparse.ArgumentParser):
    """Complains in one sentence of our own instead of with the whole usage."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The options. Raises UsageError for what is none, or lacks its value."""
        try:
            found, unknown = self.parse_known_args(args, namespace)
        except argparse.ArgumentError as error:
            raise UsageError(self._sentence(error)) from None
        if unknown:
            raise UsageError(self._unknown(unknown[0]))
        return found

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message[:1].upper()}{message[1:]}; {_HELP}.")

    def _sentence(self, error: argparse.ArgumentError) -> str:
        """What argparse found wrong with one option: a value too few, a value too many, or two verbs."""
        name = error.argument_name or ""
        other = error.message.rpartition(" ")[2]
        if other in self._option_string_actions:
            return f"{other} and {name} exclude each other: leave one of the two out."
        action = self._option_string_actions.get(name)
        if action is None or action.nargs == 0:
            return f"{name} takes no value: write it alone."
        return f"{name} needs a value, as in {name} {action.metavar}: {action.help}."

    def _unknown(self, word: str) -> str:
        """A word that is no option, with the option that may have been meant."""
        option = word.partition("=")[0]
        if not option.startswith("-"):
            return f"{word} belongs to no option: to make clips of it, write --headless {word}; {_HELP}."
        from app.request import GenerationRequest

        if (key := option.lstrip("-").replace("-", "_")) in GenerationRequest.model_fields:
            return f"There is no option {option}: a clip's settings are changed with --set {key}=VALUE."
        names = [name.lstrip("-") for name in (*self._option_string_actions, *LAUNCHERS)]
        word = option.lstrip("-").lower()
        meant = [SAME[word]] if word in SAME else difflib.get_close_matches(word, names, 1, NEAR)
        if not meant:
            return f"There is no option {option}; {_HELP}."
        return f"There is no option {option}: did you mean --{meant[0]}?"


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    made = _Parser(
        prog="python launch.py",
        usage=_USAGE,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        exit_on_error=False,
    )
    for add in (_add_verbs, _add_changes, _add_places, _add_measuring, _add_page):
        add(made)
    return made


def _add_verbs(made: argparse.ArgumentParser) -> None:
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


def _add_changes(made: argparse.ArgumentParser) -> None:
    request = made.add_argument_group("what to change")
    request.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="assignments",
        help="change a setting, such as steps=12 or seed=random",
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


def _add_places(made: argparse.ArgumentParser) -> None:
    where = made.add_argument_group("where and how")
    where.add_argument(
        "--out", type=_folder, metavar="DIR", help="folder for the clips (default: outputs in the data folder)"
    )
    where.add_argument(
        "--home", metavar="DIR", help="data folder (default: KINETILE_HOME, else your system's place for data)"
    )
    where.add_argument("--resume", action="store_true", help="skip what is made; alone, go on with what is queued")
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


def _add_measuring(made: argparse.ArgumentParser) -> None:
    bench = made.add_argument_group("for --bench and --verify")
    bench.add_argument("--model", metavar="M", help="measure this model (default: the preset's, else the starter)")
    bench.add_argument("--preset", metavar="SOURCE", help="measure the clip of this preset, clip or code")
    bench.add_argument("--quick", action="store_true", help="under a minute for the starter, and less certain")
    bench.add_argument("--quality", action="store_true", help="compare 20 clips per approximate backend, however long")
    bench.add_argument("--plot", type=Path, metavar="FILE", help="draw the speed-ups and errors, as .svg or .png")


def _add_page(made: argparse.ArgumentParser) -> None:
    page = made.add_argument_group("the page, which opens when nothing else is asked for")
    page.add_argument(
        "--port", type=_port, metavar="N", help="port of the page (default: the first free one from 7860)"
    )
    page.add_argument("--open", action="store_true", dest="open_browser", help="open the page in a browser")
    page.add_argument("--listen", action="store_true", help="let other machines connect; needs --auth or --no-auth")
    page.add_argument("--auth", metavar="USER:PASSWORD", help="ask for this user and password")
    page.add_argument("--no-auth", action="store_true", help="with --listen: ask for nothing")


def _count(text: str) -> int:
    from app.request import MAX_COUNT

    return _whole("--count", text, MAX_COUNT, "a whole number of clips")


def _gpus(text: str) -> int:
    from app.request import MAX_GPUS

    return _whole("--gpus", text, MAX_GPUS, "a whole number of GPUs")


def _port(text: str) -> int:
    return _whole("--port", text, 65_535, "a port")


def _whole(option: str, text: str, most: int, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= most):
        raise UsageError(f"{option} {text}: {what} from 1 to {most} is allowed.")
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
