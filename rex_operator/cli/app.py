"""What can be typed after ``rex``.

Exit codes: 0 success, 1 the job failed, 2 bad input (nothing was started), 3 no access to a cluster, 130 interrupted.
Each command imports what it needs when it runs, so that ``rex --help`` answers at once and ``rex`` works where torch is
not installed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

SUCCESS, FAILED, BAD_INPUT, NO_ACCESS, INTERRUPTED = 0, 1, 2, 3, 130

NO_RECORD = "no run is recorded there (record.jsonl is missing); runs are folders such as runs/NAME-1"

app = typer.Typer(
    name="rex",
    help="Elastic PyTorch training on mixed GPUs, re-planned while it runs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Manifest = Annotated[Path, typer.Option("--file", "-f", help="The RexJob manifest (YAML).", show_default=False)]
RunFolder = Annotated[Path, typer.Argument(help="Folder of a run, such as runs/digits-1.", show_default=False)]


@app.command()
def run(
    file: Manifest,
    run_dir: Annotated[
        Path | None, typer.Option(help="Folder of the run. Default: runs/NAME-N, the next free N.", show_default=False)
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over instead of going on with an interrupted run; deletes nothing.")
    ] = False,
    max_seconds: Annotated[
        float | None, typer.Option(min=1, help="Stop, as Ctrl-C does, after so many seconds.", show_default=False)
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="One line at a time instead of a live screen (default without a terminal).")
    ] = False,
    emulate: Annotated[
        bool | None,
        typer.Option(
            "--emulate/--no-emulate",
            help="Play the pools' devices on the CPU. Default: yes, unless this machine has an NVIDIA GPU.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run a RexJob on this machine, without a cluster.

    One process per worker; pools are filled in the order in which they are listed. Ctrl-C saves a checkpoint and stops,
    the same command goes on from there.
    """
    from rex_operator.cli.running import run_job

    raise typer.Exit(run_job(file, run_dir=run_dir, fresh=fresh, max_seconds=max_seconds, plain=plain, emulate=emulate))


@app.command()
def report(run_dir: RunFolder) -> None:
    """Write report.html of a run: one page with plots and the evidence of each decision, readable without a network."""
    if not (run_dir / "record.jsonl").is_file():
        _refuse(f"{run_dir}: {NO_RECORD}")
    from rex_operator.report import write_report

    typer.echo(f"report: {write_report(run_dir)}")


@app.command()
def explain(
    job: Annotated[
        str, typer.Argument(help="Folder of a run, such as runs/digits-1, or name of a RexJob.", show_default=False)
    ],
    last: Annotated[int | None, typer.Option(min=1, help="Only the newest so many.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Of the RexJob. Default: the context's.", show_default=False)
    ] = None,
    kubeconfig: Annotated[
        Path | None, typer.Option(help="Default: as kubectl, $KUBECONFIG or ~/.kube/config.", show_default=False)
    ] = None,
    context: Annotated[
        str | None, typer.Option(help="Context of the kubeconfig. Default: the current one.", show_default=False)
    ] = None,
) -> None:
    """Tell why each plan was changed or kept: what was expected and measured, how sure that is, and what it cost.

    JOB is a run's folder or a RexJob in a cluster. Exit code 3: the cluster does not let itself be asked.
    """
    from rex_operator.cli.decisions import CannotTell, find
    from rex_operator.cli.explain import explain as tell

    try:
        told = find(job, namespace, str(kubeconfig) if kubeconfig else None, context)
    except CannotTell as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(BAD_INPUT if error.bad_input else NO_ACCESS) from None
    tell(told, last=last, as_json=as_json)


@app.command()
def policies(
    name: Annotated[str | None, typer.Argument(help="Only this one, in detail.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """List the planning policies: what each changes, by which rule, from which paper, and what of it is REX's own."""
    from rex_operator.cli.policies import show_policies

    problem = show_policies(name, as_json=as_json)
    if problem:
        _refuse(problem)


@app.command()
def validate(file: Manifest) -> None:
    """Check a manifest, without a cluster."""
    from rex_operator.cli.validate import validate_file

    problems, warnings = validate_file(file)
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)
    if problems:
        _refuse(problems)
    typer.echo(f"{file}: valid")


@app.command()
def version() -> None:
    """Print the version."""
    from rex_operator import __version__

    typer.echo(f"rex {__version__}")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def operator(context: typer.Context) -> None:
    """Run the operator (in a cluster, or against one); rex operator --help lists its options."""
    from rex_operator.controller import main as serve

    sys.exit(serve(context.args))


def _refuse(problem: str) -> NoReturn:
    typer.echo(f"error: {problem}", err=True)
    raise typer.Exit(BAD_INPUT)
