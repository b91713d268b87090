"""Attempts to reach, from a network of its own, what is not to be reached, for `tries.py`; those that
succeed without a wall are in `real`, the others in `never`.
"""

import ctypes
import fcntl
import json
import os
import socket
import struct
import sys

facts = json.loads(sys.argv[1])
real, never = [], []
SECONDS = 2
# Beside these, the kernel makes some in each network.
REAL_INTERFACES = ("en", "eth", "veth", "wl")
NEW_ROUTE, NEW_LINK = 24, 16
IP_PKTINFO, TUNSETIFF = 8, 0x400454CA


def connect(address, family=socket.AF_INET, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as end:
        end.settimeout(SECONDS)
        end.connect(address)
        return True


def asks(address, family=socket.AF_INET):
    """Sends a datagram to what answers each one."""
    with socket.socket(family, socket.SOCK_DGRAM) as end:
        end.settimeout(SECONDS)
        end.sendto(b"asked", address)
        return end.recv(16) == b"answered"


def has_a_route(host):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.connect((host, 53))
        return end.getsockname()[0] != "127.0.0.1"



@real.append
def connects_to_the_port_of_the_node():
    return connect(tuple(facts["node_port"]))


@real.append
def connects_to_the_router():
    return connect(("127.0.0.1", facts["http_port"]))


@real.append
def connects_to_another_applications_port():
    return connect(("127.0.0.1", facts["victim_port"]))


@real.append
def connects_to_a_service_of_loopback():
    return connect(("127.0.0.1", facts["tcp_port"]))


@real.append
def connects_to_a_service_at_another_address_of_loopback():
    return connect(("127.8.7.6", facts["tcp_port"]))


@real.append
def connects_to_a_service_by_all_addresses():
    return connect(("0.0.0.0", facts["tcp_port"]))


@real.append
def connects_to_a_service_at_the_machines_address():
    return connect((facts["machine"], facts["tcp_port"]))


@real.append
def sends_a_datagram_to_a_service_of_loopback():
    return asks(("127.0.0.1", facts["udp_port"]))


@real.append
def sends_a_datagram_to_the_machines_address():
    return asks((facts["machine"], facts["udp_port"]))


@real.append
def connects_to_a_service_by_ipv6():
    return connect(("::1", facts["tcp6_port"]), socket.AF_INET6)


@real.append
def connects_to_a_mapped_address():
    return connect(("::ffff:127.0.0.1", facts["tcp_port"]), socket.AF_INET6)


@real.append
def connects_to_an_abstract_stream():
    return connect("\0" + facts["abstract"], socket.AF_UNIX)


@real.append
def sees_the_sockets_of_the_machine():
    with open("/proc/net/tcp") as table:
        return f":{facts['tcp_port']:04X} 00000000:0000 0A" in table.read()


@real.append
def sees_the_abstract_sockets_of_the_machine():
    with open("/proc/net/unix") as table:
        return "@" + facts["abstract"] in table.read()


@real.append
def sees_the_interfaces_of_the_machine():
    return [name for _, name in socket.if_nameindex() if name.startswith(REAL_INTERFACES)]


@real.append
def counts_the_datagrams_of_the_machine():
    """What the counters say of others is a channel from them."""
    with open("/proc/net/dev") as table:
        return [line for line in table if line.strip().startswith(REAL_INTERFACES)]


@real.append
def takes_the_port_of_a_service():
    """Binds another address of the same port, which counts only where the service is."""
    with socket.socket() as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        end.bind(("127.0.0.9", facts["free_port"]))
        end.listen()
        return True


def named(name, attempt):
    attempt.__name__ = name
    return attempt


for name, host in (("the_metadata_address", "169.254.169.254"), ("another_node", "10.9.8.7"),
                   ("the_neighbours", "192.168.0.1")):
    attempt = named(f"has_a_route_to_{name}", lambda host=host: has_a_route(host))
    (real if facts["routed"] else never).append(attempt)

# Where others answer at such addresses, nobody is to be heard.
for host in facts.get("closed", []):
    name = host.replace(".", "_")
    real.append(named(f"connects_to_{name}", lambda h=host: connect((h, facts["outside_port"]))))
    real.append(named(f"asks_{name}", lambda h=host: asks((h, facts["outside_port"]))))

# What stands for the machine in a network that a program makes.
for host in ("10.0.2.2", "10.0.2.3", "10.0.2.100"):
    name = "reaches_the_machine_by_" + host.replace(".", "_")
    never.append(named(name, lambda h=host: connect((h, facts["tcp_port"]))))
    never.append(named(name + "_and_a_datagram", lambda h=host: asks((h, facts["udp_port"]))))


@never.append
def goes_around_the_routes_by_naming_the_interface():
    for name in [name for _, name in socket.if_nameindex() if name != "lo"]:
        with socket.socket() as end:
            end.settimeout(SECONDS)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, name.encode())
            try:
                end.connect((facts["machine"], facts["tcp_port"]))
                return end.getsockname()[0] not in (facts["machine"], "127.0.0.1")
            except OSError:
                pass


