"""What an application does that may reach the internet."""

import json
import socket
import sys

facts = json.loads(sys.argv[1])
host, port = facts["internet"], facts["outside_port"]


def connects():
    with socket.create_connection((host, port), timeout=5) as end:
        return end.recv(16) == b"outside"


def asks():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.settimeout(5)
        end.sendto(b"asked", (host, port))
        return end.recv(16) == b"answered"


def resolves():
    return socket.gethostbyname("outside.example") == host


real, never = [connects, asks, resolves], []
