/* Chat templates from hostile sources: parse and render with a fixed conversation under small limits. */
#include <stdlib.h>
#include <string.h>

#include "text/jinja/jinja.h"

static const char variables[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":"
    "\"h\\u00e9\"}]},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":\"f\","
    "\"arguments\":{\"a\":1,\"b\":[1.5,true,null]}}}]}],\"tools\":[{\"type\":\"function\"}],"
    "\"add_generation_prompt\":true,\"n\":7,\"l\":[3,1,2],\"s\":\"Hello\"}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static json_t *vars;
    mf__jinja *t;
    mf_error err;
    if (!vars) vars = json_loads(variables, 0, NULL);
    if (mf__jinja_parse("fuzz", (const char *)data, size, &t, &err) != MF_OK) return 0;
    mf__strbuf out = {0};
    mf__jinja_options opt = {.now = 1, .max_steps = 20000, .max_memory = 4 << 20, .max_output = 1 << 20};
    mf__jinja_render(t, vars, &opt, &out, &err);
    mf__strbuf_free(&out);
    mf__jinja_free(t);
    return 0;
}
