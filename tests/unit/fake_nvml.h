/* SPDX-License-Identifier: Apache-2.0
 *
 * A libnvidia-ml that says what a test tells it to. The test opens the library itself, finds `fake_nvml` in it and
 * writes the script; the provider opens the same file and hears it.
 */
#ifndef TESTS_UNIT_FAKE_NVML_H
#define TESTS_UNIT_FAKE_NVML_H

enum { FAKE_DEVICES = 4, FAKE_INSTANCES = 3, FAKE_PROCESSES = 8, FAKE_XIDS = 4 };

struct fake_list {
    unsigned int count, pids[FAKE_PROCESSES];
};

struct fake_nvml {
    unsigned int devices;
    int init_result, processes_result, events_result, uuid_result;
    unsigned int mig[FAKE_DEVICES]; /* instances; 0: MIG is off */
    unsigned int uuid_salt;         /* another value: other devices or instances */
    struct fake_list compute[FAKE_DEVICES], instances[FAKE_DEVICES][FAKE_INSTANCES], graphics[FAKE_DEVICES],
        mps[FAKE_DEVICES];
    unsigned long long used_bytes, process_bytes; /* of the device; of each process that is listed */
    int persistent;
    unsigned int xids, xid[FAKE_XIDS]; /* delivered once each */
    unsigned int inits, shutdowns, lists;
};

#endif
