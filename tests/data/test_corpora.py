"""Corpora: their sources, the held-out part, and downloads that go wrong."""

import ast
import builtins
import email
import hashlib
import io
import os
import socket
import subprocess
import sys
import urllib.request
import urllib.response
from collections.abc import Iterator
from pathlib import Path

import pytest

from labml_bert.data import corpora
from labml_bert.data.corpora import (
    articles,
    compiled_docstrings,
    download,
    load_corpus,
    split_documents,
)
from labml_bert.files import PART, list_below
from labml_bert.run.options import absolute_path


@pytest.mark.parametrize("name", [".", "./", "../texts", "../texts/sub/.."])
def test_a_corpus_has_the_name_of_its_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "texts" / "sub").mkdir(parents=True)
    for file in "ab":
        (tmp_path / "texts" / file).write_text(f"the text {file}\n" * 50)
    monkeypatch.chdir(tmp_path / "texts")
    assert load_corpus(name).name == "texts"


@pytest.mark.slow("parses the whole standard library")
def test_python_docs_are_english_and_hold_out_whole_documents() -> None:
    corpus = load_corpus("python-docs")
    size = sum(map(len, corpus.train + corpus.valid))
    assert size > 1_000_000
    assert 0.05 < sum(map(len, corpus.valid)) / size < 0.15
    text = "\n".join(corpus.train + corpus.valid)
    # One sentence each from the language reference, a module in Python and a module in C.
    for sentence in (
        "Assert statements are a convenient way to insert debugging assertions",
        "JSON (JavaScript Object Notation)",
        "Return the square root of x.",
    ):
        assert sentence in text
    # No long paragraph is in both parts.
    train = {p for d in corpus.train for p in d.split("\n\n") if len(p) > 200}
    valid = {p for d in corpus.valid for p in d.split("\n\n") if len(p) > 200}
    assert not train & valid


@pytest.mark.long
@pytest.mark.slow("parses a part of the standard library")
def test_python_source_has_no_docstrings_and_no_comments() -> None:
    corpus = load_corpus("python-source")
    assert 2_000_000 < sum(map(len, corpus.train + corpus.valid)) < 4_000_000
    for code in corpus.train + corpus.valid:
        nodes = [*ast.walk(ast.parse(code))]
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        assert not [node for node in nodes if isinstance(node, documented) and ast.get_docstring(node)]
    text = "\n".join(corpus.train + corpus.valid)
    # The code of textwrap.py is in the text, and its comments are not.
    assert "class TextWrapper:" in text and "Hardcode the recognized whitespace" not in text
    assert load_corpus("python-source") == corpus


