r"""
# What the papers say, run here

Everybody repeats the same sentences about BERT. Which of them hold at a size that a laptop can repeat? Each
is an entry of `claims.toml`: the sentence, its source, the arms to compare, and what to compare them in, all
written down before the first run. [The page of claims](../../claims.md) computes the verdicts.

    python experiments/claims/claims.py --list
    python experiments/claims/claims.py short-to-long
    python experiments/claims/claims.py short-to-long --arm "length 128" --seed 3

The second line runs a claim, and continues one that was stopped: each result is in the record as soon as it
is known. The third repeats one row of the record and changes nothing.

An arm is one side of a comparison. What it changes is in `options.py` and `variants.py`, how it is trained in
`training.py`, what is measured afterwards in `scores.py`, and how results are kept in `results.py`. After the
runs of a claim, a step of each arm is timed, all arms in turn. The time to reach a loss is then the number of
steps to reach it times the seconds per step.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # A clone runs without being installed.
from labml_bert.run import script  # noqa: F401  # isort: skip

import subprocess
from textwrap import fill

from experiments.claims.fingerprints import fingerprints as fingerprints
from experiments.claims.results import TUNING_SEED, Claim, Results, describe_result, read_claims
from labml_bert.run.terminal import OneLineParser, bad_input_ends_here
from labml_bert.stdout import console, display_path
from labml_bert.training.device import choose_device

CLAIMS = Path(__file__).with_name("claims.toml")
EXPERIMENTS = Path(__file__).parents[1]


def main(argv: list[str] | None = None) -> None:
    """Reads the command line, and runs claims, or repeats a row of one."""
    parser = OneLineParser(description="Run what is said of masked language models.")
    parser.add_argument("claim", nargs="*", help="which; see --list")
    parser.add_argument("--all", action="store_true", help="all claims; what is recorded is not run again")
    parser.add_argument("--list", action="store_true", help="print the claims, their arms and what they take")
    parser.add_argument("--arm", help="repeat the recorded runs of this arm, with --seed; records nothing")
    parser.add_argument("--seed", type=int, help=f"which run of the arm; {TUNING_SEED} is the search")
    parser.add_argument(
        "--record", type=Path, default=Path("docs/runs"), metavar="FOLDER", help="(default: docs/runs)"
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda, or the GPU if there is one")
    arguments = parser.parse_args(argv)
    claims = read_claims(CLAIMS)
    with bad_input_ends_here():
        unknown = [name for name in arguments.claim if name not in claims]
        if unknown:
            raise ValueError(f"no claim {unknown[0]!r}; choose from {', '.join(claims)}")
        if not (arguments.list or arguments.all or arguments.claim):
            raise ValueError("name a claim, or give --all or --list")
        if (arguments.arm is None) != (arguments.seed is None) or (
            arguments.arm is not None and len(arguments.claim) != 1
        ):
            raise ValueError("to repeat a row give one claim, --arm and --seed")
        device = choose_device(arguments.device)
    chosen = (
        list(claims.values())
        if arguments.all or not arguments.claim
        else [claims[name] for name in arguments.claim]
    )
    if arguments.list:
        list_claims(chosen)
        return
    for claim in chosen:
        console.print(f"{claim.name}: {claim.title}", soft_wrap=True)
        with bad_input_ends_here():
            if claim.record:
                run_experiments(claim, arguments.record, is_repeat=arguments.arm is not None)
                continue
            results = Results(claim, arguments.record, device)
            if arguments.arm is not None:
                for before, now in results.repeat(arguments.arm, arguments.seed):
                    console.print(f"  recorded  {describe_result(before)}", soft_wrap=True)
                    console.print(f"  now       {describe_result(now)}", soft_wrap=True)
                continue
            try:
                results.complete()
            except KeyboardInterrupt:
                console.print("  stopped; the same command continues after the last run that was finished")
                raise
            console.print(f"  record      {display_path(results.path)}")


def list_claims(claims: list[Claim]) -> None:
    """Prints what there is to run, and how long it takes."""
    for claim in claims:
        console.print(
            f"{claim.name}: {claim.title}\n  {claim.seeds} seeds, {claim.count_runs()} runs, "
            f"about {claim.minutes} minutes\n"
            + fill("; ".join(claim.arms), 78, initial_indent="  ", subsequent_indent="  "),
            highlight=False,
            soft_wrap=True,
        )
    console.print(f"together about {sum(claim.minutes for claim in claims) / 60:.1f} hours")


def run_experiments(claim: Claim, folder: Path, is_repeat: bool) -> None:
    """
    A claim whose record is that of other experiments: they are run if it does not exist.

    Raises `ValueError` if one row of it is to be repeated, and `SystemExit` if an experiment fails.
    """
    path = folder / f"{claim.record}.json"
    if is_repeat:
        raise ValueError(f"{claim.name} is recorded as a whole; run python experiments/{claim.record}.py")
    if path.exists():
        console.print(f"  record      {display_path(path)}")
        return
    *first, last = ([sys.executable, str(EXPERIMENTS / name)] for name in claim.experiments or [])
    for command in [*first, [*last, "--record", str(path)]]:
        if exit_code := subprocess.run(command, check=False).returncode:
            sys.exit(exit_code)


if __name__ == "__main__":
    main()
