"""Whether the built site has every public name, and every method that this package gives a public class.

``python tests/docs/built_site.py SITE`` takes the folder that mkdocs wrote.
"""

import importlib
import inspect
import sys
import zlib
from pathlib import Path

MODULES = ("householder", "householder.torch", "householder.jax")


def documented(site):
    """Names in the inventory, which mkdocstrings writes for links from other sites."""
    inventory = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    return {line.split(" ")[0] for line in zlib.decompress(inventory).decode().splitlines()}


def public(module):
    """Public names of a module, and of its classes the methods and properties that have a docstring of ours."""
    for name in importlib.import_module(module).__all__:
        yield f"{module}.{name}"
        value = getattr(importlib.import_module(module), name)
        for base in value.__mro__ if inspect.isclass(value) else ():
            if base.__module__.partition(".")[0] == "householder":
                members = {key: member for key, member in vars(base).items() if key[0] != "_" and key != "extra_repr"}
                yield from (f"{module}.{name}.{key}" for key, member in members.items() if is_method(member))


def is_method(member):
    function = getattr(member, "__func__", member)
    return (inspect.isfunction(function) or isinstance(member, property)) and bool(member.__doc__)


def main():
    found = documented(Path(sys.argv[1]))
    wanted = {name for module in MODULES for name in public(module)}
    missing = sorted(wanted - found)
    print(f"{len(wanted)} public names, {len(missing)} missing on the site", *missing, sep="\n")
    sys.exit(bool(missing))


if __name__ == "__main__":
    main()