@pytest.mark.processes
@pytest.mark.slow("parses the whole standard library")
@pytest.mark.long
def test_the_docs_are_the_same_in_another_process_and_imported_from_no_python_module() -> None:
    """`import antigravity` would open a browser, and `import this` prints."""
    code = (
        "import sys; from labml_bert.data.corpora import load_corpus;"
        "print(load_corpus('python-docs').sha256, *sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    sha256, *modules = run.stdout.split()
    assert not {"antigravity", "this", "turtle", "tkinter.ttk"} & set(modules)
    assert sha256 == load_corpus("python-docs").sha256


def test_the_last_tenth_of_a_single_document_is_held_out() -> None:
    text = "\n".join(f"line {i}" for i in range(1000))
    corpus = split_documents("x", {"x": text})
    assert corpus.train[0] + corpus.valid[0] == text
    assert corpus.valid[0].startswith("line ")
    assert 0.095 < len(corpus.valid[0]) / len(text) < 0.105


def test_only_its_name_decides_whether_a_document_is_held_out() -> None:
    documents = {f"doc {i}": "x" * 100 for i in range(200)}
    valid = [k for k in documents if split_documents("", {**documents, k: "y" * 100}).valid.count("y" * 100)]
    assert len(valid) == 20
    # The same documents are held out even if the texts change.
    longer = {key: text + "z" for key, text in documents.items()}
    assert len(split_documents("", longer).valid) in (19, 20)


def test_the_end_of_a_dominant_document_is_held_out() -> None:
    corpus = split_documents("x", {"a": "a" * 10_000, "b": "b" * 10})
    assert 900 < sum(map(len, corpus.valid)) < 1100
    assert sum(map(len, corpus.train + corpus.valid)) == 10_010


def test_beside_a_long_document_most_short_ones_are_training_text() -> None:
    short = {f"note {i}": f"note {i} " * 100 for i in range(15)}
    corpus = split_documents("x", {"log": "line\n" * 100_000, **short})
    assert len({*short.values()} & {*corpus.train}) == 10 and len({*short.values()} & {*corpus.valid}) == 5
    assert 0.09 < corpus.valid_characters / (corpus.train_characters + corpus.valid_characters) < 0.11


def test_no_document_is_held_out_twice() -> None:
    """Here, a third of the documents is reached with tiny ones and the longest one."""
    names = sorted(map(str, range(60)), key=lambda name: hashlib.sha256(name.encode()).digest())
    lengths = [10] * 19 + [3500] + [3301] * 29 + [10] * 11
    documents = {name: name.rjust(length) for name, length in zip(names, lengths, strict=True)}
    corpus = split_documents("x", documents)
    assert corpus.train_characters + corpus.valid_characters == sum(lengths)
    assert documents[names[19]] in corpus.valid
    assert 0.05 < corpus.valid_characters / sum(lengths) < 0.1
    assert "" not in corpus.train


def test_a_tenth_is_held_out_even_if_lines_are_long() -> None:
    for text in ("A title\n" + "word " * 20_000, "\n".join("word " * n for n in (2_000, 4_000, 14_000))):
        corpus = split_documents("x", {"x": text})
        assert corpus.train[0] + corpus.valid[0] == text
        assert 0.09 < len(corpus.valid[0]) / len(text) < 0.16


def test_a_copy_of_a_held_out_document_is_no_training_text(tmp_path: Path) -> None:
    for i in range(30):
        for name in (f"{i}.txt", f"{i} (copy).txt"):
            (tmp_path / name).write_text(f"document {i} " * 20)
    corpus = load_corpus(str(tmp_path))
    assert not {*corpus.train} & {*corpus.valid} and len(corpus.train) + len(corpus.valid) == 30


def test_what_a_notebook_adds_to_the_builtins_is_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [*compiled_docstrings("builtins")]

    class Shell:
        def get_ipython(self) -> None:
            """Return the shell."""

    monkeypatch.setattr(builtins, "get_ipython", Shell().get_ipython, raising=False)
    assert [*compiled_docstrings("builtins")] == before


def test_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / ".hidden").write_bytes(b"\xff")
    (tmp_path / f"left.json.1{PART}").write_text("a killed program has left this")
    (tmp_path / "a" / "one.txt").write_text("\ufeff" + "éins\r\n" * 50, encoding="utf-8")
    (tmp_path / "two.txt").write_text("zwei\n" * 50, encoding="utf-8")
    corpus = load_corpus(str(tmp_path))
    text = "".join(corpus.train + corpus.valid)
    assert "killed" not in text
    assert text.count("éins\n") == 50
    assert text.count("zwei\n") == 50
    assert "\ufeff" not in text
    assert corpus.sha256 == load_corpus(str(tmp_path)).sha256
    (tmp_path / "two.txt").write_text("drei\n" * 50)
    assert corpus.sha256 != load_corpus(str(tmp_path)).sha256


def test_a_text_that_is_called_like_a_built_in_corpus_has_a_name_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command in its record must not name the built-in corpus."""
    monkeypatch.chdir(tmp_path)
    Path("wikitext-2").mkdir()
    Path("wikitext-2", "one").write_text("some text\n" * 50)
    Path("python-docs").write_text("some text\n" * 50)
    Path("other").write_text("some text\n" * 50)
    for name in ("./wikitext-2", "./python-docs"):
        assert load_corpus(name).name == load_corpus(str(tmp_path / name)).name == name
    assert load_corpus("./other").name == load_corpus("other").name == "other"


def test_names_that_decode_alike_are_refused(tmp_path: Path) -> None:
    """Otherwise, one of the texts would be left out."""
    for number, name in enumerate([b"\xff", b"\\xff", b"other"]):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_text(f"text {number}")
    with pytest.raises(ValueError, match="are alike in UTF-8; rename one"):
        load_corpus(str(tmp_path))


def test_a_link_to_a_folder_is_skipped_with_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "one.txt").write_text("ein\n" * 50)
    (tmp_path / "text" / "circle").symlink_to(tmp_path)
    (tmp_path / "text" / "broken").symlink_to("nowhere")
    assert "".join(load_corpus(str(tmp_path / "text")).train).count("ein") > 40
    out, err = capsys.readouterr()
    # The output may be a list of words for a file.
    assert not out
    assert "circle, a link to another folder" in err and "broken, which is not a file" in err


def test_a_path_through_a_link_is_the_one_that_the_system_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`link/..` is the folder above the target of the link."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b")
    (tmp_path / "a" / "text").write_text("right\n")
    (tmp_path / "text").write_text("wrong\n")
    monkeypatch.chdir(tmp_path)
    assert Path(absolute_path("link/../text")).read_text() == "right\n"
    assert absolute_path("./text") == str(tmp_path / "text") and absolute_path("missing") == "missing"


def test_an_unreadable_folder_is_not_an_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is simulated, because root, who may run the tests, can read everything."""

    def refuse(folder: Path) -> Iterator[Path]:
        raise PermissionError(13, "Permission denied", str(folder))

    (tmp_path / "locked").mkdir()
    (tmp_path / "one.txt").write_text("ein\n" * 50)
    iterdir = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda p: refuse(p) if p.name == "locked" else iterdir(p))
    with pytest.raises(OSError, match=r"Permission denied: .*locked"):
        load_corpus(str(tmp_path))
    # Nor can the system say whether there is a file in it.
    stat = Path.stat
    monkeypatch.setattr(
        Path, "stat", lambda p, **options: refuse(p) if "locked" in p.parts[:-1] else stat(p, **options)
    )
    with pytest.raises(OSError, match=r"Permission denied: .*locked'$"):
        load_corpus(str(tmp_path / "locked"))


