"""
Makes every system call of every command fail, one at a time, and checks what is left. The normal tests try a
sample; all of it takes hours.

    python -m tests.tools.faults                       # all commands, all calls
    python -m tests.tools.faults "export, web" runs    # two commands
    python -m tests.tools.faults --every 10            # every tenth call
    python -m tests.tools.faults --call read           # only the calls of one kind
    python -m tests.tools.faults --first 100 retrieval # from the 100th call

For n = 1, 2, … the n-th call that looks up, opens, reads, writes, flushes, renames, links, truncates or
deletes a file, or makes or lists a folder, fails with each error that it can have: the disk is full (from
then on, for all writes), the disk is damaged, or access is denied. A write can also be cut short. This
includes calls in other languages, such as those of safetensors and Arrow. Afterwards:

- the exit code is 0 or 2, there is no traceback, and on stderr there is at most one line;
- every file is whole, and is either as before or as after a run without a fault; no temporary file is left;
- the command that the message names, or else the same command, leads to the result of a run without a fault.
  If several faults leave the same files, apart from times, this is tried only once.

Failed allocations aren't tried, nor reads from files that are mapped into memory.
"""

import argparse
import errno
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from labml_bert.data.pair_dataset import PARTS
from labml_bert.training.checkpoint import PREVIOUS
from tests.support.command_lines import (
    COMMANDS,
    Command,
    Outcome,
    Workshop,
    digest,
    is_temporary,
    is_whole,
    read_folder,
    same_result,
)
from tests.support.syscalls import ERRORS, SHORT, Call, OnCall

# The system calls that need space on the disk.
WRITES = {"write", "mkdir", "link", "rename", "fsync"}


def fail_at(n: int, answer: int) -> OnCall:
    """Answers the n-th call with an error. A full disk stays full, and a write is cut short before that."""
    count = 0

    def on_call(call: Call) -> int | None:
        nonlocal count
        count += 1
        is_full = answer in (errno.ENOSPC, SHORT)
        if count == n:
            return answer
        return errno.ENOSPC if count > n and is_full and call.name in ("write", "mkdir", "link") else None

    return on_call


def name_of(answer: int) -> str:
    return "short write" if answer == SHORT else errno.errorcode[answer]


def list_paths(folder: Path) -> dict[str, bytes | None]:
    """All files below a folder with their contents, and all folders with `None`, by their relative paths."""
    paths = folder.rglob("*")
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in paths}


