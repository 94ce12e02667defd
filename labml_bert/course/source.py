"""
# From the source to an exercise, and back

How does a course keep up with the code that it teaches? It has no copy of the code. A file of exercises is
the source file without the bodies of some functions. Its known mistakes are edits of the same source. And to
check one step, all other steps in the learner's file get their original code back, so that a step can be
checked before the others are written.
"""

import ast
import io
import textwrap
import tokenize
from collections.abc import Collection
from functools import cache
from pathlib import Path

from labml_bert.course.step import Mistake, Step

PACKAGE = Path(__file__).parents[1]


@cache
def read_reference(file: str) -> str:
    """The text of a source file, such as `mlm.py` or `data/curriculum.py`."""
    return (PACKAGE / file).read_text(encoding="utf-8")


def parse(text: str) -> ast.Module:
    """Parses Python code. Raises `SyntaxError` if it isn't valid, or too deeply nested for the parser."""
    try:
        return ast.parse(text)
    except (MemoryError, RecursionError):
        raise SyntaxError("too deeply nested for Python's parser") from None


def unparse(node: ast.AST) -> str:
    """Returns the code of a syntax tree. Raises `SyntaxError` if an expression or a number is too long."""
    try:
        return ast.unparse(node)
    except (RecursionError, ValueError):
        raise SyntaxError("an expression is too long, or a number has too many digits") from None


def location(error: SyntaxError) -> str:
    """Where the code isn't valid, in parentheses, or nothing if the parser doesn't say."""
    return f" (line {error.lineno})" if error.lineno else ""


def find_function(tree: ast.Module, function: str) -> tuple[ast.Module | ast.ClassDef, ast.FunctionDef]:
    """
    Returns the function with this name, such as `TokenMasker.choose`, and the module or class that it is in.

    Raises `ValueError` if there is none.
    """
    parent: ast.Module | ast.ClassDef = tree
    *classes, name = function.split(".")
    for class_name in classes:
        matches = [node for node in parent.body if isinstance(node, ast.ClassDef) and node.name == class_name]
        if not matches:
            raise ValueError(f"there is no class {class_name}")
        parent = matches[-1]
    functions = [node for node in parent.body if isinstance(node, ast.FunctionDef) and node.name == name]
    if not functions:
        raise ValueError(f"there is no function {function}")
    return parent, functions[-1]


def body_lines(node: ast.FunctionDef) -> tuple[int, int]:
    """The first and the last line of the body below the docstring, counted from 0; the last is excluded."""
    if ast.get_docstring(node) is not None:
        first = node.body[0].end_lineno
    else:
        first = node.returns.end_lineno if node.returns is not None else node.lineno
    assert first is not None and node.end_lineno is not None
    return first, node.end_lineno


def whole_lines(node: ast.FunctionDef) -> tuple[int, int]:
    """The first and the last line of a function with its decorators, counted from 0; the last is excluded."""
    assert node.end_lineno is not None
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1, node.end_lineno


def remove_bodies(text: str, steps: Collection[Step]) -> str:
    """
    ## The exercise

    Replaces the body of each step in `steps`, and of its twins, with an error that says what to write. The
    signature and the docstring stay.
    """
    lines, tree = text.split("\n"), parse(text)
    messages = {step.function: f"write this: {step.task}" for step in steps}
    messages |= {
        twin: f"left out, because it's like {step.function}" for step in steps for twin in step.twins
    }
    functions = [(find_function(tree, function)[1], message) for function, message in messages.items()]
    for node, message in sorted(functions, key=lambda pair: -pair[0].lineno):
        first, last = body_lines(node)
        indent = " " * node.body[0].col_offset
        lines[first:last] = [f'{indent}raise NotImplementedError("{message}")']
    return "\n".join(lines)


def is_empty(text: str, function: str) -> bool:
    """
    Whether a function still consists of the error that `remove_bodies` wrote.

    Raises `ValueError` if there is no such function, and `SyntaxError` if the text isn't Python.
    """
    first, *others = find_function(parse(text), function)[1].body
    if isinstance(first, ast.Expr) and others:  # the docstring
        first, *others = others
    return isinstance(first, ast.Raise) and not others and "write this: " in unparse(first)


