r"""
# Where text comes from

To learn a language a model needs text, and the first run should not depend on a download. Every
Python installation carries a few megabytes of English: the language reference behind `help()` and
the docstrings of the standard library. That is the default corpus here, `python-docs`.

A corpus is a list of documents, some of them held out. The model never trains on a held-out
document, and every loss that we quote is measured there.
"""

import ast
import collections
import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import sysconfig
import time
import urllib.request
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from http.client import HTTPException
from pathlib import Path

from labml_bert.files import whole_file

TINY_SHAKESPEARE_URL = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
)
TINY_SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"

# A commit of the data set, which is the fingerprint of all of its files.
WIKITEXT_REVISION = "b08601e04326c79dfdd32d625aee71d232d685c3"
WIKITEXT = {"wikitext-2": "wikitext-2-raw-v1", "wikitext-103": "wikitext-103-raw-v1"}


@dataclass(frozen=True)
class Corpus:
    """Documents to learn from and documents to be tested on."""

    name: str
    train: list[str]
    valid: list[str]

    @property
    def sha256(self) -> str:
        """The fingerprint of all the text, so that a recorded result says which text it was."""
        digest = hashlib.sha256()
        for text in (*self.train, "\0", *self.valid):
            digest.update(text.encode() + b"\0")
        return digest.hexdigest()


def load_corpus(name: str) -> Corpus:
    """
    ## By name or by path

    `name` is `python-docs`, `tiny-shakespeare`, `wikitext-2`, `wikitext-103`, or the path of a UTF-8
    file or of a folder of such files.

    Raises `ValueError` for a name that is neither, a file that is empty or not UTF-8, and a download
    that fails or is not the file it should be.
    """
    if name == "python-docs":
        return split_documents(name, dict(python_documents()))
    if name == "tiny-shakespeare":
        text = download(TINY_SHAKESPEARE_URL, TINY_SHAKESPEARE_SHA256).decode()
        return split_documents(name, {"tiny-shakespeare": text})
    if name in WIKITEXT:
        return wikitext(name)
    path = Path(name)
    if name.strip() and path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file() and not is_hidden(file, path))
        if not files:
            raise ValueError(f"the folder {name} has no files; put UTF-8 text files into it")
        documents = {legible(file.relative_to(path)): read_utf8(file) for file in files}
        if not any(text.strip() for text in documents.values()):
            raise ValueError(f"all files in {name} are empty; give files with text")
        return split_documents(legible(path.name), documents)
    if not name.strip() or not path.exists():
        known = ", ".join(["python-docs", "tiny-shakespeare", *WIKITEXT])
        raise ValueError(f"no corpus or file is called {name!r}; give a file, a folder, or one of {known}")
    text = read_utf8(path)
    if not text.strip():
        raise ValueError(f"{name} is empty; give a file with text")
    # Fetched by hand or by us, it is the same text and goes by the same name.
    is_known = hashlib.sha256(text.encode()).hexdigest() == TINY_SHAKESPEARE_SHA256
    display_name = "tiny-shakespeare" if is_known else legible(path.name)
    return split_documents(display_name, {display_name: text})


