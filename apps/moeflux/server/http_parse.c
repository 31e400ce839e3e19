/* The parser's machine: one step per byte in the head and between chunks, spans in bodies. */
#include "http_parse.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum state {
    START,
    LINE,
    LINE_LF,
    BODY,
    SIZE,
    EXTENSION,
    SIZE_LF,
    CHUNK,
    CHUNK_CR,
    CHUNK_LF,
    TRAILER,
    TRAILER_LF,
    END
};

#define MAX_SIZE_DIGITS 8
#define MAX_EXTRA 4096

void http_parser_init(http_parser *p, const http_limits *limits, http_budget *shared) {
    *p = (http_parser){.limits = limits, .shared = shared};
}

void http_parser_reset(http_parser *p) {
    if (p->shared) p->shared->used -= p->body_capacity;
    free(p->head);
    free(p->body);
    http_parser_init(p, p->limits, p->shared);
}

void http_parser_deinit(http_parser *p) {
    http_parser_reset(p);
}

bool http_parser_begun(const http_parser *p) {
    return p->n_head > 0 || p->state != START;
}

const char *http_parser_field(const http_parser *p, const char *name) {
    for (int i = 0; i < p->n_fields; i++)
        if (!strcasecmp(p->fields[i].name, name)) return p->fields[i].value;
    return NULL;
}

bool http_list_has(const char *value, const char *word) {
    size_t n = strlen(word);
    while (value && *value) {
        value += strspn(value, ", \t");
        size_t item = strcspn(value, ", \t");
        if (item == n && !strncasecmp(value, word, n)) return true;
        value += item;
    }
    return false;
}

static http_result bad(http_parser *p, int status, const char *problem) {
    p->status = status;
    p->problem = problem;
    p->state = END;
    return HTTP_BAD;
}

/* ---- the head ---------------------------------------------------------------------------------------------------- */

