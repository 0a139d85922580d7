/* SPDX-License-Identifier: Apache-2.0
 *
 * Sockets for messages: bounded, close-on-exec, never a signal, never a blocking call on one peer.
 */
#ifndef GMS_WIRE_CHANNEL_H
#define GMS_WIRE_CHANNEL_H

#include <sys/types.h>

#include "wire/message.h"

/*
 * Makes the listening socket at `path` (0600). A socket left by a dead owner is replaced: only ECONNREFUSED proves that
 * nobody lives behind it; probe, unlink and bind happen under an flock of "<path>.lock" checked by inode. Anything that
 * is not a socket is never removed. Errors: EXISTS (a live owner, with its pid where known; or not a socket), BUSY
 * (owner stopped or backlog full: cannot be proven stale), INVALID (path too long: length and limit), SYSTEM.
 */
gms_status gms_channel_listen(const char *path, int *ret_fd, struct gms_error *ret_error);

/* Connects within `timeout_ms`. Errors: NOT_FOUND, DISCONNECTED (refused: nobody listens), TIMEOUT, PERMISSION.
 * Non-blocking descriptor. */
gms_status gms_channel_connect(const char *path, int timeout_ms, int *ret_fd, struct gms_error *ret_error);

/* Accepts one client; refuses another user's (SO_PEERCRED) with PERMISSION after closing it. AGAIN: nobody waits. pid
 * 0: outside our namespace. */
gms_status gms_channel_accept(int listener, int *ret_fd, pid_t *ret_pid, uid_t *ret_uid, struct gms_error *ret_error);

/* Sends without blocking. AGAIN: the peer does not read (its limit, not ours); DISCONNECTED. */
gms_status gms_channel_send(int fd, const struct gms_message *message, struct gms_error *ret_error);

/* Receives without blocking into `buffer` (GMS_WIRE_MAX_BYTES). Descriptors beyond the type's limit are closed and the
 * message is PROTOCOL; MSG_CTRUNC is DESCRIPTORS (with used and limit). AGAIN: nothing there. DISCONNECTED: end of
 * file. On any failure no descriptor is left open. */
gms_status gms_channel_receive(int fd, void *buffer, struct gms_message *ret_message, struct gms_error *ret_error);

/* The same with a deadline (monotonic ns): polls with the remaining time, retries EINTR (V26). TIMEOUT. */
gms_status gms_channel_send_until(int fd, const struct gms_message *message, uint64_t deadline_ns,
                                  struct gms_error *ret_error);
gms_status gms_channel_receive_until(int fd, void *buffer, uint64_t deadline_ns, struct gms_message *ret_message,
                                     struct gms_error *ret_error);

/* Closes the descriptors a received message still carries. */
void gms_message_close_fds(struct gms_message *message);

#endif
