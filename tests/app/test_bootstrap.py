"""The launcher's decisions with stand-ins, and its whole way with the real pip and wheels of a few hundred bytes."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from app import bootstrap
from app.arguments import parser
from app.environment import machine
from app.environment.venv import Stamp, Venv, fingerprint
from app.errors import CannotRunError, UsageError
from tests.app.environment.stand_ins import CPU_TORCH, CUDA_TORCH, unpack
from tests.app.fake_clone import FakeClone

Installed = tuple[FakeClone, list[tuple[int, str, str]]]
posix = pytest.mark.skipif(os.name == "nt", reason="signals as POSIX has them")


@pytest.mark.parametrize("version", [(2, 7, 18), (3, 4, 0), (3, 10, 13)])
def test_an_old_python_is_refused_in_one_sentence(version: tuple[int, ...]) -> None:
    refusal = bootstrap.too_old(version)
    assert f"this is Python {'.'.join(map(str, version))} and Kinetile needs 3.11 or newer" in refusal
    assert "\n" not in refusal


@pytest.mark.parametrize("version", [(3, 11, 0), (3, 14, 2), (4, 0, 0)])
def test_a_new_python_is_welcome(version: tuple[int, ...]) -> None:
    assert bootstrap.too_old(version) == ""


def test_an_old_python_gets_exit_code_3(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 1, "final", 0))
    assert bootstrap.main(["--headless"]) == 3
    assert capsys.readouterr().err.startswith("kinetile: this is Python 3.9.1")


def test_a_disk_that_refuses_is_one_sentence(
    clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device", str(clone / ".venv/kinetile.json"))

    monkeypatch.setattr(bootstrap, "prepare", full)
    assert bootstrap.main(["--headless"], str(clone)) == 3
    told = capsys.readouterr().err
    assert f"kinetile: the environment in {clone / '.venv'} can't be made ready" in told
    assert "No space left on device" in told
    assert len(told.splitlines()) == 1


def test_what_runs_in_the_environment_tells_its_own_trouble(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> int:
        raise OSError("a mistake of ours")

    monkeypatch.setattr(bootstrap, "find_python", lambda *_: sys.executable)
    monkeypatch.setattr(bootstrap, "run_here", broken)
    with pytest.raises(OSError, match="a mistake of ours"):
        bootstrap.main(["--headless"], str(clone))


def test_the_short_help_names_every_verb() -> None:
    verbs = [
        option
        for group in parser()._mutually_exclusive_groups
        for action in group._group_actions
        for option in action.option_strings
        if option != "--version"
    ]
    assert len(verbs) == 7
    assert all(f"\n  {verb} " in bootstrap.SHORT_HELP for verb in verbs)


def split(*words: str) -> tuple[bool, str, bool, bool, bool, list[str]]:
    options, rest = bootstrap.split_options(words)
    return options.install, options.torch_build, options.test, options.long, options.help, rest


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("", (True, "auto", False, False, False, [])),
        (
            "--headless a.json --set steps=3",
            (True, "auto", False, False, False, ["--headless", "a.json", "--set", "steps=3"]),
        ),
        ("--no-install --headless", (False, "auto", False, False, False, ["--headless"])),
        ("--headless --torch-build cpu x", (True, "cpu", False, False, False, ["--headless", "x"])),
        ("--torch-build=cuda", (True, "cuda", False, False, False, [])),
        ("--test -k seed --long", (True, "auto", True, True, False, ["-k", "seed"])),
        ("--long", (True, "auto", False, False, False, ["--long"])),
        ("--headless -h", (True, "auto", False, False, True, ["--headless", "-h"])),
        ("--headless -- --no-install", (True, "auto", False, False, False, ["--headless", "--", "--no-install"])),
    ],
)
def test_only_the_launchers_own_options_are_taken_out(words: str, parts: tuple[object, ...]) -> None:
    assert split(*words.split()) == parts


@pytest.mark.parametrize("words", [["--torch-build"], ["--torch-build", "--headless"]])
def test_a_build_without_a_name_is_bad_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="--torch-build needs a name"):
        bootstrap.split_options(words)
    assert bootstrap.main(words) == 2
    assert "for example --torch-build cpu" in capsys.readouterr().err


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder that looks like a clone, to decide on; its lists ask for what no interpreter has."""
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").write_text("", encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["no-such-thing>=1"]\n', encoding="utf-8")
    return tmp_path


def stamp(clone: Path, build: str = "cpu", chosen: str = "auto") -> Venv:
    venv = Venv(clone)
    venv.python.parent.mkdir(exist_ok=True)
    venv.python.write_text("", encoding="utf-8")
    venv.write_stamp(Stamp(fingerprint(clone), venv.seal(), (), build, chosen, "2.13.0+cpu"))
    return venv


def lists(clone: Path, *lines: str) -> None:
    (clone / "pyproject.toml").write_text(f"[project]\ndependencies = {json.dumps(lines)}\n", encoding="utf-8")


def find(clone: Path, *words: str) -> str:
    return bootstrap.find_python(bootstrap.split_options(words)[0], str(clone))


