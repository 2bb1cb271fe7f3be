"""Changes of one line of a Python file by the classic operators of mutation testing.

``Editor(text).edits`` lists those of a file's functions. Comparisons flip (< to <=, == to !=, is, in), +
and -, * and /, and and or, min and max change places, ``not`` goes, numbers grow by one, True is False, a
return value is None, a call is ``pass``, as is an assignment where its names get a value elsewhere, too, a
constant index or the bound of a slice is off by one, two arguments change places, a condition of an ``if``
is negated. Left alone: docstrings, raise statements, f-strings, annotations, defaults of parameters,
decorators, and calls and functions that only report.
"""

import ast
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeGuard

_REPORTS = re.compile(r"(^|\.)_?(say|print|log|warn|report)(_\w+)?$|progress|meter|logger")
_OPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not", "is not": "is"}
_OPS |= {"in": "not in", "not in": "in", "+": "-", "-": "+", "*": "/", "/": "*", "and": "or", "or": "and"}
_SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.And: "and", ast.Or: "or"}
_SIGNS |= {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
_SIGNS |= {ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in"}
_SYMMETRIC = {"min", "max", "minimum", "maximum", "suppress"}
_EXTREMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}


@dataclass(frozen=True)
class Edit:
    """One change of one line, which counts from 1."""

    line: int
    function: str
    operator: str
    mutated: str


class Editor(ast.NodeVisitor):
    """List every change of one line in the functions of a file."""

    def __init__(self, text: str):
        self.lines, self.edits = text.splitlines(), list[Edit]()
        self.names, self.bound = list[str](), list[Counter[str]]()
        self.visit(ast.parse(text))

    def add(self, operator: str, first: ast.AST, last: ast.AST, change: Callable[[str], str]) -> None:
        """Note that the text from one node to another changes, where it is of one line within a function."""
        number, begin, end = first.lineno, first.col_offset, last.end_col_offset
        line = self.lines[number - 1]
        if not self.bound or last.end_lineno != number or not line.isascii():
            return
        new = line[:begin] + change(line[begin:end]) + line[end:]
        if new != line:
            self.edits.append(Edit(number, ".".join(self.names), operator, new.strip()))

    def replace_sign(self, operator: str, left: ast.AST, sign: ast.AST, right: ast.AST) -> None:
        """Note the other sign between two nodes."""
        old = _SIGNS.get(type(sign))
        if old is None or left.end_lineno != right.lineno:
            return
        begin, end = left.end_col_offset - left.col_offset, right.col_offset - left.col_offset
        if left.lineno == right.end_lineno:
            self.add(operator, left, right, lambda text: (
                text[:begin] + text[begin:end].replace(old, _OPS[old], 1) + text[end:]
            ))  # fmt: skip

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if _REPORTS.search(node.name):
            return
        self.names.append(node.name)
        names = [name.id for name in ast.walk(node) if _is_store(name)]
        self.bound.append(
            Counter(names + [one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)])
        )
        for statement in node.body:
            self.visit(statement)
        self.bound.pop()
        self.names.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.names.append(node.name)
        for statement in node.body:
            self.visit(statement)
        self.names.pop()

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.visit(node.body)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Leave it alone."""

    visit_JoinedStr = visit_Raise

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call) and not _is_report(node.value):
            self.add("delete statement", node, node, lambda text: "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        names = [name.id for name in ast.walk(node) if _is_store(name)]
        if self.bound and all(self.bound[-1][name] > 1 for name in names):
            self.add("delete statement", node, node, lambda text: "pass")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.add("delete statement", node, node, lambda text: "pass")
        self.replace_sign("arithmetic", node.target, node.op, node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not _is_none(node.value):
            self.add("return None", node, node, lambda text: "return None")
        self.generic_visit(node)

    def visit_If(self, node: ast.If | ast.IfExp) -> None:
        self.add("negate condition", node.test, node.test, lambda text: f"not ({text})")
        self.generic_visit(node)

    visit_IfExp = visit_If

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, sign, right in zip(
            [node.left, *node.comparators], node.ops, node.comparators, strict=False
        ):
            self.replace_sign("comparison", left, sign, right)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self.replace_sign("arithmetic", node.left, node.op, node.right)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in zip(node.values, node.values[1:], strict=False):
            self.replace_sign("and, or", left, node.op, right)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self.add("remove not", node, node, lambda text: text.removeprefix("not "))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.add("constant", node, node, lambda text: str(not node.value))
        elif isinstance(node.value, int | float):
            self.add("constant", node, node, lambda text: str(node.value + 1))

    def visit_Subscript(self, node: ast.Subscript) -> None:
        places = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for place in places:
            if isinstance(place, ast.Slice):
                for bound, by in ((place.lower, 1), (place.upper, -1)):
                    if bound is not None:
                        self.add("off by one", bound, bound, lambda text, by=by: _shift(text, by))
            elif isinstance(_literal(ast.unparse(place)), int):
                self.add("off by one", place, place, lambda text: _shift(text, 1))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if _is_report(node):
            return
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in _EXTREMES:
            self.add("min, max", node.func, node.func, lambda text: text[: -len(name)] + _EXTREMES[name])
        for a, b in zip(node.args, node.args[1:], strict=False) if name not in _SYMMETRIC else ():
            if not isinstance(a, ast.Starred) and not isinstance(b, ast.Starred) and a.lineno == b.end_lineno:
                end, begin = a.end_col_offset - a.col_offset, b.col_offset - a.col_offset
                self.add("swap arguments", a, b, lambda text, end=end, begin=begin: (
                    text[begin:] + text[end:begin] + text[:end]
                ))  # fmt: skip
        self.generic_visit(node)


def _is_store(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _is_report(call: ast.Call) -> bool:
    return _REPORTS.search(ast.unparse(call.func)) is not None


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _literal(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None


def _shift(text: str, by: int) -> str:
    if isinstance(value := _literal(text), int):
        return str(value + by)
    whole = text if re.fullmatch(r"[\w.]+", text) else f"({text})"
    return f"{whole} {'+' if by > 0 else '-'} 1"


def is_other(lines: list[str], edit: Edit) -> bool:
    """Return whether a file's lines with an edit compile, and are another program."""
    try:
        changed = ast.parse(change_line("\n".join(lines), edit.line, edit.mutated))
    except SyntaxError:
        return False
    return ast.dump(changed) != ast.dump(ast.parse("\n".join(lines)))


def change_line(text: str, number: int, new: str) -> str:
    """Return the text with another line, indented as the old one."""
    lines = text.splitlines()
    old = lines[number - 1]
    lines[number - 1] = old[: len(old) - len(old.lstrip())] + new
    return "\n".join([*lines, ""])
