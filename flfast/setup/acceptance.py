"""The moment from which a folder is that of the run: nothing can refuse it any more."""

from collections.abc import Callable

from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig

from flfast.checkpoints.restore import Restored, write_table
from flfast.config.job import HydraJob
from flfast.config.resume_check import recorded_config
from flfast.federation.loop import Federation
from flfast.output.callbacks.clients_table import ClientsTable
from flfast.output.callbacks.events_table import EventsTable
from flfast.output.loggers.csv import RoundCSVLogger
from flfast.output.loggers.records_aside import records_aside
from flfast.output.results.columns import COLUMNS
from flfast.output.results.outcome import Result, holds_run, read_result, write_result
from flfast.output.results.run_files import OF_A_RUN, OF_ITS_END, remove_files
from flfast.output.results.table import RoundTable


def accept(
    federation: Federation,
    config: DictConfig,
    job: HydraJob,
    restored: Restored | None,
    make_loggers: Callable[[], list[Logger]],
) -> None:
    """Take over the folder for this run, on rank 0; other ranks write there only afterwards.

    Loggers begin records or databases when they are made, and may refuse, such as without a key:
    then the folder is what it was before. A run that begins replaces the one that the folder
    holds. A run that goes on keeps its rows, and removes the files of an earlier end if rounds
    follow: it may be killed before the next end.
    """
    folder = job.folder
    folder.mkdir(parents=True, exist_ok=True)
    replaces = restored is None and (holds_run(folder) or read_result(folder) is not None)
    with records_aside(folder, kept=not replaces), job.new_settings():
        federation.loggers = make_loggers()  # only here: other ranks would make the same files
        write_result(folder, Result("running", recorded_config(config, folder)))
        if replaces:
            remove_files(folder, OF_A_RUN)
        elif len(federation.history) <= federation.last_round:
            remove_files(folder, OF_ITS_END)
    if restored is None:
        return
    if any(isinstance(logger, RoundCSVLogger) for logger in federation.loggers):
        RoundTable(folder / "metrics.csv", COLUMNS).replace(restored.history)
    for callback in federation.callbacks:
        if isinstance(callback, (ClientsTable, EventsTable)):
            write_table(restored, folder, callback.file_name)
