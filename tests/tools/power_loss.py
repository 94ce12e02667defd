"""
Cuts the power at every moment of a run, and resumes what a disk could hold then. The normal tests try a
sample; all of it takes an hour.

    python -m tests.tools.power_loss                # 200 crashes for each command
    python -m tests.tools.power_loss mlm_tiny --crashes 1000

One run is recorded: each write, flush, truncation, renaming, link, deletion and new folder. A crash keeps the
calls up to some point, but of what hasn't been flushed, the disk may have lost anything:

- of a file, each write since its last flush, or a part of one, or the bytes but not the length;
- of a folder, each new name, renaming or deletion since the folder's last flush, with those that need it.

Then the run is resumed, or started again if it has no checkpoint yet. It survives if every tensor and every
held-out loss equals that of the uninterrupted run, and no temporary file is left.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from labml_bert.training.checkpoint import CHECKPOINT
from labml_bert.training.tracking import METRICS, read_metrics
from tests.support.command_lines import COMMANDS, Command, Workshop, is_temporary, read_folder, same_result
from tests.support.syscalls import Call

WITH_CHECKPOINTS = (
    "mlm_tiny",
    "mlm_words",
    "mlm_modern",
    "bert_tiny",
    "own_language",
    "own_language, tokens",
    "continue_pretraining",
    "resume",
    "prepare",
)


@dataclass
class File:
    """A file on the disk, whatever its names are."""

    versions: list[bytes]
    """What it may contain after a crash: its contents at the last flush, and after each change since then."""


@dataclass
class Change:
    """A change of names that hasn't been flushed: the file of each name after it, or `None` for a folder."""

    names: dict[Path, File | str | None]


FOLDER = "folder"
Names = dict[Path, File | str]


@dataclass
class Disk:
    """What the disk holds at some moment, and what it may have lost."""

    now: Names
    """The names that programs see, with `FOLDER` for a folder."""
    flushed: Names = field(default_factory=dict)
    pending: list[Change] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.flushed = dict(self.now)

    def rename_all(self, names: dict[Path, File | str | None]) -> None:
        """Changes names, which a crash can undo until their folders are flushed."""
        self.pending.append(Change(names))
        apply(self.now, names)

    def follow(self, call: Call) -> None:
        """Applies a system call to this disk."""
        path, last = call.paths[0], call.paths[-1]
        file = self.now.get(path)
        if call.name == "open":
            if file is None and call.flags & os.O_CREAT:
                self.rename_all({path: File([b""])})
            elif isinstance(file, File) and call.flags & os.O_TRUNC and file.versions[-1]:
                file.versions.append(b"")
        elif call.name in ("write", "truncate") and isinstance(file, File):
            old = file.versions[-1].ljust(call.offset, b"\0")
            end = old[call.offset + len(call.data) :] if call.name == "write" else b""
            file.versions.append(old[: call.offset] + call.data + end)
        elif call.name == "fsync" and isinstance(file, File):
            file.versions = file.versions[-1:]
        elif call.name == "fsync" and file == FOLDER:
            flushed = [change for change in self.pending if any(n.parent == path for n in change.names)]
            for change in flushed:
                apply(self.flushed, change.names)
            self.pending = [change for change in self.pending if change not in flushed]
        elif call.name == "rename" and file is not None and last != path:
            moved = {name: value for name, value in self.now.items() if name.is_relative_to(path)}
            names: dict[Path, File | str | None] = dict.fromkeys(moved)
            names |= {last / name.relative_to(path): value for name, value in moved.items()}
            self.rename_all(names)
        elif call.name == "link" and isinstance(file, File) and last not in self.now:
            self.rename_all({last: file})
        elif call.name in ("unlink", "rmdir") and file is not None:
            self.rename_all({path: None})
        elif call.name == "mkdir" and file is None and path.parent in self.now:
            self.rename_all({path: FOLDER})

    def crash(self, draw: random.Random, keep_names: float, keep_data: float) -> dict[Path, bytes | None]:
        """
        What a crash leaves: the contents of each file, and `None` for a folder. `keep_names` and `keep_data`
        are the probabilities that what hasn't been flushed survives.
        """
        names, lost = dict(self.flushed), set[Path]()
        for change in self.pending:
            if lost & change.names.keys() or draw.random() >= keep_names:
                # Later changes of these names depend on this one, so they are lost too.
                lost |= change.names.keys()
            else:
                apply(names, change.names)
        contents_of: dict[int, bytes] = {}
        contents: dict[Path, bytes | None] = {}
        for path, file in sorted(names.items()):
            # A name is lost with its folder. The first name is the folder that contains all others.
            if path.parent in contents or not contents:
                if isinstance(file, File):
                    if id(file) not in contents_of:
                        contents_of[id(file)] = choose_version(file, draw, keep_data)
                    contents[path] = contents_of[id(file)]
                else:
                    contents[path] = None
        return contents


def apply(names: Names, changes: dict[Path, File | str | None]) -> None:
    for path, file in changes.items():
        if file is None:
            names.pop(path, None)
        else:
            names[path] = file


