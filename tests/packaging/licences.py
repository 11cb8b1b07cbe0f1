"""Every Python package that an installation brings, with its version and licence; fails where a licence is not known.

    python tests/packaging/licences.py [householder] [householder[test]] [householder-experiments] ...

Reads what the environment's packages say of themselves. Vulnerabilities are ``pip-audit``'s business, which asks an
advisory service.
"""

import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.markers import default_environment
from packaging.requirements import Requirement

FREE = re.compile(r"\b(Apache|BSD|HPND|ISC|MIT|MPL|PSF|Python Software Foundation|Zlib)\b")
NVIDIA = re.compile(r"nvidia|cuda|NVIDIA", re.IGNORECASE)  # proprietary, free to use: torch and CuPy bring them


def licence(package: Distribution) -> str:
    """The expression, or the classifiers, or the first line of the text."""
    said = package.metadata.get("License-Expression")
    classifiers = [line.split(" :: ")[-1] for line in package.metadata.get_all("Classifier", []) if "License" in line]
    text = (package.metadata.get("License") or "unknown").strip().splitlines()
    return said or "; ".join(classifiers) or text[0]


def closure(name: str, extras: set[str]) -> dict[str, Distribution]:
    """The package and all that it requires in this environment."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    ahead = [(name, extra) for extra in ("", *extras)]
    while ahead:
        at = ahead.pop()
        if at in seen:
            continue
        seen.add(at)
        found[at[0]] = package = distribution(at[0])
        for line in package.requires or []:
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({**default_environment(), "extra": at[1]}):
                canonical = re.sub(r"[-_.]+", "-", needed.name).lower()
                ahead += [(canonical, extra) for extra in ("", *needed.extras)]
    return found


def main() -> None:
    """Print the list; the exit status tells whether each licence is free or NVIDIA's."""
    try:
        packages = {}
        for requirement in map(Requirement, sys.argv[1:] or ["householder"]):
            packages |= closure(requirement.name, requirement.extras)
    except PackageNotFoundError as error:
        sys.exit(f"{error.name} is not installed")
    unknown = []
    for name, package in sorted(packages.items()):
        stated = licence(package)
        print(f"{name} {package.version}: {stated}")
        if not FREE.search(stated) and not NVIDIA.search(name + stated):
            unknown.append(name)
    if unknown:
        sys.exit(f"licences to look at: {', '.join(unknown)}")


if __name__ == "__main__":
    main()
