"""Damaged files are rejected, and only one process holds a lock. For full disks see `test_faults.py`."""

import errno
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file

from labml_bert import files
from labml_bert.files import (
    PART,
    TYPES,
    check_own,
    list_below,
    lock,
    lock_output,
    make_folder,
    open_to_append,
    partial_path,
    read_tensors,
    remove_partial_files,
    whole_file,
    write_tensors,
    write_whole,
)
from tests.support.damage import flip_bit

ROOT = Path(__file__).parents[1]


def test_a_signal_while_tensors_are_read_does_not_look_like_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Safetensors calls Python code while it reads, and replaces the exceptions of that code by its own."""
    path = tmp_path / "x.safetensors"
    write_tensors(path, {"a": torch.arange(6.0)}, {})
    length = torch.UntypedStorage.__len__

    def interrupted(storage: torch.UntypedStorage) -> int:
        signal.raise_signal(signal.SIGINT)
        return length(storage)

    with monkeypatch.context() as patch:
        patch.setattr(torch.UntypedStorage, "__len__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            read_tensors(path)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with ThreadPoolExecutor(1) as pool:
        tensors, _ = pool.submit(read_tensors, path).result()
    assert tensors["a"].equal(torch.arange(6.0))


def test_a_file_that_cannot_be_mapped_to_memory_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, {"a": torch.zeros(1)}, {})
    for error, kind in (("unable to mmap: Cannot allocate memory (12)", MemoryError), ("other", ValueError)):
        monkeypatch.setattr(files, "safe_open", Mock(side_effect=RuntimeError(error)))
        with pytest.raises(kind):
            read_tensors(path)


@pytest.mark.processes
def test_a_lack_of_memory_does_not_look_like_damage(tmp_path: Path) -> None:
    """The message would advise to start a new run, although nothing is wrong with the checkpoint."""
    code = """
import resource, sys
from pathlib import Path
import torch
from labml_bert.files import read_tensors, write_tensors
path, room = Path("x.safetensors"), int(sys.argv[1])
write_tensors(path, {"a": torch.zeros(50_000_000)}, {})
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + room, size + room))
try:
    read_tensors(path)
except MemoryError:
    print("out of memory")
"""
    # The first number is too small to map the file, and the second one too small for a copy.
    for room in (150_000_000, 300_000_000):
        words = [sys.executable, "-c", code, str(room)]
        process = subprocess.run(
            words, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        assert process.stdout == "out of memory\n", process.stderr


def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["a", "a/b", "a/b/c", "d", "d/b", "d/b/c"]
    for name in names:
        (tmp_path / name).mkdir()
    assert sorted(list_below(tmp_path)) == [tmp_path / name for name in names]
    iterdir = Path.iterdir

    def refuse(path: Path) -> Iterator[Path]:
        if path.name == "a":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(PermissionError):
        list_below(tmp_path)


def test_flipped_bits_and_truncation_are_detected(tmp_path: Path) -> None:
    """
    Every byte of a small file is flipped, header included. A flip may pass only if it changes nothing that is
    read.
    """
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([1, 2]), "c": torch.tensor(0.5)}
    path = tmp_path / "x.safetensors"
    write_tensors(path, tensors, {"about": "{}"})
    intact = path.read_bytes()
    harmless = 0
    for offset in range(len(intact)):
        path.write_bytes(flip_bit(intact, offset))
        try:
            loaded, metadata = read_tensors(path)
        except ValueError as error:
            assert "damaged" in str(error)
            continue
        harmless += 1
        assert metadata["about"] == "{}" and loaded.keys() == tensors.keys()
        assert all(torch.equal(loaded[key], tensors[key]) for key in tensors)
    assert harmless < 10
    for size in range(0, len(intact), 7):
        path.write_bytes(intact[:size])
        with pytest.raises(ValueError, match="damaged"):
            read_tensors(path)


@pytest.mark.parametrize("error", [RuntimeError("Permission denied (13)"), OSError(errno.EIO, "Input error")])
def test_a_file_that_cannot_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """PyTorch maps the file into memory, and raises a `RuntimeError` if it can't."""

    def refuse(path: Path, framework: str) -> None:
        raise error

    path = tmp_path / "x.safetensors"
    write_tensors(path, {"a": torch.ones(2)}, {})
    monkeypatch.setattr(files, "safe_open", refuse)
    with pytest.raises(ValueError, match=r"damaged or not a safetensors file"):
        read_tensors(path)


