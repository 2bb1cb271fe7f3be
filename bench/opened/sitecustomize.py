"""Note which functions of raycomp run in this process: bench.files_opened puts this folder on PYTHONPATH.

Every function of raycomp is compiled with a call before its first statement, so that threads which C starts
count, too, and no other code becomes slower. Notes go to ``$FILES_OPENED/<pid>`` at once; a killed process
loses none.
"""

import ast
import builtins
import os
import sys
from importlib.machinery import PathFinder, SourceFileLoader
from types import FrameType


def note(file: str, function: str) -> None:
    """Write down a function of a file, unless it runs because some module is being imported."""
    if (file, function) in _noted:
        return
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") != "__main__":
            return
        frame = frame.f_back
    _noted.add((file, function))
    with open(os.path.join(os.environ["FILES_OPENED"], str(os.getpid())), "a") as out:
        out.write(f"{file}\t{function}\n")


class Noting(ast.NodeTransformer):
    """Add the call to every function. One within a function bears the name of the outermost."""

    def __init__(self, file: str):
        self.file, self.classes, self.function = file, [], ""

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.classes.append(node.name)
        self.generic_visit(node)
        self.classes.pop()
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        outer, self.function = self.function, self.function or ".".join([*self.classes, node.name])
        self.generic_visit(node)
        call = ast.parse(f"__note_opened__({self.file!r}, {self.function!r})").body
        self.function = outer
        first = int(ast.get_docstring(node) is not None)
        node.body[first:first] = call
        return node

    visit_AsyncFunctionDef = visit_FunctionDef


class Loader(SourceFileLoader):
    """Compile a file of raycomp with the calls; neither read nor write byte code."""

    def get_code(self, fullname: str):
        path = self.get_filename(fullname)
        start = path.rindex("/raycomp/") + 1
        tree = Noting(path[start:]).visit(ast.parse(self.get_data(path), path))
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


class Finder:
    """Load raycomp with this loader, wherever it lies."""

    @staticmethod
    def find_spec(name: str, path=None, target=None):
        if name != "raycomp" and not name.startswith("raycomp."):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec and spec.origin and spec.origin.endswith(".py"):
            spec.loader = Loader(name, spec.origin)
        return spec


_noted: set[tuple[str, str]] = set()
builtins.__note_opened__ = note
sys.meta_path.insert(0, Finder)

# The sitecustomize that this one hides runs, too.
_here = os.path.dirname(os.path.abspath(__file__))
_hidden = PathFinder.find_spec("sitecustomize", [p for p in sys.path if os.path.abspath(p) != _here])
if _hidden and _hidden.loader:
    _hidden.loader.exec_module(sys.modules[__name__])
