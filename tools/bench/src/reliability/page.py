"""A page of the thesis's size, after a pause. Its headers say which process and version answered.

Without the library's server, whose start takes longer than the interpreter's: what is measured are
the nodes, which share this machine's processors with a dozen of these.
"""

import os
import socket
import threading
import time

BYTES = 5907
PAUSE_SECONDS = float(os.environ.get("PAUSE_SECONDS", "0"))
PROCESS = f"{os.getpid()}@{os.environ.get('CORTEX_NODE', '?')}"
PAGE = "<!doctype html><title>A page</title><p>".ljust(BYTES, ".").encode()
CONNECTIONS_WAITING = 128

with open("version.txt", encoding="ascii") as file:
    VERSION = file.read().strip()


def head_of_answer(fields, keeps):
    """The head of the page, for a request with these header fields."""
    lines = [
        "HTTP/1.1 200 OK",
        "Content-Type: text/html; charset=utf-8",
        f"Content-Length: {BYTES}",
        f"X-Instance: {PROCESS}",
        f"X-Version: {VERSION}",
    ]
    if number := fields.get("x-request-number"):
        lines.append(f"X-Request-Number: {number}")
    if not keeps:
        lines.append("Connection: close")
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def serve(client):
    """One connection, whose requests are GET and have no body."""
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    waiting = b""
    with client:
        while True:
            while b"\r\n\r\n" not in waiting:
                if not (more := client.recv(65536)):
                    return
                waiting += more
            head, waiting = waiting.split(b"\r\n\r\n", 1)
            first, *rest = head.decode("latin-1").split("\r\n")
            pairs = (line.partition(":") for line in rest)
            fields = {name.lower(): value.strip() for name, _, value in pairs}
            closes = fields.get("connection", "").lower() == "close"
            keeps = first.endswith("HTTP/1.1") and not closes
            time.sleep(PAUSE_SECONDS)
            client.sendall(head_of_answer(fields, keeps) + PAGE)
            if not keeps:
                return


if __name__ == "__main__":
    place = (os.environ["HOST"], int(os.environ["PORT"]))
    listener = socket.create_server(place, backlog=CONNECTIONS_WAITING)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection,), daemon=True).start()
