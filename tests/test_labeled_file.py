"""Files of labels: what is read from CSV and JSONL, and what is refused."""

import csv
import json
import os
import random
from pathlib import Path

import pytest

from labml_bert.labeled_file import read_labeled_texts
from labml_bert.labeled_text import Example, split_by_label
from tests.support.labels import GOOD, HEADER, ROWS, assert_fails, write_csv


def test_csv_and_jsonl_give_the_same_examples(tmp_path: Path) -> None:
    rows = [
        ('A comma, a "quote"\nand a second line', "late", "ü"),
        ("[MASK] — 漢字", " early ", "x"),
        *((f"text {i}", ("early", "late")[i % 2], "pair") for i in range(20)),
    ]
    names = ("text", "label", "pair")
    table = write_csv(tmp_path / "a.csv", rows, names)
    # Spreadsheets write a byte order mark, other columns, and empty or blank lines.
    marked = write_csv(tmp_path / "b.CSV", [(str(i), *row) for i, row in enumerate(rows)], ("id", *names))
    marked.write_bytes(b"\xef\xbb\xbf" + marked.read_bytes() + b"\r\n  \r\n")
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


def test_a_text_with_different_labels_is_left_out(tmp_path: Path) -> None:
    rows = [*ROWS, ("Text  0 ", "b"), ("more", "a"), ("text 5", "a"), ("MORE", "a"), ("text 5", "b")]
    rows += [(f"another {i}", "a") for i in range(5)]
    texts = read_labeled_texts(write_csv(tmp_path / "labels.csv", rows))
    # Copies may differ in case and spaces. Of equal rows, the first stays.
    kept = [row for row in ROWS if row[0] not in ("text 0", "text 5")] + [("more", "a"), *rows[-5:]]
    assert [(example.text, texts.labels[example.label]) for example in texts.examples] == kept
    assert texts.conflicts == [[2, 22], [7, 24, 26]] and texts.repeats == 1
    assert texts.conflict_warning == (
        "left out 5 rows: same text, different labels (lines 2 and 22; 7 and 24 and 26)"
    )
    assert read_labeled_texts(write_csv(tmp_path / "fine.csv", ROWS)).conflict_warning == ""


