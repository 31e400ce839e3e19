/* JSON Schema: formats that are enforced, each as a regular expression for the whole string. They allow what the
 * standards do, or less where validators differ. */
#include <string.h>

#include "text/grammar/schema.h"

#define DIGIT "[0-9]"
#define HEX "[0-9A-Fa-f]"

/* Years 0001 to 9999; 29 February in leap years only. */
#define LEAP_YEAR "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
#define YEAR "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
#define DATE                                                                                                           \
    "(?:" YEAR "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|"              \
    "02-(?:0[1-9]|1[0-9]|2[0-8]))|" LEAP_YEAR "-02-29)"
#define TIME "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"

#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define HOSTNAME LABEL "(?:\\." LABEL "){0,6}"
#define OCTET "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define IPV4 OCTET "(?:\\." OCTET "){3}"
#define H16 "[0-9A-Fa-f]{1,4}"
#define LS32 "(?:" H16 ":" H16 "|" IPV4 ")"
#define IPV6                                                                                                           \
    "(?:(?:" H16 ":){6}" LS32 "|::(?:" H16 ":){5}" LS32 "|(?:" H16 ")?::(?:" H16 ":){4}" LS32 "|(?:(?:" H16            \
    ":){0,1}" H16 ")?::(?:" H16 ":){3}" LS32 "|(?:(?:" H16 ":){0,2}" H16 ")?::(?:" H16 ":){2}" LS32 "|(?:(?:" H16      \
    ":){0,3}" H16 ")?::" H16 ":" LS32 "|(?:(?:" H16 ":){0,4}" H16 ")?::" LS32 "|(?:(?:" H16 ":){0,5}" H16 ")?::" H16   \
    "|(?:(?:" H16 ":){0,6}" H16 ")?::)"

/* RFC 3986. */
#define PCT "%" HEX HEX
#define PCHAR "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|" PCT ")"
#define USER "(?:(?:[A-Za-z0-9._~!$&'()*+,;=:-]|" PCT ")*@)?"
#define HOST "(?:[A-Za-z0-9._~!$&'()*+,;=-]|" PCT ")*"
#define AUTHORITY USER HOST "(?::[0-9]*)?"
#define TAIL "(?:\\?(?:" PCHAR "|[/?])*)?(?:#(?:" PCHAR "|[/?])*)?"
#define HIER "(?://" AUTHORITY "(?:/" PCHAR "*)*|/(?:" PCHAR "+(?:/" PCHAR "*)*)?|" PCHAR "+(?:/" PCHAR "*)*)?"
#define URI "[A-Za-z][A-Za-z0-9+.-]*:" HIER TAIL
#define NOCOLON "(?:[A-Za-z0-9._~!$&'()*+,;=@-]|" PCT ")"
#define RELATIVE                                                                                                       \
    "(?://" AUTHORITY "(?:/" PCHAR "*)*|/(?:" PCHAR "+(?:/" PCHAR "*)*)?|" NOCOLON "+(?:/" PCHAR "*)*)?" TAIL

#define ATEXT "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
#define DAYS "[0-9]+D"
#define POINTER "(?:/(?:[^/~]|~[01])*)*"

/* RFC 3987: the same with characters beyond ASCII. */
#define UCS "\\u00A0-\\uD7FF\\uF900-\\uFDCF\\uFDF0-\\uFFEF"
#define ICHAR "(?:[A-Za-z0-9._~!$&'()*+,;=:@" UCS "-]|" PCT ")"
#define IHOST "(?:[A-Za-z0-9._~!$&'()*+,;=" UCS "-]|" PCT ")*"
#define ITAIL "(?:\\?(?:" ICHAR "|[/?])*)?(?:#(?:" ICHAR "|[/?])*)?"
#define IPATH                                                                                                          \
    "(?://" USER IHOST "(?::[0-9]*)?(?:/" ICHAR "*)*|/(?:" ICHAR "+(?:/" ICHAR "*)*)?|" ICHAR "+(?:/" ICHAR "*)*)?"
#define IRI "[A-Za-z][A-Za-z0-9+.-]*:" IPATH ITAIL

/* RFC 6570. */
#define VARCHAR "(?:[A-Za-z0-9_]|" PCT ")"
#define VARSPEC VARCHAR "(?:\\.?" VARCHAR ")*(?::[1-9][0-9]{0,3}|\\*)?"
#define TEMPLATE "(?:[!#$&(-;=?-\\[\\]_a-z~" UCS "]|" PCT "|\\{[+#./;?&=,!@|]?" VARSPEC "(?:," VARSPEC ")*\\})*"

/* Regular expressions that every engine reads alike, with groups three deep. */
#define RESCAPE "\\\\[dDwWsSnrtfv.*+?()|\\[\\]{}^$/\\\\-]"
#define RPLAIN "[A-Za-z0-9 _,:;/@#%&=!<>~'\"-]"
#define RCOUNT "(?:[*+?]\\??|\\{[0-9]{1,2}\\})?"
#define RATOM(inner) "(?:" RPLAIN "|\\.|" RESCAPE "|" inner ")" RCOUNT
#define RSEQ(inner) "(?:" RATOM(inner) "|[\\^$|])*"
#define RGROUP(inner) "\\((?:\\?:)?" RSEQ(inner) "\\)"
#define RSETS "\\[\\^?(?:a-z|A-Z|0-9|[A-Za-z0-9 _.,:;/@#%&=!<>~*+?$()|'\"]|" RESCAPE ")+\\]"
#define REGEX RSEQ(RSETS "|" RGROUP(RSETS "|" RGROUP(RSETS)))

static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "[Tt]" TIME},
    {"email", ATEXT "+(?:\\." ATEXT "+){0,8}@" LABEL "(?:\\." LABEL "){1,4}"},
    {"uuid", HEX "{8}-" HEX "{4}-" HEX "{4}-" HEX "{4}-" HEX "{12}"},
    {"ipv4", IPV4},
    {"ipv6", IPV6},
    {"hostname", HOSTNAME},
    {"uri", URI},
    {"uri-reference", "(?:" URI "|" RELATIVE ")"},
    {"iri", IRI},
    {"iri-reference", "(?:" IRI "|" IPATH ITAIL ")"},
    {"uri-template", TEMPLATE},
    {"regex", REGEX},
    {"json-pointer", POINTER},
    {"relative-json-pointer", "(?:0|[1-9][0-9]*)(?:#|" POINTER ")"},
    {"duration", "P(?:[0-9]+W|(?:[0-9]+Y(?:[0-9]+M(?:" DAYS ")?)?|[0-9]+M(?:" DAYS ")?|" DAYS
                 ")(?:T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))?|"
                 "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))"},
};

const char *mf__format_pattern(const char *format) {
    for (size_t i = 0; i < MF__COUNT(formats); i++)
        if (strcmp(formats[i].name, format) == 0) return formats[i].pattern;
    return NULL;
}
