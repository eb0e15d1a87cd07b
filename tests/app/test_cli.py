"""The command line: light, readable, frozen; errors as one sentence with the right code, in real processes."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from app import cli
from app.arguments import parser
from app.errors import UsageError
from app.models.starter import WEIGHTS
from app.request import GenerationRequest, Lora

ROOT = Path(__file__).parents[2]
NO_NETWORK = """
import socket

def refuse(*arguments, **options):
    raise AssertionError(f"the network was used: {arguments}")

socket.getaddrinfo = socket.create_connection = socket.socket.connect = refuse
"""


def run(*arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`python -m app.cli` in a process of its own, without a network, its data in `folder`."""
    (folder / "sitecustomize.py").write_text(NO_NETWORK, encoding="utf-8")
    path = os.pathsep.join([str(folder), str(ROOT)])
    variables = {**os.environ, "PYTHONPATH": path, "KINETILE_HOME": str(folder / "home"), **environment}
    command = [sys.executable, "-m", "app.cli", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", env=variables, cwd=ROOT, check=False
    )


def preset(folder: Path, **changes: Any) -> str:
    request = {"prompt": "a red ball", "width": 64, "height": 64, "frames": 5, "steps": 1, "seed": 3} | changes
    path = folder / "ball.json"
    path.write_text(json.dumps({"kinetile": 1, "request": request}), encoding="utf-8")
    return str(path)


# -- light and readable -----------------------------------------------------------------------------------------------


