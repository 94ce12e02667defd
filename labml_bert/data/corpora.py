r"""
# Where text comes from

Which text can you train on without downloading anything? Every Python installation comes with a few megabytes
of English: the language reference behind `help()` and the docstrings of the standard library. Together, and
without repeated paragraphs, they are `python-docs`, the default corpus of our pretraining scripts.

The corpus `python-source` is the code of the standard library's single-file modules, without docstrings or
comments. Most of the code consists of words that also occur in `python-docs`, but its grammar is different.

A corpus has documents to train on and held-out documents. A model never trains on the held-out documents.
Unless we say otherwise, we report the loss on held-out documents.
"""

import ast
import builtins
import collections
import contextlib
import hashlib
import importlib.util
import inspect
import os
import sys
import sysconfig
import time
import urllib.request
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from http.client import HTTPException
from pathlib import Path
from types import MappingProxyType

from labml_bert.checksums import is_list_of_blocks, read_checked
from labml_bert.files import encoding_error, is_leftover, make_folder, unreadable, whole_file, without_nul
from labml_bert.stdout import print_note

TINY_SHAKESPEARE_URL = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
)
TINY_SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"

# We always load WikiText as it was at this commit, so the text can't change.
WIKITEXT_REVISION = "b08601e04326c79dfdd32d625aee71d232d685c3"
# A folder with this file contains token ids instead of text. `prepare.py` writes such folders.
BLOCKS = "blocks.jsonl"
WIKITEXT = {"wikitext-2": "wikitext-2-raw-v1", "wikitext-103": "wikitext-103-raw-v1"}
# `load_corpus` loads these texts by name.
NAMES = ("python-docs", "python-source", "tiny-shakespeare", *WIKITEXT)


def corpus_name(path: Path) -> str:
    """The name of a file or folder, or with `./` in front if a built-in corpus has that name."""
    name = decode_file_name(path.name if path.name not in ("", "..") else path.resolve().name)
    return f"./{name}" if name in NAMES else name


@dataclass(frozen=True)
class Corpus:
    """Documents to train on (`train`) and held-out documents (`valid`)."""

    name: str
    train: list[str]
    valid: list[str]

    @property
    def train_characters(self) -> int:
        """The number of characters in the training documents."""
        return sum(map(len, self.train))

    @property
    def valid_characters(self) -> int:
        """The number of characters in the held-out documents."""
        return sum(map(len, self.valid))

    @property
    def sha256(self) -> str:
        """A hash of all documents and their split. A run's record has it, so you know which text was used."""
        digest = hashlib.sha256()
        for text in (*self.train, "\0", *self.valid):
            digest.update(text.encode() + b"\0")
        return digest.hexdigest()


def load_corpus(name: str) -> Corpus:
    """
    ## By name or by path

    `name` is `python-docs`, `python-source`, `tiny-shakespeare`, `wikitext-2`, `wikitext-103`, or the path of
    a UTF-8 file or of a folder of such files. Each file is a document. If several files have the same text,
    only the first is kept. To load your own file called `python-docs`, write `./python-docs`.

    Raises `ValueError` if there is no such corpus or path, if it has no text or only token ids, if a file
    can't be read or isn't UTF-8, if two file names decode alike, or if a download fails or has the wrong
    sha256. Raises `OSError` if a folder can't be read.
    """
    if name == "python-docs":
        return split_documents(name, dict(python_documents()))
    if name == "python-source":
        return split_documents(name, python_sources())
    if name == "tiny-shakespeare":
        text = download(TINY_SHAKESPEARE_URL, TINY_SHAKESPEARE_SHA256).decode()
        return split_documents(name, {"tiny-shakespeare": text})
    if name in WIKITEXT:
        return wikitext(name)
    path = Path(name)
    if name.strip() and is_list_of_blocks(path / BLOCKS):
        raise ValueError(
            f"{name} has tokenized text, which only own_language.py and continue_pretraining.py can read; "
            "use the text itself"
        )
    if name.strip() and path.is_dir():
        files = sorted(visible_files(path))
        if not files:
            raise ValueError(f"the folder {name} has no files; put UTF-8 text files into it")
        # If the system can't provide this much memory, fail here, before reading any file.
        bytearray(sum(file.stat().st_size for file in files))
        # Keep each text only once. Otherwise, a copy of a held-out document could be in the training text.
        names: dict[str, str] = {}
        for file in files:
            names.setdefault(without_nul(read_utf8(file), file), decode_file_name(file.relative_to(path)))
        documents = {document: text for text, document in names.items()}
        if len(documents) < len(names):
            raise ValueError(f"two file names in {name} are alike in UTF-8; rename one that is not UTF-8")
        if not any(text.strip() for text in documents.values()):
            raise ValueError(f"all files in {name} are empty; put text into them")
        return split_documents(corpus_name(path), documents)
    if not name.strip() or not path.exists():
        raise ValueError(
            f"no corpus or file is called {name!r}; use a file, a folder, or one of {', '.join(NAMES)}"
        )
    text = without_nul(read_utf8(path), path)
    if not text.strip():
        raise ValueError(f"{name} is empty; use a file with text")
    # If the file is a copy of Tiny Shakespeare, the corpus gets that name, whatever the file is called.
    is_known = hashlib.sha256(text.encode()).hexdigest() == TINY_SHAKESPEARE_SHA256
    display_name = "tiny-shakespeare" if is_known else corpus_name(path)
    return split_documents(display_name, {display_name: text})


