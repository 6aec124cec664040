"""One place for exact versions, two ways to install them, and the commands that do it."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from spin_core.lab.provenance import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PINS = [Requirement(line) for line in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["test"]]]
RUN_ALL = ROOT / "run_all.sh"


# ---- the pins

@pytest.mark.parametrize("pin", PINS, ids=lambda pin: pin.name)
def test_every_requirement_is_one_exact_version(pin):
    assert re.fullmatch(r"==[0-9][^*,]*", str(pin.specifier)), f"{pin} is no exact version"
    assert pin.url is None, "a registry's package, not an address"


def test_no_package_is_pinned_twice():
    names = [pin.name.lower().replace("_", "-") for pin in PINS]
    assert len(names) == len(set(names))


def test_triton_is_for_linux_only():
    triton = next(pin for pin in PINS if pin.name == "triton")
    for system, wanted in (("Linux", True), ("Darwin", False), ("Windows", False)):
        assert triton.marker.evaluate(default_environment() | {"platform_system": system}) is wanted
    assert [pin.name for pin in PINS if pin.marker] == ["triton"], "everything else is needed everywhere"


def test_environment_yml_installs_this_project_and_pins_nothing_itself():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text("utf-8"))
    assert environment["name"] == "spin"
    python, pip, packages = environment["dependencies"]
    assert packages == {"pip": ["-e .[test]"]}, "the exact versions come from pyproject.toml alone"
    assert pip == "pip"
    name, version = python.split("=")
    assert name == "python" and SpecifierSet(PROJECT["requires-python"]).contains(version)


def test_no_second_list_of_versions():
    names = {path.name for path in ROOT.iterdir()} | {path.name for path in (ROOT / "spin_core").iterdir()}
    others = {"requirements.txt", "setup.py", "setup.cfg", "Pipfile", "poetry.lock", "apt.txt", "postBuild"}
    assert not names & others
    for file in ("run_all.sh", ".ci/run", "environment.yml"):
        assert "==" not in (ROOT / file).read_text("utf-8")


def test_versions_of_project_and_package_agree():
    import spin_core

    assert spin_core.__version__ == PROJECT["version"]


@pytest.mark.parametrize("pin", PINS, ids=lambda pin: pin.name)
def test_installed_version_is_the_pinned_one(pin):
    if pin.marker and not pin.marker.evaluate():
        pytest.skip(f"not for this platform: {pin}")
    try:
        metadata.distribution("spin-core")
    except metadata.PackageNotFoundError:
        pytest.skip("the project is run uninstalled, with versions of somebody's choice")
    # "2.13.0" admits "2.13.0+cpu": the same release, built for another machine
    assert pin.specifier.contains(metadata.version(pin.name)), f"{metadata.version(pin.name)} is installed"


# ---- the commands: what they say, and which environment they take (with stand-ins, nothing is installed)

@pytest.mark.parametrize("script", ["run_all.sh", ".ci/run"])
def test_scripts_are_executable_and_well_formed(script):
    path = ROOT / script
    assert os.access(path, os.X_OK)
    assert path.read_text("utf-8").startswith("#!/usr/bin/env bash\n")
    assert "set -euo pipefail" in path.read_text("utf-8")
    subprocess.run(["bash", "-n", str(path)], check=True)


STAND_IN_PYTHON = r"""#!/usr/bin/env bash
# Says what it was asked to do; answers the questions that run_all.sh asks of an interpreter.
prefix=$(cd "$(dirname "$0")/.." && pwd)
case "$*" in
    *"sys.prefix"*) echo "$prefix" ;;
    *"sys.executable"*) echo "$prefix/bin/python" ;;
    *version_info*|--version|"-m pip --version") ;;
    "-m venv --clear "*)
        mkdir -p "$4/bin" && cp "$0" "$4/bin/python"
        echo "$(basename "$0") $*" >> "$LOG" ;;
    *)  { printf 'python'; printf ' [%s]' "$@"; echo " in $PWD"; } >> "$LOG"
        [[ "$*" != "${FAIL:-nothing}"* ]] ;;
esac
"""

STAND_IN_CONDA = r"""#!/usr/bin/env bash
case "$1 $2" in
    "run -n") shift 3; shift; "$ENVS/spin/bin/python" "$@" ;;
    "env create")
        echo "conda $*" >> "$LOG"
        mkdir -p "$ENVS/spin/bin" && cp "$STAND_IN" "$ENVS/spin/bin/python" ;;
