"""
# From the command line to the end of a run

Each pretraining script ends with `launch(main, Options)`. This call parses the options and calls `main(run,
options)`. If the run ends early, `launch` prints the reason in one line. If the run writes a record, `launch`
adds a fingerprint, so that you can check the record later."""

import inspect
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

from labml_bert.files import write_whole
from labml_bert.run.experiment import Run
from labml_bert.run.fingerprint import take_fingerprint
from labml_bert.run.options import OptionsType, parse_options, resume_options
from labml_bert.run.record import origin
from labml_bert.run.terminal import exit_cleanly, exit_on_bad_input
from labml_bert.stdout import console
from labml_bert.training.distributed import rank


def launch(
    main: Callable[[Run, OptionsType], None], options_type: type[OptionsType], argv: list[str] | None = None
) -> None:
    """
    Calls `main(run, options)`. On bad input, prints one line and exits with code 2. If you stop the run,
    prints how to resume it.
    """
    # In a notebook, `inspect` would find a temporary file here, so use `__file__`.
    experiment = Path(main.__globals__["__file__"]).stem
    description = inspect.cleandoc(main.__doc__ or "")
    with exit_on_bad_input():
        options = parse_options(options_type, experiment, description, argv)
        run = Run(options, experiment)
    with exit_cleanly(lambda: run.path, lambda: run.is_resumable, resume_options(options)):
        with run.resources:
            main(run, options)
        if options.record is not None and rank() == 0:
            record = json.loads(options.record.read_text("utf-8"))
            # A script that puts several runs into one record defines how to take their fingerprints.
            several = main.__globals__.get("fingerprints")
            # The record has only the name of the text, but a fingerprint needs the path.
            configuration = {**record["configuration"], "corpus": options.corpus}
            single = {"": partial(take_fingerprint, main, options, experiment)}
            takers = several({**record, "configuration": configuration}) if several else single
            with console.status("taking the fingerprint of the record"):
                # A run whose fingerprint is already in the record keeps it.
                taken = record.setdefault("fingerprints", {})
                for name, take in takers.items():
                    if name not in taken:
                        try:
                            taken[name] = take() | {"checked": origin()}
                        except ValueError as error:
                            # The text can no longer be read. `exit_cleanly` says how to continue.
                            raise OSError(str(error)) from None
            write_whole(options.record, json.dumps(record, indent=1))
