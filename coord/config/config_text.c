/* SPDX-License-Identifier: Apache-2.0 */
#include "config/config_text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"

enum { MAX_DEPTH = 8, MAX_INCLUDES = 32, MAX_SETTINGS = 4096, MAX_DIGITS = 9 };

static const char include_end[] = "# complete";

/* ------------------------------------------------------------------------------------------------ problems ----- */

static const char *tail(const char *file)
{
    size_t length = strlen(file);
    return length < 64 ? file : file + length - 63;
}

void gms_config_problem(struct gms_config_problems *problems, const char *file, unsigned line, const char *format, ...)
{
    char text[GMS_ERROR_TEXT_BYTES];
    int length =
        line ? snprintf(text, sizeof(text), "%s:%u: ", file, line) : snprintf(text, sizeof(text), "%s: ", file);
    va_list arguments;
    problems->count++;
    if (length > 0 && (size_t)length < sizeof(text)) {
        va_start(arguments, format);
        vsnprintf(text + length, sizeof(text) - (size_t)length, format, arguments);
        va_end(arguments);
    }
    if (problems->count == 1)
        gms_fail(problems->ret_error, GMS_E_CONFIG, "%s", text);
    if (problems->report && problems->count <= GMS_CONFIG_PROBLEMS_SHOWN)
        problems->report(problems->context, text);
    if (problems->report && problems->count == GMS_CONFIG_PROBLEMS_SHOWN + 1)
        problems->report(problems->context, "and more; they are not shown");
}

static void note_number(struct gms_config_problems *problems, const char *file, unsigned line)
{
    if (problems->number_line_count < GMS_CONFIG_PROBLEM_LINES) {
        unsigned i = problems->number_line_count++;
        snprintf(problems->number_lines[i].file, sizeof(problems->number_lines[i].file), "%s", tail(file));
        problems->number_lines[i].line = line;
    }
}

bool gms_config_number_refused(const struct gms_config_problems *problems, const char *file, unsigned line)
{
    for (unsigned i = 0; i < problems->number_line_count; i++)
        if (problems->number_lines[i].line == line && strcmp(problems->number_lines[i].file, tail(file)) == 0)
            return true;
    return false;
}

const char *gms_config_quote(const char *value, size_t bytes, char ret_text[GMS_CONFIG_QUOTE_BYTES])
{
    size_t shown = bytes < 80 ? bytes : 80, out = 0;
    for (size_t i = 0; i < shown; i++) {
        unsigned char c = (unsigned char)value[i];
        if (c < 0x20 || c == 0x7f)
            out += (size_t)snprintf(ret_text + out, GMS_CONFIG_QUOTE_BYTES - out, "\\x%02x", c);
        else
            ret_text[out++] = (char)c;
    }
    snprintf(ret_text + out, GMS_CONFIG_QUOTE_BYTES - out, "%s", bytes > shown ? "..." : "");
    return ret_text;
}

/* ---------------------------------------------------------------------------------------------------- file ----- */

