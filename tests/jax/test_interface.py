"""Handlers for XLA and JAX's own names: which versions of both are taken, and how errors come out."""

import ctypes
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from householder import _core


class Structure(ctypes.Structure):
    """A struct of XLA's C interface: its size comes first, its extensions second."""

    def __init__(self, **fields):
        super().__init__(struct_size=ctypes.sizeof(type(self)), **fields)


BASE = [("struct_size", ctypes.c_size_t), ("extension", ctypes.c_void_p)]


class Version(Structure):
    _fields_ = [*BASE, ("major", ctypes.c_int), ("minor", ctypes.c_int)]


class Metadata(Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("version", Version), ("traits", ctypes.c_uint32)]


class Extension(Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("kind", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("metadata", ctypes.POINTER(Metadata)),
    ]


class Arrays(Structure):
    _fields_ = [*BASE, ("count", ctypes.c_int64), ("kinds", ctypes.c_void_p), ("arrays", ctypes.c_void_p)]


class Attributes(Structure):
    _fields_ = [*Arrays._fields_, ("values", ctypes.c_void_p)]


class ErrorArguments(Structure):
    _fields_ = [*BASE, ("message", ctypes.c_char_p), ("code", ctypes.c_int)]


CREATE_ERROR = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(ErrorArguments))


class Api(Structure):
    _fields_ = [*BASE, ("version", Version), ("internal", ctypes.c_void_p), ("create_error", CREATE_ERROR)]


class Frame(Structure):
    _fields_ = [
        *BASE,
        ("api", ctypes.POINTER(Api)),
        ("context", ctypes.c_void_p),
        ("stage", ctypes.c_int),
        ("arguments", Arrays),
        ("results", Arrays),
        ("attributes", Attributes),
        ("future", ctypes.c_void_p),
    ]


def handler(name="householder_apply"):
    read = ctypes.pythonapi.PyCapsule_GetPointer
    read.restype, read.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    address = read(_core.xla_handlers()[name], b"xla._CUSTOM_CALL_TARGET")
    return ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(Frame))(address)


def call(version, extension=None, frame_size=None):
    """Call a handler as an XLA of this version does; give the error's code and text, if there is one."""
    major, minor = version or (0, 0)
    errors = []

    @CREATE_ERROR
    def create_error(arguments):
        errors.append((arguments.contents.code, arguments.contents.message.decode()))
        return 1

    api = Api(version=Version(major=major, minor=minor), create_error=create_error)
    frame = Frame(
        api=ctypes.pointer(api) if version else None,
        stage=3, arguments=Arrays(), results=Arrays(), attributes=Attributes(),
        extension=ctypes.addressof(extension) if extension else None,
    )  # fmt: skip
    frame.struct_size = frame_size or frame.struct_size
    failed = handler()(ctypes.byref(frame))
    assert bool(failed) == bool(errors)
    return errors


INVALID_ARGUMENT = 3


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [((0, 1), (0, 1)), ((0, 2), (0, 2)), ((0, 3), (0, 3)), ((0, 9), (0, 3)), ((1, 0), (0, 3)), (None, (0, 1))],
)
def test_a_handler_names_the_latest_version_that_both_sides_know(theirs, ours):
    metadata = Metadata(version=Version())
    assert call(theirs, Extension(kind=1, metadata=ctypes.pointer(metadata))) == []
    assert (metadata.version.major, metadata.version.minor) == ours


@pytest.mark.parametrize("version", [(0, 0), (1, 0), (2, 7)])
def test_calls_of_other_versions_are_refused_in_one_line(version):
    ((code, text),) = call(version)
    assert code == INVALID_ARGUMENT
    assert "\n" not in text
    assert "version 0.1 of XLA's foreign function interface" in text
    assert f"version {version[0]}.{version[1]}" in text


def test_calls_with_fields_missing_are_refused():
    ((code, text),) = call((0, 3), frame_size=64)
    assert code == INVALID_ARGUMENT
    assert "foreign function interface" in text


@pytest.mark.parametrize("version", [(0, 1), (0, 3), (0, 9)])
def test_calls_of_versions_that_are_known_are_read(version):
    ((code, text),) = call(version)
    assert (code, text) == (INVALID_ARGUMENT, "inputs: expected an attribute of kind 3, got none")


TRIED = {"0.10", "0.12"}
"""Versions of JAX whose undocumented names were tried with all tests: add the next one after it passed them."""


def test_names_outside_of_jax_s_policy_are_used_in_one_file_with_versions_that_were_tried():
    jax = pytest.importorskip("jax", reason="needs jax")
    root = Path(__file__).parents[2]
    outside = re.compile(r"\bjax\.(core|extend|interpreters|_src)\b|from jax import .*\b(core|extend|interpreters)\b")
    code = [file for folder in ("python", "benches", "examples") for file in (root / folder).rglob("*.py")]
    users = {file.name for file in code if outside.search(file.read_text("utf-8"))}
    assert users == {"primitive.py"}
    assert ".".join(jax.__version__.split(".")[:2]) in TRIED
    extras = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert extras["jax"] == [f"jax>={min(TRIED)}"]


def test_a_version_of_jax_without_one_of_these_names_is_named_in_one_line(run_script):
    pytest.importorskip("jax", reason="needs jax")
    said = run_script("""
        import jax.interpreters.ad
        del jax.interpreters.ad.instantiate_zeros
        try:
            import householder.jax
        except ImportError as error:
            print(error)
    """)
    assert re.fullmatch(r"householder.jax does not work with jax \S+: install a version .*instantiate_zeros.*\n", said)


def test_a_refused_registration_is_one_line(monkeypatch):
    jax = pytest.importorskip("jax", reason="needs jax")
    from householder.jax._ops import targets

    def refuse(*_, **__):
        raise RuntimeError("unsupported API version:\n  0.3 of a handler, supported are 7.0 to 7.2")

    monkeypatch.setattr(jax.ffi, "register_ffi_target", refuse)
    with pytest.raises(ImportError, match=r"^householder.jax: jaxlib \S+ refuses the handler 'householder_apply'") as e:
        targets.register()
    assert "\n" not in str(e.value)
    assert "0.3 of a handler" in str(e.value)


@pytest.mark.parametrize(
    ("shape", "attributes", "message"),
    [
        ((1, 3), {}, "method: expected an attribute of kind 4, got none"),
        ((1, 3), {"method": "fast"}, "method: expected 'auto'"),
        ((1, 4), {"method": "auto"}, r"h: expected shape \[1, 2, 3\] of type 11"),
    ],
)
def test_errors_of_the_core_come_out_as_exceptions(shape, attributes, message):
    jax = pytest.importorskip("jax", reason="needs jax")
    import householder.jax  # noqa: F401

    u, h = np.ones((1, 3, 2), np.float32), np.ones((1, 2, shape[1]), np.float32)
    masks = {"inputs": np.int64(5), "outputs": np.int64(1), "transpose": np.bool_(False), "form": "trapezoidal"}
    run = jax.ffi.ffi_call("householder_apply", jax.ShapeDtypeStruct((1, 2, 3), np.float32))
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        jax.block_until_ready(run(u, h, **masks, **attributes))
