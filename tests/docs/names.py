# SPDX-License-Identifier: Apache-2.0
"""Names that pages for users give: C calls, types, values and fields as the headers have them, Python names and
keyword arguments as the package has them.

A table of docs/networks.md has the columns layer, C and Python, and each cell of the two right ones has a name or says
what there is instead. Of the last cell of tables elsewhere, names behind F., snn. and spops. are checked.
"""
import ast
import glob
import os
import re

NETWORKS = "docs/networks.md"
OTHERS = ["docs/coming-from.md", "docs/tasks.md", "docs/python.md"]
OF_USE = [NETWORKS, *OTHERS, "docs/weights.md"]
WORDS = ("not here", "made when", "the same", "nothing", "framework", "repeated", "in one matrix", "the map")
WRONG = ["spops_no_such_execute", "SPOPS_NO_SUCH", "spops_conv_layer.no_such", "spops_no_such.bias", "F.no_such",
         "snn.NoSuch", "snn.SubMConv3d(no_such=1)", "F.attention(no_such=1)", "spops.no_such", "no_such",
         "F.segreduce(F.no_such(x))", "spops.SparseTensor.no_such", "spops.weights.no_such"]


class Names:
    def __init__(self, root):
        text = ""
        for path in sorted(glob.glob(os.path.join(root, "include/spops/*.h"))):
            with open(path, encoding="utf-8") as header:
                text += re.sub(r"/\*.*?\*/|//[^\n]*", " ", header.read(), flags=re.S)
        self.c = set(re.findall(r"\b(?:spops|SPOPS)_\w+", text))
        self.fields = {name: set(re.findall(r"(\w+)(?:\[\w+\])*\s*[;,]", body))
                       for body, name in re.findall(r"struct\s+\w*\s*\{([^{}]*)\}\s*(spops_\w+);", text)}
        package = os.path.join(root, "python/spops")
        self.python = {"F": read_module(os.path.join(package, "functional.pyi")),
                       "snn": read_module(os.path.join(package, "nn.pyi")),
                       "spops": read_module(os.path.join(package, "_tensor.py")),
                       "spops.weights": read_module(os.path.join(package, "weights.py"))}

    def fault_of_c(self, span):
        name, _, field = span.partition(".")
        if name not in self.c:
            return f"there is no {name}"
        if field and field not in self.fields.get(name, ()):
            return f"{name} has no {field}"
        return None

    def fault_of_python(self, span):
        """The first wrong name, behind any of F, snn and spops, of an expression."""
        try:
            tree = ast.parse(span, mode="eval").body
        except SyntaxError:
            return f"{span} is no expression"
        keywords = {id(node.func): [word.arg for word in node.keywords] for node in ast.walk(tree) if isinstance(node, ast.Call)}
        inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and id(node) not in inner:
                module, _, name = ast.unparse(node).partition(".")
                if module == "spops" and name.startswith("weights."):
                    module, name = "spops.weights", name.removeprefix("weights.")
                if module not in self.python:
                    continue
                if name not in self.python[module]:
                    return f"there is no {module}.{name}"
                for word in keywords.get(id(node), []):
                    if word not in self.python[module][name]:
                        return f"{module}.{name} has no argument {word}"
        return None

    def fault_of(self, span):
        if re.match(r"(spops|SPOPS)_", span):
            return self.fault_of_c(span)
        if re.match(r"(F|snn|spops)\.", span):
            return self.fault_of_python(span)
        return f"{span} is no name of C or Python"


def arguments(function):
    return {one.arg for one in function.args.posonlyargs + function.args.args + function.args.kwonlyargs}


def read_module(path):
    """Public names, and those of classes behind their class, with the names of their arguments."""
    with open(path, encoding="utf-8") as text:
        tree, found = ast.parse(text.read()), {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = arguments(node)
        elif isinstance(node, ast.ClassDef):
            found[node.name] = set()
            for member in node.body:
                if isinstance(member, ast.FunctionDef):
                    found[f"{node.name}.{member.name}"] = arguments(member)
                    if member.name == "__init__":
                        found[node.name] = arguments(member)
    return {name: words for name, words in found.items() if not name.startswith("_")}


def rows(path):
    """(number of the line, cells) of each row of a table that is no head"""
    with open(path, encoding="utf-8") as text:
        lines = text.read().split("\n")
    for number, line in enumerate(lines, 1):
        after = lines[number] if number < len(lines) else ""
        if line.startswith("|") and not line.startswith("|---") and not after.startswith("|---"):
            yield number, [cell.strip() for cell in line.strip("|").split("|")]


def spans(cell):
    return re.findall(r"`([^`]+)`", cell)


def check_networks(root, names):
    checked, faults = 0, []
    for number, cells in rows(os.path.join(root, NETWORKS)):
        where = f"{NETWORKS}:{number}"
        if len(cells) not in (2, 3):
            faults.append(f"{where}: {len(cells)} cells")
        for cell in cells[1:]:
            if not spans(cell) and not any(word in cell for word in WORDS):
                faults.append(f"{where}: a cell names no call, nor says what there is instead: {cell}")
            for span in spans(cell):
                checked += 1
                fault = names.fault_of(span)
                if fault:
                    faults.append(f"{where}: {fault}")
    return checked, faults


def check_others(root, names):
    checked, faults = 0, []
    for page in OTHERS:
        for number, cells in rows(os.path.join(root, page)):
            for span in spans(cells[-1]):
                if re.match(r"(F|snn|spops)\.\w", span):
                    checked += 1
                    fault = names.fault_of_python(span)
                    if fault:
                        faults.append(f"{page}:{number}: {fault}")
    return checked, faults


def check_uses(root):
    """Every call of the list of operators is on a page that says what it is for."""
    text = ""
    for page in OF_USE:
        with open(os.path.join(root, page), encoding="utf-8") as lines:
            text += lines.read()
    with open(os.path.join(root, "docs/operators.md"), encoding="utf-8") as lines:
        calls = set(re.findall(r"^    calls +(spops_\w+)$", lines.read(), re.M))
    faults = [f"no page says what {call} is for: {', '.join(OF_USE)}" for call in sorted(calls)
              if not call.endswith("_backward") and not re.search(call + r"\b", text)]
    return len(calls), faults


def check(root):
    names = Names(root)
    unseen = [span for span in WRONG if not names.fault_of(span)]
    if unseen:
        return 0, [f"names.py takes a wrong name: {span}" for span in unseen]
    counts, faults = zip(check_networks(root, names), check_others(root, names), check_uses(root))
    if not all(counts):
        return 0, ["names.py finds no names on a page"]
    return sum(counts), [fault for some in faults for fault in some]
