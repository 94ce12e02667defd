"""
# From the command line to the end of a run

Each pretraining script ends with `launch(main, Options)`. This call parses the options and calls `main(run,
options)`. If you stop the run or an expected error ends it, `launch` prints a short message instead of a
traceback. If the run writes a record, `launch` adds a fingerprint, so that you can check the record later."""

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path

from labml_bert.checksums import parse_sealed
from labml_bert.run.experiment import Run
from labml_bert.run.fingerprint import take_fingerprint
from labml_bert.run.options import OptionsType, parse_options, resume_options
from labml_bert.run.record import origin, write_record
from labml_bert.run.terminal import exit_cleanly, exit_on_bad_input
from labml_bert.stdout import console, print_note
from labml_bert.training.distributed import has_lost_another, rank
from labml_bert.training.trainer import NonFiniteLossError, Trainer


def launch(
    main: Callable[[Run, OptionsType], None], options_type: type[OptionsType], argv: list[str] | None = None
) -> None:
    """
    Parses the options from `argv`, by default the command line, and calls `main(run, options)`. On bad input,
    prints one line and exits with code 2. If you stop the run, prints how to resume it or start over.
    """
    # In a notebook, `inspect` would return the name of a temporary file, so use `__file__`.
    experiment = Path(main.__globals__["__file__"]).stem
    description = inspect.cleandoc(main.__doc__ or "")
    with exit_on_bad_input():
        options = parse_options(options_type, experiment, description, argv)
        run = Run(options, experiment)
    with exit_cleanly(lambda: run.path, lambda: run.is_resumable, resume_options(options)):
        try:
            with run.resources:
                main(run, options)
        except RuntimeError as error:
            trainer: Trainer | None = getattr(run, "current_trainer", None)
            # Ctrl-C also kills the compiler's worker processes, so `torch.compile` raises an error here. If
            # another rank has died, `torchrun` has sent the signal, and `exit_cleanly` reports the dead rank.
            if trainer is not None and trainer.stop_signal is not None and not has_lost_another(error):
                raise KeyboardInterrupt from None
            raise
        if run.record_path is not None and rank() == 0:
            record = parse_sealed(run.record_path.read_text("utf-8"))
            # For a record of several runs, the script's `fingerprints` returns one function per fingerprint.
            several = main.__globals__.get("fingerprints")
            # The record has only the name of the text, but taking a fingerprint may need the path.
            configuration = {**record["configuration"], "corpus": options.corpus}
            single = {"": partial(take_fingerprint, main, options, experiment)}
            takers = several({**record, "configuration": configuration}) if several else single
            with console.status("taking the fingerprint of the record"):
                # If the record already has the fingerprint of a run, keep that fingerprint.
                taken = record.setdefault("fingerprints", {})
                for name, take in takers.items():
                    if name in taken:
                        continue
                    try:
                        fingerprint = take()
                    except NonFiniteLossError:
                        print_note("the record has no fingerprint: the loss of its short run explodes")
                        continue
                    except ValueError as error:
                        # Perhaps the text is gone. On an `OSError`, `exit_cleanly` says what to do.
                        raise OSError(str(error)) from None
                    before = record["configuration"]
                    if any(before.get(key, now) != now for key, now in fingerprint.get("inputs", {}).items()):
                        print_note("the record has no fingerprint: what the run read has changed since then")
                        continue
                    taken[name] = fingerprint | {"checked": origin()}
            write_record(run.record_path, record)
