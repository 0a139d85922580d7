/* SPDX-License-Identifier: Apache-2.0
 *
 * Two separate things: the event log that drills judge from, and messages for a person on stderr or a file.
 *
 * Event log: one file per rank, `engine<ID>.<incarnation>.<rank>.log` in --log-dir; one line per event, written by one
 * write(2) to an O_APPEND descriptor, so a killed process leaves whole lines: `<monotonic ns> <event> key=value ...`.
 */
#ifndef MINILLM_LOG_H
#define MINILLM_LOG_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

/* False when the file cannot be made (errno is kept). */
bool event_log_open(const char *directory, uint32_t engine, uint64_t incarnation, uint32_t rank);
void event_log_close(void);
/* Does nothing while no log is open. Lines over 511 bytes are cut (they still end in a newline). */
__attribute__((format(printf, 1, 2))) void event_log(const char *format, ...);

/* Copies a client's id so that it stays one word: bytes up to space, DEL, '%' and '=' become %XX. `ret` is cut to fit.
 */
void event_log_escape(const char *text, char *ret, uint32_t ret_bytes);

uint64_t monotonic_ns(void);

enum note_level { NOTE_ERROR = 0, NOTE_WARNING, NOTE_INFO, NOTE_DEBUG };

void note_configure(enum note_level most, int fd, uint32_t engine, uint32_t rank);
__attribute__((format(printf, 2, 3))) void note(enum note_level level, const char *format, ...);

#endif
