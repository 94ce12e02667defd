"""Files of labels: what is read from CSV and JSONL, and what is refused."""

import json
from pathlib import Path

import pytest

from labml_bert.labeled_file import read_labeled_texts
from labml_bert.labeled_text import Example
from tests.support.labels import GOOD, HEADER, ROWS, assert_fails, write_csv


def test_csv_and_jsonl_give_the_same_examples(tmp_path: Path) -> None:
    rows = [
        ('A comma, a "quote"\nand a second line', "late", "ü"),
        ("[MASK] — 漢字", " early ", "x"),
        *((f"text {i}", ("early", "late")[i % 2], "pair") for i in range(20)),
    ]
    names = ("text", "label", "pair")
    table = write_csv(tmp_path / "a.csv", rows, names)
    # Spreadsheets write a byte order mark, other columns, and empty lines.
    marked = write_csv(tmp_path / "b.CSV", [(str(i), *row) for i, row in enumerate(rows)], ("id", *names))
    marked.write_bytes(b"\xef\xbb\xbf" + marked.read_bytes() + b"\r\n\r\n")
    objects = tmp_path / "c.jsonl"
    lines = [
        json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=i % 2 == 0) for i, row in enumerate(rows)
    ]
    objects.write_text("\n\n".join(lines), encoding="utf-8")
    texts = read_labeled_texts(table)
    assert texts == read_labeled_texts(marked) == read_labeled_texts(objects)
    assert texts.labels == ["early", "late"] and texts.has_pairs and texts.repeats == 0
    assert texts.examples[:2] == [Example(rows[0][0], 1, "ü"), Example(rows[1][0], 0, "x")]
    assert len(texts.examples) == len(rows)


def test_repeated_rows_are_left_out_and_numbers_can_be_labels(tmp_path: Path) -> None:
    objects = [{"text": text, "label": int(label == "a")} for text, label in ROWS]
    path = tmp_path / "labels.jsonl"
    path.write_text("\n".join(map(json.dumps, [*objects, *objects[:7]])))
    texts = read_labeled_texts(path)
    assert texts.labels == ["0", "1"] and texts.repeats == 7 and not texts.has_pairs
    assert [example.text for example in texts.examples] == [text for text, _ in ROWS]


def objects(*lines: str) -> str:
    return "\n".join([*(json.dumps({"text": text, "label": label}) for text, label in ROWS), *lines])


# The name of the file, its contents, and a part of the error message.
BAD_FILES = {
    "empty": ("a.csv", "", "is empty"),
    "blank": ("a.csv", " \n\n", "is empty"),
    "not UTF-8": ("a.csv", b"text,label\ncaf\xe9,a\n", "is not UTF-8 (byte 14)"),
    "UTF-16": ("a.csv", (HEADER + GOOD).encode("utf-16"), "is not UTF-8 (byte 0)"),
    "no header": ("a.csv", GOOD, "line 1: no column is called 'text'"),
    "no label column": ("a.csv", "text,kind\n" + GOOD, "no column is called 'label'"),
    "semicolons": ("a.csv", (HEADER + GOOD).replace(",", ";"), "and it is: text;label"),
    "duplicate column": ("a.csv", "text,label,text\n", "two columns are called 'text'"),
    "only a header": ("a.csv", HEADER, "there are no rows; a classifier needs at least two labels"),
    "too few fields": ("a.csv", HEADER + GOOD + "\nalone", "line 22: expected 2 fields as"),
    "too many fields": ("a.csv", HEADER + "one, two,a\n" + GOOD, "as in the header, got 3"),
    "after a row of two lines": ("a.csv", HEADER + '"a\nb",a\n\nx\n', "line 5: expected 2 fields"),
    "open quote": ("a.csv", HEADER + GOOD + '\n"open,a\nb,b\n', "line 22: unexpected end of data; close"),
    "quote in a field": ("a.csv", HEADER + '"a "b" c",a\n' + GOOD, "line 2: ',' expected after '\"'"),
    "huge field": ("a.csv", HEADER + "x" * 200_000 + ",a\n" + GOOD, "line 2: field larger than field limit"),
    "empty text": ("a.csv", HEADER + GOOD + "\n ,a", "line 22: the text is empty"),
    "empty label": ("a.csv", HEADER + GOOD + "\nx,", "line 22: the label is empty"),
    "NUL byte": ("a.csv", HEADER + GOOD + "\nx\0y,a", "line 22: the text has a NUL byte"),
    "control character": ("a.csv", HEADER + GOOD + "\nx,\x1b[2Ja", "the label '?[2Ja' has a control"),
    "line end in a label": ("a.csv", HEADER + GOOD + '\nx,"a\nb"', "b' has a control character"),
    "text as a label": ("a.csv", HEADER + GOOD + "\na," + "x" * 101, "the label has 101 characters"),
    "some pairs": ("a.csv", "text,label,pair\nx,a,y\nz,b,\n", "line 3: some rows have a pair"),
    "one class": ("a.csv", HEADER + GOOD.replace(",b", ",a"), "all rows have the label 'a'"),
    "class of one row": ("a.csv", HEADER + GOOD + "\nx,c", "the label 'c' has too few different rows (1)"),
    "copies of a row": ("a.csv", HEADER + GOOD + "\nx,c" * 5, "the label 'c' has too few different rows (1)"),
    "too few rows": ("a.csv", HEADER + GOOD[: GOOD.index("text 19") - 1], "has 19 different rows"),
    "broken JSON": ("a.jsonl", objects('{"text": "x"'), "line 21 is not JSON (Expecting"),
    "JSON that is a list": ("a.jsonl", objects('["x", "a"]'), "line 21 is not a JSON object"),
    "JSON over several lines": ("a.json", '{\n"text": "x"\n}', "line 1 is not JSON"),
    "deep JSON": ("a.jsonl", "[" * 100_000, "line 1 is not JSON"),
    "text that is a number": ("a.jsonl", objects('{"text": 5, "label": "a"}'), "the text is 5, not a string"),
    "label that is a list": ("a.jsonl", objects('{"text": "x", "label": ["a"]}'), "the label is ['a']"),
    "text that is missing": ("a.jsonl", objects('{"label": "a"}'), "line 21: there is no text"),
    "label that is null": ("a.jsonl", objects('{"text": "x", "label": null}'), "line 21: there is no label"),
    "half a character": ("a.jsonl", objects('{"text": "\\ud83d", "label": "a"}'), "or half a character"),
    "JSON with a name twice": ("a.jsonl", objects('{"text": "x", "text": "y"}'), "line 21 has 'text' twice"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_named_with_its_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, content, message = BAD_FILES[name]
    (tmp_path / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert_fails(tmp_path, ["train", file, "--output", "out"], message, capsys)
