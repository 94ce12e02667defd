r"""
# Labeled texts from a file

How do you load your own labels? Put your texts and labels into a table, with one text and its label in each
row. The code here reads such a table as CSV:

    text,label
    "Great film, and far too short.",good
    I left after ten minutes.,bad

or as JSONL, with one JSON object per line and the same names:

    {"text": "Great film, and far too short.", "label": "good"}

If your task is about two texts, the second one is called `pair`. Other columns are ignored, but
not one called `Pair`, which is probably a mistake.

A spreadsheet may separate the columns of a CSV file with semicolons or tabs. That works too.

If a mistake in the file became a label or a text of its own, the classifier would learn it. So an invalid row
is an error that names its line. Repeated rows are left out. If the same text has different labels, perhaps
because two annotators disagree, all its rows are left out with a warning.
"""

import contextlib
import csv
import io
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from labml_bert.data.corpora import read_utf8
from labml_bert.files import is_utf8, without_nul
from labml_bert.labeled_text import Example
from labml_bert.stdout import printable

# One row of each label is needed to train, one to choose when to stop, and one to test.
FEWEST_PER_LABEL = 3
# With fewer rows, a test set of a fifth of them would be too small for a meaningful score.
FEWEST_ROWS = 20
# The most characters in a label. A longer label is probably a text in the wrong column.
LONGEST_LABEL = 100
# The most bytes of JSON for all labels. `config.json` contains each label twice, and we don't read a
# `config.json` of more than five million bytes. An id, quotes, punctuation and spaces take about 20 bytes.
LARGEST_LABELS, BYTES_PER_ID = 2_000_000, 20
# A file with more bytes is refused, because reading it takes several times its size in memory.
LARGEST_FILE = 200_000_000
# A list in a message has about this many characters at most. The message counts the rest.
LONGEST_LIST, SHORT_LIST = 80, 50
# A message names at most this many lines for each label or text, and this many characters of a label.
MOST_LINES, MOST_OF_A_LABEL = 3, 30
# The delimiters that a CSV file may have, and their names.
DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab"}
# An Excel file starts with one of these. The newer of the two formats is a zip archive.
EXCEL = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
INVISIBLE = re.compile(  # outside the category Cf; one of these colors an emoji
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


class LabeledRow(NamedTuple):
    """A row of the file, with the number of the line that the row starts on."""

    line: int
    text: str
    label: str
    pair: str | None

    @property
    def key(self) -> tuple[str, str]:
        """The text and the pair after `fold`. Rows with equal keys are copies of the same text."""
        return fold(self.text), fold(self.pair or "")


class LabeledTexts(NamedTuple):
    """What a file of labels contains."""

    examples: list[Example]
    labels: list[str]
    """The names of the classes in alphabetical order. The label of an example is an index into this list."""
    repeats: int
    """The number of rows that were left out because an earlier row has the same text and label."""
    conflicts: list[list[int]]
    """For each text with different labels, the lines of its rows. These rows are left out."""

    @property
    def has_pairs(self) -> bool:
        """Whether the examples are pairs of texts."""
        return self.examples[0].pair is not None

    @property
    def conflict_warning(self) -> str:
        """A line that says which texts have different labels, or an empty string if no text has."""
        lines = [some_lines(conflict, " and ") for conflict in self.conflicts]
        count = sum(map(len, self.conflicts))
        return (
            f"left out {count:,} rows: same text, different labels (lines {some(lines, '; ', SHORT_LIST)})"
            * bool(lines)
        )


def fold(text: str) -> str:
    """
    Returns the text in a form without differences in case, in spaces and in invisible characters. A letter
    and its accent become one character where Unicode has one.
    """
    if not text.isascii():
        # Characters of this range distinguish some flags, such as those of England and Scotland.
        text = "".join(
            c
            for c in INVISIBLE.sub("", text)
            if unicodedata.category(c) != "Cf" or "\U000e0020" <= c <= "\U000e007f"
        )
        # Normalizing a letter with 100,000 accents would take minutes, and no language has such letters.
        groups = groupby(text, lambda c: unicodedata.combining(c) > 0)
        lengths = (len([*group]) for is_accent, group in groups if is_accent)
        if max(lengths, default=0) < 1000:
            text = unicodedata.normalize("NFC", text)
    return " ".join(text.split()).casefold()


def some(items: list[str], separator: str = ", ", longest: int = LONGEST_LIST) -> str:
    """Joins the first item and those after it that fit into `longest` characters, and counts the rest."""
    count = 1
    while count < len(items) and len(separator.join(items[: count + 1])) <= longest:
        count += 1
    more = [f"and {len(items) - count:,} more"] if len(items) > count else []
    return separator.join([*items[:count], *more])


def some_lines(lines: list[int], separator: str = ", ") -> str:
    """Joins the first `MOST_LINES` line numbers, and counts the rest."""
    more = [f"{len(lines) - MOST_LINES:,} more"] if len(lines) > MOST_LINES else []
    return separator.join([*map(str, lines[:MOST_LINES]), *more])


def quote_label(label: str) -> str:
    """Returns the label in quotes, cut after `MOST_OF_A_LABEL` characters."""
    cut = label if len(label) <= MOST_OF_A_LABEL else label[:MOST_OF_A_LABEL] + "…"
    return f"'{printable(cut)}'"


def with_lines(label: str, lines: list[int]) -> str:
    """Returns the label and the line numbers of its rows, as text."""
    where = f"line{'s' * (len(lines) > 1)} {some_lines(lines)}" if lines else "no row left"
    return f"{quote_label(label)} ({where})"


def check_format(path: Path) -> None:
    """Raises `ValueError` if the file starts like an Excel file or a zip archive, whatever its name is."""
    # If the file can't be opened, `read_utf8` raises an error that says why.
    with contextlib.suppress(OSError), path.open("rb") as file:
        if file.read(4) in EXCEL:
            raise ValueError(f'{path} is an Excel file or an archive; save it as "CSV UTF-8" in Excel')


def read_labeled_texts(path: Path) -> LabeledTexts:
    """
    ## Reading the file

    A file whose name ends in `.jsonl`, `.ndjson` or `.json` is read as JSONL, and any other as CSV. Each text
    is kept once, because otherwise a copy of a training text could be in the test set. Copies may differ in
    whatever `fold` removes. A text whose copies have different labels is left out.

    Raises `ValueError` if the file can't be read, if a row or a column is invalid, or if there are too few
    rows or labels to train and test a classifier.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder; pass a CSV or JSONL file")
    if not path.exists():
        raise ValueError(f"there is no file {path}; pass a CSV or JSONL file with texts and labels")
    if not path.is_file():
        raise ValueError(f"{path} is not a regular file; save the rows in a file and pass that")
    if path.stat().st_size > LARGEST_FILE:
        raise ValueError(f"{path} has more than {LARGEST_FILE:,} bytes; use some of its rows")
    check_format(path)
    content = read_utf8(path)
    if not content.strip():
        raise ValueError(f"{path} is empty; put a header and rows with a text and a label into it")
    is_jsonl = path.suffix.lower() in (".jsonl", ".ndjson", ".json")
    rows: list[LabeledRow] = []
    try:
        for line, fields in (read_jsonl if is_jsonl else read_csv)(content):
            rows.append(check_row(fields, line))
            if (rows[-1].pair is None) != (rows[0].pair is None):
                raise ValueError(
                    f"line {line}: some rows have a pair and others don't; give all one, or none"
                )
    except ValueError as error:
        raise ValueError(f"{path}, {error}") from None
    check_columns(path, rows)
    labels = sorted({row.label for row in rows})
    numbers = {label: i for i, label in enumerate(labels)}
    copies: dict[tuple[str, str], list[LabeledRow]] = {}
    for row in rows:
        copies.setdefault(row.key, []).append(row)
    texts = LabeledTexts([], labels, 0, [])
    lines: dict[str, list[int]] = {label: [] for label in labels}
    for first, *others in copies.values():
        if any(row.label != first.label for row in others):
            texts.conflicts.append([row.line for row in (first, *others)])
        else:
            texts.examples.append(Example(first.text, numbers[first.label], first.pair))
            lines[first.label].append(first.line)
    repeats = len(rows) - len(texts.examples) - sum(map(len, texts.conflicts))
    texts = texts._replace(repeats=repeats)
    check_counts(path, texts, lines)
    return texts


def read_csv(content: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """
    Yields the rows of a CSV file below its header. Each row comes with the number of its first line. Blank
    lines are skipped. The columns are separated by commas, semicolons or tabs, as in the header.

    Raises `ValueError` if the first line looks like JSON, or if `check_header` refuses the header. Also
    raises it if a row has another number of fields than the header, an open quote or a field that's too long.
    In a file with tabs, a quoted text that seems to contain whole rows is refused too.
    """
    first_line = content.lstrip("\n").partition("\n")[0]
    if first_line.startswith(("{", "[{")):
        raise ValueError("it looks like JSON; write one object per line, in a file whose name ends in .jsonl")

    def likelihood(delimiter: str) -> tuple[bool, int]:
        # A name in quotes may contain a delimiter.
        names: set[str] = set()
        with contextlib.suppress(csv.Error):  # The reader below raises this error again.
            names = {name.strip() for name in next(csv.reader([first_line], delimiter=delimiter), [])}
        return {"text", "label"} <= names, first_line.count(delimiter)

    delimiter = max(DELIMITERS, key=likelihood)
    # Some programs write a space between a comma and an opening quote.
    reader = csv.reader(
        io.StringIO(content, newline=""), delimiter=delimiter, strict=True, skipinitialspace=True
    )
    header: list[str] = []
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise ValueError(
                f"line {line}: {error}; close every quote, write a quote inside a text twice, and keep each "
                f"text below {csv.field_size_limit():,} characters"
            ) from None
        if len(fields) < 2 and not "".join(fields).strip():
            continue
        if not header:
            header = [name.strip() for name in fields]
            check_header(header, line)
            continue
        if len(fields) != len(header):
            name = DELIMITERS[delimiter]
            remedy = f"put a text with {name}s between double quotes"
            if len(fields) < len(header):
                remedy = (
                    f"separate the fields with {name}s, and put a text with line ends between double quotes"
                )
            if len(fields) > len(header) and not any(fields[len(header) :]):
                remedy = f"remove the extra {name} at the end of the line"
            elif len(fields) < len(header) and not any(header[len(fields) :]):
                remedy = f"remove the extra {name} at the end of the header"
            raise ValueError(
                f"line {line}: expected {len(header)} fields as in the header, got {len(fields)}; {remedy}"
            )
        if delimiter == "\t" and any("\t" in field and "\n" in field for field in fields):
            raise ValueError(
                f"line {line}: a text in quotes contains tabs and line ends; if its quotes belong to the "
                "text, write each of them twice and put the text between quotes"
            )
        yield line, dict(zip(header, fields, strict=True))


def check_header(header: list[str], line: int) -> None:
    """
    Raises `ValueError` if `text` or `label` is missing, if a nonempty name occurs twice, if a name has a NUL
    character, or if `check_pair_name` refuses the names.
    """
    without_nul("".join(header), f"line {line}")
    for name in ("text", "label"):
        if name not in header:
            names = printable(", ".join(header))
            raise ValueError(
                f"line {line}: no column is called {name!r}; the first row must name the columns, such as "
                f"text,label, and it is: {names[:60]}"
            )
    for name, count in Counter(header).items():
        if name and count > 1:
            raise ValueError(f"line {line}: two columns are called {quote_label(name)}; rename or remove one")
    check_pair_name(header, line)


def check_pair_name(names: Collection[str], line: int) -> None:
    """Raises `ValueError` if a name is `pair` but for its case and spaces, and no name is `pair` exactly."""
    similar = [name for name in names if name.strip().lower() == "pair"]
    if similar and "pair" not in similar:
        raise ValueError(
            f"line {line}: is {quote_label(similar[0])} the second text? then call it 'pair', or else give "
            "it another name"
        )


def read_jsonl(content: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """
    Yields the object on each line with the number of the line. Blank lines are skipped.

    Raises `ValueError` if a line isn't a JSON object, or has `text`, `label` or `pair` twice.
    """

    def without_duplicates(items: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in items]
        for name in ("text", "label", "pair"):
            if names.count(name) > 1:
                raise KeyError(name)
        return dict(items)

    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line, object_pairs_hook=without_duplicates)
        except KeyError as error:
            raise ValueError(f"line {number} has {error} twice; remove one") from None
        except json.JSONDecodeError as error:
            raise ValueError(f"line {number} is not JSON ({error}); write one object per line") from None
        except (ValueError, RecursionError):
            raise ValueError(f"line {number} has a huge number or is nested too deeply; shorten it") from None
        if not isinstance(row, dict):
            raise ValueError(
                f'line {number} is not a JSON object; write {{"text": "…", "label": "…"}} on each line'
            )
        check_pair_name(row, number)
        yield number, row


def check_row(row: dict[str, Any], line: int) -> LabeledRow:
    """
    ## Checking a row

    Returns the row, without spaces around the label. A label in JSONL can also be an integer. An empty pair
    counts as no pair.

    Raises `ValueError` if the text or the label is missing, if a value is blank, isn't a string, or contains
    NUL or half a character, or if the label is too long or contains a control character.
    """
    values: dict[str, str] = {}
    for name in ("text", "label", "pair"):
        value = row.get(name)
        if name == "pair" and value in (None, ""):
            continue
        if name == "label" and type(value) is int:
            value = str(value)
        if value is None:
            raise ValueError(f"line {line}: there is no {name}; give every row a text and a label")
        if not isinstance(value, str):
            raise ValueError(
                f"line {line}: the {name} is {printable(repr(value)[:40])}, not a string; write it in quotes"
            )
        if "\0" in value or not is_utf8(value):
            raise ValueError(f"line {line}: the {name} has a NUL byte or half a character; remove it")
        if not fold("".join(c for c in value if unicodedata.category(c) != "Cc")):
            raise ValueError(f"line {line}: the {name} is empty; fill it in, or remove the row")
        values[name] = value
    label = values["label"].strip()
    if len(label) > LONGEST_LABEL:
        raise ValueError(
            f"line {line}: the label has {len(label):,} characters; use at most {LONGEST_LABEL}; are the "
            "columns 'text' and 'label' swapped?"
        )
    if any(unicodedata.category(character) == "Cc" for character in label):
        raise ValueError(f"line {line}: the label {quote_label(label)} has a control character; remove it")
    return LabeledRow(line, values["text"], label, values.get("pair"))


def check_columns(path: Path, rows: list[LabeledRow]) -> None:
    """
    ## Checking the columns

    Raises `ValueError` if there are more than half as many labels as rows, probably because the column is
    wrong, or if labels differ only in what `fold` removes or in a final `.0`. `check_counts` refuses too few
    rows.
    """
    if len(rows) < FEWEST_ROWS:
        return
    lines: dict[str, list[int]] = {}
    for row in rows:
        lines.setdefault(row.label, []).append(row.line)
    if len(lines) > len(rows) / 2:
        is_swapped = len({row.text for row in rows}) <= len(lines) / 2
        question = "are the columns 'text' and 'label' swapped?" if is_swapped else "is it the right column?"
        raise ValueError(
            f"{path}: the column 'label' has {len(lines):,} different values in {len(rows):,} rows; "
            f"{question}"
        )
    spellings: dict[str, list[str]] = {}
    for label in lines:
        # A spreadsheet can turn the label 1 into 1.0.
        spellings.setdefault(re.sub(r"^(-?\d+)\.0+$", r"\1", fold(label)), []).append(label)
    for same in spellings.values():
        if len(same) > 1:
            names = " and ".join(with_lines(label, lines[label]) for label in same[:3])
            raise ValueError(
                f"{path}: labels that differ only in case, spaces, invisible or combining characters or a "
                f"final .0: {names}; spell them alike"
            )


def check_counts(path: Path, texts: LabeledTexts, lines: dict[str, list[int]]) -> None:
    """
    Raises `ValueError` if there are too few different rows or labels to train and test a classifier, or if
    the labels take too much space. `lines` maps each label to the lines of its examples.
    """
    reason = f"; {texts.conflict_warning}" * bool(texts.conflicts)
    count = len(texts.examples)
    if count < FEWEST_ROWS:
        raise ValueError(f"{path} has {count} different rows; add some, to at least {FEWEST_ROWS}{reason}")
    if len(texts.labels) < 2:
        only = quote_label(texts.labels[0])
        raise ValueError(f"{path}: all rows have the label {only}; a classifier needs at least two labels")
    if sum(len(json.dumps(label)) + BYTES_PER_ID for label in texts.labels) > LARGEST_LABELS:
        raise ValueError(
            f"{path} has {len(texts.labels):,} labels, too many or too long for config.json; use fewer labels"
        )
    rare = [with_lines(label, lines[label]) for label in texts.labels if len(lines[label]) < FEWEST_PER_LABEL]
    if rare:
        raise ValueError(
            f"{path}: labels with too few different rows: {some(rare)}; each needs at least "
            f"{FEWEST_PER_LABEL}; fix the spelling, add rows, or remove these labels{reason}"
        )