@pytest.fixture()
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_download_is_cached_and_a_damaged_cache_is_replaced(server, cache: Path) -> None:
    server.body = b"to be or not to be"
    sha = hashlib.sha256(server.body).hexdigest()
    assert download(server.url, sha) == server.body
    assert download(server.url, sha) == server.body
    assert server.requests == 1
    cached = cache / "labml_bert" / sha
    cached.write_bytes(b"damaged")
    assert download(server.url, sha) == server.body
    assert server.requests == 2
    cached.unlink()
    os.mkfifo(cached)
    assert download(server.url, sha) == server.body, "reading the pipe would wait forever"
    assert [p.name for p in cached.parent.iterdir()] == [sha] and cached.is_file()


def test_a_file_with_the_wrong_hash_is_rejected_and_not_cached(server, cache: Path) -> None:
    server.body = b"<html>Welcome to Hotel Wi-Fi</html>"
    with pytest.raises(ValueError, match="sha256"):
        download(server.url, "0" * 64)
    assert not any(p.is_file() for p in cache.rglob("*"))


def test_an_overlong_file_a_404_and_a_closed_port(server, cache: Path) -> None:
    server.body = b"x" * 1001
    with pytest.raises(ValueError, match="longer than 1,000 bytes"):
        download(server.url, "0" * 64, limit=1000)
    server.status = 404
    with pytest.raises(ValueError, match="404"):
        download(server.url, "0" * 64)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        closed_port_url = f"http://127.0.0.1:{s.getsockname()[1]}/"
    with pytest.raises(ValueError, match="use the file as the corpus"):
        download(closed_port_url, "0" * 64)


@pytest.mark.slow("waits for a server that is slow on purpose")
def test_a_download_that_stalls_trickles_or_is_truncated(server, cache: Path) -> None:
    sha = hashlib.sha256(b"x" * 50).hexdigest()
    server.body, server.pause = b"x" * 50, 1.0
    with pytest.raises(ValueError, match=r"cannot download .* timed out.*use the file as the corpus"):
        download(server.url, sha, timeout=0.1)
    # The server never pauses long enough for a timeout, but the whole download takes too long.
    server.body, server.pause = b"x" * 200, 0.03
    with pytest.raises(ValueError, match="it arrives too slowly"):
        download(server.url, sha, timeout=0.2)
    server.body, server.pause, server.more = b"x" * 50, 0.0, 7
    with pytest.raises(ValueError, match="cut off after 50 of 57 bytes"):
        download(server.url, sha)
    server.more = 0
    assert download(server.url, sha) == b"x" * 50
    assert [path.name for path in (cache / "labml_bert").iterdir()] == [sha]


class Redirect(urllib.request.HTTPSHandler):
    """Answers every https request with a redirect to `target`."""

    target = ""

    def https_open(self, request: urllib.request.Request) -> urllib.response.addinfourl:
        headers = email.message_from_string(f"Location: {self.target}\n\n")
        answer = urllib.response.addinfourl(io.BytesIO(), headers, request.full_url, 302)
        answer.msg = "Found"
        return answer


