/* Manual pages (man(7) markup) and completions of three shells, from the tables of options. */
#include "docs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

static void (*taker)(FILE *to, const opt_spec *spec, const char *command); /* set while commands are asked */
static FILE *target;
static const char *command;

bool docs_take(const opt_spec *spec) {
    if (!taker) return false;
    taker(target, spec, command);
    return true;
}

static void ask(const app_command *c, void (*take)(FILE *, const opt_spec *, const char *), FILE *to) {
    char name[32], help[] = "--help";
    char *argv[] = {name, help, NULL};
    snprintf(name, sizeof name, "%s", c->name);
    taker = take;
    target = to;
    command = c->name;
    c->run(2, argv);
    taker = NULL;
}

static FILE *create(const char *dir, const char *name) {
    char *path = mf__path_join(dir, name);
    FILE *f = path ? fopen(path, "w") : NULL;
    if (!f) app_say("cannot write %s/%s: %s", dir, name, strerror(errno));
    free(path);
    return f;
}

static int finish(FILE *f) {
    bool bad = ferror(f) != 0;
    return fclose(f) || bad ? APP_FAILED : APP_OK;
}

/* ---- manual pages ------------------------------------------------------------------------------------------------------ */

/* A line of text: dashes are hyphens to type, a dot in front is no request, a backslash is one. */
static void man_text(FILE *to, const char *text, size_t n) {
    if (n && (text[0] == '.' || text[0] == '\'')) fputs("\\&", to);
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\\')
            fputs("\\e", to);
        else if (text[i] == '-')
            fputs("\\-", to);
        else
            fputc(text[i], to);
    }
}

static void man_lines(FILE *to, const char *text) {
    for (; *text; text += *text == '\n') {
        size_t n = strcspn(text, "\n");
        man_text(to, text, n);
        fputc('\n', to);
        text += n;
    }
}

static void man_head(FILE *to, const char *page, const char *summary) {
    fprintf(to, ".TH %s 1 \"\" \"moeflux %d.%d.%d\" \"User Commands\"\n.SH NAME\n", page, MF_VERSION_MAJOR,
            MF_VERSION_MINOR, MF_VERSION_PATCH);
    man_text(to, page, strlen(page));
    fprintf(to, " \\- %s\n", summary);
}

static void man_page(FILE *to, const opt_spec *spec, const char *name) {
    (void)name;
    fputs(".SH SYNOPSIS\n.B moeflux\n", to);
    man_lines(to, spec->usage);
    fputs(".SH DESCRIPTION\n", to);
    man_lines(to, spec->about);
    if (spec->n_defs) fputs(".SH OPTIONS\n", to);
    for (int i = 0; i < spec->n_defs; i++) {
        const opt_def *d = &spec->defs[i];
        fputs(".TP\n.B ", to);
        if (d->letter) fprintf(to, "\\-%c, ", d->letter);
        fputs("\\-\\-", to);
        man_text(to, d->name, strlen(d->name));
        if (d->arg) fprintf(to, " %s", d->arg);
        fputc('\n', to);
        man_lines(to, d->help);
    }
    if (spec->examples) {
        fputs(".SH EXAMPLES\n.nf\n", to);
        man_lines(to, spec->examples);
        fputs(".fi\n", to);
    }
    fputs(".SH SEE ALSO\n.BR moeflux (1)\n", to);
}

static int man_overview(const app_command *commands, int n, const char *dir) {
    FILE *to = create(dir, "moeflux.1");
    if (!to) return APP_FAILED;
    man_head(to, "moeflux", "run Mixture-of-Experts language models larger than memory");
    fputs(".SH SYNOPSIS\n.B moeflux\nCOMMAND [arguments]\n.SH COMMANDS\n", to);
    for (int i = 0; i < n; i++) fprintf(to, ".TP\n.BR moeflux\\-%s (1)\n%s\n", commands[i].name, commands[i].summary);
    fputs(".SH ENVIRONMENT\n.TP\n.B MOEFLUX_MODELS\nThe folder where models with a name are kept.\n"
          ".TP\n.B HF_TOKEN, HF_ENDPOINT\nFor moeflux pull: a token, and the address of the hub.\n"
          ".SH EXIT STATUS\n0: all is well. 1: something failed. 2: the command line makes no sense.\n",
          to);
    return finish(to);
}

int docs_man(const app_command *commands, int n, const char *dir) {
    int code = app_make_folders(dir) ? man_overview(commands, n, dir) : APP_FAILED;
    for (int i = 0; i < n && code == APP_OK; i++) {
        char name[48], page[40];
        snprintf(page, sizeof page, "moeflux-%s", commands[i].name);
        snprintf(name, sizeof name, "%s.1", page);
        FILE *to = create(dir, name);
        if (!to) return APP_FAILED;
        man_head(to, page, commands[i].summary);
        ask(&commands[i], man_page, to);
        code = finish(to);
    }
    return code;
}

/* ---- completions ------------------------------------------------------------------------------------------------------- */

static bool takes_model(const opt_spec *spec) {
    return strstr(spec->usage, "MODEL") || strstr(spec->usage, "NAME...") || strstr(spec->usage, "[NAME]");
}

static void bash_case(FILE *to, const opt_spec *spec, const char *name) {
    fprintf(to, "    %s) options=\"", name);
    for (int i = 0; i < spec->n_defs; i++) fprintf(to, "--%s ", spec->defs[i].name);
    fprintf(to, "--help\" models=%d ;;\n", takes_model(spec));
}

