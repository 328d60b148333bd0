"""The agent's own program, without the command line's libraries: an idle site is small. `winnow site` becomes this."""

import sys
from argparse import ArgumentParser
from pathlib import Path

from winnow.core.errors import WinnowError
from winnow.deploy.site.agent_process import run_agent


def main() -> None:
    parser = ArgumentParser(prog="winnow site")
    parser.add_argument("kit", type=Path)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--json-logs", action="store_true")
    given = parser.parse_args()
    try:
        run_agent(given.kit, given.config, json_logs=given.json_logs)
    except WinnowError as error:
        print(f"winnow: error: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        print(f"winnow: error: {error.filename or given.kit}: {error.strerror}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
