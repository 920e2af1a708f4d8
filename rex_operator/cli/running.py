"""``rex run``: prepares a run, shows it, turns signals into interrupts and the end into words and an exit code."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from pathlib import Path

from rex_operator.cli.app import BAD_INPUT, FAILED, INTERRUPTED, SUCCESS
from rex_operator.cli.screen import LiveScreen, PlainScreen, Screen
from rex_operator.local.errors import BadInput
from rex_operator.local.run import LocalRun, Outcome
from rex_operator.local.rundir import RunDirectory
from rex_operator.local.start import prepare

EXIT_CODES = {"succeeded": SUCCESS, "failed": FAILED, "interrupted": INTERRUPTED}


def run_job(
    file: Path, *, run_dir: Path | None, fresh: bool, max_seconds: float | None, plain: bool, emulate: bool | None
) -> int:
    """Run the job in ``file`` and return the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    screen: Screen = PlainScreen() if plain or not sys.stdout.isatty() else LiveScreen()
    try:
        prepared = prepare(file, run_dir, fresh=fresh)
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - this is a command-line program
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED
    directory = prepared.directory
    try:
        if prepared.state is not None:
            step = prepared.state.saved.checkpoint_step
            screen.say(f"going on with the interrupted run in {directory.path} from step {step}; --fresh starts over")
        run = LocalRun(
            prepared.job,
            prepared.program,
            directory,
            prepared.state,
            screen,
            max_seconds=max_seconds,
            emulate=emulate,
        )
        with screen:
            outcome = asyncio.run(_drive(run))
        _tell(screen, run, outcome)
        _report(screen, directory)
    finally:
        directory.close()
    return EXIT_CODES[outcome.result]


async def _drive(run: LocalRun) -> Outcome:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, run.interrupt, signal.Signals(number).name)
    return await run.run()


def _tell(screen: Screen, run: LocalRun, outcome: Outcome) -> None:
    screen.summary(run.summary)
    screen.say(f"{outcome.result}: {outcome.message}")


def _report(screen: Screen, directory: RunDirectory) -> None:
    try:
        from rex_operator.report import write_report

        screen.say(f"report: {write_report(directory.path)}")
    except Exception as error:
        logging.getLogger(__name__).warning("the report could not be written: %s", error)