static int bash(const app_command *commands, int n, const char *dir) {
    FILE *to = create(dir, "moeflux.bash");
    if (!to) return APP_FAILED;
    fputs("# bash completion of moeflux, made by moeflux help --completions\n"
          "_moeflux_names() { moeflux list 2>/dev/null | sed -n '2,$s/ .*//p'; }\n"
          "_moeflux() {\n  local word=${COMP_WORDS[COMP_CWORD]} options= models=0\n"
          "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n    COMPREPLY=($(compgen -W \"",
          to);
    for (int i = 0; i < n; i++) fprintf(to, "%s ", commands[i].name);
    fputs("help --version\" -- \"$word\"))\n    return\n  fi\n  case ${COMP_WORDS[1]} in\n", to);
    for (int i = 0; i < n; i++) ask(&commands[i], bash_case, to);
    fputs("  esac\n  case $word in\n    -*) COMPREPLY=($(compgen -W \"$options\" -- \"$word\")) ;;\n"
          "    *) COMPREPLY=($(compgen -f -- \"$word\"))\n"
          "       [ \"$models\" -eq 0 ] || COMPREPLY+=($(compgen -W \"$(_moeflux_names)\" -- \"$word\")) ;;\n"
          "  esac\n}\ncomplete -o filenames -F _moeflux moeflux\n",
          to);
    return finish(to);
}

/* 'text' for zsh and fish, where a quote ends it. */
static void quoted(FILE *to, const char *text, bool zsh) {
    for (; *text; text++) {
        if (*text == '\'')
            fputs(zsh ? "'\\''" : "\\'", to);
        else if (zsh && strchr("[]:\\", *text))
            fprintf(to, "\\%c", *text);
        else
            fputc(*text, to);
    }
}

static void zsh_case(FILE *to, const opt_spec *spec, const char *name) {
    fprintf(to, "    %s) _arguments \\\n", name);
    for (int i = 0; i < spec->n_defs; i++) {
        const opt_def *d = &spec->defs[i];
        fprintf(to, "      '--%s%s[", d->name, d->arg ? "=" : "");
        quoted(to, d->help, true);
        fputc(']', to);
        if (d->arg) {
            fputc(':', to);
            quoted(to, d->arg, true);
            fputs(strstr(d->arg, "FILE") || strstr(d->arg, "DIR") ? ":_files" : ":", to);
        }
        fputs("' \\\n", to);
    }
    fprintf(to, "      '*:argument:%s' ;;\n", takes_model(spec) ? "_moeflux_models" : "_files");
}

static int zsh(const app_command *commands, int n, const char *dir) {
    FILE *to = create(dir, "_moeflux");
    if (!to) return APP_FAILED;
    fputs(
        "#compdef moeflux\n# zsh completion of moeflux, made by moeflux help --completions\n"
        "_moeflux_models() {\n  compadd -- ${(f)\"$(moeflux list 2>/dev/null | sed -n '2,$s/ .*//p')\"}\n  _files\n}\n"
        "_moeflux() {\n  if (( CURRENT == 2 )); then\n    local -a commands=(\n",
        to);
    for (int i = 0; i < n; i++) {
        fprintf(to, "      '%s:", commands[i].name);
        quoted(to, commands[i].summary, true);
        fputs("'\n", to);
    }
    fputs("    )\n    _describe command commands\n    return\n  fi\n  local command=$words[2]\n  shift words\n"
          "  (( CURRENT-- ))\n  case $command in\n",
          to);
    for (int i = 0; i < n; i++) ask(&commands[i], zsh_case, to);
    fputs("  esac\n}\n_moeflux \"$@\"\n", to);
    return finish(to);
}

static void fish_lines(FILE *to, const opt_spec *spec, const char *name) {
    for (int i = 0; i < spec->n_defs; i++) {
        const opt_def *d = &spec->defs[i];
        fprintf(to, "complete -c moeflux -n '__fish_seen_subcommand_from %s' -l %s%s", name, d->name,
                d->arg ? " -r" : "");
        if (d->letter) fprintf(to, " -s %c", d->letter);
        fputs(" -d '", to);
        quoted(to, d->help, false);
        fputs("'\n", to);
    }
    if (takes_model(spec))
        fprintf(to,
                "complete -c moeflux -n '__fish_seen_subcommand_from %s' -a '(moeflux list 2>/dev/null | sed -n "
                "\"2,\\$s/ .*//p\")'\n",
                name);
}

static int fish(const app_command *commands, int n, const char *dir) {
    FILE *to = create(dir, "moeflux.fish");
    if (!to) return APP_FAILED;
    fputs("# fish completion of moeflux, made by moeflux help --completions\n", to);
    for (int i = 0; i < n; i++) {
        fprintf(to, "complete -c moeflux -f -n __fish_use_subcommand -a %s -d '", commands[i].name);
        quoted(to, commands[i].summary, false);
        fputs("'\n", to);
    }
    for (int i = 0; i < n; i++) ask(&commands[i], fish_lines, to);
    return finish(to);
}

int docs_completions(const app_command *commands, int n, const char *dir) {
    if (!app_make_folders(dir)) return APP_FAILED;
    int code = bash(commands, n, dir);
    if (code == APP_OK) code = zsh(commands, n, dir);
    return code == APP_OK ? fish(commands, n, dir) : code;
}
