"""Runs once per release, before its processes start."""

import os

print(f"preparing release {os.environ.get('CORTEX_RELEASE', '?')}", flush=True)
