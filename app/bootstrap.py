"""Behind launch.py: finds or makes an environment that holds what pyproject.toml lists, then runs Kinetile in it.

Standard library only. This file parses on every Python since 2.7 (hence type comments and ``%``), so that an old one
is refused in one sentence; what it imports from app/environment is read after that check.

Which interpreter runs Kinetile, in this order:

1. the one that runs this, if it has all that is listed, and is an active venv or conda environment or no ``.venv`` is
   ready;
2. ``.venv`` beside launch.py, when its stamp holds (a few small files are read: milliseconds);
3. ``.venv``, made, repaired or completed under a lock; not with ``--no-install``.

Exit codes: 0 all done, 1 some failed, 2 bad usage, 3 cannot run here, 130 interrupted.
"""

import os
import sys

from app import OLDEST

MYPY = False  # type checkers take it for true; Python 2 has no typing
if MYPY:
    from typing import Any, List, Optional, Sequence, Tuple  # noqa: F401

    from app.environment.venv import Venv  # noqa: F401

CANNOT_RUN = 3
INTERRUPTED = 130
# Set for the process that was handed over to: it must not look for an environment again.
HANDED_OVER = "KINETILE_HANDED_OVER"
# A process a core, each with whole files, since a file's tests may share a page or a server. Such a process takes about
# 1 GiB, hence no more than four.
PARALLEL = ["-n", "logical", "--maxprocesses", "4", "--dist", "loadfile"]
# pytest's exit codes as ours: 2 is an error while collecting (or Ctrl-C, told apart), 3 internal, 4 usage, 5 no test.
PYTEST_CODES = {0: 0, 1: 1, 2: 1, 3: 1, 4: 2, 5: 1}

SHORT_HELP = """usage: python launch.py [--headless [SOURCE ...] | --share SOURCE | --models |
                         --fetch MODEL | --doctor | --bench | --verify MODEL] [options]

Kinetile turns a prompt into a short video, on this machine.

  (no argument)         open the page
  --headless [SOURCE]   make clips without the page: presets, JSONL, MP4s, share
                        codes; with no SOURCE, the first example
  --share SOURCE        print the share code of a preset or clip
  --models              list the models, and where each lies or how to get it
  --fetch MODEL         fetch a model's weights
  --doctor              say what this machine has and what will be used
  --bench               measure this machine: speed, error, share of its peak
  --verify MODEL        compare a model's clips: plain PyTorch, and what is chosen

Once the first start has installed what is needed, --help shows every option.
"""
LAUNCHER_HELP = """
the launcher itself:
  --test [PYTEST ...]   install the test tools too and run the test suite, in the
                        clone's folder; --long adds the slow tests
  --no-install          never install: use an environment that is ready, or say
                        what it lacks
  --torch-build NAME    instead of the torch build that fits this machine:
                        %s
The first start makes .venv beside launch.py and installs there what
pyproject.toml lists: about 2 GB on a machine without a GPU.
"""


class Options(object):
    """The launcher's own options; all others go through untouched."""

    def __init__(self):
        # type: () -> None
        self.install = True
        self.torch_build = "auto"
        self.test = False
        self.long = False
        self.help = False


