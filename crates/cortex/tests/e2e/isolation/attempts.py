"""Attempts to leave the wall, for `tries.py`. Each returns something true where it succeeded, and
raises or returns nothing where it did not.

Those that succeed without a wall show that they are real; the others, for which an ordinary user has
no right anyway, are in `never`.
"""

import ctypes
import json
import os
import resource
import signal
import socket
import stat
import struct
import subprocess
import sys

facts = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
real, never = [], []
data, victim, node = facts["data"], facts["victim"], facts["node"]

CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWNET = 0x10000000, 0x00020000, 0x40000000
MS_BIND = 4096
PTRACE_SEIZE, PTRACE_DETACH = 0x4206, 17
X86 = os.uname().machine == "x86_64"
SYS = {
    "add_key": 248 if X86 else 217,
    "bpf": 321 if X86 else 280,
    "clone": 56 if X86 else 220,
    "clone3": 435,
    "io_uring_setup": 425,
    "open_by_handle_at": 304 if X86 else 265,
    "open_tree": 428,
    "perf_event_open": 298 if X86 else 241,
    "pidfd_getfd": 438,
    "pidfd_open": 434,
    "process_vm_readv": 310 if X86 else 270,
    "unshare": 272 if X86 else 97,
    "userfaultfd": 323 if X86 else 282,
}


def check(result):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return True


def call(name, *arguments):
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return check(libc.syscall(ctypes.c_long(SYS[name]), *words))


def in_child(attempt):
    """Runs what changes the process itself in a child of its own."""

    def run():
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if attempt() else 1)
            except BaseException:
                os._exit(1)
        return os.waitpid(child, 0)[1] == 0

    run.__name__ = attempt.__name__
    return run


def read(path):
    with open(path, "rb") as file:
        return file.read(64) or True


def connect(address):
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(address)
        return True


# --- Files. ---------------------------------------------------------------------------------------


@real.append
def reads_another_applications_source():
    return read(facts["victim_file"])


@real.append
def reads_another_applications_persistent_file():
    return read(facts["victim_persisted"])


@real.append
def writes_another_applications_persistent_file():
    with open(facts["victim_persisted"], "ab") as file:
        return file.write(b".")


@real.append
def reads_another_applications_log():
    return read(facts["victim_log"])


@real.append
def reads_another_applications_secret():
    return read(os.path.join(data, "apps/victim/secret"))


@real.append
def lists_other_applications():
    return "victim" in os.listdir(os.path.join(data, "apps"))


@real.append
def lists_the_store():
    return os.listdir(os.path.join(data, "store"))


@real.append
def lists_the_keys_of_the_cluster():
    return os.listdir(os.path.join(data, "cluster"))


@real.append
def reads_the_options_of_the_node():
    return read(os.path.join(data, "started.json"))


@real.append
def replaces_the_binary_of_the_shims():
    return os.access(os.path.join(data, "bin"), os.W_OK)


@real.append
def links_a_file_of_the_node():
    os.link(os.path.join(data, "started.json"), "linked.json")
    return os.unlink("linked.json") or True


@real.append
def follows_a_link_of_its_own():
    os.symlink(os.path.join(data, "started.json"), "link")
    try:
        return read("link")
    finally:
        os.unlink("link")


@real.append
def reads_the_users_home():
    return read(facts["home_file"])


@real.append
def reads_the_machines_temporary_files():
    return read(facts["temporary_file"])


@real.append
def leaves_a_file_for_others():
    place = os.path.dirname(facts["temporary_file"])
    return os.stat(place).st_ino == facts["temporary_inode"] and os.access(place, os.W_OK)


# --- Other processes. -----------------------------------------------------------------------------


@real.append
def sees_another_applications_process():
    with open(f"/proc/{victim}/cmdline", "rb") as file:
        return b"victim" in file.read()


@real.append
def reads_another_applications_environment():
    with open(f"/proc/{victim}/environ", "rb") as file:
        return b"CORTEX_APPLICATION=victim" in file.read()


@real.append
def reads_the_memory_of_the_node():
    return open_memory(node)


@real.append
def reads_the_memory_of_another_application():
    return open_memory(victim)


def open_memory(pid):
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb") as memory:
        start = int(maps.readline().split("-")[0], 16)
        memory.seek(start)
        return memory.read(16)


@real.append
def reads_memory_by_a_system_call():
    with open(f"/proc/{victim}/maps") as maps:
        start = int(maps.readline().split("-")[0], 16)
    buffer = ctypes.create_string_buffer(16)
    near = struct.pack("PP", ctypes.addressof(buffer), 16)
    far = struct.pack("PP", start, 16)
    return call("process_vm_readv", victim, near, 1, far, 1, 0)


@real.append
def traces_another_application():
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    check(libc.ptrace(PTRACE_SEIZE, victim, None, None))
    libc.ptrace(PTRACE_DETACH, victim, None, None)
    return True


@real.append
def may_signal_the_node():
    return os.kill(node, 0) or True


@real.append
def may_signal_another_application():
    with open(f"/proc/{victim}/environ", "rb") as file:
        file.read(1)
    return os.kill(victim, 0) or True


@real.append
def renices_another_application():
    with open(f"/proc/{victim}/stat") as file:
        assert "python" in file.read()
    return os.setpriority(os.PRIO_PROCESS, victim, 5) or True


@real.append
def binds_another_application_to_a_processor():
    with open(f"/proc/{victim}/stat") as file:
        assert "python" in file.read()
    return os.sched_setaffinity(victim, os.sched_getaffinity(victim)) or True


