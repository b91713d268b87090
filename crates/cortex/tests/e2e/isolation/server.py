"""Answers a POST of facts in JSON with what the attempts of that name say of them."""

import http.server
import os
import subprocess
import sys


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(b"here")

    def do_POST(self):
        facts = self.rfile.read(int(self.headers["Content-Length"])).decode()
        attempts = self.path.strip("/") or "attempts"
        command = [sys.executable, "tries.py", attempts, facts]
        done = subprocess.run(command, capture_output=True, timeout=60)
        self.answer(done.stdout + done.stderr)

    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


address = (os.environ["HOST"], int(os.environ["PORT"]))
http.server.ThreadingHTTPServer(address, Handler).serve_forever()
