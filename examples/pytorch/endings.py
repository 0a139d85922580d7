# SPDX-License-Identifier: Apache-2.0
"""Ways in which a rank comes to grief when a drill asks for it: minillm's, and a fault of the device."""
import ctypes as c
import os
import signal
import time
from typing import Callable

# A store to an address that nothing is mapped at: the context is lost, and with it the process.
_WILD_STORE = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry wild_store(.param .u64 address)
{
    .reg .b64 %a;
    .reg .b32 %v;
    ld.param.u64 %a, [address];
    mov.u32 %v, 1;
    st.global.u32 [%a], %v;
    ret;
}
\0"""


class WildStore:
    """Loaded before a rank parks, so that the fault is one launch."""

    def __init__(self) -> None:
        self._cuda = c.CDLL("libcuda.so.1")
        module, self._function = c.c_void_p(), c.c_void_p()
        self._check(self._cuda.cuModuleLoadData(c.byref(module), _WILD_STORE))
        self._check(self._cuda.cuModuleGetFunction(c.byref(self._function), module, b"wild_store"))

    @staticmethod
    def _check(result: int) -> None:
        if result != 0:
            raise RuntimeError(f"the kernel of the illegal address cannot be loaded: CUDA error {result}")

    def __call__(self, stream: int) -> None:
        address = c.c_uint64(0x10)  # page 0 is never mapped
        arguments = (c.c_void_p * 1)(c.addressof(address))
        self._check(self._cuda.cuLaunchKernel(self._function, 1, 1, 1, 1, 1, 1, 0, c.c_void_p(stream), arguments, None))


def _hog() -> None:
    taken = []
    try:
        while True:
            taken.append(bytearray(b"\1") * (4 << 20))
    except MemoryError:
        os.abort()


def _leave_child() -> None:
    """It keeps every descriptor and mapping, is in a session of its own and cannot be asked to end."""
    if os.fork() != 0:
        return
    os.setsid()
    for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    while True:
        time.sleep(3600)


def _freeze() -> None:
    while True:
        time.sleep(3600)


ENDINGS: dict[str, Callable[[], None]] = {
    "sigkill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(0),
    "abort": os.abort,
    "freeze": _freeze,
    "fork": _leave_child,
    "hog": _hog,
}
ILLEGAL_ADDRESS = "illegal-address"


class Endings:
    """What is armed on this rank: in the so-manieth pass through a phase it happens."""

    PHASES = ("prefill", "decode", "seal")

    def __init__(self, wild_store: Callable[[], None] | None) -> None:
        self._kinds = dict(ENDINGS)
        if wild_store is not None:
            self._kinds[ILLEGAL_ADDRESS] = wild_store
        self._armed: dict[str, list] = {}

    def check(self, message: dict) -> None:
        """Raises ValueError for what no rank of this engine can do."""
        if message.get("at") not in self.PHASES:
            raise ValueError(f"\"at\" is one of {', '.join(self.PHASES)}")
        if message.get("how", "sigkill") not in self._kinds:
            raise ValueError(f"\"how\" is one of {', '.join(self._kinds)}")
        if type(message.get("after")) is not int or message["after"] < 1:
            raise ValueError("\"after\" is a number from 1 on")

    def arm(self, message: dict) -> None:
        self._armed[message["at"]] = [message["after"], self._kinds[message.get("how", "sigkill")]]

    def pass_through(self, phase: str) -> None:
        armed = self._armed.get(phase)
        if armed is not None:
            armed[0] -= 1
            if armed[0] == 0:
                del self._armed[phase]
                armed[1]()