def test_a_file_of_four_bytes_has_no_header(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"null")
    with pytest.raises(ValueError, match="header too small"):
        read_tensors(tmp_path / "x.safetensors")


def test_other_programs_read_the_tensors(tmp_path: Path) -> None:
    """The tensors are of every type that we write; one has no elements, and one has no dimensions."""
    tensors = {name: torch.ones(3).to(getattr(torch, name.removeprefix("torch."))) for name in TYPES}
    tensors |= {"none": torch.empty(0, 2), "one": torch.tensor(3.5), "turned": torch.arange(6.0).view(2, 3).T}
    write_tensors(tmp_path / "x", tensors, {"about": "é"})
    loaded = load_file(tmp_path / "x")
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype and torch.equal(loaded[name], tensor)


def test_each_tensor_starts_at_a_multiple_of_its_element_size(tmp_path: Path) -> None:
    """Only then can other programs map the file into memory and use it without a copy."""
    tensors = {"byte": torch.ones(3).byte(), "half": torch.ones(3).half(), "double": torch.ones(3).double()}
    for length in range(8):
        write_tensors(tmp_path / "x", tensors, {"about": "x" * length})
        data = (tmp_path / "x").read_bytes()
        size = int.from_bytes(data[:8], "little")
        assert size % 8 == 0
        entries = json.loads(data[8 : 8 + size])
        for name, tensor in tensors.items():
            assert entries[name]["data_offsets"][0] % tensor.element_size() == 0


def test_the_order_of_the_metadata_does_not_matter() -> None:
    """Files store metadata in any order."""
    assert files.fingerprint({}, {"a": "1", "b": "2"}) == files.fingerprint({}, {"b": "2", "a": "1"})
    assert files.fingerprint({}, {"a": "1", "b": "2"}) != files.fingerprint({}, {"a": "2", "b": "1"})


def test_only_a_regular_file_with_a_name_in_utf8_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(ValueError, match=r"\(it isn't a regular file\)$"):
            read_tensors(path)
    with pytest.raises(
        ValueError, match=r"^the name 'caf\\udce9' is not UTF-8; use another folder, or rename"
    ):
        read_tensors(Path("caf\udce9"))
    assert not files.is_utf8("\ud800") and not files.is_utf8("a\udfff") and files.is_utf8("\ue000é\U0001f600")


# Texts


def test_text_is_written_in_utf8(tmp_path: Path) -> None:
    write_whole(tmp_path / "x", "é 日本")
    assert (tmp_path / "x").read_bytes() == "é 日本\n".encode()


def test_the_lines_of_a_text() -> None:
    assert files.read_lines("\ufeffone\r\n\ntwo é\n".encode()) == ["one", "", "two é"]
    assert files.read_lines(b"one\xff\n") == ["one\udcff"]
    for blank in (b"", b"\n \n", b"\xef\xbb\xbf\n"):
        with pytest.raises(
            ValueError, match=r"^there is no text; pass texts as arguments, or one per line to sta"
        ):
            files.read_lines(blank)
    with pytest.raises(ValueError, match=r"^the input has NUL characters, .* save its text in UTF-8$"):
        files.read_lines(b"a\0b\n")


def test_a_missing_file_has_another_remedy() -> None:
    messages = [str(files.unreadable("x", os.strerror(number))) for number in (errno.ENOENT, errno.EIO)]
    assert messages == [
        "cannot read x: No such file or directory; name a file that exists",
        "cannot read x: Input/output error; make it readable",
    ]