def test_a_stamped_environment_is_used(clone: Path) -> None:
    venv = stamp(clone)
    assert find(clone) == str(venv.python)


def test_an_interpreter_that_has_everything_is_used_and_no_venv_made(clone: Path) -> None:
    shutil.rmtree(clone / ".venv")
    lists(clone, "pytest>=1", "hypothesis>=1")
    assert find(clone) == find(clone, "--no-install") == sys.executable
    assert not (clone / ".venv").exists()


def test_an_active_environment_goes_before_a_stamped_one(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lists(clone, "pytest>=1")
    venv = stamp(clone)
    monkeypatch.setattr(bootstrap, "in_environment", lambda: True)
    assert find(clone) == sys.executable
    monkeypatch.setattr(bootstrap, "in_environment", lambda: False)
    assert find(clone) == str(venv.python)


def test_an_active_environment_that_lacks_something_is_left_alone(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv = stamp(clone)
    monkeypatch.setattr(bootstrap, "in_environment", lambda: True)
    assert find(clone) == str(venv.python)


def test_inside_a_stamped_venv_nothing_is_started(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stamp(clone)
    monkeypatch.setattr(sys, "prefix", str(clone / ".venv"))
    assert find(clone) == sys.executable


def test_conda_counts_as_an_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    assert not bootstrap.in_environment()
    monkeypatch.setenv("CONDA_PREFIX", sys.prefix)
    assert bootstrap.in_environment()
    monkeypatch.setenv("CONDA_PREFIX", "/another")
    assert not bootstrap.in_environment()
    monkeypatch.setattr(sys, "base_prefix", "/another")
    assert bootstrap.in_environment()


def test_no_install_names_all_that_is_missing(clone: Path) -> None:
    shutil.rmtree(clone / ".venv")
    lists(clone, "no-such-thing>=1", "pytest>=1", "nor-this<2")
    with pytest.raises(CannotRunError, match=r"there is no .venv\) lacks no-such-thing>=1, nor-this<2; start again"):
        find(clone, "--no-install")
    assert not (clone / ".venv").exists()


def test_a_wrong_build_is_refused_before_anything_is_made(clone: Path) -> None:
    shutil.rmtree(clone / ".venv")
    with pytest.raises(UsageError, match="'cudda' is not known"):
        find(clone, "--torch-build", "cudda")
    assert not (clone / ".venv").exists()


def gpu_here(monkeypatch: pytest.MonkeyPatch, driver: tuple[int, ...] = (580, 95)) -> None:
    """An NVIDIA GPU in this machine."""
    host = machine.Host("Linux", "x86_64", (machine.Gpu("nvidia", "NVIDIA L4", "8.9"),), driver)
    monkeypatch.setattr(machine, "gpu_in_sight", lambda: "nvidia")
    monkeypatch.setattr(machine, "read_host", lambda: host)


def test_a_torch_that_can_not_use_the_gpu_is_mentioned_at_each_start(
    clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Case 48: whether the GPU came later or an upgrade brought the CPU's torch; with the exact command."""
    gpu_here(monkeypatch)
    site = clone / ".venv/lib/python3.11/site-packages"
    told = f"torch 2.13.0+cpu is a build for the CPU; to use it, delete {clone / '.venv'} and start again: python"
    for build, chosen, template, says in (
        ("cpu", "auto", CPU_TORCH, True),
        ("cuda", "auto", CPU_TORCH, True),
        ("cpu", "cpu", CPU_TORCH, False),  # one who asked for that build is not told
        ("cuda", "auto", CUDA_TORCH, False),
    ):
        unpack(site, "torch", "2.13.0+cpu", {"torch/version.py": template.format(version="2.13.0+cpu")})
        stamp(clone, build, chosen)
        find(clone)
        said = capsys.readouterr().err
        assert (told in said) == bool(said) == says, (build, chosen)
        assert ("launch.py --torch-build cuda" in said) == says


def test_a_torch_of_ones_own_environment_is_mentioned_too(
    clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Case 48: an environment that a person made is told of with pip's command for that very interpreter."""
    lists(clone, "pytest>=1")
    monkeypatch.setattr(bootstrap, "in_environment", lambda: True)
    unpack(clone / "own", "torch", "2.13.0+cpu", {"torch/version.py": CPU_TORCH.format(version="2.13.0+cpu")})
    monkeypatch.setattr(sys, "path", [str(clone / "own"), *sys.path])
    gpu_here(monkeypatch)
    assert find(clone) == sys.executable
    command = f'"{sys.executable}" -m pip install --force-reinstall torch==2.13.0+cu130 --index-url https://'
    assert command in capsys.readouterr().err
    gpu_here(monkeypatch, driver=(390, 0))
    assert find(clone) == find(clone, "--torch-build", "cpu") == sys.executable
    assert capsys.readouterr().err == "", "no build fits that driver, so there is nothing to do"


def test_another_build_does_not_replace_an_installed_one(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    venv = stamp(clone)
    assert find(clone, "--torch-build", "cuda") == str(venv.python)
    assert "holds torch 2.13.0+cpu (build cpu) and it stays; to get cuda, delete .venv" in capsys.readouterr().err


def test_control_c_before_the_handover(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(bootstrap, "find_python", interrupt)
    assert bootstrap.main([]) == 130
    assert capsys.readouterr().err == "kinetile: stopped.\n"


# --- the whole way -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """A clone after two first starts at the same moment, and what these two gave."""
    made = FakeClone(tmp_path_factory.mktemp("door"))
    made.add_tiny()
    starts = [made.start("--headless", "größer als eins.json", "--exit", code) for code in ("0", "1")]
    outputs = [start.communicate(timeout=120) for start in starts]
    return made, [(start.returncode, *output) for start, output in zip(starts, outputs, strict=True)]


def test_two_first_starts_at_once_install_once(installed: Installed) -> None:
    clone, starts = installed
    assert [code for code, _, _ in starts] == [0, 1], starts
    assert sorted("[1/3]" in err for _, _, err in starts) == [False, True]
    for (_, out, _), code in zip(starts, "01", strict=True):
        seen = json.loads(out)
        assert seen["argv"] == ["--headless", "größer als eins.json", "--exit", code]
        assert seen["cwd"] == str(clone.elsewhere)
        assert Path(seen["prefix"]) == clone.venv
        assert bootstrap.HANDED_OVER not in seen["env"]


def test_the_second_start_is_quiet(installed: Installed) -> None:
    code, out, err = installed[0].run("--exit", "3")
    assert (code, err) == (3, "")
    assert json.loads(out)["argv"] == ["--exit", "3"]


def test_started_with_the_environments_own_python(installed: Installed) -> None:
    clone, _ = installed
    code, out, err = clone.run(python=Venv(clone.root).python)
    assert (code, err) == (0, "")
    assert Path(json.loads(out)["prefix"]) == clone.venv


def test_tests_run_with_their_tools_in_the_clones_folder(
    installed: Installed,
) -> None:
    clone, _ = installed
    for words, argv, code in [
        (["-k", "seed"], ["-k", "seed"], 0),
        (["--long", "-x"], ["-m", "long or not long", "-x"], 0),
        (["1"], ["1"], 1),
        (["4"], ["4"], 2),
        (["5"], ["5"], 1),
    ]:
        got, out, err = clone.run("--test", *words)
        seen = json.loads(out)
        assert (got, seen["argv"], seen["cwd"]) == (code, [*bootstrap.PARALLEL, *argv], str(clone.root)), err
        assert Path(seen["prefix"]) == clone.venv


def test_a_half_finished_install_is_repaired(installed: Installed) -> None:
    clone, _ = installed
    info = next(clone.venv.glob("**/kinetile_tiny-1.5.dist-info"))
    (info / "INSTALLER").unlink()
    Venv(clone.root).stamp_file.unlink()
    code, out, err = clone.run()
    assert code == 0, err
    assert json.loads(out)["argv"] == []
    assert "kinetile_tiny-1.5 was left half-installed; installing it again" in err
    assert "torch 2.13.0+cpu is there and stays" in err
    assert clone.run()[2] == ""


def test_an_active_environment_serves_another_clone(installed: Installed, tmp_path: Path) -> None:
    other = FakeClone(tmp_path)
    code, out, err = other.run("--headless", python=Venv(installed[0].root).python)
    assert (code, err) == (0, "")
    assert Path(json.loads(out)["prefix"]) == installed[0].venv
    assert not other.venv.exists()


@posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_what_runs(installed: Installed, number: int) -> None:
    with installed[0].start("--wait") as process:
        assert process.stdout is not None
        while process.stdout.readline() != "waiting\n":
            assert process.poll() is None
        process.send_signal(number)
        assert process.wait(timeout=30) == 130


def test_a_fresh_clone_gives_help_and_refuses_without_making_anything(tmp_path: Path) -> None:
    clone = FakeClone(tmp_path)
    code, out, err = clone.run("--headless", "--help")
    assert (code, err) == (0, "")
    assert "usage: python launch.py" in out
    assert "--torch-build NAME" in out
    code, out, err = clone.run("--no-install", "--headless")
    assert (code, out) == (3, "")
    assert "lacks torch>=2.9,<3, kinetile-tiny>=1,<2; start again without --no-install" in err
    assert not clone.venv.exists()


def test_offline_names_what_is_missing_and_goes_on_later(tmp_path: Path) -> None:
    clone = FakeClone(tmp_path)
    code, out, err = clone.run("--headless")
    assert (code, out) == (3, "")
    last = err.splitlines()[-1]
    assert last.startswith("kinetile: pip could not install kinetile-tiny>=1,<2 (its own words are above)")
    code, _, err = clone.run("--no-install")
    assert code == 3
    assert f"{clone.venv} lacks kinetile-tiny>=1,<2; start again without --no-install" in err

    clone.add_tiny()
    code, out, err = clone.run("--headless")
    assert code == 0, err
    assert "torch 2.13.0+cpu is there and stays" in err
    assert json.loads(out)["argv"] == ["--headless"]
