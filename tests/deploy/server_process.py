"""A real server process whose jobs are run by the fake runner: server_process.py KIT CONFIG"""

import asyncio
import logging
import sys
from pathlib import Path

from winnow.deploy.server.app import WinnowServer, run_until_signalled
from winnow.deploy.trust.kit import Kit

RUNNER = str(Path(__file__).with_name("fake_runner.py"))

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    asyncio.run(run_until_signalled(WinnowServer(Kit.load(sys.argv[1]), Path(sys.argv[2]), runner=RUNNER)))
