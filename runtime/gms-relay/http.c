/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-relay/http.h"

#include <string.h>
#include <strings.h>

enum { CHUNK_DIGITS = 15, CHUNK_OVERHEAD = 8 * 1024 };

struct text {
    const char *at;
    size_t bytes;
};

size_t relay_http_head_end(const char *data, size_t bytes, size_t *scanned)
{
    size_t from = *scanned > 3 ? *scanned - 3 : 0; /* an end may begin in what was scanned before */
    const char *end = bytes > from ? memmem(data + from, bytes - from, "\r\n\r\n", 4) : NULL;
    *scanned = bytes;
    return end != NULL ? (size_t)(end - data) + 4 : 0;
}

/* -------------------------------------------------------------------------------------------------- words ----- */

static bool is_token(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != '\0' && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

static bool equals(struct text text, const char *word)
{
    return strlen(word) == text.bytes && strncasecmp(text.at, word, text.bytes) == 0;
}

static struct text trimmed(struct text text)
{
    while (text.bytes > 0 && (text.at[0] == ' ' || text.at[0] == '\t'))
        text.at++, text.bytes--;
    while (text.bytes > 0 && (text.at[text.bytes - 1] == ' ' || text.at[text.bytes - 1] == '\t'))
        text.bytes--;
    return text;
}

/* Is `word` in a list with commas? */
static bool lists(struct text list, const char *word)
{
    while (list.bytes > 0) {
        const char *comma = memchr(list.at, ',', list.bytes);
        size_t bytes = comma != NULL ? (size_t)(comma - list.at) : list.bytes;
        if (equals(trimmed((struct text){list.at, bytes}), word))
            return true;
        size_t used = comma != NULL ? bytes + 1 : bytes;
        list.at += used;
        list.bytes -= used;
    }
    return false;
}

static bool read_length(struct text text, uint64_t *ret_length)
{
    uint64_t value = 0;
    if (text.bytes == 0 || text.bytes > 18)
        return false;
    for (size_t i = 0; i < text.bytes; i++) {
        if (text.at[i] < '0' || text.at[i] > '9')
            return false;
        value = value * 10 + (uint64_t)(text.at[i] - '0');
    }
    *ret_length = value;
    return true;
}

static int refuse(int status, const char *why, const char **ret_why)
{
    *ret_why = why;
    return status;
}

/* The next line without its CR LF. False: there is none. */
static bool next_line(const char *head, size_t bytes, size_t *at, struct text *ret_line)
{
    const char *start = head + *at;
    const char *end = memmem(start, bytes - *at, "\r\n", 2);
    if (end == NULL)
        return false;
    *ret_line = (struct text){start, (size_t)(end - start)};
    *at += ret_line->bytes + 2;
    return true;
}

/* ------------------------------------------------------------------------------------------------- headers ---- */

/* What both kinds of head have in their headers. */
struct headers {
    bool chunked, other_coding, has_length, closes, keeps, expects_continue, other_expectation, event_stream;
    uint64_t length;
    uint32_t hosts;
    struct text id;
};

static int read_header(struct text line, struct headers *headers, const char **ret_why)
{
    const char *colon = memchr(line.at, ':', line.bytes);
    if (colon == NULL || colon == line.at)
        return refuse(400, "a header line without a name", ret_why);
    struct text name = {line.at, (size_t)(colon - line.at)};
    struct text value = trimmed((struct text){colon + 1, line.bytes - name.bytes - 1});
    for (size_t i = 0; i < name.bytes; i++)
        if (!is_token(name.at[i]))
            return refuse(400, "a header name with a character that names must not have", ret_why);
    for (size_t i = 0; i < value.bytes; i++)
        if (((unsigned char)value.at[i] < 0x20 && value.at[i] != '\t') || value.at[i] == 0x7f)
            return refuse(400, "a header value with a control character", ret_why);
    if (equals(name, "content-length")) {
        uint64_t length;
        if (!read_length(value, &length))
            return refuse(400, "Content-Length is not a number", ret_why);
        if (headers->has_length && headers->length != length)
            return refuse(400, "two different Content-Length", ret_why);
        headers->has_length = true;
        headers->length = length;
    } else if (equals(name, "transfer-encoding")) {
        if (equals(value, "chunked") && !headers->chunked)
            headers->chunked = true;
        else
            headers->other_coding = true;
    } else if (equals(name, "connection")) {
        headers->closes |= lists(value, "close");
        headers->keeps |= lists(value, "keep-alive");
    } else if (equals(name, "expect")) {
        if (equals(value, "100-continue"))
            headers->expects_continue = true;
        else
            headers->other_expectation = true;
    } else if (equals(name, "host")) {
        headers->hosts++;
    } else if (equals(name, "x-request-id")) {
        headers->id = value;
    } else if (equals(name, "content-type")) {
        headers->event_stream = value.bytes >= 17 && strncasecmp(value.at, "text/event-stream", 17) == 0;
    }
    return 0;
}

static int read_headers(const char *head, size_t bytes, size_t at, struct headers *ret_headers, const char **ret_why)
{
    struct text line;
    memset(ret_headers, 0, sizeof *ret_headers);
    for (uint32_t count = 0; next_line(head, bytes, &at, &line); count++) {
        if (line.bytes == 0)
            break;
        if (count == RELAY_HTTP_HEADERS)
            return refuse(431, "too many header lines; 100 are read", ret_why);
        if (line.at[0] == ' ' || line.at[0] == '\t')
            return refuse(400, "a header line that continues the one before", ret_why);
        int status = read_header(line, ret_headers, ret_why);
        if (status != 0)
            return status;
    }
    if (ret_headers->chunked && ret_headers->has_length)
        return refuse(400, "both Content-Length and Transfer-Encoding", ret_why);
    return 0;
}

/* ------------------------------------------------------------------------------------------------- requests --- */

static int read_request_line(struct text line, struct relay_http_request *request, const char **ret_why)
{
    const char *space = memchr(line.at, ' ', line.bytes);
    if (space == NULL || space == line.at)
        return refuse(400, "the request line is not METHOD PATH HTTP/1.1", ret_why);
    size_t method_bytes = (size_t)(space - line.at);
    if (method_bytes >= sizeof request->method)
        return refuse(501, "no such method", ret_why);
    for (size_t i = 0; i < method_bytes; i++)
        if (!is_token(line.at[i]))
            return refuse(400, "the request line does not begin with a method", ret_why);
    memcpy(request->method, line.at, method_bytes);
    request->method[method_bytes] = '\0';
    struct text rest = {space + 1, line.bytes - method_bytes - 1};
    space = memchr(rest.at, ' ', rest.bytes);
    if (space == NULL)
        return refuse(400, "the request line has no HTTP version", ret_why);
    struct text target = {rest.at, (size_t)(space - rest.at)},
                version = {space + 1, rest.bytes - (size_t)(space - rest.at) - 1};
    if (version.bytes != 8 || memcmp(version.at, "HTTP/", 5) != 0)
        return refuse(400, "the request line does not end with an HTTP version", ret_why);
    if (memcmp(version.at, "HTTP/1.", 7) != 0 || (version.at[7] != '0' && version.at[7] != '1'))
        return refuse(505, "only HTTP/1.0 and HTTP/1.1 are spoken", ret_why);
    request->minor = version.at[7] - '0';
    const char *query = memchr(target.at, '?', target.bytes);
    size_t path_bytes = query != NULL ? (size_t)(query - target.at) : target.bytes;
    if (path_bytes == 0 || target.at[0] != '/')
        return refuse(400, "the request target must begin with '/'", ret_why);
    if (path_bytes >= sizeof request->path)
        return refuse(414, "the path is longer than 255 bytes", ret_why);
    for (size_t i = 0; i < target.bytes; i++)
        if ((unsigned char)target.at[i] <= 0x20 || (unsigned char)target.at[i] >= 0x7f)
            return refuse(400, "the request target has a character that it must not have", ret_why);
    memcpy(request->path, target.at, path_bytes);
    request->path[path_bytes] = '\0';
    return 0;
}

static void take_id(struct text id, char ret_id[RELAY_HTTP_ID_BYTES])
{
    ret_id[0] = '\0';
    if (id.bytes >= RELAY_HTTP_ID_BYTES)
        return;
    for (size_t i = 0; i < id.bytes; i++)
        if (!is_token(id.at[i]) || strchr("!#$%&'*+^`|~", id.at[i]) != NULL)
            return;
    if (id.bytes > 0)
        memcpy(ret_id, id.at, id.bytes);
    ret_id[id.bytes] = '\0';
}

int relay_http_read_request(const char *head, size_t bytes, struct relay_http_request *ret_request,
                            const char **ret_why)
{
    struct text line;
    struct headers headers;
    size_t at = 0;
    memset(ret_request, 0, sizeof *ret_request);
    if (!next_line(head, bytes, &at, &line))
        return refuse(400, "no request line", ret_why);
    int status = read_request_line(line, ret_request, ret_why);
    if (status == 0)
        status = read_headers(head, bytes, at, &headers, ret_why);
    if (status != 0)
        return status;
    if (headers.other_coding)
        return refuse(501, "of transfer codings only chunked is read", ret_why);
    if (headers.other_expectation)
        return refuse(417, "of expectations only 100-continue is met", ret_why);
    if (headers.chunked && ret_request->minor == 0)
        return refuse(400, "chunked in HTTP/1.0", ret_why);
    if (ret_request->minor == 1 && headers.hosts != 1)
        return refuse(400, "HTTP/1.1 wants one Host header", ret_why);
    ret_request->keep_alive = ret_request->minor == 1 ? !headers.closes : headers.keeps && !headers.closes;
    ret_request->chunked = headers.chunked;
    ret_request->has_length = headers.has_length;
    ret_request->length = headers.length;
    ret_request->expects_continue = headers.expects_continue && ret_request->minor == 1;
    take_id(headers.id, ret_request->id);
    return 0;
}

/* ------------------------------------------------------------------------------------------------ responses --- */

int relay_http_read_response(const char *head, size_t bytes, struct relay_http_response *ret_response,
                             const char **ret_why)
{
    struct text line;
    struct headers headers;
    size_t at = 0;
    memset(ret_response, 0, sizeof *ret_response);
    if (!next_line(head, bytes, &at, &line) || line.bytes < 12 || memcmp(line.at, "HTTP/1.", 7) != 0 ||
        line.at[8] != ' ')
        return refuse(502, "the answer does not begin with HTTP/1.1 and a status", ret_why);
    for (size_t i = 9; i < 12; i++) {
        if (line.at[i] < '0' || line.at[i] > '9')
            return refuse(502, "the answer's status is not a number", ret_why);
        ret_response->status = ret_response->status * 10 + (line.at[i] - '0');
    }
    if (read_headers(head, bytes, at, &headers, ret_why) != 0 || headers.other_coding)
        return refuse(502, "the answer's headers cannot be read", ret_why);
    ret_response->chunked = headers.chunked;
    ret_response->has_length = headers.has_length;
    ret_response->length = headers.length;
    ret_response->event_stream = headers.event_stream;
    return 0;
}

/* ------------------------------------------------------------------------------------------------- chunks ----- */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

static void end_of_size(struct relay_chunks *chunks)
{
    chunks->state = chunks->left > 0 ? RELAY_CHUNK_DATA : RELAY_CHUNK_TRAILER;
    chunks->digits = 0;
}

/* One byte that is not data. */
static void take_control(struct relay_chunks *chunks, char c)
{
    int digit;
    switch (chunks->state) {
    case RELAY_CHUNK_SIZE:
        digit = hex_digit(c);
        if (digit >= 0 && chunks->digits < CHUNK_DIGITS) {
            chunks->left = chunks->left << 4 | (uint64_t)digit;
            chunks->digits++;
        } else if (chunks->digits > 0 && c == '\r') {
            chunks->state = RELAY_CHUNK_SIZE_LF;
        } else if (chunks->digits > 0 && (c == ';' || c == ' ' || c == '\t')) {
            chunks->state = RELAY_CHUNK_EXTENSION;
        } else {
            chunks->state = RELAY_CHUNK_BAD;
        }
        break;
    case RELAY_CHUNK_EXTENSION:
        if (c == '\r')
            chunks->state = RELAY_CHUNK_SIZE_LF;
        else if (c == '\n' || ++chunks->overhead > CHUNK_OVERHEAD)
            chunks->state = RELAY_CHUNK_BAD;
        break;
    case RELAY_CHUNK_SIZE_LF:
        if (c == '\n')
            end_of_size(chunks);
        else
            chunks->state = RELAY_CHUNK_BAD;
        break;
    case RELAY_CHUNK_DATA_CR:
        chunks->state = c == '\r' ? RELAY_CHUNK_DATA_LF : RELAY_CHUNK_BAD;
        break;
    case RELAY_CHUNK_DATA_LF:
        chunks->state = c == '\n' ? RELAY_CHUNK_SIZE : RELAY_CHUNK_BAD;
        break;
    case RELAY_CHUNK_TRAILER:
        chunks->state = c == '\r' ? RELAY_CHUNK_LAST_LF : c == '\n' ? RELAY_CHUNK_BAD : RELAY_CHUNK_TRAILER_LINE;
        break;
    case RELAY_CHUNK_TRAILER_LINE:
        if (c == '\r')
            chunks->state = RELAY_CHUNK_TRAILER_LF;
        else if (c == '\n' || ++chunks->overhead > CHUNK_OVERHEAD)
            chunks->state = RELAY_CHUNK_BAD;
        break;
    case RELAY_CHUNK_TRAILER_LF:
        chunks->state = c == '\n' ? RELAY_CHUNK_TRAILER : RELAY_CHUNK_BAD;
        break;
    case RELAY_CHUNK_LAST_LF:
        chunks->state = c == '\n' ? RELAY_CHUNK_DONE : RELAY_CHUNK_BAD;
        break;
    case RELAY_CHUNK_DATA:
    case RELAY_CHUNK_DONE:
    case RELAY_CHUNK_BAD:
        break;
    }
}

size_t relay_http_chunks(struct relay_chunks *chunks, const char *data, size_t bytes, const char **ret_data,
                         size_t *ret_bytes)
{
    size_t used = 0;
    *ret_data = data;
    *ret_bytes = 0;
    while (used < bytes && chunks->state != RELAY_CHUNK_DONE && chunks->state != RELAY_CHUNK_BAD) {
        if (chunks->state != RELAY_CHUNK_DATA) {
            take_control(chunks, data[used++]);
            continue;
        }
        size_t piece = bytes - used < chunks->left ? bytes - used : (size_t)chunks->left;
        *ret_data = data + used;
        *ret_bytes = piece;
        chunks->left -= piece;
        if (chunks->left == 0)
            chunks->state = RELAY_CHUNK_DATA_CR;
        return used + piece;
    }
    return used;
}

const char *relay_http_reason(int status)
{
    static const struct {
        int status;
        const char *reason;
    } reasons[] = {{200, "OK"},
                   {400, "Bad Request"},
                   {404, "Not Found"},
                   {405, "Method Not Allowed"},
                   {408, "Request Timeout"},
                   {413, "Content Too Large"},
                   {414, "URI Too Long"},
                   {417, "Expectation Failed"},
                   {422, "Unprocessable Content"},
                   {429, "Too Many Requests"},
                   {431, "Request Header Fields Too Large"},
                   {500, "Internal Server Error"},
                   {501, "Not Implemented"},
                   {502, "Bad Gateway"},
                   {503, "Service Unavailable"},
                   {504, "Gateway Timeout"},
                   {505, "HTTP Version Not Supported"}};
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++)
        if (reasons[i].status == status)
            return reasons[i].reason;
    return "Error";
}