NOT_TEXT = "compressed, or not a text; save its text in a file, in UTF-8"
CONVERT = "not UTF-8 (byte 1); convert it"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("é".encode("utf-16"), f"{CONVERT} with: iconv -f UTF-16 -t UTF-8 FILE > NEW"),
        (b"\xfe\xff\0a", f"{CONVERT} with: iconv -f UTF-16 -t UTF-8 FILE > NEW"),
        ("é".encode("utf-32"), f"{CONVERT} with: iconv -f UTF-32 -t UTF-8 FILE > NEW"),
        (b"\xe9 a", f"{CONVERT}, for example with: iconv -f WINDOWS-1252 -t UTF-8 FILE > NEW"),
        (b"\0\0\xfe\xff", f"{CONVERT} with: iconv -f UTF-32 -t UTF-8 FILE > NEW"),
        (b"a \xc3", "not UTF-8 at its end (byte 1); get a whole copy, or convert it to UTF-8"),
        (b"\x1f\x8b\x08", NOT_TEXT),
        (b"\xff\0", NOT_TEXT),
    ],
)
def test_the_remedy_depends_on_the_encoding(data: bytes, words: str) -> None:
    with pytest.raises(UnicodeDecodeError) as caught:
        data.decode()
    assert str(files.encoding_error(Path("x.txt"), caught.value, data, "byte 1")) == f"x.txt is {words}"


# Power failures


def test_a_file_with_two_names_is_copied_before_it_grows(tmp_path: Path) -> None:
    """`cp -l` makes a copy of a run that shares its files. Resuming the copy must not change the original."""
    (tmp_path / "lines").write_bytes(b"1\n")
    os.link(tmp_path / "lines", tmp_path / "copy")
    with open_to_append(tmp_path / "copy") as file:
        file.write(b"2\n")
    with open_to_append(tmp_path / "copy") as file:
        file.write(b"3\n")
    assert (tmp_path / "lines").read_bytes() == b"1\n"
    assert (tmp_path / "copy").read_bytes() == b"1\n2\n3\n"
    assert {path.name for path in tmp_path.iterdir()} == {"lines", "copy"}


def test_names_are_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of new files, renamed files and new folders are flushed."""
    flushed: list[Path] = []
    monkeypatch.setattr(files, "sync_folder", flushed.append)
    make_folder(tmp_path / "a" / "b")
    assert flushed == [tmp_path, tmp_path / "a"]
    make_folder(tmp_path / "a")
    write_whole(tmp_path / "a" / "text", "")
    with open_to_append(tmp_path / "a" / "b" / "lines") as file:
        file.write(b"a line")
    with open_to_append(tmp_path / "a" / "b" / "lines"):
        pass
    assert flushed[2:] == [tmp_path / "a", tmp_path / "a" / "b"]
    with pytest.raises(NotADirectoryError):
        make_folder(tmp_path / "a" / "text" / "c")
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "a" / "text")


def test_a_kill_leaves_only_temporary_names_that_are_deleted_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[list[str]] = []
    replace = os.replace

    def list_names(part: Path, path: Path) -> None:
        names.append([file.name for file in tmp_path.iterdir()])
        replace(part, path)

    monkeypatch.setattr(os, "replace", list_names)
    write_tensors(tmp_path / "x", {"a": torch.ones(2)}, {})
    assert len(names) == 1 and all(name.endswith(PART) for name in names[0])


def test_an_error_names_the_file_and_not_its_temporary_name(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for error in (OSError(errno.ENOSPC, "full"), OSError(errno.EIO, "bad", str(partial_path(path)))):
        with pytest.raises(OSError) as info, whole_file(path):
            raise error
        assert info.value.filename == str(path)
    with pytest.raises(OSError) as info, whole_file(path):
        raise OSError(errno.EIO, "bad", "another file")
    assert info.value.filename == "another file"


# Folders from elsewhere


def test_a_file_with_too_many_names_is_refused(tmp_path: Path) -> None:
    """It's refused before a tensor is read: reading 200,000 tensors would take many seconds."""
    path = tmp_path / "model.safetensors"
    tensor = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header = json.dumps({f"tensor {i}": tensor for i in range(200_000)}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ValueError, match="names and shapes take more than 10,000,000 bytes"):
        read_tensors(path)


