r"""
# What the papers say, put to the test

Papers and tutorials make many claims about how to train BERT. Which of them hold for models that a laptop can
train? Each claim is an entry in `claims.toml`: the sentence, its source, the arms to compare, and the metric
to compare them by. [The claims page](../../claims.md) computes the verdicts, and says what was changed after
which runs.

    python experiments/claims/claims.py --list
    python experiments/claims/claims.py short-to-long
    python experiments/claims/claims.py short-to-long --arm "length 128" --seed 3

The second command runs a claim, or continues it if it was stopped: each run is recorded as soon as it ends.
The third command repeats a recorded run and records nothing. `--arm` also accepts several names.

You can run a study, an entry of `studies.toml`, in the same way. It has arms but no tests, so it gets no
verdict.

An arm is one side of a comparison. `options.py` and `variants.py` define what an arm can change,
`training.py` trains its models, `scores.py` measures them afterwards, and `results.py` records the results.
After the first seeds of a claim, we time the training steps of all arms in turn. The time to reach a loss is
then the number of steps times the seconds per step.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # Find the package without installing it.
from labml_bert.run import preflight  # noqa: F401  # isort: skip

from textwrap import fill

from experiments.claims.fingerprints import fingerprints as fingerprints
from experiments.claims.results import TUNING_SEED, Claim, Results, describe_result, read_claims
from labml_bert.run.terminal import exit_on_bad_input
from labml_bert.stdout import OneLineParser, console, display_path
from labml_bert.training.device import choose_device

CLAIMS = Path(__file__).with_name("claims.toml")
STUDIES = Path(__file__).with_name("studies.toml")
RECORDS = Path(__file__).parents[2] / "docs" / "runs"


def main(argv: list[str] | None = None) -> None:
    """Parses the command line, and lists claims, runs them, or repeats recorded runs of one claim."""
    parser = OneLineParser(description="Test claims about masked language models.")
    parser.add_argument("claim", nargs="*", help="the claims or studies to run; see --list")
    parser.add_argument(
        "--all", action="store_true", help="run all claims and studies; recorded runs are not repeated"
    )
    parser.add_argument(
        "--list", action="store_true", help="print the claims and studies with their arms and times"
    )
    parser.add_argument(
        "--arm", nargs="+", help="repeat the recorded runs of these arms and --seed; records nothing"
    )
    parser.add_argument("--seed", type=int, help=f"seed of the runs to repeat; {TUNING_SEED} is the search")
    parser.add_argument(
        "--record",
        type=Path,
        default=RECORDS,
        metavar="FOLDER",
        help="folder of the records (default: docs/runs of this clone)",
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda, or the GPU if there is one")
    arguments = parser.parse_args(argv)
    with exit_on_bad_input():
        claims = read_claims(CLAIMS) | read_claims(STUDIES)
        unknown_names = [name for name in arguments.claim if name not in claims]
        if unknown_names:
            raise ValueError(f"no claim {unknown_names[0]!r}; choose from {', '.join(claims)}")
        if arguments.all and arguments.claim:
            raise ValueError("use --all or the names of claims, not both")
        if not (arguments.list or arguments.all or arguments.claim):
            raise ValueError("name a claim, or use --all or --list")
        if (arguments.arm is None) != (arguments.seed is None) or (
            arguments.arm is not None and len(arguments.claim) != 1
        ):
            raise ValueError("to repeat a row, name one claim and use --arm and --seed")
        if not arguments.list and arguments.record == RECORDS and not RECORDS.is_dir():
            raise ValueError("this isn't a clone of the repository, so name a folder with --record")
        device = choose_device(arguments.device)
    selection = (
        list(claims.values())
        if arguments.all or not arguments.claim
        else [claims[name] for name in arguments.claim]
    )
    if arguments.list:
        list_claims(selection)
        return
    for claim in selection:
        console.print(f"{claim.name}: {claim.title}", soft_wrap=True)
        with exit_on_bad_input():
            results = Results(claim, arguments.record, device, is_read_only=arguments.arm is not None)
            if arguments.arm is not None:
                for before, now in results.repeat(arguments.arm, arguments.seed):
                    console.print(f"  {before['arm']}, seed {before['seed']}", soft_wrap=True)
                    console.print(f"  recorded  {describe_result(before)}", soft_wrap=True)
                    console.print(f"  now       {describe_result(now)}", soft_wrap=True)
                continue
            try:
                results.complete()
            except KeyboardInterrupt:
                console.print("  stopped; run the same command to continue after the last finished run")
                raise
            console.print(f"  record      {display_path(results.path)}")


def list_claims(claims: list[Claim]) -> None:
    """Prints the claims, and about how long their first seeds and the search take."""
    for claim in claims:
        console.print(
            f"{claim.name}: {claim.title}\n  {len(claim.first_seeds())} seeds, {claim.count_runs()} runs, "
            f"about {claim.minutes} minutes\n"
            + fill("; ".join(claim.arms), 78, initial_indent="  ", subsequent_indent="  "),
            highlight=False,
            soft_wrap=True,
        )
    console.print(f"together about {sum(claim.minutes for claim in claims) / 60:.1f} hours")


if __name__ == "__main__":
    main()
