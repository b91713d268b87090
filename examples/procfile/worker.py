"""A process type without traffic: it does something every few seconds until it is told to stop."""

import os
import signal
import threading

INTERVAL_SECONDS = 5

stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())

name = f"worker.{os.environ.get('CORTEX_SLOT', '1')}"
print(f"{name} started", flush=True)
rounds = 0
while not stop.wait(INTERVAL_SECONDS):
    rounds += 1
    print(f"{name} finished round {rounds}", flush=True)
print(f"{name} stopped", flush=True)
