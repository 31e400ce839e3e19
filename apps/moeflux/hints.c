/* Names of other programs (llama.cpp, ollama, transformers, vLLM) and ours for the same thing. */
#include "hints.h"

#include <stddef.h>
#include <string.h>

#include "base/status.h"

typedef struct hint {
    const char *names; /* separated by spaces */
    const char *text;
} hint;

static const hint COMMANDS[] = {
    {"quantize create import", "here it is moeflux convert CHECKPOINT DIR --preset balanced"},
    {"perplexity ppl", "here it is moeflux eval MODEL FILE"},
    {"server api start", "here it is moeflux serve MODEL"},
    {"generate complete completion cli main simple", "here it is moeflux run MODEL \"...\""},
    {"ls models ps tags", "here it is moeflux list; nothing runs in the background"},
    {"show info", "here it is moeflux inspect MODEL"},
    {"delete remove uninstall", "here it is moeflux rm NAME"},
    {"stop", "nothing runs in the background: moeflux serve ends with Ctrl-C"},
    {"download get fetch clone", "here it is moeflux pull ORG/NAME"},
    {"benchmark batched-bench", "here it is moeflux bench MODEL"},
    {"tokens detokenize", "here it is moeflux tokenize MODEL"},
    {"interactive talk repl", "here it is moeflux chat MODEL"},
    {"hash checksum fsck", "here it is moeflux verify MODEL"},
};

static const hint OPTIONS[] = {
    {"max-tokens n-predict predict num-predict max-new-tokens max-length", "here it is --tokens N, or -n N"},
    {"ctx-size num-ctx context context-length context-size n-ctx max-model-len max-context",
     "here it is --ctx N, or -c N"},
    {"n-threads num-threads threads-batch", "here it is --threads N, or -t N"},
    {"repeat-penalty", "here it is --repetition-penalty X"},
    {"repeat-last-n", "here it is --penalty-window N"},
    {"typical-p", "here it is --typical P"},
    {"system-prompt sys", "here it is --system TEXT"},
    {"file prompt-file f", "a prompt in a file is read from standard input: moeflux run MODEL < FILE"},
    {"batch-size ubatch-size prefill-chunk-size", "here it is --chunk N"},
    {"cache-type-k cache-type-v kv-cache-dtype kv-cache-type", "here it is --kv TYPE, for keys and values together"},
    {"grammar-file", "here it is --grammar FILE"},
    {"format response-format", "here it is --json-object, or --json-schema FILE"},
    {"no-mmap", "here it is --io pread"},
    {"mlock", "nothing to do: the trunk is always held in memory"},
    {"n-gpu-layers gpu-layers num-gpu ngl", "no layers are counted here: --backend chooses, the rest follows"},
    {"cpu-moe n-cpu-moe override-tensor",
     "nothing to do: experts are read on demand, --ram says within how much memory"},
    {"flash-attn fa", "nothing to do: attention is always computed in tiles"},
    {"interactive interactive-first cnv", "here it is moeflux chat"},
    {"rope-scaling rope-scale yarn-orig-ctx", "here it is --yarn X"},
    {"n-probs top-logprobs", "here it is --logprobs N"},
    {"outtype outfile qtype", "moeflux convert CHECKPOINT DIR --preset balanced; widths by --experts and --trunk"},
    {"hf-repo hf repo-id", "moeflux pull ORG/NAME gets a model, and then it has a name"},
    {"silent", "here it is --quiet"},
    {"log-disable", "here it is --quiet"},
    {"numa", "here it is --pin"},
    {"draft model-draft speculative", "there is no speculative decoding yet"},
    {"lora adapter", "adapters are not read yet"},
    {"tensor-parallel-size split-mode main-gpu", "several GPUs are not used yet"},
};

static const char *find(const hint *hints, size_t n, const char *name) {
    size_t size = strlen(name);
    for (size_t i = 0; i < n; i++)
        for (const char *at = hints[i].names; *at;) {
            size_t length = strcspn(at, " ");
            if (length == size && !strncmp(at, name, size)) return hints[i].text;
            at += length + (at[length] == ' ');
        }
    return NULL;
}

const char *hint_command(const char *name) {
    return find(COMMANDS, MF__COUNT(COMMANDS), name);
}

const char *hint_option(const char *name) {
    return find(OPTIONS, MF__COUNT(OPTIONS), name);
}