def test_no_text_is_in_two_parts(tmp_path: Path) -> None:
    r = random.Random(0)
    rows = [(f" {r.choice(['text', 'Text'])} {r.randrange(40)}", r.choice("ab")) for _ in range(200)]
    rows += [(f"another {i // 3}", "ab"[i // 3 % 2]) for i in range(90)]
    texts = read_labeled_texts(write_csv(tmp_path / "labels.csv", rows))
    assert texts.repeats >= 60 and texts.conflicts
    rest, test = split_by_label(texts.examples, 0.2)
    train, validation = split_by_label(rest, 0.2)
    parts = [{" ".join(e.text.split()).lower() for e in part} for part in (train, validation, test)]
    assert sum(map(len, parts)) == len(set.union(*parts)) == len(texts.examples)


def test_pairs_are_the_same_only_if_both_texts_are(tmp_path: Path) -> None:
    rows = [(text, label, "pair") for text, label in ROWS] + [("text 0", "b", "other")]
    texts = read_labeled_texts(write_csv(tmp_path / "labels.csv", rows, ("text", "label", "pair")))
    assert len(texts.examples) == 21 and not texts.conflicts


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_spreadsheets_may_separate_columns_differently(tmp_path: Path, delimiter: str) -> None:
    rows = [("a comma, and a; semicolon\tand a tab", "a"), *ROWS]
    expected = read_labeled_texts(write_csv(tmp_path / "commas.csv", rows))
    path = tmp_path / "labels.csv"
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([("id, if any", "text", "label")])
        csv.writer(file, delimiter=delimiter).writerows((i, *row) for i, row in enumerate(rows))
    assert read_labeled_texts(path) == expected


def test_quotes_may_follow_a_space(tmp_path: Path) -> None:
    rows = [('a comma, and a "quote"', "a"), *ROWS]
    lines = ['text, "label"', *(f'"{text.replace(chr(34), chr(34) * 2)}", "{label}"' for text, label in rows)]
    path = tmp_path / "labels.csv"
    path.write_text("\n".join(lines))
    assert read_labeled_texts(path) == read_labeled_texts(write_csv(tmp_path / "plain.csv", rows))


def test_a_quoted_name_may_contain_another_delimiter(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text(HEADER.replace("text", '"a;b;c",text') + GOOD.replace("text", "x,text"))
    assert read_labeled_texts(path) == read_labeled_texts(write_csv(tmp_path / "plain.csv", ROWS))


def objects(*lines: str) -> str:
    return "\n".join([*(json.dumps({"text": text, "label": label}) for text, label in ROWS), *lines])


# Each case has the name of a file, its contents, and a part of the error message.
BAD_FILES = {
    "empty": ("a.csv", "", "is empty"),
    "blank": ("a.csv", " \n\n", "is empty"),
    "not UTF-8": ("a.csv", b"text,label\ncaf\xe9,a\n", "(line 2); convert it, for example with: "
                  "iconv -f WINDOWS-1252 -t UTF-8 FILE > NEW"),
    "UTF-16": ("a.csv", (HEADER + GOOD).encode("utf-16"), "convert it with: iconv -f UTF-16 -t UTF-8 FILE"),
    "UTF-16 without a mark": ("a.csv", (HEADER + GOOD).encode("utf-16-le"), "line 1 has NUL characters"),
    "UTF-32": ("a.csv", (HEADER + GOOD).encode("utf-32"), "convert it with: iconv -f UTF-32 -t UTF-8 FILE"),
    "another case": ("a.csv", "text,label,Pair\n" + GOOD.replace(",a\n", ",a,x\n").replace(",b\n", ",b,x\n"),
                     "line 1: is 'Pair' the second text? then call it 'pair', or else"),
    "another case in JSONL": ("a.jsonl", '{"text": "x", "label": "a", "PAIR": "y"}', "line 1: is 'PAIR' the"),
    "Excel": ("a.csv", b"PK\x03\x04rest", 'is an Excel file or an archive; save it as "CSV UTF-8" in Excel'),
    "old Excel": ("a.xls", b"\xd0\xcf\x11\xe0\xa1", "is an Excel file"),
    "swapped columns": ("a.csv", "label,text\n" + GOOD, "the column 'label' has 20 different values in 20 "
                        "rows; are the columns 'text' and 'label' swapped?"),
    "identifiers": ("a.csv", HEADER + "\n".join(f"text {i % 30},{i}" for i in range(40)),
                    "the column 'label' has 40 different values in 40 rows; is it the right column?"),
    "labels in two spellings": ("a.csv", HEADER + GOOD + "\nx, B \ny,B", "labels that differ only in case, "
                                "spaces, invisible or combining characters or a final .0: 'b' (lines 3, 5, "
                                "7, 7 more) and 'B' (lines 22, 23); spell"),
    "a label as a decimal": ("a.csv", HEADER + GOOD.replace(",a", ",1").replace(",b", ",2") + "\nx,1.0",
                             "or a final .0: '1' (lines 2, 4, 6, 7 more) and '1.0' (line 22); spell them"),
    "an accent as a character": ("a.csv", HEADER + GOOD + "\nx,\u00e9\ny,e\u0301", "(line 23); spell them"),
    "an accent after an invisible character": ("a.csv", HEADER + GOOD + "\nx,\u00e9\ny,e\u200b\u0301",
                                               "(line 23); spell them"),
    "an invisible character": ("a.csv", HEADER + GOOD + "\nx,a\u200b", "or a final .0: 'a' (lines"),
    "a variation selector": ("a.csv", HEADER + GOOD + "\nx,\u2764\ny,\u2764\ufe0f", "(line 23); spell them"),
    "extra comma": ("a.csv", HEADER + GOOD + "\nx,a,", "line 22: expected 2 fields as in the header, got 3; "
                    "remove the extra comma at the end of the line"),
    "extra semicolon in the header": ("a.csv", "text;label;\na;b\n", "extra semicolon at the end of the h"),
    "no header": ("a.csv", GOOD, "line 1: no column is called 'text'"),
    "no label column": ("a.csv", "text,kind\n" + GOOD, "no column is called 'label'"),
    "another separator": ("a.csv", (HEADER + GOOD).replace(",", "|"), "and it is: text|label"),
    "semicolons in a text": ("a.csv", "text;label\na;b;c\n", "put a text with semicolons between"),
    "duplicate column": ("a.csv", "text,label,text\n", "two columns are called 'text'"),
    "only a header": ("a.csv", HEADER, "has 0 different rows; add some, to at least 20"),
    "too few fields": ("a.csv", HEADER + GOOD + "\nalone", "line 22: expected 2 fields as in the header, "
                       "got 1; separate the fields with commas, and put a text with line ends between"),
    "too many fields": ("a.csv", HEADER + "one, two,a\n" + GOOD, "as in the header, got 3"),
    "quotes that are part of two texts": (
        "a.tsv",
        'text\tlabel\n"to be\ta\nfine\tb\nor not"\tb\n',
        "line 2: a text in quotes contains tabs and line ends; if its quotes belong to the text",
    ),
    "commas below a header with tabs": ("a.csv", "text\tlabel\na,b\n", "; separate the fields with tabs"),
    "after a row of two lines": ("a.csv", HEADER + '"a\nb",a\n\nx\n', "line 5: expected 2 fields"),
    "open quote": ("a.csv", HEADER + GOOD + '\n"open,a\nb,b\n', "line 22: unexpected end of data; close"),
    "quote in a field": ("a.csv", HEADER + '"a "b" c",a\n' + GOOD, "line 2: ',' expected after '\"'"),
    "huge field": ("a.csv", HEADER + "x" * 200_000 + ",a\n" + GOOD, "line 2: field larger than field limit"),
    "empty text": ("a.csv", HEADER + GOOD + "\n ,a", "line 22: the text is empty"),
    "empty label": ("a.csv", HEADER + GOOD + "\nx,", "line 22: the label is empty"),
    "invisible label": ("a.csv", HEADER + GOOD + "\nx,\u200b", "line 22: the label is empty"),
    "control characters": ("a.csv", HEADER + GOOD + "\n\x01 \x1b,a", "line 22: the text is empty"),
    "a filler as a text": ("a.csv", HEADER + GOOD + "\n\u3164,a", "line 22: the text is empty"),
    "NUL byte": ("a.csv", HEADER + GOOD + "\nx\0y,a", "line 22: the text has a NUL byte"),
    "more labels than fit in config.json": ("a.csv", HEADER + "\n".join(f"text {i},{i % 4000:я>90}"
                                            for i in range(12_000)), "4,000 labels, too many or too long"),
    "control character": ("a.csv", HEADER + GOOD + "\nx,\x1b[2Ja", "the label '?[2Ja' has a control"),
    "line end in a label": ("a.csv", HEADER + GOOD + '\nx,"a\nb"', "b' has a control character"),
    "text as a label": ("a.csv", HEADER + GOOD + "\na," + "x" * 101, "has 101 characters; use at most 100; "
                        "are the columns 'text' and 'label' swapped?"),
    "some pairs": ("a.csv", "text,label,pair\nx,a,y\nz,b,\n", "line 3: some rows have a pair"),
    "one class": ("a.csv", HEADER + GOOD.replace(",b", ",a"), "all rows have the label 'a'"),
    "class of one row": ("a.csv", HEADER + GOOD + "\nx,c", "different rows: 'c' (line 22); each needs at "
                         "least 3; fix the spelling, add rows, or remove these labels"),
    "copies of a row": ("a.csv", HEADER + GOOD + "\nx,c" * 5, "too few different rows: 'c' (line 22); each"),
    "rare classes": ("a.csv", HEADER + GOOD + "\nx,c\ny,d\nz,d", "'c' (line 22), 'd' (lines 23, 24); each"),
    "many rare classes": ("a.csv", HEADER + GOOD + "".join(f"\nx{i},c{i:02}" for i in range(14)),
                          "'c00' (line 22), 'c01' (line 23), 'c02' (line 24), 'c03' (line 25), and 10 more"),
    "class only in conflicts": ("a.csv", HEADER + GOOD + "\nx,a\ntext 3,c", "'c' (no row left); each needs "
                                "at least 3; fix the spelling, add rows, or remove these labels; left out 2 "
                                "rows: same text, different labels (lines 5 and 23)"),
    "few rows of one label": ("a.csv", HEADER + "x,a\ny,a", "has 2 different rows; add some, to at least 20"),
    "too few rows": ("a.csv", HEADER + GOOD[: GOOD.index("text 19") - 1], "has 19 different rows"),
    "broken JSON": ("a.jsonl", objects('{"text": "x"'), "line 21 is not JSON (Expecting"),
    "JSON that is a list": ("a.jsonl", objects('["x", "a"]'), "line 21 is not a JSON object"),
    "JSON over several lines": ("a.json", '{\n"text": "x"\n}', "line 1 is not JSON"),
    "deep JSON": ("a.jsonl", "[" * 100_000, "line 1 has a huge number or is nested too deeply; shorten it"),
    "a huge number": ("a.jsonl", objects('{"label": 1' + "0" * 5000 + "}"), "line 21 has a huge number"),
    "a JSON array": ("a.csv", '[{"text": "x", "label": "a"}]', "it looks like JSON; write one object per"),
    "JSONL with another name": ("a.csv", objects(), "it looks like JSON; write one object per line"),
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


def test_messages_about_large_files_stay_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file has thousands of rows with one text, and hundreds of long labels."""
    rows = [*ROWS, *[("the same text", "a"), ("the same text", "b")] * 3000]
    path = write_csv(tmp_path / "labels.csv", rows)
    warning = "left out 6,000 rows: same text, different labels (lines 22 and 23 and 24 and 5,997 more)"
    assert read_labeled_texts(path).conflict_warning == warning
    rows += [(f"another {i}", f"{i} " + "x" * 90) for i in range(300)]
    write_csv(path, rows)
    with pytest.raises(
        ValueError, match=r"'0 x{28}…' .line 6022.*and 299 more; each.*and 5,997 more"
    ) as info:
        read_labeled_texts(path)
    assert len(str(info.value).removeprefix(str(path))) <= 300


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.touch()
    os.truncate(path, 10**12)
    with pytest.raises(ValueError, match=r"a\.csv has more than 200,000,000 bytes; use some of its rows"):
        read_labeled_texts(path)


def test_a_letter_with_very_many_accents_takes_no_minutes(tmp_path: Path) -> None:
    """Python's normalization takes time in the square of their number: here, two minutes."""
    accents = "\u0301\u0316" * 60_000
    write_csv(tmp_path / "a.csv", [(f"a{accents}", "x"), *((f"text {i}", "xy"[i % 2]) for i in range(40))])
    assert len(read_labeled_texts(tmp_path / "a.csv").examples) == 41


def test_a_row_may_have_very_many_columns(tmp_path: Path) -> None:
    names = (f"column {i}" for i in range(40_000))
    rows = [(f"text {i}", "xy"[i % 2], *[""] * 40_000) for i in range(40)]
    write_csv(tmp_path / "a.csv", rows, ("text", "label", *names))
    assert len(read_labeled_texts(tmp_path / "a.csv").examples) == 40


def test_columns_without_a_name_are_ignored(tmp_path: Path) -> None:
    """Some spreadsheets write a comma for each empty column."""
    rows = [(*row, "", "") for row in ROWS]
    path = write_csv(tmp_path / "labels.csv", rows, ("text", "label", "", ""))
    assert read_labeled_texts(path) == read_labeled_texts(write_csv(tmp_path / "plain.csv", ROWS))
