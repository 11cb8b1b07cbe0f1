"""The recipe for conda asks for what the package asks for."""

import tomllib

import yaml

from tests.packaging.readme import ROOT

RECIPE = yaml.safe_load((ROOT / ".ci/conda/recipe.yaml").read_text("utf-8"))
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
WORKSPACE = tomllib.loads((ROOT / "Cargo.toml").read_text("utf-8"))["workspace"]["package"]


def requirements(*specifiers):
    return [specifier.replace(">=", " >=", 1) for specifier in specifiers]


def test_the_recipe_builds_this_version():
    project = PYPROJECT["project"]
    assert RECIPE["context"]["version"] == WORKSPACE["version"]
    assert RECIPE["about"]["summary"] == project["description"]
    assert RECIPE["about"]["license"] == project["license"]
    assert {*project["license-files"]} < {*RECIPE["about"]["license_file"]}


def test_the_recipe_asks_for_the_same_versions():
    project, needed = PYPROJECT["project"], RECIPE["requirements"]
    python = f"python {project['requires-python']}"
    assert f'${{{{ compiler("rust") }}}} >={WORKSPACE["rust-version"]}' in needed["build"]
    assert needed["host"] == [python, "pip", *requirements(*PYPROJECT["build-system"]["requires"])]
    assert needed["run"] == [python, *requirements(*project["dependencies"])]
    torch, jax = (project["optional-dependencies"][name][0] for name in ("torch", "jax"))
    assert needed["run_constraints"] == requirements(torch.replace("torch", "pytorch"), jax)