def is_hidden(file: Path, folder: Path) -> bool:
    """Whether a part of the path below `folder` starts with a dot, as in `.git`."""
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def legible(name: Path | str) -> str:
    """A name as UTF-8. Where the terminal is set to another code, Python keeps foreign letters as bytes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def read_utf8(path: Path) -> str:
    """The text of a file, line ends as `\\n`. Raises `ValueError` where it cannot be read as UTF-8."""
    try:
        # A byte order mark is no part of the text.
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 (byte {error.start}); convert it, for example with iconv -t UTF-8"
        ) from None
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None


def split_documents(name: str, documents: dict[str, str]) -> Corpus:
    """
    ## What is held out

    About a tenth of the text. With several documents whole ones are taken, in the order of a hash of
    their names: it looks random, and does not change when others are added. One long document gives
    its last tenth, cut at a line end.
    """
    documents = {key: text for key, text in documents.items() if text.strip()}
    total = sum(map(len, documents.values()))
    valid: set[str] = set()
    room = total / 10
    for key in sorted(documents, key=lambda key: hashlib.sha256(key.encode()).digest()):
        if len(documents[key]) <= room:
            valid.add(key)
            room -= len(documents[key])
    # Where the documents are so unequal that hardly any fits, the last tenth of the longest serves.
    if room > total / 20:
        longest = max(documents, key=lambda key: len(documents[key]))
        text = documents[longest]
        cut = max(0, len(text) - int(room))
        cut = text.rfind("\n", 0, cut) + 1 or cut
        train = [documents[key] if key != longest else text[:cut] for key in documents if key not in valid]
        return Corpus(name, train, [*(documents[key] for key in documents if key in valid), text[cut:]])
    return Corpus(
        name,
        [text for key, text in documents.items() if key not in valid],
        [text for key, text in documents.items() if key in valid],
    )


def python_documents() -> Iterator[tuple[str, str]]:
    """
    ## The text every Python carries

    Yields `(name, text)`, first the topics of `help()`, then one document a module of the standard
    library. A paragraph that was seen before is left out, or the
    held-out documents would contain copies: `turtle` documents each method twice, `posixpath` and
    `ntpath` share most of theirs.
    """
    from pydoc_data.topics import topics

    seen: set[str] = set()

    def fresh(texts: Iterable[str]) -> str:
        paragraphs = dict.fromkeys(p for text in texts for p in text.split("\n\n") if p.strip())
        new = [paragraph for paragraph in paragraphs if paragraph.strip() not in seen]
        seen.update(paragraph.strip() for paragraph in new)
        return "\n\n".join(new)

    for topic, text in sorted(topics.items()):
        yield f"topic {topic}", fresh([text])
    for name, docstrings in module_docstrings():
        yield name, fresh(docstrings)


@cache
def module_docstrings() -> list[tuple[str, list[str]]]:
    """Each module of the standard library and all of its docstrings. They are read once, in some seconds."""
    modules = []
    root = Path(sysconfig.get_path("stdlib"))
    for file in sorted(root.rglob("*.py")):
        parts = file.relative_to(root).parts
        # Packages of others, tests, and tables of code points are not prose.
        if not {"site-packages", "dist-packages", "test", "tests", "idlelib", "encodings"} & {*parts}:
            modules.append(("/".join(parts), [*source_docstrings(file)]))
    for name in sorted(sys.stdlib_module_names):
        modules.append((f"compiled {name}", [*compiled_docstrings(name)]))
    return modules


def source_docstrings(file: Path) -> Iterator[str]:
    """The docstrings of a source file, read without running it: importing `antigravity` opens a browser."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, OSError):
        # The library's own broken examples, such as those of lib2to3.
        return
    # Breadth first like `ast.walk`, but not through expressions, which are most of a tree and define nothing.
    nodes: collections.deque[ast.AST] = collections.deque([tree])
    while nodes:
        node = nodes.popleft()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
        inner = ast.iter_child_nodes(node)
        nodes.extend(n for n in inner if isinstance(n, ast.stmt | ast.ExceptHandler | ast.match_case))


def compiled_docstrings(name: str) -> Iterator[str]:
    """The docstrings of a module written in C, which has no source to read and does nothing on import."""
    try:
        spec = importlib.util.find_spec(name)
        if spec is None or not (spec.origin == "built-in" or (spec.origin or "").endswith((".so", ".pyd"))):
            return
        with warnings.catch_warnings(action="ignore"):
            # Some are on their way out of the library, and say so to whoever imports them.
            module = importlib.import_module(name)
    except (ImportError, ValueError):
        return
    stack: list[tuple[object, int]] = [(module, 0)]
    while stack:
        thing, depth = stack.pop()
        text = getattr(thing, "__doc__", None)
        yield inspect.cleandoc(text) if isinstance(text, str) else ""
        if depth < 2 and (inspect.ismodule(thing) or inspect.isclass(thing)):
            stack.extend((m, depth + 1) for _, m in sorted(vars(thing).items()) if inspect.isroutine(m))
            stack.extend((m, depth + 1) for _, m in sorted(vars(thing).items()) if inspect.isclass(m))