def choose_version(file: File, draw: random.Random, keep: float) -> bytes:
    """The contents after a crash: an old version, or a new one of which a part may be missing."""
    old, new = draw.choice(file.versions), file.versions[-1]
    if len(file.versions) == 1 or draw.random() < keep:
        return new
    if keep == 0:
        return file.versions[0]
    # The common beginning of all versions was flushed, so it's safe.
    safe = len(os.path.commonprefix(file.versions))  # noqa: RUF071
    size = draw.randint(safe, len(new))
    return draw.choice([old, new[:size], new[:size].ljust(len(new), b"\0")])


class Recording:
    """A command, and every change that it makes to the disk."""

    def __init__(self, command: Command, workshop: Workshop):
        self.command, self.workshop = command, workshop
        workshop.reset()
        self.start = workshop.folder
        self.calls: list[Call] = []
        outcome = workshop.run(command.words, self.record)
        assert outcome.code == 0, outcome
        self.reference = read_folder(workshop.folder)
        self.metrics = self.read_metrics()
        last = self.disk(len(self.calls)).now
        expected = {path: path.read_bytes() for path in workshop.folder.rglob("*") if path.is_file()}
        replayed = {path: file.versions[-1] for path, file in last.items() if isinstance(file, File)}
        assert replayed == expected, "the recording doesn't explain what is on the disk"

    def record(self, call: Call) -> None:
        if call.name not in ("read", "stat"):
            self.calls.append(call)

    def disk(self, count: int) -> Disk:
        """The disk after `count` calls."""
        start, folder = self.workshop.template, self.workshop.folder
        names: Names = {folder: FOLDER}
        for path in start.rglob("*"):
            names[folder / path.relative_to(start)] = File([path.read_bytes()]) if path.is_file() else FOLDER
        disk = Disk(names)
        for call in self.calls[:count]:
            disk.follow(call)
        return disk

    def crashes(self, count: int, draw: random.Random) -> Iterator[tuple[str, dict[Path, bytes | None]]]:
        """Yields `count` different states, or all if there are fewer."""
        seen = set[int]()
        # Of what wasn't flushed, nothing survives, everything, only names, or only data.
        modes = [(0.0, 0.0), (1.0, 1.0), (1.0, 0.0), (0.0, 1.0)]
        tries = [(n, mode) for n in range(1, len(self.calls) + 1) for mode in modes]
        tries += [(draw.randint(1, len(self.calls)), (0.7, 0.5)) for _ in range(20 * count)]
        first = tries[: len(modes) * len(self.calls)]
        draw.shuffle(first)
        for n, mode in [*first[: 3 * count // 4], *tries[len(first) :], *first[3 * count // 4 :]]:
            state = self.disk(n).crash(draw, *mode)
            key = hash(tuple(state.items()))
            if key not in seen and len(seen) < count:
                seen.add(key)
                yield f"after {n} of {len(self.calls)} calls, {mode}", state

    def restore(self, state: dict[Path, bytes | None]) -> None:
        """Makes the folder equal to a state."""
        folder = self.workshop.folder
        shutil.rmtree(folder)
        for path, data in state.items():
            if data is None:
                path.mkdir()
            else:
                path.write_bytes(data)

    def read_metrics(self) -> list[object]:
        """The held-out losses of all runs."""
        paths = self.workshop.folder.glob(f"*/*/**/{METRICS}")
        return [read_metrics(path.parent).get("valid.loss") for path in sorted(paths)]

    def check(self) -> Iterator[str]:
        """Resumes the command, and yields what is wrong."""
        folder, words = self.workshop.folder, self.command.words
        checkpoints = sorted(folder.glob(f"logs/*/*/{CHECKPOINT}"))
        if checkpoints:
            path = checkpoints[-1].parent.relative_to(folder)
            words = f"{words.split()[0]} --resume={path} --checkpoint-seconds=0"
        else:
            shutil.rmtree(folder / "logs", ignore_errors=True)
        outcome = self.workshop.run(words)
        if outcome.code != 0:
            yield f"{words!r} ends with {outcome.code}: {outcome.errors[-300:]}"
            return
        final = read_folder(folder)
        for name, data in self.reference.items():
            if is_temporary(name) or name.startswith("cache/"):
                continue
            if name not in final:
                yield f"{name} is missing"
            elif not same_result(name, final[name], data, self.workshop.output):
                yield f"{name} differs"
        if self.read_metrics() != self.metrics:
            yield f"the held-out losses are {self.read_metrics()}, not {self.metrics}"
        for name in final:
            if is_temporary(name):
                yield f"{name} is left"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commands", nargs="*", default=WITH_CHECKPOINTS, help="default: all with checkpoints")
    parser.add_argument("--crashes", type=int, default=200, help="for each command (default: 200)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    total = failures = 0
    disk = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=disk) as base:
        workshop = Workshop(Path(base), options.commands)
        for name in options.commands:
            recording = Recording(COMMANDS[name], workshop)
            print(f"{name}: {len(recording.calls)} calls", flush=True)
            count = 0
            for where, state in recording.crashes(options.crashes, random.Random(options.seed)):
                recording.restore(state)
                count += 1
                if count % 50 == 0:
                    print(f"  {count} crashes so far", flush=True)
                for problem in recording.check():
                    failures += 1
                    print(f"  {where}: {problem}", flush=True)
            total += count
            print(f"  {count} crashes", flush=True)
    print(f"{total} crashes, {failures} problems")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
