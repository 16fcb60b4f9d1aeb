# SPDX-License-Identifier: Apache-2.0
"""What Python passes by ctypes against the interface as the headers have it: structs, fields and calls."""
import ctypes as c
import re
from pathlib import Path

import pytest

import spops
import spops.ranks  # noqa: F401: all modules that call by ctypes
from spops import _boxed, _capacity, _library, _receptive, _structs, weights  # noqa: F401

INTERFACE = (Path(__file__).parents[2] / "tests/abi/interface.txt").read_text().splitlines()
NUMBERS = {"int32_t": c.c_int32, "uint32_t": c.c_uint32, "int64_t": c.c_int64, "size_t": c.c_size_t, "int": c.c_int, "double": c.c_double}
POINTERS = (c.c_void_p, c.c_char_p, c._Pointer, c._CFuncPtr)
ENUMS = {line.split()[1] for line in INTERFACE if line.startswith("enum ")}


def fits(declared: str, given) -> bool:
    """Whether a ctypes type is what a C type of an argument, a result or a field without its name is."""
    declared = re.sub(r"\bconst\b", "", declared).strip()
    if declared == "void":
        return given is None
    if "*" in declared or declared == "spops_boxed":
        pointed = _structs.NAMES.get(declared.replace("*", "").strip())
        depth, to = 0, given
        while isinstance(to, type) and issubclass(to, c._Pointer):
            depth, to = depth + 1, to._type_
        named = isinstance(to, type) and issubclass(to, (c.Structure, c.Union))
        return issubclass(given, POINTERS) and (not named or (to is pointed and depth == declared.count("*")))
    if declared in _structs.NAMES:
        return given is _structs.NAMES[declared]
    return given is (c.c_int if declared in ENUMS or declared == "spops_status" else NUMBERS[declared])


@pytest.mark.parametrize("name", _structs.NAMES)
def test_struct_is_the_header_s(name):
    struct = _structs.NAMES[name]
    union = next((line for line in INTERFACE if line.startswith(f"type union {name} ")), None)
    if union:
        assert c.sizeof(struct) == 8 and {n for n, _ in struct._fields_} <= set(re.findall(r"\*?(\w+);", union))
        return
    lines = [line for line in INTERFACE if re.match(rf"struct {name} ", line)]
    fields = [re.match(r"struct \w+ +(\d+) +(\d+)  (.*)", line) for line in lines]
    size = re.match(r"struct \w+ \((\d+) bytes, alignment (\d+)\)", lines[-1])
    assert (c.sizeof(struct), c.alignment(struct)) == (int(size[1]), int(size[2]))
    assert len(fields[:-1]) == len(struct._fields_)
    for field, (ours, kind) in zip(fields, struct._fields_):
        declared = re.match(r"(.*?)(?:\(\*(\w+)\)\(.*\)|\b(\w+)(\[\d+\])?)$", field[3])
        theirs = declared[2] or declared[3]
        assert theirs == ours
        assert (getattr(struct, ours).offset, getattr(struct, ours).size) == (int(field[1]), int(field[2])), ours
        element = kind._type_ if declared[4] else kind
        assert issubclass(kind, POINTERS) if declared[2] else fits(declared[1], element), ours


def test_calls_are_the_header_s():
    found = {}
    for line in INTERFACE:
        if match := re.match(r"function (.*?)(\w+)\((.*)\)$", line):
            arguments = [] if match[3] == "void" else [re.sub(r"\w+$", "", a) for a in match[3].split(",")]
            found[match[2]] = match[1], *arguments
    assert len(_library.bound) > 40
    for name, given in _library.bound.items():
        assert len(given) == len(found[name]), name
        for declared, ours in zip(found[name], given):
            assert fits(declared, ours), (name, declared, ours)


def test_structs_and_types_are_in_one_place():
    for path in Path(spops.__file__).parent.rglob("*.py"):
        if path.name not in ("_structs.py", "_library.py"):
            assert not re.search(r"Structure\)|\.restype|\.argtypes", path.read_text()), path.name


def test_a_wrong_type_does_not_fit():
    assert not fits("spops_matrix", _structs.Reach) and not fits("const spops_reach *", c.POINTER(_structs.Matrix))
    assert not fits("int64_t", c.c_int32) and not fits("spops_matrix **", c.POINTER(_structs.Matrix)) and not fits("void *", c.c_int64)
