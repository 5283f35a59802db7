"""Flatness during training, within a budget of time, and without any change to the training."""

from spiritlevel.monitor.fixed import from_loader
from spiritlevel.monitor.log import LogWriter, Reading, RunLog, read_log
from spiritlevel.monitor.monitor import DEFAULT, Monitor, Sink
from spiritlevel.monitor.probes import PROBES, Catalogued, Probe, Rise, TopEigenvalue
from spiritlevel.monitor.untouched import untouched
from spiritlevel.monitor.view import LiveView, LogView, follow

__all__ = [
    "DEFAULT",
    "PROBES",
    "Catalogued",
    "LiveView",
    "LogView",
    "LogWriter",
    "Monitor",
    "Probe",
    "Reading",
    "Rise",
    "RunLog",
    "Sink",
    "TopEigenvalue",
    "follow",
    "from_loader",
    "read_log",
    "untouched",
]