def main(argv, root=None):
    # type: (Sequence[str], Optional[str]) -> int
    """Run the launcher with the arguments after its name; returns the exit code. ``root`` is the clone's folder."""
    refusal = too_old(sys.version_info[:3])
    if refusal:
        say(refusal)
        return CANNOT_RUN
    from app.environment.handover import stopping
    from app.errors import KinetileError

    try:
        with stopping():
            options, rest = split_options(argv)
            return launch(options, rest, root or os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
    except KinetileError as error:
        say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        say("stopped.")
        return INTERRUPTED


def say(text):
    # type: (str) -> None
    """One line for a person, on stderr: stdout belongs to what is asked for."""
    sys.stderr.write("kinetile: %s\n" % text)
    sys.stderr.flush()


def too_old(version):
    # type: (Tuple[int, ...]) -> str
    """The sentence that refuses a Python, or nothing."""
    if tuple(version[:2]) >= OLDEST:
        return ""
    seen = ".".join(str(number) for number in version)
    return (
        "this is Python %s and Kinetile needs 3.11 or newer; install one (python.org, your system's packages, conda) "
        "and start again with it, for example `python3.11 launch.py`." % seen
    )


def split_options(argv):
    # type: (Sequence[str]) -> Tuple[Options, List[str]]
    """Take out the launcher's own options; all after ``--`` stays. UsageError for --torch-build without a name."""
    from app.errors import UsageError

    options, rest = Options(), []  # type: Tuple[Options, List[str]]
    words = list(argv)
    options.test = "--test" in words
    while words:
        word = words.pop(0)
        if word == "--":
            return options, rest + [word] + words
        if word == "--no-install":
            options.install = False
        elif word == "--torch-build":
            if not words or words[0].startswith("-"):
                raise UsageError("--torch-build needs a name, for example --torch-build cpu; --help lists them.")
            options.torch_build = words.pop(0)
        elif word.startswith("--torch-build="):
            options.torch_build = word.split("=", 1)[1]
        elif word == "--long" and options.test:
            options.long = True
        elif word != "--test":
            options.help = options.help or word in ("-h", "--help")
            rest.append(word)
    return options, rest


def launch(options, rest, root):
    # type: (Options, List[str], str) -> int
    """Find the interpreter, then run Kinetile or the tests with it."""
    if os.environ.pop(HANDED_OVER, None) == root:
        from app.environment.handover import end_with_parent

        end_with_parent()
        return run_here(rest)
    if options.help:
        return show_help(options, rest)
    try:
        python = find_python(options, root)
    except OSError as error:
        say(
            "the environment in %s can't be made ready (%s); make room there or the folder writable, and start again."
            % (os.path.join(root, ".venv"), error)
        )
        return CANNOT_RUN
    if options.test:
        return run_tests(python, options, rest, root)
    if python == sys.executable:
        return run_here(rest)
    from app.environment.handover import child_environment, run_child

    command = [python, os.path.join(root, "launch.py")] + rest
    code, interrupted = run_child(command, env=child_environment({HANDED_OVER: root}))
    return INTERRUPTED if interrupted and code != 0 else code


def run_here(rest):
    # type: (List[str]) -> int
    """Kinetile itself, in this process."""
    from app import cli

    return cli.main(rest)


def run_tests(python, options, rest, root):
    # type: (str, Options, List[str], str) -> int
    """The test suite, in the clone's folder; pytest's exit code as one of ours."""
    from pathlib import Path

    from app.environment.handover import run_child

    selection = ["-m", "long or not long"] if options.long else []
    code, interrupted = run_child([python, "-m", "pytest"] + PARALLEL + selection + rest, cwd=Path(root))
    return INTERRUPTED if interrupted else PYTEST_CODES.get(code, code)


def show_help(options, rest):
    # type: (Options, List[str]) -> int
    """Kinetile's help, or what can be told before it is installed, then the launcher's own; installs nothing."""
    from app.environment.builds import load_table

    try:
        run_here(rest if not options.test else ["--help"])
    except SystemExit:
        pass  # how argparse ends after its help
    except ImportError:
        sys.stdout.write(SHORT_HELP)
    sys.stdout.write(LAUNCHER_HELP % ", ".join(["auto"] + [build.name for build in load_table().builds]))
    return 0


def find_python(options, root):
    # type: (Options, str) -> str
    """The interpreter to run with, after installing what is missing; raises CannotRunError when there is none."""
    from app.environment.venv import Venv

    extras = ("test",) if options.test else ()
    venv = Venv(_path(root))
    stamp = venv.stamp(extras)
    if not venv.is_running() and (in_environment() or not stamp):
        from app.environment.packages import read_lists, running_lacks  # 25 ms that most later starts save

        if not running_lacks(read_lists(venv.root / "pyproject.toml").needed(extras)):
            mention_gpu(sys.path, options.torch_build)
            return sys.executable
    if not stamp:
        return prepare(venv, options, extras)
    sites = [path for lib in ("lib/python*", "Lib") for path in venv.folder.glob(lib + "/site-packages")]
    mention_gpu(sites, stamp.chosen, venv.folder)
    mention_other_build(options, stamp)
    return sys.executable if venv.is_running() else str(venv.python)


def prepare(venv, options, extras):
    # type: (Venv, Options, Tuple[str, ...]) -> str
    """Make ``.venv`` whole under the lock and stamp it; with --no-install only see whether it is."""
    from time import monotonic

    from app.environment.builds import choose_build, load_table
    from app.environment.install import Installer
    from app.environment.machine import read_host
    from app.environment.packages import read_lists, remove_unfinished
    from app.environment.pip import RealPip
    from app.environment.venv import Stamp, fingerprint, locked

    lists, table = read_lists(venv.root / "pyproject.toml"), load_table()
    if not options.install:
        return ready_or_refuse(venv, lists.needed(extras))
    host, started = read_host(), monotonic()
    choice = choose_build(host, table, options.torch_build)  # before the folder is made: the name may be wrong
    with locked(venv.root, say) as lock:
        if venv.stamp(extras):  # made by the start that was waited for
            return str(venv.python)
        extras = tuple(sorted(set(extras) | (set(venv.former_extras()) & set(lists.extras))))
        facts = venv.make(say)
        for name in remove_unfinished(facts.site):
            say("%s was left half-installed; installing it again" % name)
        for note in host.notes:
            say(note)
        pip = RealPip(venv.python, venv.folder, keep_open=[lock])
        filled = Installer(facts.site, lists, table, host, pip, say).fill(choice, extras)
        for note in filled.notes:
            say(note)
        venv.write_stamp(
            Stamp(fingerprint(venv.root), venv.seal(), extras, choice.build.name, options.torch_build, filled.torch)
        )
    say("the environment is ready: torch %s, %.0f s" % (filled.torch, monotonic() - started))
    return str(venv.python)


def ready_or_refuse(venv, needed):
    # type: (Venv, Sequence[Any]) -> str
    """``.venv``'s Python if it is whole although no stamp says so; raises CannotRunError naming what is missing."""
    from app.environment.packages import installed, lacking
    from app.errors import CannotRunError

    facts = venv.look() if venv.python.exists() else None
    missing = lacking(needed, installed([str(facts.site)])) if facts else []
    if facts and not missing:
        return str(venv.python)
    where = str(venv.folder) if facts else "%s (there is no .venv)" % sys.executable
    names = ", ".join(missing or lacking(needed, installed(sys.path)))
    raise CannotRunError(
        "%s lacks %s; start again without --no-install, or install that there yourself." % (where, names)
    )


def in_environment():
    # type: () -> bool
    """Whether a person chose this interpreter by activating a venv or a conda environment."""
    if sys.prefix != sys.base_prefix:
        return True
    conda = os.environ.get("CONDA_PREFIX")
    return conda is not None and os.path.realpath(conda) == os.path.realpath(sys.prefix)


def mention_gpu(sites, chosen, venv=None):
    # type: (Sequence[Any], str, Any) -> None
    """Say so when the torch of an environment can't use the GPU that is here, however either came, with the fix."""
    from app.environment.mismatch import unused_gpu

    sentence = unused_gpu([_path(site) for site in sites], chosen, venv)
    if sentence:
        say(sentence)


def mention_other_build(options, stamp):
    # type: (Options, Any) -> None
    """An installed torch is never replaced: say how to get the build that was asked for now."""
    if options.torch_build not in ("auto", stamp.build):
        say(
            ".venv holds torch %s (build %s) and it stays; to get %s, delete .venv and start again."
            % (stamp.torch, stamp.build, options.torch_build)
        )


def _path(root):
    # type: (str) -> Any
    from pathlib import Path

    return Path(root)