def visible_files(folder: Path) -> Iterator[Path]:
    """
    Yields the files in a folder and its subfolders. Skips our temporary files, and files and folders whose
    names start with a dot. Also skips links to folders (because such links could form a cycle), broken links,
    and special files such as pipes. Prints a line for each link or special file that it skips.

    Raises `OSError` if a folder can't be read.
    """
    # In Python 3.11, `rglob` calls itself for each nested folder, so a thousand levels would be an error.
    folders = [folder]
    while folders:
        for path in folders.pop().iterdir():
            if path.name.startswith(".") or is_leftover(path.name):
                continue
            if path.is_file():
                yield path
            elif path.is_symlink() and path.is_dir():
                print_note(f"  skipped {path}, a link to another folder")
            elif path.is_dir():
                folders.append(path)
            else:
                print_note(f"  skipped {path}, which is not a file")


def decode_file_name(name: Path | str) -> str:
    """Decodes a file name as UTF-8 in any locale. Bytes that aren't UTF-8 become escapes such as `\\xff`."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def read_utf8(path: Path) -> str:
    """Returns a file's text, with `\\n` at line ends. Raises `ValueError` if it can't be read as UTF-8."""
    try:
        if path.exists() and not path.is_file():
            # A pipe could be endless, and a second reading would find it empty.
            raise ValueError(f"{path} is not a regular file; save the text in a file and use that")
        # Unlike `utf-8`, this encoding drops a leading byte order mark, which isn't part of the text.
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise encoding_error(path, error, error.object, f"line {line:,}") from None
    except OSError as error:
        raise unreadable(path, error.strerror) from None


def split_documents(name: str, documents: Mapping[str, str]) -> Corpus:
    """
    ## What is held out

    Holds out about a tenth of the text. Chooses whole documents by a hash of their names, so the choice looks
    random, and adding a document usually changes it little. Chooses at most a third of the documents. If the
    chosen documents make up less than a twentieth of the text, also holds out the end of the longest other
    document, from a line end if one is near. Drops documents without text.
    """
    documents = {key: text for key, text in documents.items() if text.strip()}
    total = sum(map(len, documents.values()))
    valid: set[str] = set()
    room = total / 10
    for key in sorted(documents, key=lambda key: hashlib.sha256(key.encode()).digest()):
        if len(documents[key]) <= room and len(valid) < len(documents) // 3:
            valid.add(key)
            room -= len(documents[key])
    end: list[str] = []
    if room > total / 20:
        longest = max((key for key in documents if key not in valid), key=lambda key: len(documents[key]))
        text = documents[longest]
        split = max(0, len(text) - int(room))
        # Cut at a line end only if one is near. With an earlier line end, far more text would be held out.
        split = text.rfind("\n", max(0, split - int(room / 2)), split) + 1 or split
        documents[longest] = text[:split]
        end = [text[split:]]
    train = [text for key, text in documents.items() if key not in valid and text]
    return Corpus(name, train, [*(text for key, text in documents.items() if key in valid), *end])


def python_documents() -> Iterator[tuple[str, str]]:
    """
    ## The text that comes with Python

    Yields `(name, text)`: first a document for each topic of `help()`, then one for each module from
    `module_docstrings`. Leaves out paragraphs that have occurred before. Otherwise, held-out documents could
    contain copies of training text: most docstrings of `operator`, for example, are also in `_operator`.
    """
    from pydoc_data.topics import topics

    earlier: set[str] = set()

    def drop_repeats(texts: Iterable[str]) -> str:
        paragraphs = dict.fromkeys(p for text in texts for p in text.split("\n\n") if p.strip())
        new = [paragraph for paragraph in paragraphs if paragraph.strip() not in earlier]
        earlier.update(paragraph.strip() for paragraph in new)
        return "\n\n".join(new)

    for topic, text in sorted(topics.items()):
        yield f"topic {topic}", drop_repeats([text])
    for name, docstrings in module_docstrings():
        yield name, drop_repeats(docstrings)


@cache
def module_docstrings() -> tuple[tuple[str, tuple[str, ...]], ...]:
    """
    Returns the standard library's modules with their docstrings. Reading them takes seconds, so the result is
    cached.
    """
    modules = []
    root = Path(sysconfig.get_path("stdlib"))
    for file in sorted(root.rglob("*.py")):
        parts = file.relative_to(root).parts
        # Skip third-party packages, the IDLE editor, the tests, and `encodings`, which is mostly tables.
        if not {"site-packages", "dist-packages", "test", "tests", "idlelib", "encodings"} & {*parts}:
            modules.append(("/".join(parts), (*source_docstrings(file),)))
    for name in sorted(sys.stdlib_module_names):
        modules.append((f"compiled {name}", (*compiled_docstrings(name),)))
    return tuple(modules)


def source_docstrings(file: Path) -> Iterator[str]:
    """
    Yields the docstrings of the module, classes and functions in a file, and an empty string for each missing
    docstring. Parses the file instead of importing it, because an import can have side effects: `antigravity`
    opens a browser.
    """
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, OSError):
        # A file may be unreadable or have invalid syntax.
        return
    # Go breadth first, like `ast.walk`, but skip expressions. They contain most of the nodes, but no class or
    # function that could have a docstring.
    nodes: collections.deque[ast.AST] = collections.deque([tree])
    while nodes:
        node = nodes.popleft()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
        inner = ast.iter_child_nodes(node)
        nodes.extend(n for n in inner if isinstance(n, ast.stmt | ast.ExceptHandler | ast.match_case))


def compiled_docstrings(name: str) -> Iterator[str]:
    """Yields the docstrings of a module written in C. Imports it, because it has no Python code to parse."""
    try:
        spec = importlib.util.find_spec(name)
        if spec is None or not (spec.origin == "built-in" or (spec.origin or "").endswith((".so", ".pyd"))):
            return
        with warnings.catch_warnings(action="ignore"):
            # Deprecated modules warn when they are imported.
            module = importlib.import_module(name)
    except (ImportError, ValueError):
        return
    stack: list[tuple[object, int]] = [(module, 0)]
    while stack:
        owner, depth = stack.pop()
        text = getattr(owner, "__doc__", None)
        yield inspect.cleandoc(text) if isinstance(text, str) else ""
        if depth < 2 and (inspect.ismodule(owner) or inspect.isclass(owner)):
            members = [member for _, member in sorted(compiled_members(owner).items())]
            stack.extend((m, depth + 1) for m in members if inspect.isroutine(m))
            stack.extend((m, depth + 1) for m in members if inspect.isclass(m))


def compiled_members(owner: object) -> dict[str, object]:
    """
    Returns the members of a module or a class, without what test runners, debuggers and notebooks change:
    they replace hooks in `sys` and add functions to `builtins`. The text must not depend on these changes.
    """
    members = dict(vars(owner))
    if owner is sys:
        # `sys` keeps the original of each hook, such as `sys.__excepthook__`.
        return {name: members.get(f"__{name}__", member) for name, member in members.items()}
    if owner is builtins:
        is_added = (inspect.isfunction, inspect.ismethod)
        return {name: member for name, member in members.items() if not any(f(member) for f in is_added)}
    return members


@cache
def python_sources() -> Mapping[str, str]:
    """
    ## Code without its documentation

    Returns the code of each module of the standard library that is a single file, such as `textwrap.py`. The
    code is generated from the module's syntax tree, which has no comments. The tree has docstrings, but they
    belong to `python-docs`, so we remove them. Generating the code takes seconds, so the result is cached.
    """
    sources = {}
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        tree = ast.parse(file.read_bytes())
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
                ast.get_docstring(node) is not None
            ):
                # The body must not be empty, even if the docstring was all of it.
                node.body = node.body[1:] or [ast.Pass()]
        sources[file.name] = ast.unparse(tree)
    return MappingProxyType(sources)


def cache_folder() -> Path:
    """
    The folder for downloads: `$XDG_CACHE_HOME/labml_bert`, by default `~/.cache/labml_bert`.

    Raises `ValueError` if `XDG_CACHE_HOME` isn't set and Python finds no home folder.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "labml_bert"
    except RuntimeError:
        raise ValueError("there is no home folder; set XDG_CACHE_HOME to a folder for downloads") from None


