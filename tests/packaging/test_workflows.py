"""Every ``run:`` block of the workflows, once, in the runner's shell; the tools that it calls are stand-ins."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")
WORKFLOWS = sorted((Path(__file__).parents[2] / ".github" / "workflows").glob("*.yml"))
VERSION = "1.2.3"
TOOLS = ("python", "pip", "maturin", "cargo", "rustup", "rustup-init", "sudo", "apk", "pip-audit", "docker")
STAND_IN = f"""#!/bin/sh
echo "$(basename "$0") $*" >> "$CALLS"
case "$*" in
  "-m venv "*) mkdir -p "$3/$SCRIPTS" && cp "$0" "$3/$SCRIPTS/python" ;;
  metadata*) echo '{{"packages": [{{"version": "{VERSION}"}}]}}' ;;
esac
case "$(basename "$0")" in
  rustup-init) mkdir -p "$HOME/.cargo" && touch "$HOME/.cargo/env" ;;
  docker) # runs the command of the container, with the variables that it is given
    while [ "$1" != sh ]; do
      if [ "$1" = --env ]; then given="$given $2=$(printenv "$2")"; fi
      shift
    done
    exec env -i PATH="$PATH" CALLS="$CALLS" HOME="$HOME" $given "$@" ;;
esac
"""

pytestmark = pytest.mark.skipif(
    sys.platform == "win32" or not shutil.which("bash"), reason="the runner's shell is bash"
)


def steps():
    for path in WORKFLOWS:
        workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
        for job_name, job in workflow["jobs"].items():
            for number, step in enumerate(job.get("steps", ())):
                if "run" in step:
                    settings = workflow.get("env", {}) | job.get("env", {}) | step.get("env", {})
                    yield pytest.param(step["run"], settings, id=f"{path.stem}-{job_name}-{number}")


def run(block, settings, folder, scripts="bin"):
    """Run a block as the runner does; give the calls of tools that it made."""
    tools = folder / "tools"
    tools.mkdir(parents=True)
    for name in TOOLS:
        (tools / name).write_text(STAND_IN)
        (tools / name).chmod(0o755)
    work = folder / "work"
    for name, text in {"CHANGELOG.md": f"## [{VERSION}]", "dist/a.tar.gz": "", ".ci/run": "rustup check"}.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(text)
    calls = folder / "calls"
    values = {name: re.sub(r"\$\{\{.*?\}\}", "python", str(value)) for name, value in settings.items()}
    own = {"PATH": f"{tools}:{os.environ['PATH']}", "CALLS": str(calls), "SCRIPTS": scripts, "HOME": str(folder)}
    runner = {"GITHUB_REF_NAME": f"v{VERSION}", "GITHUB_OUTPUT": str(folder / "output")}
    script = folder / "block.sh"
    script.write_text(re.sub(r"\$\{\{.*?\}\}", "value", block))
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)]
    subprocess.run(shell, cwd=work, env=values | runner | own, check=True, capture_output=True, timeout=60)
    return calls.read_text().splitlines()


@pytest.mark.parametrize(("block", "settings"), list(steps()))
def test_a_block_runs_to_its_end(block, settings, tmp_path):
    assert run(block, settings, tmp_path)


@pytest.mark.parametrize("scripts", ["bin", "Scripts"])
def test_the_wheel_is_tried_in_an_environment_of_every_platform(scripts, tmp_path):
    (block, settings), *_ = (step.values for step in steps() if "smoke.py" in step.values[0] and "wheels" in step.id)
    assert run(block, settings, tmp_path, scripts)[-1] == "python tests/packaging/smoke.py"


def test_the_commands_of_a_container_run_too(tmp_path):
    ((block, settings),) = (step.values for step in steps() if "docker run" in step.values[0])
    assert run(block, settings, tmp_path)[-6:] == [
        "apk add --no-cache gcc musl-dev rustup",
        "rustup-init -y --profile minimal",
        f"pip install {settings['MATURIN']} numpy",
        "maturin build --release --locked --compatibility musllinux_1_2 --out dist",
        "pip install --find-links dist --no-index --no-deps householder",
        "python tests/packaging/smoke.py",
    ]


@pytest.mark.parametrize("block", ["false | cat\npython here", "docker run image sh -euc 'false; python here'"])
def test_a_step_that_fails_is_seen(block, tmp_path):
    with pytest.raises(subprocess.CalledProcessError):
        run(block, {}, tmp_path)


def test_a_container_has_only_the_variables_that_it_is_given(tmp_path):
    inner = "python:3 sh -euc 'pip $SETTING'"
    assert run(f"docker run --env SETTING {inner}", {"SETTING": "value"}, tmp_path)[-1] == "pip value"
    with pytest.raises(subprocess.CalledProcessError):
        run(f"docker run {inner}", {"SETTING": "value"}, tmp_path / "without")


def test_the_compiler_of_the_checks_is_pinned():
    settings = yaml.safe_load(next(path for path in WORKFLOWS if path.stem == "ci").read_text(encoding="utf-8"))["env"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", settings["RUSTUP_TOOLCHAIN"])