gms_status gms_config_text_read(const char *path, char **ret_text, size_t *ret_bytes, struct gms_error *ret_error)
{
    /* O_NONBLOCK: a FIFO must not hold us up before it is refused. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat status;
    char *text = NULL;
    size_t bytes = 0;

    if (fd < 0)
        return gms_fail(ret_error, GMS_E_CONFIG, "%s: cannot be opened: %s", path, strerror(errno));
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
        gms_fd_close(&fd);
        return gms_fail(ret_error, GMS_E_CONFIG, "%s: is not a regular file", path);
    }
    text = malloc(GMS_CONFIG_FILE_BYTES + 1);
    if (!text) {
        gms_fd_close(&fd);
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "%s: no memory for %d bytes", path, GMS_CONFIG_FILE_BYTES + 1);
    }
    while (bytes <= GMS_CONFIG_FILE_BYTES) {
        ssize_t got = read(fd, text + bytes, GMS_CONFIG_FILE_BYTES + 1 - bytes);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            int error = errno;
            gms_fd_close(&fd);
            free(text);
            return gms_fail(ret_error, GMS_E_CONFIG, "%s: cannot be read: %s", path, strerror(error));
        }
        if (got == 0)
            break;
        bytes += (size_t)got;
    }
    gms_fd_close(&fd);
    if (bytes > GMS_CONFIG_FILE_BYTES) {
        free(text);
        return gms_fail(ret_error, GMS_E_CONFIG, "%s: %lld bytes, limit %d", path, (long long)status.st_size,
                        GMS_CONFIG_FILE_BYTES);
    }
    text[bytes] = '\0';
    *ret_text = text;
    *ret_bytes = bytes;
    return GMS_OK;
}

/* ---------------------------------------------------------------------------------------------------- scan ----- */

struct scan {
    struct gms_config_problems *problems;
    const char *directory;
    unsigned depth, includes, settings;
    bool fatal; /* libconfig must not see this */
};

struct cursor {
    const char *name, *text;
    size_t bytes, at;
    unsigned line;
    const char *identifier; /* the last one seen, for texts */
    int identifier_bytes;
};

static void scan_file(struct scan *scan, const char *name, const char *text, size_t bytes, unsigned *ret_lines);

static void fatal(struct scan *scan, const struct cursor *c, const char *what, const char *detail)
{
    gms_config_problem(scan->problems, c->name, c->line, "%s%s", what, detail);
    scan->fatal = true;
}

/* Does the text end with the line that an included file needs? A cut file does not. Its newline belongs to it: in
 * libconfig 1.5 a comment that ends with the file goes on in the file that included it. */
static bool ends_complete(const char *text, size_t bytes)
{
    size_t length = sizeof(include_end) - 1;
    if (bytes == 0 || text[bytes - 1] != '\n')
        return false;
    while (bytes && strchr(" \t\r\n", text[bytes - 1]))
        bytes--;
    return bytes >= length && memcmp(text + bytes - length, include_end, length) == 0 &&
           (bytes == length || text[bytes - length - 1] == '\n');
}

static void include(struct scan *scan, struct cursor *c, const char *file, size_t file_bytes)
{
    char path[4096], quoted[GMS_CONFIG_QUOTE_BYTES];
    struct gms_error error;
    char *text = NULL;
    size_t bytes = 0;

    gms_config_quote(file, file_bytes, quoted);
    if (!scan->directory) {
        fatal(scan, c, "@include: only a file can include others: ", quoted);
        return;
    }
    /* Absolute names, wildcards and escapes mean different things to different versions of libconfig. */
    if (file_bytes == 0 || file[0] == '/' || memchr(file, '\\', file_bytes) || memchr(file, '*', file_bytes) ||
        memchr(file, '?', file_bytes) || memchr(file, '[', file_bytes)) {
        fatal(scan, c, "@include takes one plain name relative to the deployment file's directory, not ", quoted);
        return;
    }
    if (scan->depth >= MAX_DEPTH || scan->includes >= MAX_INCLUDES) {
        fatal(scan, c, "@include: more than 8 deep or 32 in all; does a file include itself? ", quoted);
        return;
    }
    if (snprintf(path, sizeof(path), "%s/%.*s", scan->directory, (int)file_bytes, file) >= (int)sizeof(path)) {
        fatal(scan, c, "@include: path longer than 4095 bytes: ", quoted);
        return;
    }
    if (gms_config_text_read(path, &text, &bytes, &error) != GMS_OK) {
        fatal(scan, c, "@include: ", error.text);
        return;
    }
    if (!ends_complete(text, bytes))
        fatal(scan, c,
              "@include: the last line of an included file must be `# complete`, so that one cut short is "
              "noticed: ",
              quoted);
    scan->includes++;
    scan->depth++;
    scan_file(scan, path, text, bytes, NULL);
    scan->depth--;
    free(text);
}

static char peek(const struct cursor *c, size_t ahead)
{
    return c->at + ahead < c->bytes ? c->text[c->at + ahead] : '\0';
}

static void skip_line(struct cursor *c)
{
    while (c->at < c->bytes && c->text[c->at] != '\n')
        c->at++;
}

static void skip_block_comment(struct scan *scan, struct cursor *c)
{
    unsigned start = c->line;
    for (c->at += 2; c->at < c->bytes; c->at++) {
        if (c->text[c->at] == '*' && peek(c, 1) == '/') {
            c->at += 2;
            return;
        }
        if (c->text[c->at] == '\n')
            c->line++;
    }
    gms_config_problem(scan->problems, c->name, start, "a comment that begins here does not end");
}

static bool is_hex(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static void skip_string(struct scan *scan, struct cursor *c)
{
    for (c->at++; c->at < c->bytes && c->text[c->at] != '"'; c->at++) {
        if (c->text[c->at] == '\n')
            c->line++;
        if (c->text[c->at] != '\\')
            continue;
        char escape = peek(c, 1);
        if (escape == 'x' && is_hex(peek(c, 2)) && is_hex(peek(c, 3))) {
            if (peek(c, 2) == '0' && peek(c, 3) == '0')
                gms_config_problem(scan->problems, c->name, c->line, "a string cannot hold a NUL byte (\\x00)");
        } else if (escape == '\0' || !strchr("abnrtvf\\\"", escape)) {
            gms_config_problem(scan->problems, c->name, c->line,
                               "unknown escape in a string; known: \\\" \\\\ \\n \\r \\t \\a \\b \\v \\f \\xNN");
        }
        c->at++;
        if (c->at < c->bytes && c->text[c->at] == '\n')
            c->line++;
    }
    c->at++;
}

static bool is_word(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-' ||
           c == '*';
}

static void number(struct scan *scan, struct cursor *c)
{
    const char *start = c->text + c->at;
    char quoted[GMS_CONFIG_QUOTE_BYTES];
    size_t length = 0;
    bool plain = true;

    while (c->at + length < c->bytes && (is_word(start[length]) || start[length] == '.' || start[length] == '+')) {
        plain = plain && start[length] >= '0' && start[length] <= '9';
        length++;
    }
    c->at += length;
    if (plain && length <= MAX_DIGITS && !(length > 1 && start[0] == '0'))
        return;
    note_number(scan->problems, c->name, c->line);
    gms_config_problem(scan->problems, c->name, c->line,
                       "%.*s: %s is no number here: numbers are 1 to %d decimal digits without sign, point, prefix or "
                       "suffix; sizes and durations are strings with a unit (\"256MiB\", \"10s\")",
                       c->identifier_bytes, c->identifier, gms_config_quote(start, length, quoted), MAX_DIGITS);
}

static void identifier(struct scan *scan, struct cursor *c)
{
    size_t start = c->at;
    while (c->at < c->bytes && is_word(c->text[c->at]))
        c->at++;
    c->identifier = c->text + start;
    c->identifier_bytes = (int)(c->at - start < 60 ? c->at - start : 60);
    if (++scan->settings == MAX_SETTINGS)
        fatal(scan, c, "more than 4096 names", "");
}

/* "@include" at the start of a line, blanks, a string: libconfig's own rule. */
static bool try_include(struct scan *scan, struct cursor *c)
{
    static const char word[] = "@include";
    size_t at = c->at + sizeof(word) - 1, start;
    if (c->bytes - c->at < sizeof(word) || memcmp(c->text + c->at, word, sizeof(word) - 1) != 0)
        return false;
    while (at < c->bytes && (c->text[at] == ' ' || c->text[at] == '\t'))
        at++;
    if (at >= c->bytes || c->text[at] != '"')
        return false;
    start = ++at;
    while (at < c->bytes && c->text[at] != '"' && c->text[at] != '\n')
        at++;
    if (at >= c->bytes || c->text[at] != '"')
        return false;
    include(scan, c, c->text + start, at - start);
    c->at = at + 1;
    return true;
}

static void scan_file(struct scan *scan, const char *name, const char *text, size_t bytes, unsigned *ret_lines)
{
    struct cursor c = {.name = name, .text = text, .bytes = bytes, .line = 1, .identifier = ""};
    bool line_start = true, after_string = false;

    if (bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        fatal(scan, &c, "begins with a UTF-8 byte order mark; save the file without it", "");
    if (memchr(text, '\0', bytes)) {
        for (const char *p = text; *p; p++)
            c.line += *p == '\n';
        fatal(scan, &c, "holds a NUL byte; is this a text file?", "");
    }
    while (!scan->fatal && c.at < bytes) {
        char now = text[c.at];
        if (now == '\n') {
            c.line++;
            c.at++;
            line_start = true;
            continue;
        }
        if (now == ' ' || now == '\t' || now == '\r' || now == '\f') {
            c.at++;
            continue;
        }
        if (now == '#' || (now == '/' && peek(&c, 1) == '/')) {
            skip_line(&c);
            continue;
        }
        if (now == '/' && peek(&c, 1) == '*') {
            skip_block_comment(scan, &c);
            line_start = false;
            continue;
        }
        if (now == '"') {
            if (after_string)
                gms_config_problem(scan->problems, name, c.line,
                                   "two strings with nothing between them would become one; is a comma missing?");
            skip_string(scan, &c);
            after_string = true;
            line_start = false;
            continue;
        }
        after_string = false;
        if (now == '@' && line_start && try_include(scan, &c)) {
            line_start = false;
            continue;
        }
        line_start = false;
        if ((now >= '0' && now <= '9') || now == '+' || now == '-' || now == '.')
            number(scan, &c);
        else if (is_word(now))
            identifier(scan, &c);
        else
            c.at++;
    }
    if (ret_lines)
        *ret_lines = c.line;
}

bool gms_config_text_scan(struct gms_config_problems *problems, const char *name, const char *text, size_t bytes,
                          const char *directory, unsigned *ret_lines)
{
    struct scan scan = {.problems = problems, .directory = directory};
    *ret_lines = 1;
    scan_file(&scan, name, text, bytes, ret_lines);
    return !scan.fatal;
}