static bool is_token(unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

/* METHOD SP TARGET SP HTTP/1.N */
static http_result request_line(http_parser *p, char *line) {
    char *target = strchr(line, ' ');
    char *version = target ? strchr(target + 1, ' ') : NULL;
    if (!version) return bad(p, 400, "The request line is not METHOD TARGET HTTP/1.1.");
    *target++ = *version++ = 0;
    for (const char *c = line; *c; c++)
        if (!is_token((unsigned char)*c)) return bad(p, 400, "The method has a character that methods cannot have.");
    if (!*line || strlen(line) > 16) return bad(p, 501, "Not a method that is known here.");
    if (*target != '/' && strcmp(target, "*"))
        return bad(p, 400, "The request target must be a path that begins with /.");
    for (const char *c = target; *c; c++)
        if (*c <= ' ' || *c >= 0x7f || *c == '#')
            return bad(p, 400, "The request target has a character that must be percent-encoded.");
    if (strncmp(version, "HTTP/", 5)) return bad(p, 400, "The request line does not end in HTTP/1.1.");
    if (strcmp(version, "HTTP/1.1") && strcmp(version, "HTTP/1.0"))
        return bad(p, 505, "Only HTTP/1.1 and HTTP/1.0 are spoken here.");
    p->method = line;
    p->target = target;
    p->minor = version[7] - '0';
    return HTTP_MORE;
}

/* NAME ":" OWS VALUE OWS */
static http_result field_line(http_parser *p, char *line) {
    if (*line == ' ' || *line == '\t') return bad(p, 400, "A header field is folded over two lines.");
    char *colon = strchr(line, ':');
    if (!colon || colon == line) return bad(p, 400, "A header line is not NAME: VALUE.");
    *colon = 0;
    for (const char *c = line; *c; c++)
        if (!is_token((unsigned char)*c))
            return bad(p, 400, "The name of a header field has a character that names cannot have.");
    char *value = colon + 1 + strspn(colon + 1, " \t");
    char *end = value + strlen(value);
    while (end > value && (end[-1] == ' ' || end[-1] == '\t')) end--;
    *end = 0;
    if (p->n_fields == HTTP_MAX_FIELDS) return bad(p, 431, "More than 64 header fields.");
    p->fields[p->n_fields++] = (http_field){line, value};
    return HTTP_MORE;
}

/* How often a field is there. */
static int times(const http_parser *p, const char *name) {
    int n = 0;
    for (int i = 0; i < p->n_fields; i++) n += !strcasecmp(p->fields[i].name, name);
    return n;
}

static http_result body_length(http_parser *p, const char *text) {
    size_t n = 0;
    if (!*text || strspn(text, "0123456789") != strlen(text)) return bad(p, 400, "Content-Length is not a number.");
    if (strlen(text) > 18) return bad(p, 413, "The body is larger than this server takes.");
    for (; *text; text++) n = n * 10 + (size_t)(*text - '0');
    if (n > p->limits->body_bytes) return bad(p, 413, "The body is larger than this server takes.");
    p->wanted = n;
    p->state = n ? BODY : END;
    return n ? HTTP_HEAD : HTTP_DONE;
}

/* Where does the body end? */
static http_result framing(http_parser *p) {
    const char *length = http_parser_field(p, "Content-Length"), *coding = http_parser_field(p, "Transfer-Encoding");
    if (times(p, "Content-Length") > 1) return bad(p, 400, "Content-Length is there twice.");
    if (length && coding) return bad(p, 400, "Content-Length and Transfer-Encoding exclude each other.");
    if (times(p, "Transfer-Encoding") > 1) return bad(p, 400, "Transfer-Encoding is there twice.");
    if (length) return body_length(p, length);
    if (!coding) {
        p->state = END;
        return HTTP_DONE;
    }
    if (!p->minor) return bad(p, 400, "HTTP/1.0 has no Transfer-Encoding.");
    if (strcasecmp(coding, "chunked")) return bad(p, 501, "The only Transfer-Encoding taken here is chunked.");
    p->chunked = true;
    p->state = SIZE;
    return HTTP_HEAD;
}

/* The head is complete: lines with a NUL behind each, and an empty one at the end. */
static http_result parse_head(http_parser *p) {
    char *line = p->head, *next = line + strlen(line) + 1;
    http_result r = request_line(p, line);
    for (line = next; r == HTTP_MORE && *line; line = next) {
        next = line + strlen(line) + 1;
        r = field_line(p, line);
    }
    if (r != HTTP_MORE) return r;
    if (times(p, "Host") > 1 || (p->minor && !http_parser_field(p, "Host")))
        return bad(p, 400, "A request needs one Host field, and no second.");
    const char *connection = http_parser_field(p, "Connection"), *expect = http_parser_field(p, "Expect");
    p->keep_alive = p->minor && !http_list_has(connection, "close");
    if (expect && strcasecmp(expect, "100-continue"))
        return bad(p, 417, "The only expectation met here is 100-continue.");
    p->expects_continue = expect && p->minor;
    return framing(p);
}

static http_result put_head(http_parser *p, char c) {
    if (p->n_head >= p->limits->head_bytes)
        return bad(p, 431, "The head of the request is larger than this server takes.");
    if (p->n_head == p->head_capacity) {
        size_t capacity = p->head_capacity ? p->head_capacity * 2 : 512;
        char *more = realloc(p->head, capacity);
        if (!more) return bad(p, 503, "There is no memory for the request.");
        p->head = more;
        p->head_capacity = capacity;
    }
    p->head[p->n_head++] = c;
    return HTTP_MORE;
}

static http_result head_byte(http_parser *p, unsigned char c) {
    if (p->state == LINE_LF) {
        if (c != '\n') return bad(p, 400, "A line of the head has a CR that no LF follows.");
        p->state = LINE;
        bool empty = p->line == p->n_head;
        http_result r = put_head(p, 0);
        p->line = p->n_head;
        return empty && r == HTTP_MORE ? parse_head(p) : r;
    }
    if (c == '\r') {
        p->state = LINE_LF;
        return HTTP_MORE;
    }
    if (c == '\n') return bad(p, 400, "A line of the head ends in LF alone; CRLF is needed.");
    if ((c < ' ' && c != '\t') || c == 0x7f) return bad(p, 400, "The head has a control character.");
    return put_head(p, (char)c);
}

/* One empty line before a request is forgiven, as the standard asks. */
static http_result first_byte(http_parser *p, unsigned char c) {
    if (c == '\r' && !p->skipped_line) {
        p->skipped_line = true;
        return HTTP_MORE;
    }
    if (c == '\n' && p->skipped_line && !p->n_extra) {
        p->n_extra = 1; /* the line's second half */
        return HTTP_MORE;
    }
    if (p->skipped_line && !p->n_extra) return bad(p, 400, "A line of the head has a CR that no LF follows.");
    p->n_extra = 0;
    p->state = LINE;
    return c == '\r' ? bad(p, 400, "There are empty lines before the request.") : head_byte(p, c);
}

/* ---- the body ---------------------------------------------------------------------------------------------------- */

static http_result put_body(http_parser *p, const char *data, size_t n) {
    if (p->n_body + n > p->limits->body_bytes) return bad(p, 413, "The body is larger than this server takes.");
    if (p->n_body + n + 1 > p->body_capacity) {
        size_t capacity = p->body_capacity ? p->body_capacity : 4096;
        while (capacity < p->n_body + n + 1) capacity *= 2;
        size_t more = capacity - p->body_capacity;
        if (p->shared && (more > p->shared->max || p->shared->used > p->shared->max - more))
            return bad(p, 503, "The server holds too many request bodies now; try again in a moment.");
        char *grown = realloc(p->body, capacity);
        if (!grown) return bad(p, 503, "There is no memory for the body.");
        if (p->shared) p->shared->used += more;
        p->body = grown;
        p->body_capacity = capacity;
    }
    memcpy(p->body + p->n_body, data, n);
    p->n_body += n;
    p->body[p->n_body] = 0;
    return HTTP_MORE;
}

static int hex_digit(unsigned char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

static http_result size_byte(http_parser *p, unsigned char c) {
    int digit = hex_digit(c);
    if (digit >= 0) {
        if (++p->n_digits > MAX_SIZE_DIGITS) return bad(p, 400, "A chunk size has more than eight digits.");
        p->wanted = p->wanted * 16 + (size_t)digit;
        return HTTP_MORE;
    }
    if (!p->n_digits || (c != '\r' && c != ';')) return bad(p, 400, "A chunk size is not a hexadecimal number.");
    if (p->wanted > p->limits->body_bytes) return bad(p, 413, "The body is larger than this server takes.");
    p->state = c == '\r' ? SIZE_LF : EXTENSION;
    return HTTP_MORE;
}

/* Chunk extensions and trailers mean nothing here: bounded, checked for control characters, and dropped. */
static http_result extra_byte(http_parser *p, unsigned char c, int then) {
    if (++p->n_extra > MAX_EXTRA) return bad(p, 431, "Chunk extensions or trailers are larger than this server takes.");
    if (c == '\r')
        p->state = then;
    else if ((c < ' ' && c != '\t') || c == 0x7f)
        return bad(p, 400, "A chunk extension or trailer has a control character.");
    return HTTP_MORE;
}

static http_result trailer_end(http_parser *p) {
    bool empty = p->line == p->n_extra; /* only the CR came since the line began */
    p->line = p->n_extra + 1;
    p->state = empty ? END : TRAILER;
    return empty ? HTTP_DONE : HTTP_MORE;
}

static http_result chunk_byte(http_parser *p, unsigned char c) {
    if (p->state == SIZE) return size_byte(p, c);
    if (p->state == EXTENSION) return extra_byte(p, c, SIZE_LF);
    if (p->state == TRAILER) return extra_byte(p, c, TRAILER_LF);
    if (c != (p->state == CHUNK_CR ? '\r' : '\n')) return bad(p, 400, "A chunk or its size does not end in CRLF.");
    if (p->state == TRAILER_LF) return trailer_end(p);
    if (p->state == CHUNK_CR) {
        p->state = CHUNK_LF;
    } else if (p->state == CHUNK_LF) {
        p->state = SIZE;
        p->n_digits = 0;
        p->wanted = 0;
    } else { /* SIZE_LF */
        p->state = p->wanted ? CHUNK : TRAILER;
        p->line = p->n_extra + 1;
    }
    return HTTP_MORE;
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

static http_result span(http_parser *p, const char *data, size_t n) {
    http_result r = put_body(p, data, n);
    if (r != HTTP_MORE) return r;
    p->wanted -= n;
    if (p->wanted) return HTTP_MORE;
    bool whole = p->state == BODY;
    p->state = whole ? END : CHUNK_CR;
    return whole ? HTTP_DONE : HTTP_MORE;
}

http_result http_parser_feed(http_parser *p, const void *data, size_t n, size_t *used) {
    const char *bytes = data;
    http_result r = HTTP_MORE;
    size_t i = 0;
    while (i < n && r == HTTP_MORE && p->state != END) {
        if (p->state == BODY || p->state == CHUNK) {
            size_t part = n - i < p->wanted ? n - i : p->wanted;
            r = span(p, bytes + i, part);
            i += part;
            continue;
        }
        unsigned char c = (unsigned char)bytes[i++];
        if (p->state == START)
            r = first_byte(p, c);
        else if (p->state == LINE || p->state == LINE_LF)
            r = head_byte(p, c);
        else
            r = chunk_byte(p, c);
    }
    *used = i;
    return r;
}
