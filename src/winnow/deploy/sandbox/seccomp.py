"""Which system calls a process may make, by Linux's seccomp: from now on, and for good.

A small program of the kernel's BPF machine looks at the number of every call, and at an argument of some. A job's own
code gets no sockets at all (no network, and no way to a database or daemon of the machine either), starts no other
processes (so that it cannot multiply, and its limits are the limits of all of it), sends signals to nobody else and
changes nobody's limits or priority, changes no modes and owners of files, watches none that it may not open, and has no
memory outside of what its limits count.
"""

import ctypes
import errno
import os
import signal
import struct
from collections.abc import Sequence

from winnow.deploy.sandbox.linux_syscall_wrappers import (
    PR_SET_DUMPABLE,
    PR_SET_NO_NEW_PRIVS,
    PR_SET_PDEATHSIG,
    SandboxError,
    machine,
    prctl,
)

PR_SET_SECCOMP, FILTER_MODE = 22, 2
LOAD, JUMP_IF_EQUAL, JUMP_IF_GREATER_EQUAL, JUMP_IF_ANY_BIT, AND, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
ALLOW, KILL = 0x7FFF0000, 0x80000000
REFUSE, UNKNOWN = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
NUMBER, ARCHITECTURE, FIRST_ARGUMENT, SECOND_ARGUMENT = 0, 4, 16, 24
X32_BIT = 0x40000000
AF_UNIX, SOCK_STREAM, TYPE_MASK = 1, 1, 0xF
CLONE_THREAD = 0x00010000

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# name: (number on x86_64, number on aarch64); None where there is no such call
REFUSED: dict[str, tuple[int | None, int | None]] = {
    # sockets
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201), "accept": (43, 202),
    "accept4": (288, 242),
    # messages that hold open files: nobody sees how large those are
    "sendmsg": (46, 211), "sendmmsg": (307, 269),
    # calls that do other calls' work unseen
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    # other processes
    "fork": (57, None), "vfork": (58, None), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424), "tkill": (200, 130),
    "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119), "sched_setparam": (142, 118),
    "sched_setattr": (314, 274), "setpriority": (141, 140), "ioprio_set": (251, 30), "migrate_pages": (256, 238),
    "move_pages": (279, 239), "process_madvise": (440, 440),
    # modes, owners and times of files, which Landlock leaves alone
    "truncate": (76, 45), "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "utime": (132, None),
    "utimes": (235, None), "utimensat": (280, 88), "futimesat": (261, None), "setxattr": (188, 5),
    "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15),
    "fremovexattr": (199, 16), "setxattrat": (463, 463), "removexattrat": (466, 466), "file_setattr": (469, 469),
    "open_by_handle_at": (304, 265),
    # what happens to files that Landlock does not let it open, and attributes of theirs
    "inotify_init": (253, None), "inotify_init1": (294, 26), "inotify_add_watch": (254, 27),
    "fanotify_init": (300, 262), "fanotify_mark": (301, 263), "getxattr": (191, 8), "lgetxattr": (192, 9),
    "listxattr": (194, 11), "llistxattr": (195, 12), "getxattrat": (464, 464), "listxattrat": (465, 465),
    "file_getattr": (468, 468),
    # memory that no limit counts
    "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180), "memfd_secret": (447, 447),
    # the machine
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97),
    "setns": (308, 268), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "mount_setattr": (442, 442), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "reboot": (169, 142),
    "kexec_load": (246, 104), "init_module": (175, 105), "finit_module": (313, 273), "syslog": (103, 116),
    "statmount": (457, 457), "listmount": (458, 458), "open_tree_attr": (467, 467),
}  # fmt: skip
PRETENDED_UNKNOWN = {"clone3": (435, 435), "memfd_create": (319, 279)}
"""Their callers know an older way, whose arguments can be looked at."""
SOCKETPAIR, CLONE, PRCTL, PRLIMIT = (53, 199), (56, 220), (157, 167), (302, 261)
SIGNALS_BY_FILE: dict[str, tuple[tuple[int, int], tuple[int, ...]]] = {
    "fcntl": ((72, 25), (8, 10, 15, 1026)),  # F_SETOWN, F_SETSIG, F_SETOWN_EX, F_NOTIFY
    "ioctl": ((16, 29), (0x8901, 0x8902)),  # FIOSETOWN, SIOCSPGRP
}
"""What has the kernel send a signal to some process when a file of ours has something to read."""
SIGNALS_BY_PROCESS = {
    "kill": (62, 129),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
}

