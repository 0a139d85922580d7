# SPDX-License-Identifier: Apache-2.0
"""libgms through ctypes: layouts as a foreign language sees them, and clear errors without a coordinator."""
import ctypes
import os
import sys
import tempfile


class OpenOptions(ctypes.Structure):
    _fields_ = [
        ("run_dir", ctypes.c_char_p),
        ("rank", ctypes.c_int32),
        ("engine_id", ctypes.c_int32),
        ("launch", ctypes.c_char_p),
        ("timeout_ms", ctypes.c_uint32),
    ]


class Error(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int), ("rank", ctypes.c_int32), ("text", ctypes.c_char * 512)]


INVALID, DISCONNECTED = 1, 200


def check(condition, what):
    if not condition:
        sys.exit(f"failed: {what}")


def main():
    gms = ctypes.CDLL(sys.argv[1])
    gms.gms_version.restype = ctypes.c_char_p
    gms.gms_status_name.restype = ctypes.c_char_p
    gms.gms_close.argtypes = [ctypes.c_void_p]
    version = gms.gms_version().decode()
    check(version.count(".") == 2, f"version {version!r}")
    check(gms.gms_protocol_version() == 4, "protocol version")
    check(gms.gms_status_name(DISCONNECTED) == b"GMS_E_DISCONNECTED", "status name")
    gms.gms_close(None)

    session, error = ctypes.c_void_p(), Error()
    for name in ("GMS_RUN_DIR", "GMS_RANK", "ENGINE_ID", "GMS_LAUNCH_ID"):
        os.environ.pop(name, None)
    status = gms.gms_open(None, ctypes.byref(session), ctypes.byref(error))
    check(status == INVALID and error.status == INVALID, f"status {status}")
    check(b"GMS_RUN_DIR" in error.text, error.text)

    with tempfile.TemporaryDirectory() as run_dir:
        os.chmod(run_dir, 0o700)
        options = OpenOptions(run_dir.encode(), 0, 0, b"launch", 500)
        status = gms.gms_open(ctypes.byref(options), ctypes.byref(session), ctypes.byref(error))
        check(status == DISCONNECTED, f"status {status}: {error.text}")
        check(run_dir.encode() in error.text and b"gms-coord" in error.text, error.text)
        check(gms.gms_open(ctypes.byref(options), ctypes.byref(session), None) == DISCONNECTED, "error may be NULL")
    check(session.value is None, "no session after a failure")
    print(f"libgms {version} answers through ctypes")


main()
