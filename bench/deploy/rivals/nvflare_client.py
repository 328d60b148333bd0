"""A site's script in NVFlare: it adds one to every array that comes; the first site notes when one does."""

import sys
import time
from pathlib import Path

import nvflare.client as flare

flare.init()
log, notes = Path(sys.argv[1]), flare.get_site_name() == "site-1"
while flare.is_running() and (model := flare.receive()) is not None:
    if notes:
        with log.open("a") as file:
            file.write(f"{time.time()}\n")
    flare.send(flare.FLModel(params={name: array + 1 for name, array in model.params.items()}))
