"""Brings package tools on a host without a network to their registries: `in` listens there as an
HTTP proxy and hands connections to a UNIX socket, `out` takes them from it and connects."""

import os
import select
import socket
import sys
import threading
import urllib.parse


def copy(one, other):
    """Copies both ways until both have ended."""
    to = {one: other, other: one}
    while to:
        for source in select.select(list(to), [], [])[0]:
            data = source.recv(65536)
            if data:
                to[source].sendall(data)
            else:
                to.pop(source).shutdown(socket.SHUT_WR)


def read_head(client):
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = client.recv(1)
        if not byte or len(head) > 8192:
            raise ConnectionError("no head")
        head += byte
    return head


def connect(client):
    """Does what a client's CONNECT asks for, through this machine's own proxy if it has one."""
    head = read_head(client)
    above = os.environ.get("https_proxy") or os.environ.get("HTTPS_PROXY")
    if above:
        proxy = urllib.parse.urlsplit(above)
        server = socket.create_connection((proxy.hostname, proxy.port or 80))
        server.sendall(head)
    else:
        host, port = head.split()[1].decode().rsplit(":", 1)
        server = socket.create_connection((host.strip("[]"), int(port)))
        client.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
    return server


def hand_over(_client):
    server = socket.socket(socket.AF_UNIX)
    server.connect(path)
    return server


def serve(client):
    with client:
        try:
            with reach(client) as server:
                copy(client, server)
        except OSError:
            pass


mode, path = sys.argv[1:]
if mode == "in":
    reach, listener = hand_over, socket.create_server(("127.0.0.1", 3128))
else:
    reach, listener = connect, socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
