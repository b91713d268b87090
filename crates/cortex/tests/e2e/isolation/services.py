"""Answers at all addresses of a host, until its input ends: connections, datagrams, and questions
for the address of any name. The arguments are the port, the address to tell, and the one at which
names are asked for: who asks takes an answer from there alone.
"""

import os
import socket
import sys
import threading

port, told = int(sys.argv[1]), socket.inet_aton(sys.argv[2])


def datagrams(address, port, answer):
    end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    end.bind((address, port))
    while True:
        said, whence = end.recvfrom(512)
        end.sendto(answer(said), whence)


def name(question):
    end = question.index(b"\0", 12) + 5
    kind = question[end - 4 : end - 2]
    head = question[:2] + b"\x81\x80\0\1" + (b"\0\1" if kind == b"\0\1" else b"\0\0") + bytes(4)
    record = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4" + told
    return head + question[12:end] + (record if kind == b"\0\1" else b"")


def connections(family, address):
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen()
    while True:
        end, _ = listener.accept()
        end.sendall(b"outside")
        end.close()


for work in (
    (datagrams, "0.0.0.0", port, lambda _: b"answered"),
    (datagrams, sys.argv[3], 53, name),
    (connections, socket.AF_INET, "0.0.0.0"),
    (connections, socket.AF_INET6, "::1"),
):
    threading.Thread(target=work[0], args=work[1:], daemon=True).start()
print("ready", flush=True)
os.read(0, 1)