# Without a handler for plain http, a redirect from https to http is an error.
HANDLERS: list[type[urllib.request.BaseHandler]] = [
    urllib.request.ProxyHandler,
    urllib.request.HTTPSHandler,
    urllib.request.HTTPRedirectHandler,
    urllib.request.HTTPDefaultErrorHandler,
    urllib.request.HTTPErrorProcessor,
    urllib.request.UnknownHandler,
]


def download(url: str, sha256: str, limit: int = 100_000_000, timeout: float = 30) -> bytes:
    """
    ## Downloading a file once

    Returns the bytes at `url`, from the cache if they are there. Checks the bytes against `sha256` before
    caching or returning them, because a download might turn out to be the sign-in page of a hotel network.
    `timeout` is how many seconds the server may be silent. The whole download may take 20 times as long.

    Raises `ValueError` if the address isn't https, if the download fails, or if the file is longer than
    `limit` bytes or has a different sha256.
    """
    with contextlib.suppress(OSError, ValueError):
        data = read_checked(cache_folder() / sha256)
        if hashlib.sha256(data).hexdigest() == sha256:
            return data
    try:
        data = fetch(url, limit, timeout)
    except (OSError, ValueError, HTTPException) as error:
        reason = str(error) or type(error).__name__
        raise ValueError(
            f"cannot download {url}: {reason}; download it yourself and use the file as the corpus"
        ) from None
    if len(data) > limit:
        raise ValueError(f"{url} is longer than {limit:,} bytes; this isn't the expected file")
    digest = hashlib.sha256(data).hexdigest()
    if digest != sha256:
        raise ValueError(
            f"{url} has sha256 {digest[:16]}…, expected {sha256[:16]}…; the file has changed, or something "
            "on the way has replaced it"
        )
    # If the cache isn't writable, this run still has its text, and the next run downloads it again.
    with contextlib.suppress(OSError, ValueError):
        cached_path = cache_folder() / sha256
        make_folder(cached_path.parent)
        with whole_file(cached_path) as part:
            part.write_bytes(data)
    return data