def test_others_may_read_tensors_if_they_may_read_other_files(tmp_path: Path) -> None:
    write_tensors(tmp_path / "tensors", {"a": torch.ones(2)}, {})
    (tmp_path / "text").touch()
    assert (tmp_path / "tensors").stat().st_mode == (tmp_path / "text").stat().st_mode


def test_a_file_is_never_written_through_a_link(tmp_path: Path) -> None:
    """The link may have the file's own name or its temporary name."""
    target, path = tmp_path / "precious", tmp_path / "x.json"
    target.write_text("kept")
    for link in (path, partial_path(path)):
        link.symlink_to(target)
        write_whole(path, "{}")
        assert target.read_text() == "kept"
        assert path.read_text() == "{}\n" and not path.is_symlink()
        assert {p.name for p in tmp_path.iterdir()} == {"precious", "x.json"}
        path.unlink()


def test_an_error_of_another_file_keeps_its_message(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    for error in (OSError("no connection"), ConnectionResetError(errno.ECONNRESET, "reset by peer")):
        message = str(error)
        with pytest.raises(OSError, match=r"no connection|reset") as raised, open_to_append(path):
            raise error
        assert str(raised.value) == message
    with pytest.raises(OSError, match=r"^no connection$"), files.naming(path):
        raise OSError("no connection")


def test_an_error_while_appending_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", fail)
    (tmp_path / "ids").touch()
    (tmp_path / "lines").touch()
    with (
        open_to_append(tmp_path / "ids") as ids,
        open_to_append(tmp_path / "lines"),
        pytest.raises(OSError, match="full") as raised,
    ):
        files.append(ids, b"id")
    assert raised.value.filename == str(tmp_path / "ids")


def test_appending_refuses_all_but_a_regular_file(tmp_path: Path) -> None:
    target, path = tmp_path / "precious", tmp_path / "lines"
    target.write_text("kept")
    for _ in range(2):
        with open_to_append(path) as file:
            file.write(b"line\n")
    assert path.read_bytes() == b"line\nline\n"
    for make in (lambda: path.symlink_to(target), lambda: path.symlink_to("gone"), lambda: os.mkfifo(path)):
        path.unlink()
        make()
        with pytest.raises(OSError, match=r"lines must be a file .*; remove it"), open_to_append(path):
            pass
    assert target.read_text() == "kept" and not (tmp_path / "gone").exists()


def test_a_link_to_a_folder_is_not_a_folder_of_our_own(tmp_path: Path) -> None:
    check_own(tmp_path, stat.S_ISDIR)
    check_own(tmp_path / "missing", stat.S_ISDIR)
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").write_text("")
    for name in ("link", "file"):
        with pytest.raises(OSError, match=f"{name} must be a folder"):
            check_own(tmp_path / name, stat.S_ISDIR)


def test_only_our_own_partial_files_are_removed(tmp_path: Path) -> None:
    own = ["film.part", "archive.1.part", "previous.part", "x.safetensors.77.part"]
    for name in (*own, f"x.safetensors.77{PART}"):
        (tmp_path / name).write_bytes(b"half")
    (tmp_path / f"folder{PART}").mkdir()
    remove_partial_files(tmp_path)
    remove_partial_files(tmp_path / "missing")
    assert {path.name for path in tmp_path.iterdir()} == {*own, f"folder{PART}"}


def test_a_rename_is_flushed_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until its folder is flushed, a power failure can undo the rename."""
    path, calls = tmp_path / "x.json", []
    fsync, replace = os.fsync, os.replace

    def record_fsync(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            # Fails if the file is open only for reading, as flushing does on Windows.
            os.write(descriptor, b"")
        fsync(descriptor)
        calls.append(("fsync", os.fstat(descriptor).st_ino))

    def record_replace(source: Path, target: Path) -> None:
        replace(source, target)
        calls.append(("replace", os.stat(target).st_ino))

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    write_whole(path, "{}")
    number = path.stat().st_ino
    assert calls == [("fsync", number), ("replace", number), ("fsync", tmp_path.stat().st_ino)]


def test_a_file_system_that_cannot_flush_a_folder_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails is an error, though."""
    fsync = os.fsync
    number = errno.EINVAL

    def fail_for_folders(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_for_folders)
    write_whole(tmp_path / "x.json", "{}")
    assert (tmp_path / "x.json").read_text() == "{}\n"
    number = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        write_whole(tmp_path / "x.json", "{}")


# Locks

HOLD_LOCK = """
import sys
from pathlib import Path
from labml_bert.files import lock
with lock(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def start_lock_holder(folder: Path) -> subprocess.Popen[str]:
    """Starts a process that holds the lock of the folder until it is killed or its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, folder],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "locked\n"
    return process