@real.append
def looks_through_the_root_of_the_node():
    return os.listdir(f"/proc/{node}/root{data}/store")


@real.append
def looks_through_the_descriptors_of_the_node():
    return os.listdir(f"/proc/{node}/fd")


@real.append
def takes_a_descriptor_of_another_application():
    descriptor = libc.syscall(ctypes.c_long(SYS["pidfd_open"]), victim, 0)
    check(descriptor)
    return call("pidfd_getfd", descriptor, 0, 0)


@never.append
def looks_through_the_first_process():
    return os.listdir(f"/proc/1/root{data}/store")


# --- Sockets and shared memory. -------------------------------------------------------------------


@real.append
def connects_to_the_nodes_socket():
    return connect(os.path.join(os.path.realpath(facts["sockets"]), "api"))


@real.append
def connects_to_another_applications_shim():
    place = os.path.realpath(facts["sockets"])
    shims = [name for name in os.listdir(place) if name.startswith("shim-")]
    return connect(os.path.join(place, shims[0]))


@real.append
def connects_to_an_abstract_socket():
    return connect("\0" + facts["abstract"])


@real.append
def shares_the_routers_port():
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", facts["http_port"]))
        return True


@real.append
def listens_at_any_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", facts["free_port"]))
        return True


@real.append
def attaches_shared_memory_of_system_v():
    libc.shmat.restype = ctypes.c_long
    return check(libc.shmat(facts["shared_memory"], None, 0o10000))


@real.append
def reads_shared_memory_of_posix():
    return read(os.path.join("/dev/shm", facts["shared_file"]))


# --- Rights and the kernel. -----------------------------------------------------------------------


@real.append
@in_child
def makes_a_namespace_of_users():
    return call("unshare", CLONE_NEWUSER)


@real.append
@in_child
def makes_a_namespace_by_clone():
    pid = libc.syscall(ctypes.c_long(SYS["clone"]), CLONE_NEWUSER | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    return check(pid)


@real.append
@in_child
def makes_a_namespace_by_clone3():
    arguments = struct.pack("QQQQQQQQ", CLONE_NEWUSER, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
    pid = libc.syscall(ctypes.c_long(SYS["clone3"]), arguments, ctypes.c_long(len(arguments)))
    if pid == 0:
        os._exit(0)
    return check(pid)


@real.append
@in_child
def mounts_in_a_namespace_of_its_own():
    call("unshare", CLONE_NEWUSER | CLONE_NEWNS)
    return check(libc.mount(b"x", b"/opt", b"tmpfs", 0, None))


@real.append
@in_child
def binds_the_nodes_data():
    call("unshare", CLONE_NEWUSER | CLONE_NEWNS)
    check(libc.mount(data.encode(), b"/opt", None, MS_BIND, None))
    return os.listdir("/opt/store")


@real.append
@in_child
def makes_a_network_of_its_own():
    return call("unshare", CLONE_NEWUSER | CLONE_NEWNET)


@real.append
def keeps_a_key_in_the_kernel():
    return call("add_key", b"user", b"cortex-e2e", b"x", 1, -3)


@real.append
def uses_io_uring():
    return call("io_uring_setup", 1, ctypes.create_string_buffer(120))


@real.append
@in_child
def dumps_core():
    resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20))
    return True


@real.append
def may_start_processes_without_end():
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    return limit == resource.RLIM_INFINITY or limit > 4096


@real.append
def gains_rights_from_a_program():
    with open("/proc/self/status") as file:
        return "NoNewPrivs:\t0" in file.read()


@never.append
def uncovers_what_was_there_before():
    check(libc.umount2(data.encode(), 2))
    return os.listdir(os.path.join(data, "store"))


@never.append
def finds_the_old_root():
    return [name for name in ("/old", "/new", "/..old") if os.path.exists(name)]


@never.append
def opens_a_file_by_its_handle():
    return call("open_by_handle_at", -100, ctypes.create_string_buffer(64), os.O_RDONLY)


@never.append
def opens_a_tree_of_mounts():
    return call("open_tree", -100, b"/", 1)


@never.append
def makes_a_device():
    os.mknod("device", stat.S_IFBLK | 0o600, os.makedev(254, 0))
    return os.unlink("device") or True


@never.append
def changes_its_root():
    return os.chroot("/usr") or True


@never.append
def divides_control_groups():
    return os.mkdir("/sys/fs/cgroup/cortex-e2e") or True


@never.append
def changes_the_system():
    with open("/usr/bin/cortex-e2e", "wb"):
        return True


@never.append
def changes_the_kernels_settings():
    with open("/proc/sys/kernel/core_pattern", "wb") as file:
        return file.write(b"|/tmp/x")


@never.append
def loads_a_program_into_the_kernel():
    return call("bpf", 0, ctypes.create_string_buffer(128), 128)


@never.append
def holds_a_descriptor_that_was_left_open():
    left = [int(name) for name in os.listdir("/proc/self/fd")]
    paths = [f"/proc/self/fd/{number}" for number in left]
    names = [os.readlink(path) for path in paths if os.path.exists(path)]
    return [name for name in names if name.startswith(data) and "/apps/" not in name]


@never.append
def becomes_root_by_a_program():
    answer = subprocess.run(["su", "-c", "id -u"], stdin=subprocess.DEVNULL, capture_output=True)
    return answer.stdout.strip() == b"0"
