"""A page of the thesis's size, after a pause. Its headers say which process and version answered."""

import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BYTES = 5907
PAUSE_SECONDS = float(os.environ.get("PAUSE_SECONDS", "0"))
PROCESS = f"{os.getpid()}@{os.environ.get('CORTEX_NODE', '?')}"
HEAD = "<!doctype html><title>A page</title><p>"

with open("version.txt", encoding="ascii") as file:
    VERSION = file.read().strip()


class Page(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body leave together.
    wbufsize = 64 * 1024

    def do_GET(self):
        time.sleep(PAUSE_SECONDS)
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(BYTES))
        self.send_header("X-Instance", PROCESS)
        self.send_header("X-Version", VERSION)
        number = self.headers.get("X-Request-Number")
        if number:
            self.send_header("X-Request-Number", number)
        self.end_headers()
        self.wfile.write(HEAD.ljust(BYTES, ".").encode())

    def log_message(self, *_):
        """Quiet: the router already records requests."""


class Server(ThreadingHTTPServer):
    request_queue_size = 128


if __name__ == "__main__":
    Server((os.environ["HOST"], int(os.environ["PORT"])), Page).serve_forever()