@pytest.mark.processes
def test_a_second_process_fails_or_waits(tmp_path: Path) -> None:
    with start_lock_holder(tmp_path) as process:
        with pytest.raises(
            BlockingIOError, match=r"\.lock is locked by another process; wait until that one ends$"
        ):
            lock(tmp_path)
        # A lock with another name in the same folder is free.
        with lock(tmp_path, name=".other.lock"):
            pass
        polls = []

        def on_wait() -> None:
            polls.append(process.poll())
            assert process.stdin is not None
            process.stdin.close()

        with lock(tmp_path, on_wait):
            assert polls == [None]
            assert process.wait() == 0


@pytest.mark.processes
def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    with start_lock_holder(tmp_path) as process:
        process.kill()
    with lock(tmp_path):
        pass


def test_a_lock_is_released_with_its_block_or_its_object(tmp_path: Path) -> None:
    for _ in range(2):
        with lock(tmp_path), pytest.raises(BlockingIOError):
            lock(tmp_path)
    lock(tmp_path)
    lock_object = lock(tmp_path)
    with pytest.raises(BlockingIOError):
        lock(tmp_path)
    del lock_object
    with lock(tmp_path):
        pass


def test_a_lock_never_follows_a_symbolic_link(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("kept")
    (tmp_path / ".lock").symlink_to(target)
    with pytest.raises(OSError, match=r"lock must be a file .* symbolic link; remove it"):
        lock(tmp_path)
    assert target.read_text() == "kept"
    (tmp_path / ".lock").unlink()
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(OSError, match=r"lock must be a file .* something else; remove it"):
        lock(tmp_path)
    (tmp_path / ".lock").unlink()
    (tmp_path / ".lock").write_text("kept")
    for locked in (lock, lambda folder: lock_output(folder).__enter__()):
        with pytest.raises(OSError, match=r"lock is not ours, because it is not empty; move it"):
            locked(tmp_path)
        assert (tmp_path / ".lock").read_text() == "kept"


def test_a_new_version_of_a_file_keeps_its_permissions(tmp_path: Path) -> None:
    """Several users may share a folder, and the umask of one must not lock out the others."""
    path = tmp_path / "file"
    before = os.umask(0o077)
    try:
        write_whole(path, "first")
        assert path.stat().st_mode & 0o777 == 0o600
        path.chmod(0o664)
        write_whole(path, "second")
    finally:
        os.umask(before)
    assert path.read_text() == "second\n" and path.stat().st_mode & 0o777 == 0o664


def test_tensors_of_every_type_of_the_format(tmp_path: Path) -> None:
    tensors = {name: torch.arange(6).view(2, 3).to(getattr(torch, name[6:])) for name in files.TYPES}
    files.write_tensors(tmp_path / "a.safetensors", tensors, {})
    loaded = files.read_tensors(tmp_path / "a.safetensors")[0]
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype and torch.equal(loaded[name], tensor)
    assert load_file(tmp_path / "a.safetensors").keys() == tensors.keys()
    with pytest.raises(ValueError, match=r"x has numbers of type torch\.complex128, which"):
        files.write_tensors(tmp_path / "b.safetensors", {"x": torch.zeros(2, dtype=torch.complex128)}, {})
    assert not (tmp_path / "b.safetensors").exists()