def test_help_and_parsing_import_nothing_heavy(tmp_path: Path) -> None:
    code = """if True:
        import sys
        from app import arguments, cli
        arguments.parser().parse_args(["--headless", "a.json", "--set", "steps=3"])
        try:
            cli.main(["--help"])
        except SystemExit:
            pass
        heavy = {"torch", "diffusers", "transformers", "gradio", "numpy", "pydantic", "rich"}
        print("HEAVY", sorted(heavy & set(sys.modules)))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.endswith("HEAVY []\n")


def test_help_fits_a_terminal_and_tells_what_a_newcomer_needs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--help"])
    text = capsys.readouterr().out
    assert stopped.value.code == 0
    assert max(map(len, text.splitlines())) <= 92
    for words in ("python launch.py --headless\n", "--set steps=12", "exit codes:", "Ctrl-C", "share code"):
        assert words in text
    assert re.search(r"130 stopped", text)


def test_the_options_are_these_and_no_others() -> None:
    """A new option is a promise: add it here when it is meant."""
    options = {option for action in parser()._actions for option in action.option_strings}
    assert options == {
        "-h", "--help", "--version", "--headless", "--share", "--models", "--fetch", "--doctor", "--bench", "--verify",
        "--set", "--lora", "--image", "--last-image",
        "--count", "--gpus", "--strict", "--accel", "--out", "--home", "--dry-run", "--json",
        "--resume", "--fail-fast", "--download", "--ray",
        "--port", "--open", "--listen", "--auth", "--no-auth",
        "--model", "--preset", "--quick", "--quality", "--plot",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nonsense"], "There is no option --nonsense; python launch.py --help shows every option."),
        (["--hedless"], "There is no option --hedless: did you mean --headless?"),
        (["--no-instal"], "did you mean --no-install?"),
        (["--resum"], "did you mean --resume?"),
        (["--estimate"], "There is no option --estimate: did you mean --dry-run?"),
        (["--estimates"], "There is no option --estimates; python launch.py --help shows every option."),
        (["--steps", "3"], "There is no option --steps: a clip's settings are changed with --set steps=VALUE."),
        (["preset.json"], "preset.json belongs to no option: to make clips of it, write --headless preset.json"),
        (["--out"], "--out needs a value, as in --out DIR: folder for the clips"),
        (["--doctor=yes"], "--doctor takes no value: write it alone."),
        (["--port", "abc"], "--port abc: a port from 1 to 65535 is allowed."),
        (["--port", "65536"], "--port 65536: a port from 1 to 65535 is allowed."),
        (["--resume", "--set", "steps=3"], "--set changes nothing of what is queued already"),
        (["--headless", "--resume", "--out", "x"], "--out changes nothing of what is queued already"),
        (["--resume", "--open"], "--open is for the page, which does not open with --resume"),
        (["--headless", "--count", "many"], "--count many: a whole number of clips from 1 to 1000"),
        (["--headless", "--count", "5000"], "--count 5000"),
        (["--headless", "--count", "0"], "--count 0"),
        (["--headless", "--gpus", "0"], "--gpus 0: a whole number of GPUs from 1 to 64"),
        (["--bench", "--gpus", "2"], "--gpus works only with --headless"),
        (["--headless", "--share", "x"], "--headless and --share exclude each other: leave one of the two out."),
        (["--headless", "--accel", "attention"], "--accel attention: KEY=VALUE was expected"),
        (["--headless", "--head"], "--head"),
        (["--headless", "--quick"], "--quick works only with --bench or --verify"),
        (["--headless", "--json", "x"], "--json x: only --bench and --verify write a file"),
        (["--bench", "--count", "2"], "--count works only with --headless"),
        (["--verify", "starter", "--plot", "x.png"], "--plot works only with --bench"),
        (["--verify", "nonsense"], "nonsense"),
        (["--bench", "--plot", "x.pdf"], "name a file that ends in .svg or .png"),
        (["--bench", "--preset", "nonsense"], "nonsense"),
        (["--headless", "--home", ""], "--home"),
        (["--headless", "--port", "1"], "--port is for the page, which does not open with --headless"),
        (["--doctor", "--open"], "--open is for the page"),
        (["--bench", "--listen"], "--listen is for the page, which does not open with --bench"),
        (["--verify", "starter", "--no-auth"], "--no-auth is for the page"),
        (["--share", "x", "--auth", ""], "--auth is for the page"),
        (["--share", "starter-rocket", "--count", "2"], "--count works only with --headless, not with --share"),
        (["--share", "starter-rocket", "--json"], "--json works only with --headless, not with --share"),
        (["--models", "--set", "steps=2"], "--set works only with --headless, not with --models"),
        (["--fetch", "starter", "--count", "2"], "--count works only with --headless, not with --fetch"),
        (["--doctor", "--download"], "--download works only with --headless, not with --doctor"),
        (
            ["--download"],
            "--download works only with --headless: add that, or leave --download out and set it on the page",
        ),
        (["--fetch", "nonsense"], "nonsense"),
        (["--fetch", "hf:nonsense"], "is no repository; write hf:OWNER/NAME"),
        (["--doctor", "--strict"], "--strict works only with --headless, not with --doctor"),
        (["--doctor", "--out", "x"], "--out works only with --headless, not with --doctor"),
        (["--doctor", "--set", "steps=2"], "--set works only with --headless, not with --doctor"),
        (["--headless", "--out", " "], "--out is empty"),
        (["--headless", "--ray", ""], "--ray is empty; write local, or a cluster's address as HOST:PORT"),
        (["--headless", "--ray", "here"], "--ray here: write local, local:N for N engines here"),
        (["--doctor", "--ray", "local"], "--ray works only with --headless, not with --doctor"),
        (["--headless", "--out", "a\udcff"], "--out a?: the name holds a byte that is not UTF-8"),
    ],
)
def test_bad_usage_is_one_sentence(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert len(captured.err.splitlines()) == 1
    assert not captured.out


def test_accel_words_become_settings_of_the_request() -> None:
    assert cli._accel_assignments(["attention=sdpa, linear=stock", "dtype=float32"]) == [
        "accel.attention=sdpa",
        "accel.linear=stock",
        "accel.dtype=float32",
    ]
    with pytest.raises(UsageError, match="KEY=VALUE"):
        cli._accel_assignments(["attention=sdpa,linear"])


def test_without_a_verb_the_page_opens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Any] = []

    def serve(settings: Any) -> int:
        asked.append(settings)
        return 0

    monkeypatch.setattr("app.ui.server.serve", serve)
    assert cli.main(["--home", str(tmp_path), "--port", "7999", "--listen", "--auth", "ada:lovelace", "--open"]) == 0
    (settings,) = asked
    assert (settings.home.root, settings.port, settings.listen) == (tmp_path, 7999, True)
    assert (settings.auth, settings.no_auth, settings.open_browser) == (("ada", "lovelace"), False, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "steps=3"], "--set works only with --headless"),
        (["--json"], "--json works only with --headless"),
        (["--dry-run"], "--dry-run works only with --headless"),
        (["--listen"], "--auth USER:PASSWORD, or --no-auth"),
        (["--port", "0"], "from 1 to 65535"),
    ],
)
def test_the_page_refuses_what_it_would_ignore(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("verb", [["--resume"], ["--headless", "--resume"]])
def test_resume_alone_goes_on_with_the_queue(
    verb: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main([*verb, "--home", str(tmp_path)]) == 0
    assert "Nothing is queued, so there is nothing to go on with." in capsys.readouterr().out


def test_ctrl_c_before_the_batch_has_its_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def press(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("app.headless.run_batch", press)
    assert cli.main(["--headless", "--home", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "Stopped.\n"


@pytest.mark.parametrize("missing", [False, True])
def test_doctor_speaks_of_the_starter_where_it_can_be_described(
    missing: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    if missing:
        monkeypatch.setattr(
            "app.engine.acceleration.traits", Mock(side_effect=ImportError("No module named 'diffusers'"))
        )
    assert cli.main(["--doctor", "--home", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert ("a clip of the starter, 256x160, 25 frames" in text) is not missing
    assert ("a model of Wan 2.1's kind" in text) is missing


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ([], []),
        (["fast"], [("fast", 1.0)]),
        (["styles/a.safetensors=0.6", "b.safetensors=-2"], [("styles/a.safetensors", 0.6), ("b.safetensors", -2.0)]),
        (["a=b.safetensors"], [("a=b.safetensors", 1.0)]),
        (["a=b.safetensors=.5", "=x"], [("a=b.safetensors", 0.5), ("=x", 1.0)]),
    ],
)
def test_lora_words_become_the_list_of_the_request(given: list[str], found: list[tuple[str, float]]) -> None:
    request = GenerationRequest(loras=(Lora(name="old"),)).with_set(cli._loras(given))
    assert [(lora.name, lora.weight) for lora in request.loras] == (found or [("old", 1.0)])


@pytest.mark.parametrize(("given", "says"), [("a=99", "weight"), ("a=nan", "loras"), ("../a", "LoRA folder")])
def test_a_lora_that_can_t_be_is_refused(given: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        GenerationRequest().with_set(cli._loras([given]))


def test_doctor_takes_accel_wishes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from accel import AccelError, Preferences, doctor

    seen: list[Preferences] = []
    monkeypatch.setattr("app.engine.acceleration.as_shipped", lambda family, home: doctor.TYPICAL)

    def report(preferences: Preferences, **_: Any) -> int:
        seen.append(preferences)
        if preferences.vae == "fast":
            raise AccelError("vae=fast can't be used here")
        return 0

    monkeypatch.setattr(doctor, "main", report)
    assert cli.main(["--doctor"]) == 0
    assert cli.main(["--doctor", "--accel", "dtype=float32,vae=stock"]) == 0
    assert seen == [Preferences(), Preferences(dtype="float32", vae="stock")]
    assert cli.main(["--doctor", "--accel", "vae=fast"]) == 3
    assert cli.main(["--doctor", "--accel", "colour=red"]) == 2
    assert [line[:20] for line in capsys.readouterr().err.splitlines()] == [
        "vae=fast can't be us",
        "--accel colour=red: ",
    ]


@pytest.mark.parametrize(("number", "fix"), [(errno.ENOSPC, "free some space"), (errno.EACCES, "name another place")])
def test_only_a_full_disk_is_told_to_be_one(
    number: int, fix: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("app.headless.run_batch", Mock(side_effect=OSError(number, os.strerror(number))))
    assert cli.main(["--headless", "--home", str(tmp_path)]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert fix in line
    assert ("free some space" in line) == (number == errno.ENOSPC)


# -- in real processes ------------------------------------------------------------------------------------------------


def test_bad_inputs_end_with_their_code_and_write_nothing(tmp_path: Path) -> None:
    comma = tmp_path / "comma.json"
    comma.write_text('{"kinetile": 1, "request": {"steps": 3,}}', encoding="utf-8")
    cases = {
        ("--headless", str(tmp_path / "missing.json")): (2, "missing.json"),
        ("--headless", str(comma)): (2, "comma.json, line 1"),
        ("--headless", preset(tmp_path), "--set", "seed=-1"): (2, "seed"),
        ("--share", "KT1-nonsense"): (2, "code"),
        ("--headless", preset(tmp_path), "--out", str(comma)): (3, "comma.json"),
    }
    for arguments, (code, words) in cases.items():
        done = run(*arguments, folder=tmp_path)
        assert (done.returncode, done.stdout) == (code, ""), (arguments, done.stderr)
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "home" / "outputs").exists()


def test_a_missing_encoder_is_found_before_anything_loads(tmp_path: Path) -> None:
    done = run("--headless", preset(tmp_path), folder=tmp_path, IMAGEIO_FFMPEG_EXE=str(tmp_path / "none"))
    assert done.returncode == 3
    assert "ffmpeg" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_log_that_holds_few_characters_gets_escapes(tmp_path: Path) -> None:
    path = preset(tmp_path, prompt="火箭 🚀")
    arguments = ("--headless", path, "--dry-run", "--json")
    for coding in ("ascii", "cp1252", "utf-8"):
        done = run(*arguments, folder=tmp_path, PYTHONIOENCODING=coding)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["clips"][0]["request"]["prompt"] == "火箭 🚀"
        assert ("火箭" if coding == "utf-8" else "\\u706b\\u7bad") in done.stderr


def test_share_and_where_an_error_came_from(tmp_path: Path) -> None:
    shared = run("--share", preset(tmp_path), folder=tmp_path)
    assert shared.returncode == 0
    code = shared.stdout.strip()
    flipped = code[:-1] + ("A" if code[-1] != "A" else "B")
    done = run("--headless", flipped, folder=tmp_path, KINETILE_DEBUG="1")
    assert done.returncode == 2
    assert "Traceback" in done.stderr


@pytest.mark.skipif(not WEIGHTS.is_dir(), reason="the starter's weights are not in this tree")
def test_a_clip_from_the_command_line_offline(tmp_path: Path) -> None:
    folder = tmp_path / "clips äöü with space"
    done = run("--headless", preset(tmp_path), "--out", str(folder), "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["clips"][0]["state"] == "done"
    assert Path(document["clips"][0]["file"]).parent == folder
    assert "loading the model" in done.stderr
    assert "Traceback" not in done.stderr
    assert "%|" not in done.stderr, "the libraries' own progress bars are silent"


@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT")
@pytest.mark.skipif(not WEIGHTS.is_dir(), reason="the starter's weights are not in this tree")
def test_ctrl_c_in_a_real_process(tmp_path: Path) -> None:
    variables = {**os.environ, "KINETILE_HOME": str(tmp_path / "home")}
    many = preset(tmp_path, steps=500)
    command = [sys.executable, "-u", "-m", "app.cli", "--headless", many]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables, cwd=ROOT
    ) as run:
        assert run.stdout is not None
        said = ""
        for line in run.stdout:
            said += line
            if "denoising" in line:
                run.send_signal(signal.SIGINT)
                break
        rest, errors = run.communicate(timeout=120)
    assert run.returncode == 130, said + rest + errors
    assert "Stopped on request: 0 of 1 made, nothing was kept" in rest
    assert errors == ""
    assert not list((tmp_path / "home" / "outputs").glob("*"))