@never.append
def goes_around_the_routes_by_a_datagram_for_an_interface():
    for index, name in socket.if_nameindex():
        if name != "lo":
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
                end.settimeout(SECONDS)
                info = struct.pack("i4s4s", index, bytes(4), bytes(4))
                end.sendmsg([b"asked"], [(socket.IPPROTO_IP, IP_PKTINFO, info)], 0,
                            (facts["machine"], facts["udp_port"]))
                return facts["own_network"] and end.recv(16) == b"answered"


@never.append
def opens_a_packet_socket():
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)).close()
    return True


@never.append
def opens_a_raw_socket():
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()
    return True


@never.append
def sends_an_echo_request_to_the_machine():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as end:
        end.settimeout(SECONDS)
        end.sendto(struct.pack("!BBHHH", 8, 0, 0xF7FE, 0, 1), (facts["machine"], 0))
        return end.recv(64) and facts["own_network"]


def netlink(kind, body):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as end:
        end.bind((0, 0))
        end.send(struct.pack("=IHHII", 16 + len(body), kind, 5, 1, 0) + body)
        error = struct.unpack_from("=i", end.recv(4096), 16)[0]
        return error == 0


@never.append
def makes_a_route():
    # To 169.254.0.0/16, by the first interface.
    body = struct.pack("=BBBBBBBBI", 2, 16, 0, 0, 254, 4, 253, 1, 0)
    body += struct.pack("=HH4s", 8, 1, bytes([169, 254, 0, 0])) + struct.pack("=HHI", 8, 4, 1)
    return netlink(NEW_ROUTE, body)


@never.append
def makes_an_interface():
    name = b"out0\0"
    body = struct.pack("=BBHiII", 0, 0, 0, 0, 0, 0)
    return netlink(NEW_LINK, body + struct.pack("=HH", 4 + len(name), 3) + name + bytes(3))


@never.append
def makes_a_tunnel():
    with open("/dev/net/tun", "r+b", buffering=0) as device:
        return fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", b"out0", 0x1001)) is not None


@never.append
def enters_the_network_of_the_node():
    with open(f"/proc/{facts['node']}/ns/net") as network:
        return ctypes.CDLL(None).setns(network.fileno(), 0) == 0


@never.append
def sends_by_a_socket_that_was_left_open():
    left = [name for name in os.listdir("/proc/self/fd") if int(name) > 2]
    paths = [f"/proc/self/fd/{number}" for number in left]
    return [path for path in paths if os.path.exists(path) and "socket:" in os.readlink(path)]


@never.append
def asks_the_first_process_for_its_link():
    """The other end of it is a process in the network of the machine."""
    names = os.listdir("/proc/1/fd")
    return [os.open(f"/proc/1/fd/{name}", os.O_RDWR) for name in names]


@never.append
def finds_the_relay():
    if not facts["own_network"]:
        return False
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            if b"__relay" in file.read():
                return True


@never.append
def passes_a_datagram_to_everybody():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.settimeout(SECONDS)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        end.sendto(b"asked", ("255.255.255.255", facts["udp_port"]))
        return end.recv(16) == b"answered" and facts["own_network"]
