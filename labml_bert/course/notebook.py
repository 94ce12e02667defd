"""
# The course in a notebook

`%load_ext labml_bert.course.notebook` adds the cell magic `%%step`. A cell that begins with `%%step 3` has
the code of step 3. Running the cell writes the code into your file and checks it, so you can continue in an
editor at any time.
"""

from pathlib import Path
from typing import Any

from labml_bert.course.check import check_folder
from labml_bert.course.folder import FILES, read_files, write_exercises, write_file
from labml_bert.course.report import print_report, read_step
from labml_bert.course.source import is_empty, location, replace_function
from labml_bert.stdout import explain

FOLDER = Path("my_bert")


def load_ipython_extension(shell: Any) -> None:
    """Adds `%%step` to a notebook, and writes the exercises to `my_bert` if you have no other files there."""
    shell.register_magic_function(check_cell, "cell", "step")
    try:
        write_exercises(FOLDER)
    except ValueError:  # The folder has files.
        if not any((FOLDER / file).exists() for file in FILES):
            print(f"error: {FOLDER} has other files; rename that folder, and run this cell again")
    except OSError as error:
        print(f"error: {explain(error)}; the course needs a folder {FOLDER}")


def check_cell(line: str, cell: str) -> None:
    """
    Writes the code of a cell into the learner's file, checks the step, and prints the result. If the cell has
    no code yet but the file has, the file isn't changed. So you can write code in an editor and then run all
    cells of the notebook.
    """
    source = "the cell"
    try:
        step = read_step(line.strip())
        text = read_files(FOLDER)[step.file]
        source = str(FOLDER / step.file)
        is_written = not is_empty(text, step.function)
        source = "the cell"
        new_text = replace_function(text, step.function, cell)
        if is_written and is_empty(new_text, step.function):
            print(f"The cell has no code yet, so your code in {FOLDER / step.file} stays.")
        else:
            write_file((FOLDER / step.file).resolve(), new_text)
        print_report(check_folder(FOLDER, step), FOLDER)
    except SyntaxError as error:
        print(f"error: {source} isn't valid Python{location(error)}: {error.msg}")
    except (ValueError, OSError) as error:
        print(f"error: {explain(error)}")
