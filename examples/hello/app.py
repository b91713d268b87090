"""A deliberately serial web application: it answers one request at a time.

It needs nothing but Python's standard library. Cortex runs several instances of it behind one
port, so that callers are answered in parallel all the same. `/slow` makes that visible.
"""

import json
import os
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

INSTANCE = f"{os.environ.get('CORTEX_PROCESS', 'web')}.{os.environ.get('CORTEX_SLOT', '1')}"
SLOW_SECONDS = 1


class Hello(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/":
            self.answer("text/plain; charset=utf-8", f"Hello from {INSTANCE} (pid {os.getpid()})\n")
        elif self.path == "/slow":
            # One clock for all processes of a machine, so that two answers can be compared.
            started = time.monotonic()
            time.sleep(SLOW_SECONDS)
            facts = {"instance": INSTANCE, "pid": os.getpid()}
            facts |= {"started": started, "ended": time.monotonic()}
            self.answer("application/json", json.dumps(facts) + "\n")
        else:
            self.answer("text/plain; charset=utf-8", "Try / or /slow\n", status=404)

    def answer(self, content_type, text, status=200):
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    host = os.environ.get("HOST", "127.0.0.1")
    port = int(os.environ.get("PORT", "8000"))
    print(f"{INSTANCE} listens on {host}:{port}", flush=True)
    HTTPServer((host, port), Hello).serve_forever()