class Trial:
    """All faults of one command."""

    def __init__(self, name: str, command: Command, workshop: Workshop):
        self.name, self.command, self.workshop = name, command, workshop
        self.template = workshop.template
        if command.repeats:
            workshop.reset()
            workshop.succeed(command.words)
            self.template = workshop.output / "earlier"
            shutil.rmtree(self.template, ignore_errors=True)
            shutil.copytree(workshop.folder, self.template, symlinks=True)
        workshop.reset(self.template)
        self.before = read_folder(workshop.folder)
        self.reruns: set[str] = set()
        """Digests of the files and the command of each rerun."""
        self.calls: list[Call] = []
        workshop.run(command.words, self.record)
        self.reference = read_folder(workshop.folder)

    def record(self, call: Call) -> None:
        self.calls.append(call)

    def faults(self, first: int, every: int, kind: str | None) -> Iterator[tuple[int, int]]:
        """The faults to try, from the call numbered `first`: pairs of the number of a call and its error."""
        numbers = [n for n, call in enumerate(self.calls, 1) if n >= first and kind in (None, call.name)]
        for n in numbers[::every]:
            for answer in ERRORS[self.calls[n - 1].name]:
                yield n, answer

    def run(self, n: int, answer: int) -> Iterator[str]:
        """Tries one fault, and yields what is wrong."""
        workshop = self.workshop
        workshop.reset(self.template)
        outcome = workshop.run(self.command.words, fail_at(n, answer))
        call = self.calls[n - 1]
        where = f"call {n}, {call.name} {call.paths[-1].relative_to(workshop.folder)}: {name_of(answer)}"
        problems = [*self.check_end(outcome), *self.check_files(call), *self.check_rerun(outcome)]
        yield from (f"{where}: {problem}" for problem in problems)

    def check_end(self, outcome: Outcome) -> Iterator[str]:
        """Checks the exit code and the message."""
        lines = outcome.errors.splitlines()
        if outcome.code not in self.command.codes:
            yield f"exit code {outcome.code}: {' | '.join(lines[-3:])}"
        elif "Traceback" in outcome.out + outcome.errors or len(lines) > 1:
            yield f"more than one line: {' | '.join(lines[-3:])}"
        elif outcome.code == 2 and not re.match("error: .{10}", outcome.errors):
            yield f"no message, but {outcome.errors!r}"

    def check_files(self, call: Call) -> Iterator[str]:
        """Checks the files that are left on the disk."""
        after, scratch = read_folder(self.workshop.folder), self.workshop.output
        # The newest of several runs may have another number now, so its files may be those of another run.
        references = {*self.reference.values()}
        for name, data in after.items():
            # If the failed run had a folder of its own, the folder of the earlier run has kept its name.
            if data == self.before.get(name) or re.search(r"^logs/\w+/2", name) or name.endswith(PARTS):
                continue
            if is_temporary(name):
                if call.name != "unlink":
                    yield f"{name} is left"
            elif name not in self.reference and name not in self.before:
                yield f"{name} is new"
            elif data not in references and not is_whole(name, data, self.reference.get(name), scratch):
                yield f"{name} is not whole ({len(data)} bytes)"
        # If a new run began, `RUN` is its name, and the files of the earlier run have another name.
        for name in self.before.keys() & self.reference.keys() - after.keys():
            if "/RUN/" not in name:
                yield f"{name} is gone"

    def check_rerun(self, outcome: Outcome) -> Iterator[str]:
        """Checks the run that follows the fault."""
        words = self.command.words
        resume = re.search(r"--resume (\S+)", outcome.errors)
        if resume:
            words = f"{words.split()[0]} --resume {resume[1]} --checkpoint-seconds=0"
            words += " --record=record.json" if "--record" in self.command.words else ""
        is_unchanged = list_paths(self.workshop.folder) == list_paths(self.template)
        if outcome.code == 2 and not resume and is_unchanged:
            # The same command then has the same result as without a fault.
            return
        again = outcome
        if outcome.code != 0 or outcome.errors != "":
            key = digest(self.workshop.folder, words, self.workshop.output)
            if key in self.reruns:
                return
            self.reruns.add(key)
            again = self.workshop.run(words)
        if again.code not in {0, 1} & {*self.command.codes} or "Traceback" in again.errors:
            yield f"after {outcome.errors.strip()!r}, {words!r} ends with {again.code}: {again.errors[-300:]}"
            return
        final = read_folder(self.workshop.folder)
        for name, data in self.reference.items():
            if re.search(r"^logs/\w+/2", name) or is_temporary(name):
                continue
            if name not in final:
                # A run continues if it can't keep the checkpoint before the last one.
                if not name.endswith(PREVIOUS):
                    yield f"then {name} is missing"
            elif not same_result(name, final[name], data, self.workshop.output):
                yield f"then {name} differs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commands", nargs="*", default=[*COMMANDS], help="default: all")
    parser.add_argument("--first", type=int, default=1, help="begin at this call (default: 1)")
    parser.add_argument("--every", type=int, default=1, help="try every n-th call (default: 1)")
    parser.add_argument("--call", choices=[*ERRORS], metavar="KIND", help="try only one kind, such as read")
    parser.add_argument("--list", action="store_true", help="list the calls, and try nothing")
    options = parser.parse_args()
    total = failures = 0
    disk = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=disk) as base:
        workshop = Workshop(Path(base), options.commands)
        for name in options.commands:
            trial = Trial(name, COMMANDS[name], workshop)
            kinds = Counter(call.name for call in trial.calls)
            print(f"{name}: {len(trial.calls)} calls {dict(kinds)}", flush=True)
            if options.list:
                for number, call in enumerate(trial.calls, 1):
                    print(f"  {number:4} {call.name:9}{call.paths[-1].relative_to(workshop.folder)}")
                continue
            count = 0
            for n, answer in trial.faults(options.first, options.every, options.call):
                count += 1
                if count % 100 == 0:
                    print(f"  {count} faults so far, at call {n}", flush=True)
                for problem in trial.run(n, answer):
                    failures += 1
                    print(f"  {problem}", flush=True)
            total += count
            print(f"  {count} faults", flush=True)
    print(f"{total} faults, {failures} problems")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