esac
"""


class Checkout:
    """A copy of the two scripts' surroundings in a folder with a space, and a PATH of stand-ins."""

    def __init__(self, tmp_path: Path) -> None:
        self.root, self.bin, self.log = tmp_path / "my checkout", tmp_path / "bin", tmp_path / "log"
        self.root.mkdir()
        self.bin.mkdir()
        for name in ("run_all.sh", "pyproject.toml", "environment.yml"):
            (self.root / name).write_bytes((ROOT / name).read_bytes())
        (self.root / "notebooks").mkdir()
        for name in ("01 a first", "02_next", "10_late"):
            (self.root / "notebooks" / f"{name}.ipynb").touch()
        self.tool("stand-in", STAND_IN_PYTHON)
        self.environment = {
            # the system's own commands, but none of its Pythons and conda tools
            "PATH": f"{self.bin}{os.pathsep}{self.system(tmp_path / 'system')}", "LOG": str(self.log),
            "ENVS": str(tmp_path / "envs"), "STAND_IN": str(self.bin / "stand-in")}

    def system(self, folder: Path) -> Path:
        folder.mkdir()
        for name in ("bash", "env", "cat", "dirname", "basename", "cksum", "mkdir", "cp"):
            found = next(Path(p, name) for p in os.environ["PATH"].split(os.pathsep) if Path(p, name).exists())
            (folder / name).symlink_to(found)
        return folder

    def tool(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def run(self, *arguments: str, **environment: str) -> tuple[subprocess.CompletedProcess, list[str]]:
        """Run the command from another folder; returns the process and what the stand-ins were asked to do."""
        self.log.write_text("")
        bash = next(Path(p, "bash") for p in os.environ["PATH"].split(os.pathsep) if Path(p, "bash").exists())
        done = subprocess.run([str(bash), str(self.root / "run_all.sh"), *arguments], cwd=self.bin, text=True,
                              env=self.environment | environment, capture_output=True)
        lines = self.log.read_text().splitlines()
        return done, [line.replace(f" in {self.root}", "") for line in lines]


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


INSTALL = "python [-m] [pip] [install] [--disable-pip-version-check] [--quiet] [-e] [.[test]]"
FETCH = "python [-m] [spin_core] [fetch]"
REPRODUCE = "python [-m] [spin_core] [reproduce]"
PYTEST = "python [-m] [pytest] [-n] [auto] [--maxprocesses] [4] [--dist] [worksteal]"


def test_help_says_everything_and_installs_nothing(checkout):
    done, log = checkout.run("--help")
    assert done.returncode == 0 and not log
    for word in ("quick|default|full", "--only", "--device", "--fresh", "--output", "test", "lab"):
        assert word in done.stdout


@pytest.mark.parametrize("arguments, message", [
    (["--frehs"], "unknown option: --frehs"), (["tests"], "unknown option: tests"),
    (["--only"], "--only needs a value"), (["--profile", "slow"], "unknown profile: slow"),
    (["--fresh", "--nope", "1"], "unknown option: --nope"), (["--only", "3"], "no notebook 3 in notebooks/"),
    (["--only", "next"], "no notebook next"), (["--only", ""], "no notebook"),
    (["--device", "abacus"], "unknown device"),
    (["lab", "--profile", "quick"], "lab does not take --profile"), (["test", "lab"], "test does not take lab")])
def test_wrong_options_stop_before_anything_is_installed(checkout, arguments, message):
    done, log = checkout.run(*arguments)
    assert done.returncode == 2 and message in done.stderr and not log


@pytest.mark.parametrize("only", ["1", "01", "01 a", "2", "02_next", "notebooks/02_next.ipynb", "10", "10_"])
def test_notebooks_are_known_by_name_start_and_number(checkout, only):
    checkout.tool("python3", STAND_IN_PYTHON)
    assert checkout.run("--only", only)[1][-1] == f"{REPRODUCE} [--only] [{only}]"


def test_a_users_pip_settings_do_not_stop_the_installation(checkout):
    """``PIP_USER=1`` and the like are refused by pip inside an environment of its own."""
    refuses = STAND_IN_PYTHON.replace("case", '[[ "$*" != *install* || "$PIP_USER$PIP_TARGET$PIP_PREFIX" = 0 ]] || '
                                              "exit 1\ncase", 1)
    checkout.tool("python3", refuses)
    assert checkout.run(PIP_USER="1", PIP_TARGET="/a", PIP_PREFIX="/b")[1][-2:] == [FETCH, REPRODUCE]


def test_venv_is_made_once_and_installed_when_the_pins_change(checkout):
    checkout.tool("python3.11", STAND_IN_PYTHON)
    done, log = checkout.run()
    assert done.returncode == 0, done.stderr
    assert log == ["python3.11 -m venv --clear .venv", INSTALL, FETCH, REPRODUCE]
    done, log = checkout.run()
    assert log == [FETCH, REPRODUCE] and not done.stdout, "the second time it starts at once"
    project = checkout.root / "pyproject.toml"
    project.write_text(project.read_text().replace("2.13.0", "2.14.1"))
    assert checkout.run()[1] == [INSTALL, FETCH, REPRODUCE]
    moved = checkout.root.rename(checkout.root.with_name("moved here"))
    checkout.root = moved
    assert checkout.run()[1] == [INSTALL, FETCH, REPRODUCE], "an editable install points at the old place"


def test_a_failed_install_or_fetch_stops_and_is_tried_again(checkout):
    checkout.tool("python3", STAND_IN_PYTHON)
    done, log = checkout.run(FAIL="-m pip install")
    assert done.returncode != 0 and log[-1] == INSTALL
    done, log = checkout.run(FAIL="-m spin_core fetch")
    assert done.returncode != 0 and log == [INSTALL, FETCH]
    assert checkout.run(FAIL="-m spin_core reproduce")[0].returncode != 0
    assert checkout.run("test", FAIL="-m pytest")[0].returncode != 0


def test_options_reach_the_notebooks(checkout):
    checkout.tool("python3", STAND_IN_PYTHON)
    checkout.run()
    _, log = checkout.run("--profile", "quick", "--only", "01 a", "--device", "cpu", "--fresh", "--output", "out dir")
    assert log[-1] == (f"{REPRODUCE} [--profile] [quick] [--only] [01 a] [--device] [cpu] [--fresh] [--output] "
                       f"[{checkout.bin}/out dir]"), "a relative folder is the caller's"
    assert checkout.run("--output", "/a/b")[1][-1] == f"{REPRODUCE} [--output] [/a/b]"


def test_test_and_lab_pass_their_options_on(checkout):
    checkout.tool("python3", STAND_IN_PYTHON)
    checkout.run()
    assert checkout.run("test")[1] == [PYTEST]
    assert checkout.run("test", "-m", "not models", "-n", "0")[1] == [f"{PYTEST} [-m] [not models] [-n] [0]"]
    root = " [--allow-root]" if os.geteuid() == 0 else ""      # in a container; with a warning
    done, log = checkout.run("lab", "--no-browser")
    assert log == [f"python [-m] [spin_core.lab.lessons.workspace]{root} [--no-browser]"]
    assert ("as root" in done.stderr) == bool(root)
    for command in ("test", "lab"):
        assert "Usage:" in checkout.run(command, "--help")[0].stdout


@pytest.mark.parametrize("tool", ["micromamba", "mamba", "conda"])
def test_conda_tools_make_the_environment_from_the_file(checkout, tool):
    checkout.tool("python3", STAND_IN_PYTHON)
    checkout.tool(tool, STAND_IN_CONDA)
    done, log = checkout.run("test")
    assert done.returncode == 0, done.stderr
    assert log == ["conda env create -n spin -f environment.yml", INSTALL, PYTEST]
    assert checkout.run("test")[1] == [PYTEST]
    assert not (checkout.root / ".venv").exists()


def test_an_active_environment_spin_is_taken_as_it_is(checkout, tmp_path):
    checkout.tool("conda", "#!/usr/bin/env bash\necho asked >> \"$LOG\"\n")
    (tmp_path / "active" / "bin").mkdir(parents=True)
    (tmp_path / "active" / "bin" / "python").symlink_to(checkout.bin / "stand-in")
    active = {"CONDA_DEFAULT_ENV": "spin", "CONDA_PREFIX": str(tmp_path / "active")}
    assert checkout.run("test", **active)[1] == [INSTALL, PYTEST]
    assert checkout.run("test", **active)[1] == [PYTEST]


def test_no_suitable_python_is_said_clearly(checkout):
    checkout.tool("python3", "#!/usr/bin/env bash\nexit 1\n")
    done, log = checkout.run()
    assert done.returncode == 1 and "needs Python 3.11 or newer" in done.stderr and not log


# ---- the whole check, with stand-ins for the browser and for run_all.sh

CI_STEPS = ["test", "test -m browser -n 0", "--profile quick --fresh --output "]


@pytest.mark.parametrize("fails", [None, 0, 1, 2])
def test_ci_runs_every_step_and_stops_at_the_first_failure(tmp_path, fails):
    (tmp_path / "bin").mkdir()
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "run").write_bytes((ROOT / ".ci" / "run").read_bytes())
    step = "nothing" if fails is None else CI_STEPS[fails]
    scripts = {
        "bin/chromium": "exit 0", "bin/chromedriver": "exit 0", "bin/apt-get": 'echo "apt-get $*" >> "$LOG"',
        "run_all.sh": 'echo "$*" >> "$LOG"; [[ "$*" != "$FAIL" && "$*" != "$FAIL"/* ]]'}
    for name, body in scripts.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = os.environ | {
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}", "LOG": str(tmp_path / "log"),
        "TMPDIR": str(temporary), "FAIL": step.replace("--output ", f"--output {temporary}")}
    done = subprocess.run(["bash", str(tmp_path / ".ci" / "run")], env=environment, cwd=temporary,
                          capture_output=True, text=True)
    log = (tmp_path / "log").read_text().splitlines()
    expected = CI_STEPS if fails is None else CI_STEPS[:fails + 1]
    assert len(log) == len(expected) and all(map(str.startswith, log, expected)), done.stderr
    assert (done.returncode == 0) == (fails is None)
    if len(log) == 3:
        assert log[2].split("--output ")[1].startswith(str(temporary)), "not into the checkout"
    assert not list(temporary.iterdir()), "the temporary folder is gone"
