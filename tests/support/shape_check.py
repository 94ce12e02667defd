"""
Runs a source file with every shape comment turned into a check.

A comment such as `# (B, T, D)` at the end of a line states the shape of the line's value: the variable it
assigns, the value it returns, or the parameter it declares. After each such line, a check of the tensor is
inserted. A letter keeps its value throughout a call, or throughout the run if the caller fixes it.
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
    """A shape comment that is wrong, or on a line with no tensor to check."""


def shape_comments(source: str) -> dict[int, str]:
    """The shape comments at the ends of lines, by line number."""
    comments = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        match = token.type == tokenize.COMMENT and SHAPE.match(token.string)
        if match and token.line[: token.start[1]].strip():
            comments[token.start[0]] = match[1]
    return comments


class Instrument(ast.NodeTransformer):
    """Inserts `__shape__(value, spec, line, dims)` after each line with a shape comment."""

    def __init__(self, comments: dict[int, str]):
        self.comments = comments
        self.checked_lines: set[int] = set()

    def check(self, value: ast.expr, line: int) -> ast.Call:
        self.checked_lines.add(line)
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

    def with_check(self, node: ast.stmt, target: ast.expr) -> ast.stmt | list[ast.stmt]:
        if node.end_lineno not in self.comments:
            return node
        if isinstance(target, ast.Tuple):
            target = target.elts[0]
        value = ast.parse(ast.unparse(target), mode="eval").body
        return [node, ast.Expr(self.check(value, node.end_lineno))]

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | list[ast.stmt]:
        return self.with_check(node, node.targets[0])

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt | list[ast.stmt]:
        return self.with_check(node, node.target)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt | list[ast.stmt]:
        return self.with_check(node, node.target)

    def visit_Return(self, node: ast.Return) -> ast.stmt:
        if node.end_lineno in self.comments and node.value is not None:
            node.value = self.check(node.value, node.end_lineno)
        return node


def name(word: str) -> ast.Name:
    return ast.Name(word, ast.Load())


class Checker:
    """A file under test: its instrumented module, and which of its shape comments have run."""

    def __init__(self, path: Path, source: str | None = None, **fixed: int):
        """`fixed` are letters whose value is known for the whole run. Use a different number for each."""
        source = path.read_text() if source is None else source
        self.fixed = fixed
        self.comments = shape_comments(source)
        self.lines_run: set[int] = set()
        instrument = Instrument(self.comments)
        tree = ast.fix_missing_locations(instrument.visit(ast.parse(source)))
        if unchecked := sorted(self.comments.keys() - instrument.checked_lines):
            raise ShapeError(f"{path.name}:{unchecked[0]}: nothing here has a shape to check")
        self.module = types.ModuleType(f"shape_checked_{path.stem}")
        self.module.__dict__["__shape__"] = self.check_shape
        sys.modules[self.module.__name__] = self.module
        exec(compile(tree, str(path), "exec"), self.module.__dict__)

    def check_shape(self, value, spec: str, line: int, dims: dict[str, int]):
        """Compares a value with its comment. A letter without a value gets the size at its position."""
        self.lines_run.add(line)
        words = [word.strip() for word in spec.split(",") if word.strip()]
        shape = tuple(value.shape)
        sizes = {**dims, **self.fixed}
        if len(words) != len(shape):
            raise ShapeError(f"line {line}: comment says ({spec}), the shape is {shape}")
        for word, size in zip(words, shape, strict=True):
            if word not in sizes and any(letter not in sizes for letter in re.findall("[A-Z]", word)):
                # A quotient such as D/H may be all that a function knows about its letters.
                dims[word] = sizes[word] = size
            expected = sizes[word] if word in sizes else eval(word.replace("/", "//"), {}, sizes)
            if expected != size:
                raise ShapeError(f"line {line}: comment says ({spec}) with {sizes}, the shape is {shape}")
        return value

    @property
    def not_run(self) -> list[int]:
        """Lines with a shape comment that haven't run."""
        return sorted(self.comments.keys() - self.lines_run)


@contextmanager
def short_loops(module: types.ModuleType, most: int = 2) -> Iterator[None]:
    """Ends each `range` of a module early, so that a demo trains for 2 steps rather than 400."""
    module.__dict__["range"] = lambda *bounds: range(*bounds)[:most] if len(bounds) == 1 else range(*bounds)
    yield
    del module.__dict__["range"]