def test_only_https_even_after_a_redirect(server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that redirects everybody to its own page, such as a hotel's, doesn't get a request."""
    allowed = [handler for handler in corpora.HANDLERS if handler is not urllib.request.HTTPHandler]
    monkeypatch.setattr(corpora, "HANDLERS", allowed)
    sha = hashlib.sha256(server.body).hexdigest()
    for url in (server.url, f"file://{__file__}", "ftp://127.0.0.1/x", "data:,x"):
        with pytest.raises(ValueError, match="unknown url type"):
            download(url, sha)
    monkeypatch.setattr(Redirect, "target", server.url)
    redirecting = [Redirect if handler is urllib.request.HTTPSHandler else handler for handler in allowed]
    monkeypatch.setattr(corpora, "HANDLERS", redirecting)
    with pytest.raises(ValueError, match="unknown url type: http"):
        download("https://example.org/x", sha)
    assert server.requests == 0
    assert corpora.TINY_SHAKESPEARE_URL.startswith("https://")


def test_without_a_home_folder_the_error_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(ValueError, match="set XDG_CACHE_HOME"):
        corpora.cache_folder()


def test_a_download_works_with_an_unwritable_cache(
    server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    server.body = b"text"
    assert download(server.url, hashlib.sha256(b"text").hexdigest()) == b"text"


def test_tiny_shakespeare_is_downloaded_by_name(server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.body = b"First Citizen:\nBefore we proceed any further, hear me speak.\n" * 20
    monkeypatch.setattr(corpora, "TINY_SHAKESPEARE_URL", server.url)
    monkeypatch.setattr(corpora, "TINY_SHAKESPEARE_SHA256", hashlib.sha256(server.body).hexdigest())
    corpus = load_corpus("tiny-shakespeare")
    assert "".join(corpus.train + corpus.valid).encode() == server.body


def test_wikitext_lines_are_grouped_into_articles() -> None:
    lines = ["", " = One = \n", "", " = = Part = = \n", " text \n", " = Two = \n", " more \n"]
    assert articles(lines) == [" = One = \n = = Part = = \n text \n", " = Two = \n more \n"]


def test_wikitext_is_loaded_at_a_fixed_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    arguments: list[object] = []

    def load_dataset(*words: str, **options: str) -> dict[str, dict[str, list[str]]]:
        arguments.extend([*words, options["revision"]])
        part = {"text": [" = A = \n", "one\n", " = B = \n", "two\n"]}
        return {"train": part, "validation": part}

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    corpus = load_corpus("wikitext-2")
    assert arguments[:2] == ["Salesforce/wikitext", "wikitext-2-raw-v1"]
    assert len(str(arguments[2])) == 40 and int(str(arguments[2]), 16)
    assert corpus.train == [" = A = \none\n", " = B = \ntwo\n"]


def test_the_text_of_the_library_does_not_depend_on_who_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test runners, debuggers and notebooks replace hooks of `sys` and add functions to `builtins`."""
    before = {name: list(compiled_docstrings(name)) for name in ("sys", "builtins")}
    assert "Handle an exception by displaying it" in " ".join(before["sys"])
    for hook in ("excepthook", "displayhook", "unraisablehook", "breakpointhook"):
        monkeypatch.setattr(sys, hook, lambda *arguments: None)
    monkeypatch.setattr(builtins, "display", lambda value: "shows a value", raising=False)
    assert {name: list(compiled_docstrings(name)) for name in before} == before


def test_the_folder_above_has_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "texts" / "inner").mkdir(parents=True)
    (tmp_path / "texts" / "a.txt").write_text("a line\n" * 100)
    monkeypatch.chdir(tmp_path / "texts" / "inner")
    assert load_corpus("..").name == load_corpus(str(tmp_path / "texts")).name == "texts"


def test_a_deep_folder_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is nested more deeply than Python allows calls to be."""
    monkeypatch.chdir(tmp_path)
    for _ in range(1200):
        os.mkdir("d")
        os.chdir("d")
    Path("text.txt").write_text("a line\n" * 100)
    try:
        with monkeypatch.context() as context:
            context.chdir(tmp_path)
            corpus = load_corpus("d")
            assert len(list_below(tmp_path)) == 1201
        assert "".join(corpus.train + corpus.valid) == "a line\n" * 100
    finally:
        # pytest couldn't delete so deep a folder.
        os.unlink("text.txt")
        for _ in range(1200):
            os.chdir("..")
            os.rmdir("d")
