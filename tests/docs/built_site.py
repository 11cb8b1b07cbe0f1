"""Whether the built site says what the code does, is whole, and needs nothing from elsewhere.

``python tests/docs/built_site.py SITE`` takes the folder that Sphinx wrote.
"""

import ast
import importlib
import inspect
import json
import re
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import snowballstemmer
from bs4 import BeautifulSoup

MODULES = ("householder", "householder.torch", "householder.jax")
SEARCHED = ("accelerate", "citation", "conv2d", "csv", "dropout", "initialization", "quantisation", "resume")
NO_DEFAULT = inspect.Parameter.empty


def main():
    site = Path(sys.argv[1])
    pages = {
        path: BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        for path in sorted(site.rglob("*.html"))
        if "_static" not in path.parts
    }
    places = {path: {element["id"] for element in page.select("[id]")} for path, page in pages.items()}
    objects = {term["id"]: term.parent for page in pages.values() for term in page.select("dt.sig.py")}
    wanted = {name for module in MODULES for name in public(module)}
    entries = [(name, *entry) for name, body in objects.items() for entry in entries_of(body)]
    found = [
        *(f"{name} is not on the site" for name in sorted(wanted - objects.keys())),
        *(fault for name, body in objects.items() for fault in signature_faults(name, body)),
        *(fault for entry in entries for fault in entry_faults(*entry)),
        *(fault for path, page in pages.items() for fault in link_faults(path, page, places)),
        *search_faults(site),
    ]
    counts = f"{len(pages)} pages, {len(wanted)} public names, {len(objects)} signatures, {len(entries)} entries"
    print(f"{counts}, {len(found)} faults", *found, sep="\n")
    sys.exit(bool(found))


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


def parameters_of(name):
    """The parameters of a documented object, as its reader passes them."""
    head, _, tail = name.rpartition(".")
    try:
        owner = importlib.import_module(head)
    except ModuleNotFoundError:
        module, _, kind = head.rpartition(".")
        owner = getattr(importlib.import_module(module), kind)
    thing = getattr(owner, tail, None)  # an attribute that a class only declares has no value
    if not callable(thing):
        return {}
    parameters = dict(inspect.signature(thing).parameters)
    if inspect.isclass(owner) and inspect.isfunction(inspect.getattr_static(owner, tail)):
        parameters.pop("self")
    return parameters


def signature_faults(name, body):
    """The signature that the page shows has the parameters and defaults of the code, and each is described."""
    texts = [each.get_text() for each in body.find("dt").select("em.sig-param")]
    shown = {text.partition("=")[0].lstrip("*"): text.partition("=")[2] for text in texts if text not in "*/"}
    parameters = parameters_of(name)
    described = {each for section, names, _ in entries_of(body) if "Parameters" in section for each in names}
    if described and (silent := parameters.keys() - described):
        yield f"{name} does not describe {sorted(silent)}"
    if not shown and not described and "class" in body["class"]:  # made by a function, or without arguments
        return
    if list(shown) != list(parameters):
        yield f"{name} is shown with {list(shown)}, expected {list(parameters)}"
        return
    for key, parameter in parameters.items():
        if (default := parameter.default) is not NO_DEFAULT and (stated := shown[key]) not in written(default):
            yield f"{name}: {key}={stated} is shown, the default is {default!r}"


def written(default):
    """How a default may be written."""
    return {repr(default), getattr(default, "__name__", ""), f"np.{getattr(default, '__name__', '')}"} - {""}


def entries_of(body):
    """The entries of an object's lists: the section's title, the names, and what is written of their type."""
    for fields in body.find("dd", recursive=False).find_all("dl", class_="field-list", recursive=False):
        for title in fields.find_all("dt", recursive=False):
            for term in title.find_next_sibling("dd").select(":scope > dl > dt"):
                kind = term.find(class_="classifier")
                text = kind.get_text() if kind else ""
                names = term.get_text().removesuffix(text)
                yield title.get_text().strip(" :"), [each.strip(" *") for each in names.split(",")], text


def entry_faults(name, section, names, kind):
    """Names are those of parameters or attributes; type and default hold for each of them."""
    if section in ("Attributes", "Parameters", "Other Parameters"):
        yield from (f"{name}: '{each}' is no name" for each in names if not each.isidentifier())
    if "Parameters" not in section:
        return
    parameters = parameters_of(name)
    for each in names:
        if each not in parameters:
            yield f"{name} has no parameter {each}"
        elif kind:
            yield from (f"{name}: {each} : {kind}: {fault}" for fault in type_faults(kind, parameters[each]))


def type_faults(kind, parameter):
    """What contradicts a parameter in the description of its type."""
    default, stated = parameter.default, stated_default(kind)
    if stated not in (NO_DEFAULT, default):
        yield f"the default is {default!r}"
    if default is NO_DEFAULT and "optional" in kind:
        yield "it must be given"
    if default is None and not re.search(r"optional|None", kind):
        yield "it may be None"
    words = {"bool": "bool", "int": "int", "float": "float|number", "str": "str|{"}
    type_name = parameter.annotation if isinstance(parameter.annotation, str) else type(default).__name__
    if type_name in words and not re.search(words[type_name], kind):
        yield f"it is {type_name}"
    if kind == "bool" and type_name not in ("bool", "Any"):
        yield f"it is {type_name}"


def stated_default(kind):
    """What numpydoc's conventions make of a type: a default that is written, or the first of the possible values."""
    if found := re.search(r"default:? (.+)$", kind):
        return ast.literal_eval(found[1])
    if kind.startswith("{"):
        return ast.literal_eval(kind[: kind.index("}") + 1].replace("{", "[").replace("}", "]"))[0]
    return None if kind.endswith(", optional") else NO_DEFAULT


def link_faults(path, page, places):
    """Links lead to a file of the site and to a place on its page; nothing is loaded from another site."""
    for element in page.select("[href], [src]"):
        target = element.get("href") or element.get("src")
        parts = urlsplit(target)
        if parts.scheme or parts.netloc:
            if element.name != "a":
                yield f"{path.name} loads {target}"
            continue
        file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        if not file.is_file():
            yield f"{path.name} links to {target}, which does not exist"
        elif parts.fragment and unquote(parts.fragment) not in places.get(file, {unquote(parts.fragment)}):
            yield f"{path.name} links to {target}, a place that its page does not have"


def search_faults(site):
    """The index of the site's search has the words that a reader looks for."""
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    stem = snowballstemmer.stemmer("english").stemWord
    terms = index["terms"].keys() | index["titleterms"].keys()
    return [f"search does not find {word}" for word in SEARCHED if stem(word) not in terms]


if __name__ == "__main__":
    main()