def cache_folder() -> Path:
    """
    Where downloads are kept: `$XDG_CACHE_HOME/labml_bert`, by default `~/.cache/labml_bert`.

    Raises `ValueError` where there is neither.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "labml_bert"
    except RuntimeError:
        raise ValueError("there is no home folder; set XDG_CACHE_HOME to a folder for downloads") from None


# All that a download may speak. Whoever redirects to plain http is not followed.
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
    ## A file from the network, once

    Returns the bytes at `url`, from the cache if they are there. Nothing is kept, and nothing is
    returned, unless it has this `sha256`: a sign-in page of a hotel network is also a file. `timeout` is for
    silence, in seconds; a file that comes, but slowly, may take twenty times as long.

    Raises `ValueError` where the address is not https, the download fails, is longer than `limit` bytes or
    has another sha256.
    """
    with contextlib.suppress(OSError, ValueError):
        data = (cache_folder() / sha256).read_bytes()
        if hashlib.sha256(data).hexdigest() == sha256:
            return data
    try:
        data = fetch(url, limit, timeout)
    except (OSError, ValueError, HTTPException) as error:
        reason = str(error) or type(error).__name__
        raise ValueError(
            f"cannot download {url}: {reason}; fetch it yourself and give the file as the corpus"
        ) from None
    if len(data) > limit:
        raise ValueError(f"{url} is longer than {limit:,} bytes; this is not the file we know")
    digest = hashlib.sha256(data).hexdigest()
    if digest != sha256:
        raise ValueError(
            f"{url} has sha256 {digest[:16]}…, expected {sha256[:16]}…; the file changed or something "
            "on the way replaced it"
        )
    # A cache that cannot be written costs the next run a download, not this run its text.
    with contextlib.suppress(OSError, ValueError):
        cached = cache_folder() / sha256
        cached.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(cached) as part:
            part.write_bytes(data)
    return data


def fetch(url: str, limit: int, timeout: float) -> bytes:
    """The bytes at `url`, at most one more than `limit`. Raises whatever `urllib` raises."""
    opener = urllib.request.OpenerDirector()
    for handler in HANDLERS:
        opener.add_handler(handler())
    end = time.monotonic() + 20 * timeout
    data = bytearray()
    with opener.open(url, timeout=timeout) as response:
        # Not in one go: each byte that comes would put the end of the patience off.
        while len(data) <= limit and (piece := response.read1(min(limit + 1 - len(data), 2**16))):
            data += piece
            if time.monotonic() > end:
                raise TimeoutError("it comes too slowly")
        length = response.headers.get("Content-Length", "")
    if length.isdecimal() and len(data) < min(int(length), limit):
        raise ConnectionError(f"it was cut off after {len(data):,} of {int(length):,} bytes")
    return bytes(data)


def wikitext(name: str) -> Corpus:
    """WikiText through Hugging Face `datasets`, with its own split; a document is an article."""
    # Takes seconds, and no other corpus needs it.
    from datasets import load_dataset

    try:
        parts = load_dataset("Salesforce/wikitext", WIKITEXT[name], revision=WIKITEXT_REVISION)
    except Exception as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"cannot download {name}: {first}") from None
    return Corpus(name, articles(parts["train"]["text"]), articles(parts["validation"]["text"]))


def articles(lines: Iterable[str]) -> list[str]:
    """WikiText comes as lines; a new article starts at a line ` = Title = `, with one equals sign."""
    result: list[list[str]] = [[]]
    for line in lines:
        if line.startswith(" = ") and not line.startswith(" = ="):
            result.append([])
        result[-1].append(line)
    return [text for text in ("".join(article) for article in result) if text.strip()]
