"""
Runs a source file with every shape comment turned into a check.

A comment such as `# (B, T, D)` at the end of a line says what shape the line's result has: the
assigned value, the returned one, or the parameter. Here each such line is followed by a look at the
tensor. A letter has one value throughout a call, and throughout a run where the caller fixes it.
"""

import ast
import io
import re
import sys
import tokenize
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SHAPE = re.compile(r"#\s*\(([A-Z0-9][A-Z0-9 ,*/+-]*)\)")


class ShapeError(AssertionError):
    """A comment that is not true, or that stands where nothing can be checked."""


def shape_comments(source: str) -> dict[int, str]:
    """The shape comments at ends of lines, by line number."""
    found = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        match = token.type == tokenize.COMMENT and SHAPE.match(token.string)
        if match and token.line[: token.start[1]].strip():
            found[token.start[0]] = match[1]
    return found


class Instrument(ast.NodeTransformer):
    """Puts `__shape__(value, spec, line, dims)` behind each commented line."""

    def __init__(self, comments: dict[int, str]):
        self.comments = comments
        self.placed: set[int] = set()

    def check(self, value: ast.expr, line: int) -> ast.Call:
        self.placed.add(line)
        arguments = [value, ast.Constant(self.comments[line]), ast.Constant(line), name("__dims__")]
        return ast.Call(name("__shape__"), arguments, [])

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        checks: list[ast.stmt] = [
            ast.Expr(self.check(name(argument.arg), argument.end_lineno or 0))
            for argument in [*node.args.args, *node.args.kwonlyargs]
            if argument.end_lineno in self.comments
        ]
        start = ast.Assign([ast.Name("__dims__", ast.Store())], ast.Dict([], []))
        at = 1 if ast.get_docstring(node, clean=False) is not None else 0
        node.body[at:at] = [start, *checks]
        return node

    def after(self, node: ast.stmt, target: ast.expr) -> ast.stmt | list[ast.stmt]:
        if node.end_lineno not in self.comments:
            return node
        if isinstance(target, ast.Tuple):
            target = target.elts[0]
        again = ast.parse(ast.unparse(target), mode="eval").body
        return [node, ast.Expr(self.check(again, node.end_lineno))]

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | list[ast.stmt]:
        return self.after(node, node.targets[0])

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt | list[ast.stmt]:
        return self.after(node, node.target)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt | list[ast.stmt]:
        return self.after(node, node.target)

    def visit_Return(self, node: ast.Return) -> ast.stmt:
        if node.end_lineno in self.comments and node.value is not None:
            node.value = self.check(node.value, node.end_lineno)
        return node


def name(word: str) -> ast.Name:
    return ast.Name(word, ast.Load())


class Checker:
    """One file under check: its module, and which commented lines have run so far."""

    def __init__(self, path: Path, source: str | None = None, **fixed: int):
        """`fixed` are letters whose value the run decides, each a different number."""
        source = path.read_text() if source is None else source
        self.fixed = fixed
        self.comments = shape_comments(source)
        self.ran: set[int] = set()
        instrument = Instrument(self.comments)
        tree = ast.fix_missing_locations(instrument.visit(ast.parse(source)))
        if left := sorted(self.comments.keys() - instrument.placed):
            raise ShapeError(f"{path.name}:{left[0]}: nothing here has a shape to check")
        self.module = types.ModuleType(f"shape_checked_{path.stem}")
        self.module.__dict__["__shape__"] = self.see
        sys.modules[self.module.__name__] = self.module
        exec(compile(tree, str(path), "exec"), self.module.__dict__)

    def see(self, value, spec: str, line: int, dims: dict[str, int]):
        """Compares a value with its comment, learning letters that it meets for the first time."""
        self.ran.add(line)
        words = [word.strip() for word in spec.split(",") if word.strip()]
        shape = tuple(value.shape)
        known = {**dims, **self.fixed}
        if len(words) != len(shape):
            raise ShapeError(f"line {line}: comment says ({spec}), the shape is {shape}")
        for word, size in zip(words, shape, strict=True):
            if word not in known and any(letter not in known for letter in re.findall("[A-Z]", word)):
                # A quotient such as D/H too may be all that a function knows of its letters.
                dims[word] = known[word] = size
            expected = known[word] if word in known else eval(word.replace("/", "//"), {}, known)
            if expected != size:
                raise ShapeError(f"line {line}: comment says ({spec}) with {known}, the shape is {shape}")
        return value

    @property
    def missed(self) -> list[int]:
        """Commented lines that have not run."""
        return sorted(self.comments.keys() - self.ran)


@contextmanager
def short_loops(module: types.ModuleType, most: int = 2) -> Iterator[None]:
    """Lets each `range` of a module end early: a demonstration trains two steps instead of 400."""
    module.__dict__["range"] = lambda *bounds: range(*bounds)[:most] if len(bounds) == 1 else range(*bounds)
    yield
    del module.__dict__["range"]
