"""The process type that gets the traffic: a threaded server on Python's standard library."""

import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Web(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = f"web.{os.environ.get('CORTEX_SLOT', '1')} at your service\n".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Quiet: the router already records requests."""


if __name__ == "__main__":
    address = (os.environ.get("HOST", "127.0.0.1"), int(os.environ.get("PORT", "8000")))
    ThreadingHTTPServer(address, Web).serve_forever()