def parameter_names(text: str, function: str) -> list[str]:
    """
    The names of a function's parameters, with `=` after those that have a default.

    Raises `ValueError` if there is no such function, and `SyntaxError` if the text isn't Python.
    """
    arguments = find_function(parse(text), function)[1].args
    defaults: list[ast.expr | None] = [*arguments.defaults]
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(defaults)) + defaults + arguments.kw_defaults
    pairs = zip([*positional, *arguments.kwonlyargs], defaults, strict=True)
    names = [parameter.arg + "=" * (default is not None) for parameter, default in pairs]
    return [*names, *(rest.arg for rest in (arguments.vararg, arguments.kwarg) if rest is not None)]


def function_lines(text: str, function: str) -> list[str]:
    """
    The lines of a function below its docstring, or the whole function if it's on one line.

    Raises `ValueError` if there is no such function, and `SyntaxError` if the text isn't Python.
    """
    first, last = body_lines(find_function(parse(text), function)[1])
    return text.split("\n")[min(first, last - 1) : last]


def whole_function(text: str, function: str) -> str:
    """
    A function with its signature and docstring, not indented.

    Raises `ValueError` if there is no such function, and `SyntaxError` if the text isn't Python.
    """
    node = find_function(parse(text), function)[1]
    first, last = whole_lines(node)
    return textwrap.dedent("\n".join(text.split("\n")[first:last])) + "\n"


def lines_in_strings(code: str, node: ast.FunctionDef) -> set[int]:
    """The lines of `code` that begin inside a string, counted from 0, except for the docstring of `node`."""
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    lines = {i for token in tokens for i in range(token.start[0], token.end[0])}
    return lines - {*range(node.lineno, body_lines(node)[0])}


def replace_function(text: str, function: str, code: str) -> str:
    """
    Replaces a function, with its signature and docstring, by the one in `code`, which may be indented or not.
    Leaves out comments above and below that function. Otherwise, each run of a cell would add them again.

    Raises `ValueError` if the text has no such function or `code` isn't this function alone, and
    `SyntaxError` if one of them isn't Python or `code` is too long for `unparse`.
    """
    code = textwrap.dedent(code).strip("\n")
    name = function.rpartition(".")[2]
    tree = parse(code)
    unparse(tree)
    # A class or an `async def` of this name wouldn't be found again.
    if [node.name if isinstance(node, ast.FunctionDef) else "" for node in tree.body] != [name]:
        raise ValueError(f"the cell must have the function {name}, and nothing else")
    node, new_node = find_function(parse(text), function)[1], find_function(tree, name)[1]
    first, last = whole_lines(node)
    lines, new_lines = text.split("\n"), code.split("\n")
    for i in {*range(len(new_lines))} - lines_in_strings(code, new_node):
        new_lines[i] = textwrap.indent(new_lines[i], " " * node.col_offset)
    new_lines = new_lines[slice(*whole_lines(new_node))]
    return "\n".join([*lines[:first], *new_lines, *lines[last:]])


def restore_others(text: str, step: Step, others: Collection[Step]) -> ast.Module:
    """
    ## One step alone

    Parses the learner's file, with the original code in all steps of `others` that are in the same file,
    except for `step`, and in all twins. All nodes from the learner's text keep their line numbers.

    Raises `ValueError` if the file lacks a function, and `SyntaxError` if the text isn't Python.
    """
    tree, reference = parse(text), parse(read_reference(step.file))
    find_function(tree, step.function)
    for other in others:
        if other.file == step.file:
            for function in {other.function, *other.twins} - {step.function}:
                parent, node = find_function(tree, function)
                parent.body[parent.body.index(node)] = find_function(reference, function)[1]
    return tree


def make_mistake(step: Step, mistake: Mistake) -> str:
    """
    ## A known mistake

    Returns the source file with a mistake in the step's function.

    Raises `ValueError` if the text to replace doesn't occur exactly once in the body.
    """
    text = read_reference(step.file)
    first, last = body_lines(find_function(parse(text), step.function)[1])
    lines = text.split("\n")
    body = "\n".join(lines[first:last])
    if (count := body.count(mistake.old)) != 1:
        raise ValueError(f"{step.name}, {mistake.name}: {mistake.old!r} occurs {count} times in the body")
    return "\n".join([*lines[:first], body.replace(mistake.old, mistake.new), *lines[last:]])


def first_line(text: str, function: str) -> int | None:
    """The number of the first line below a function's docstring, or `None` if there is no such function."""
    try:
        first, last = body_lines(find_function(parse(text), function)[1])
        return min(first + 1, last)
    except (ValueError, SyntaxError):
        return None
