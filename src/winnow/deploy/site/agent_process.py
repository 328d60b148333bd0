"""The agent as a process: its log, its signals, its end."""

import logging
import os
import signal
import sys
from contextlib import closing
from pathlib import Path
from threading import Thread
from types import FrameType

from winnow.deploy.logging_setup import log_to_standard_error
from winnow.deploy.site.agent import Agent, connect_to_leader
from winnow.deploy.site.config import SiteConfig, load_config
from winnow.deploy.trust.kit import Kit
from winnow.deploy.trust.policy_rules import POLICY_FILE
from winnow.deploy.trust.private_file_writing import restrict_umask
from winnow.deploy.wire.malloc_tuning import tune_malloc

log = logging.getLogger(__name__)


def run_agent(kit_folder: Path, config_file: Path | None = None, *, json_logs: bool = False) -> None:
    """Run the agent of this site until it is stopped; a restart replaces this process by a new one."""
    tune_malloc()
    restrict_umask()
    log_to_standard_error(as_json=json_logs)
    kit = Kit.load(kit_folder.resolve(), "site")
    config = load_config(kit.path, config_file)
    with closing(connect_to_leader(kit)) as link:
        agent = Agent(kit, config, link)
        _run(agent, kit, config)
    if agent.restart:
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - the command line that began this process


def _run(agent: Agent, kit: Kit, config: SiteConfig) -> None:
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, _stopping(agent))
    offered = config.resources
    log.info(
        "site %s (%s): data %s; %g CPUs, %d MB, %d GPUs; servers %s",
        kit.name, kit.organisation, ", ".join(sorted([*config.data, *config.tables])) or "none",
        offered.cpus, offered.memory_mb, offered.gpus, ", ".join(kit.endpoints),
    )  # fmt: skip
    if not (kit.path / POLICY_FILE).exists():
        log.warning("no %s in %s: this site rejects every job", POLICY_FILE, kit.path)
    agent.run()


def _stopping(agent: Agent) -> "signal._HANDLER":
    def stop(_signal: int, _frame: FrameType | None) -> None:
        Thread(target=agent.stop).start()  # a lock may be held by what the signal interrupted

    return stop