def fetch(url: str, limit: int, timeout: float) -> bytes:
    """
    Downloads at most `limit + 1` bytes from `url`. Raises whatever `urllib` raises, and `OSError` if the
    download is cut off or takes more than `20 * timeout` seconds.
    """
    opener = urllib.request.OpenerDirector()
    for handler in HANDLERS:
        opener.add_handler(handler())
    end = time.monotonic() + 20 * timeout
    data = bytearray()
    with opener.open(url, timeout=timeout) as response:
        # Read in pieces to check the total time, because `urllib` only limits the wait for the next bytes.
        while len(data) <= limit and (piece := response.read1(min(limit + 1 - len(data), 2**16))):
            data += piece
            if time.monotonic() > end:
                raise TimeoutError("it arrives too slowly")
        length = response.headers.get("Content-Length", "")
    if length.isdecimal() and len(data) < min(int(length), limit):
        raise ConnectionError(f"it was cut off after {len(data):,} of {int(length):,} bytes")
    return bytes(data)


def wikitext(name: str) -> Corpus:
    """Loads WikiText with Hugging Face `datasets`. Holds out its validation split. Articles are documents."""
    # This import takes seconds, and loading any other corpus doesn't need it.
    from datasets import load_dataset
    from huggingface_hub.utils import logging

    # Without a network, each retry would print a line.
    logging.set_verbosity_error()
    try:
        parts = load_dataset("Salesforce/wikitext", WIKITEXT[name], revision=WIKITEXT_REVISION)
    except Exception as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        remedy = "check the network, or use another --corpus"
        raise ValueError(f"cannot download {name}: {first}; {remedy}") from None
    return Corpus(name, articles(parts["train"]["text"]), articles(parts["validation"]["text"]))


def articles(lines: Iterable[str]) -> list[str]:
    """Joins the lines of WikiText into articles. An article starts at a line like ` = Title = `."""
    result: list[list[str]] = [[]]
    for line in lines:
        if line.startswith(" = ") and not line.startswith(" = ="):
            result.append([])
        result[-1].append(line)
    return [text for text in ("".join(article) for article in result) if text.strip()]
