"""Reads runs for pages, and keeps what was last read of finished ones: they are looked at again and again."""

import threading
from collections import OrderedDict
from typing import Any

from winnow.report.plot_data import RunPlotData, read_plot_data
from winnow.runs import RunFolder, RunView
from winnow.web.damaged_run import damage_in_one_line
from winnow.web.run_files import check_run_files
from winnow.web.run_index import IndexedRun, files_stamp

MAX_KEPT = 128


class RunReader:
    """Safe to be asked from several threads."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Any, RunPlotData] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, run: IndexedRun) -> tuple[RunView, RunPlotData]:
        """The run, checked for damage every time, and what is drawn of it."""
        with damage_in_one_line(run.shown):
            return self._read(run)

    def _read(self, run: IndexedRun) -> tuple[RunView, RunPlotData]:
        check_run_files(run.path)
        stamp = files_stamp(run.path)
        view = RunFolder.open(run.path)
        if view.result is None:
            return view, read_plot_data(view)
        key = (run.path, stamp, view.label, view.config_text)
        with self._lock:
            found = self._kept.pop(key, None)
        if found is None:
            found = read_plot_data(view)
        with self._lock:
            self._kept[key] = found
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        return view, found