HIDING_OR_OUTLIVING = (PR_SET_DUMPABLE, PR_SET_PDEATHSIG)
"""Which files a process has open cannot be seen by its own user where it may not be dumped."""

Instruction = tuple[int, int, int, int]
"""Operation, steps to skip if true, steps to skip if false, operand."""


def install() -> None:
    """Put the rules into force for this process, which must have a single thread."""
    code = b"".join(struct.pack("<HBBI", *step) for step in program(machine(), os.getpid()))
    buffer = ctypes.create_string_buffer(code, len(code))
    filter_program = struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    prctl(PR_SET_SECCOMP, FILTER_MODE, ctypes.create_string_buffer(filter_program, len(filter_program)))


def program(architecture: str, own_process: int) -> list[Instruction]:
    """The rules for a process of this number."""
    if architecture not in ARCHITECTURES:
        raise SandboxError(f"the sandbox does not support {architecture}; use {' or '.join(ARCHITECTURES)}")
    which = list(ARCHITECTURES).index(architecture)
    steps: list[Instruction] = [
        (LOAD, 0, 0, ARCHITECTURE),
        (JUMP_IF_EQUAL, 1, 0, ARCHITECTURES[architecture]),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER),
    ]
    if architecture == "x86_64":
        steps += [(JUMP_IF_GREATER_EQUAL, 0, 1, X32_BIT), (RETURN, 0, 0, REFUSE)]
    for numbers in REFUSED.values():
        steps += _on(numbers[which], [(RETURN, 0, 0, REFUSE)])
    for numbers in PRETENDED_UNKNOWN.values():
        steps += _on(numbers[which], [(RETURN, 0, 0, UNKNOWN)])
    steps += _on(SOCKETPAIR[which], _STREAMS_ONLY)
    steps += _on(CLONE[which], _THREADS_ONLY)
    steps += _on(PRCTL[which], _unless(FIRST_ARGUMENT, HIDING_OR_OUTLIVING))
    for numbers, requests in SIGNALS_BY_FILE.values():
        steps += _on(numbers[which], _unless(SECOND_ARGUMENT, requests))
    steps += _on(PRLIMIT[which], _only(0, own_process))
    for numbers in SIGNALS_BY_PROCESS.values():
        steps += _on(numbers[which], _only(own_process))
    return [*steps, (RETURN, 0, 0, ALLOW)]


def _on(number: int | None, then: Sequence[Instruction]) -> list[Instruction]:
    """Steps for one call; each such block ends by returning."""
    return [] if number is None else [(JUMP_IF_EQUAL, 0, len(then), number), *then]


def _only(*values: int) -> list[Instruction]:
    """Allowed for these values of the first argument."""
    return [(LOAD, 0, 0, FIRST_ARGUMENT), *_among(values, ALLOW), (RETURN, 0, 0, REFUSE)]


def _unless(argument: int, values: Sequence[int]) -> list[Instruction]:
    """Refused for these values of an argument."""
    return [(LOAD, 0, 0, argument), *_among(values, REFUSE), (RETURN, 0, 0, ALLOW)]


def _among(values: Sequence[int], verdict: int) -> list[Instruction]:
    return [step for value in values for step in ((JUMP_IF_EQUAL, 0, 1, value), (RETURN, 0, 0, verdict))]


_THREADS_ONLY: list[Instruction] = [
    (LOAD, 0, 0, FIRST_ARGUMENT),
    (JUMP_IF_ANY_BIT, 0, 1, CLONE_THREAD),
    (RETURN, 0, 0, ALLOW),
    (RETURN, 0, 0, REFUSE),
]

# A pair of datagram sockets could send to any socket of the machine by its path; a pair of streams cannot.
_STREAMS_ONLY: list[Instruction] = [
    (LOAD, 0, 0, FIRST_ARGUMENT),
    (JUMP_IF_EQUAL, 0, 4, AF_UNIX),
    (LOAD, 0, 0, SECOND_ARGUMENT),
    (AND, 0, 0, TYPE_MASK),
    (JUMP_IF_EQUAL, 0, 1, SOCK_STREAM),
    (RETURN, 0, 0, ALLOW),
    (RETURN, 0, 0, REFUSE),
]


def die_with_parent() -> None:
    """Should the agent be killed, its processes do not outlive it."""
    parent = os.getppid()
    prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
