"""Build the wheel and the source distribution and prove them: ``python tests/packaging/check.py``, some ten minutes.

Needs what ``pip install --group packaging`` brings, and ``qemu-x86_64`` (Debian's ``qemu-user``) for lesser processors
than this one. Each environment is made from nothing and holds the wheel and the versions named, nothing else.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

import rattler_build

ROOT = Path(__file__).resolve().parents[2]
SMOKE = Path(__file__).with_name("smoke.py")
LOWEST = ("numpy==1.26.*", "torch==2.10.*")
HIGHEST = ("numpy", "torch")
LARGEST = 4_000_000  # the kernels once
PROCESSORS = {"Nehalem": "scalar", "Haswell": "avx2"}  # no AVX; AVX2, but no AVX-512
INSTRUCTION_SETS = ("avx512", "avx2", "scalar")


def run(*command: object, **environment: str) -> str:
    """Run a command and return what it printed; end with all of it if it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        env={**os.environ, **environment},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def build(directory: Path) -> None:
    """Wheel and source distribution, as the release builds them."""
    run("maturin", "build", "--release", "--locked", "--zig", "--compatibility", "manylinux2014", "--out", directory)
    run("maturin", "sdist", "--out", directory)
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", directory, ROOT / "experiments")


def check_contents(wheel: Path) -> None:
    """One package, its types and licences, in a small file for every Linux since 2014."""
    assert "cp311-abi3-manylinux2014_x86_64" in wheel.name, wheel.name
    assert wheel.stat().st_size < LARGEST, f"{wheel.stat().st_size} bytes"
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"householder", wheel.name.split("-cp311")[0] + ".dist-info"}
    files = "_core.abi3.so", "_core.pyi", "lib/libhouseholder_torch.so", "py.typed"
    assert {f"householder/{file}" for file in files} <= set(names)
    assert len([name for name in names if "LICENSE" in name]) == 2
    assert not [name for name in names if "sboms" in name], "a bill of materials has the builder's paths"
    assert 'following platform tag:\n"manylinux_2_17_x86_64"' in run("auditwheel", "show", wheel)
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB, manylinux_2_17 holds")


def environment(directory: Path, *requirements: object) -> Path:
    """A fresh environment's interpreter."""
    venv.create(directory, with_pip=True)
    python = directory / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", *requirements)
    return python


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


def check_instruction_sets(python: Path) -> None:
    """Each set that this processor has, by request; then processors that have less."""
    best = last_line(run(python, SMOKE)).split()[-1]
    for name in INSTRUCTION_SETS[INSTRUCTION_SETS.index(best) :]:
        line = last_line(run(python, SMOKE, HOUSEHOLDER_SIMD=name))
        assert line.endswith(name), line
        print(f"forced {name}: {line}")
    for processor, expected in PROCESSORS.items():
        line = last_line(run("qemu-x86_64", "-cpu", processor, python, SMOKE, OPENBLAS_NUM_THREADS="1"))
        assert line.endswith(expected), line
        print(f"processor {processor}: {line}")


def check_recipe() -> None:
    """The recipe for conda can be rendered; its checksum exists only after a release."""
    recipe = rattler_build.Stage0Recipe.from_file(ROOT / ".ci/conda/recipe.yaml")
    compilers = {"c_compiler": ["gcc"], "c_stdlib": ["sysroot"], "rust_compiler": ["rust"]}
    (variant,) = recipe.render(rattler_build.VariantConfig(compilers))
    print(f"conda: {variant.recipe.requirements.to_dict()['run']}")


def check_training(wheel: Path, experiments: Path, directory: Path) -> None:
    """The command finds the experiments, which bring all that training needs."""
    python = environment(directory, wheel, experiments)
    arguments = ("train", "digits", "--models", "srnn", "--epochs", "1", "--output", directory / "run")
    print(f"{experiments.name}: {last_line(run(python, '-m', 'householder', *arguments))}")


def main() -> None:
    """Build, then check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dist", type=Path, help="a folder with a wheel and a source distribution; built if left out")
    parser.add_argument(
        "--only", choices=("contents", "instructions", "versions", "sdist", "train", "conda"), help="one of the checks"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        room = Path(temporary)
        dist = options.dist or room / "dist"
        if options.dist is None:
            build(dist)
        (wheel,), (sdist,) = dist.glob("householder-*manylinux*.whl"), dist.glob("householder-*.tar.gz")
        if options.only in (None, "contents"):
            check_contents(wheel)
        if options.only in (None, "instructions"):
            check_instruction_sets(environment(room / "numpy", wheel))
        if options.only in (None, "versions"):
            for versions in (LOWEST, HIGHEST):
                print(last_line(run(environment(room / "versions", wheel, *versions), SMOKE, "--torch")))
                shutil.rmtree(room / "versions")
        if options.only in (None, "conda"):
            check_recipe()
        if options.only in (None, "train"):
            check_training(wheel, *dist.glob("householder_experiments-*.whl"), room / "train")
        if options.only in (None, "sdist"):
            print(f"from {sdist.name}: {last_line(run(environment(room / 'sdist', sdist), SMOKE))}")


if __name__ == "__main__":
    main()
