"""Makes the attempts of the module that is named, by facts in JSON. Prints a line for each: its kind,
its name, and `succeeded` or `failed` with why.
"""

import importlib
import sys

sys.dont_write_bytecode = True
name = sys.argv.pop(1)
module = importlib.import_module(name)

for kind in ("real", "never"):
    for attempt in getattr(module, kind):
        try:
            outcome = "succeeded" if attempt() else "failed: nothing came of it"
        except Exception as error:
            outcome = f"failed: {error}".replace("\n", " ")
        print(kind, attempt.__name__, outcome, flush=True)
