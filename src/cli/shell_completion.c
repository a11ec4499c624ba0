/* Which part of the command line the cursor is in, what fits there, and the shells' scripts. */
#include "cli/shell_completion.h"

#include <stdio.h>
#include <string.h>

/* ---- Names ---- */

/* In an option's name "_" stands for "-". */
static bool begins(const char *name, const char *given, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (name[i] == '\0' || name[i] != (given[i] == '_' ? '-' : given[i]))
            return false;
    }
    return true;
}

/* By its whole name, or by the beginning of just one. */
static bool find_flag(const struct mu_shell_completion_part *part, const char *name, size_t len,
                      struct mu_flag *ret_flag)
{
    struct mu_flag flag;
    size_t found = 0;

    for (size_t i = 0; part->flag_at(part->table, i, &flag); i++) {
        if (!begins(flag.name, name, len))
            continue;
        *ret_flag = flag;
        if (flag.name[len] == '\0')
            return true;
        found++;
    }
    return found == 1;
}

static bool find_letter(const struct mu_shell_completion_part *part, char letter, struct mu_flag *ret_flag)
{
    for (size_t i = 0; part->flag_at(part->table, i, ret_flag); i++) {
        if (ret_flag->letter == letter)
            return true;
    }
    return false;
}

static bool is_option(const char *word)
{
    return word[0] == '-' && word[1] != '\0';
}

/* ---- Where the cursor is ---- */

struct place {
    const struct mu_shell_completion_part *part;
    enum {
        IN_OPTIONS, /* or operands */
        IN_VALUE,   /* of `flag` */
        IN_SCRIPT,  /* behind its name, or where it must stand */
    } kind;
    struct mu_flag flag;
};

static const struct mu_shell_completion_part *find_part(const struct mu_shell_completion_part *parts, size_t count,
                                                        const char *command, const char *verb)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(parts[i].command, command) == 0 && strcmp(parts[i].verb, verb) == 0)
            return &parts[i];
    }
    return NULL;
}

static void pass_option(struct place *place, const char *word)
{
    bool is_whole = word[1] == '-'
                        ? strchr(word, '=') == NULL && find_flag(place->part, word + 2, strlen(word + 2), &place->flag)
                        : word[2] == '\0' && find_letter(place->part, word[1], &place->flag);

    if (is_whole && place->flag.takes_value)
        place->kind = IN_VALUE;
}

static void pass_operand(struct place *place, const struct mu_shell_completion_part *parts, size_t count,
                         const char *word)
{
    const struct mu_shell_completion_part *part = place->part, *next = NULL;

    if (part->runs_script)
        place->kind = IN_SCRIPT;
    else if (part->command[0] == '\0')
        next = find_part(parts, count, word, "");
    else if (part->verb[0] == '\0')
        next = find_part(parts, count, part->command, word);
    if (next != NULL)
        place->part = next;
}

bool mu_is_torchrun(const char *program)
{
    const char *slash = strrchr(program, '/');

    return strcmp(slash != NULL ? slash + 1 : program, "torchrun") == 0;
}

static struct place find_place(const struct mu_shell_completion_part *parts, size_t count, const char *const *words)
{
    struct place place = { .part = find_part(parts, count, mu_is_torchrun(words[0]) ? "run" : "", "") };

    for (words++; place.part != NULL && words[0] != NULL && words[1] != NULL && place.kind != IN_SCRIPT; words++) {
        if (place.kind == IN_VALUE)
            place.kind = IN_OPTIONS;
        else if (strcmp(words[0], "--") == 0)
            place.kind = place.part->runs_script ? IN_SCRIPT : IN_OPTIONS;
        else if (is_option(words[0]))
            pass_option(&place, words[0]);
        else
            pass_operand(&place, parts, count, words[0]);
    }
    return place;
}

/* ---- What fits there ---- */

/* Each of "{a,b}" that begins like this, with what stands in front of it in its word. Behind "file:" stands a file's
 * name. */
static void offer_values(struct mu_text *out, const struct mu_flag *flag, const char *front, size_t front_len,
                         const char *begun)
{
    const char *at = flag->values;

    if (at != NULL && strcmp(at, "DIR") == 0)
        mu_text_add(out, ":dirs\n");
    while (at != NULL && (*at == '{' || *at == ',')) {
        size_t len = strcspn(++at, ",}");

        if (at[len - 1] == ':' && strncmp(at, begun, len) == 0)
            mu_text_add(out, ":files\n");
        else if (strncmp(at, begun, strlen(begun)) == 0)
            mu_text_add(out, "%.*s%.*s\n", (int)front_len, front, (int)len, at);
        at += len;
    }
}

/* In the user's spelling: with "_" if the word has one. */
static void offer_name(struct mu_text *out, const char *name, bool underscores)
{
    mu_text_add(out, "--");
    for (; *name != '\0'; name++)
        mu_text_add(out, "%c", *name == '-' && underscores ? '_' : *name);
    mu_text_add(out, "\n");
}

static void offer_flags(struct mu_text *out, const struct mu_shell_completion_part *part, const char *word)
{
    const char *equals = strchr(word, '='), *name = word + strspn(word, "-");
    struct mu_flag flag;

    if (equals != NULL) {
        if (find_flag(part, name, (size_t)(equals - name), &flag) && flag.takes_value)
            offer_values(out, &flag, word, (size_t)(equals + 1 - word), equals + 1);
        return;
    }
    if (name == word + 1 && name[0] != '\0') /* a letter */
        return;
    for (size_t i = 0; part->flag_at(part->table, i, &flag); i++) {
        if (begins(flag.name, name, strlen(name)))
            offer_name(out, flag.name, strchr(name, '_') != NULL);
    }
}

/* Commands below the part. */
static void offer_commands(struct mu_text *out, const struct mu_shell_completion_part *parts, size_t count,
                           const struct mu_shell_completion_part *above, const char *word)
{
    for (size_t i = 0; i < count; i++) {
        const char *name = above->command[0] == '\0' ? parts[i].command : parts[i].verb;
        bool below = above->command[0] == '\0'
                         ? parts[i].verb[0] == '\0'
                         : above->verb[0] == '\0' && strcmp(parts[i].command, above->command) == 0;

        if (below && name[0] != '\0' && strncmp(name, word, strlen(word)) == 0)
            mu_text_add(out, "%s\n", name);
    }
}

void mu_shell_completion_offer(struct mu_text *out, const struct mu_shell_completion_part *parts, size_t count,
                               const char *const *words)
{
    struct place place;
    const char *word = "";

    if (words[0] == NULL || words[1] == NULL)
        return;
    for (size_t i = 1; words[i] != NULL; i++)
        word = words[i];
    place = find_place(parts, count, words);
    if (place.part == NULL)
        return;
    if (place.kind == IN_VALUE)
        offer_values(out, &place.flag, "", 0, word);
    else if (place.kind == IN_OPTIONS && word[0] == '-')
        offer_flags(out, place.part, word);
    else if (place.part->runs_script)
        mu_text_add(out, ":files\n");
    else
        offer_commands(out, parts, count, place.part, word);
}

/* ---- The shells ---- */

/* '~' stands for the program's name. */

static const char bash[] =
    "# Completion of ~ in bash. It asks muster, which has to be in PATH.\n"
    "_~() {\n"
    "    local current=${COMP_WORDS[COMP_CWORD]} line i\n"
    "    local -a words=()\n"
    "    for ((i = 0; i <= COMP_CWORD; i++)); do # bash cuts words at = and :, muster does not\n"
    "        if ((i > 0)) && [[ ${COMP_WORDS[i]} == [=:]* || ${COMP_WORDS[i - 1]} == *[=:] ]]; then\n"
    "            words[${#words[*]} - 1]+=${COMP_WORDS[i]}\n"
    "        else\n"
    "            words+=(\"${COMP_WORDS[i]}\")\n"
    "        fi\n"
    "    done\n"
    "    [[ $current != [=:] ]] || current=\n"
    "    i=$((${#words[*]} - 1))\n"
    "    if [[ $current == [\\'\\\"]* ]]; then # an open quote\n"
    "        words[i]=${words[i]%\"$current\"}${current:1}\n"
    "        current=${current:1}\n"
    "    fi\n"
    "    COMPREPLY=()\n"
    "    while IFS= read -r line; do\n"
    "        case $line in\n"
    "        :files) compopt -o default ;;\n"
    "        :dirs)\n"
    "            compopt -o filenames\n"
    "            while IFS= read -r line; do COMPREPLY+=(\"$line\"); done < <(compgen -d -- \"$current\")\n"
    "            ;;\n"
    "        *) COMPREPLY+=(\"${line#\"${words[i]%\"$current\"}\"}\") ;;\n"
    "        esac\n"
    "    done < <(muster --complete \"${words[@]}\" 2>/dev/null)\n"
    "    [[ ${COMPREPLY[*]} != *: ]] || compopt -o nospace # file: goes on\n"
    "}\n"
    "complete -F _~ ~\n";

static const char zsh[] =
    "#compdef ~\n"
    "# Completion of ~ in zsh. It asks muster, which has to be in PATH.\n"
    "_~() {\n"
    "    local -a offers\n"
    "    offers=(\"${(@f)$(muster --complete \"${(@Q)words[1,CURRENT-1]}\" \"$PREFIX\" 2>/dev/null)}\")\n"
    "    case $offers[1] in\n"
    "    :files) compset -P '--*='; compset -P 'file:'; _files ;;\n"
    "    :dirs) compset -P '--*='; _files -/ ;;\n"
    "    ?*) compadd -S '' -- ${(M)offers:#*:}; compadd -- ${offers:#*:} ;;\n"
    "    esac\n"
    "}\n"
    "if [[ $funcstack[1] == _~ ]]; then _~ \"$@\"; else compdef _~ ~; fi\n";

static const char fish[] = "# Completion of ~ in fish. It asks muster, which has to be in PATH.\n"
                           "function __~_complete\n"
                           "    set -l word (commandline -ct)\n"
                           "    set -l name (string match -r -- '^(?:--[^=]*=)?(?:file:)?' \"$word\")\n"
                           "    set -l value (string replace -r -- '^(?:--[^=]*=)?(?:file:)?' '' \"$word\")\n"
                           "    for offer in (muster --complete (commandline -opc) \"$word\" 2>/dev/null)\n"
                           "        switch $offer\n"
                           "            case :files\n"
                           "                for path in (__fish_complete_path \"$value\")\n"
                           "                    echo \"$name$path\"\n"
                           "                end\n"
                           "            case :dirs\n"
                           "                for path in (__fish_complete_directories \"$value\" '')\n"
                           "                    echo \"$name$path\"\n"
                           "                end\n"
                           "            case '*'\n"
                           "                echo $offer\n"
                           "        end\n"
                           "    end\n"
                           "end\n"
                           "complete -c ~ -f -a '(__~_complete)'\n";

static void add_script(struct mu_text *out, const char *script, const char *program)
{
    for (; *script != '\0'; script++) {
        if (*script == '~')
            mu_text_add(out, "%s", program);
        else
            mu_text_add(out, "%c", *script);
    }
}

/* tcsh has no functions: one rule for each thing that can stand before the cursor, the first one that fits wins. Rules
 * do not see the command, so that options of one name are one to them. */

static bool came_before(const struct mu_shell_completion_part *parts, size_t part, size_t index, const char *name)
{
    struct mu_flag flag;

    for (size_t i = 0; i <= part; i++) {
        for (size_t k = 0; (i < part || k < index) && parts[i].flag_at(parts[i].table, k, &flag); k++) {
            if (strcmp(flag.name, name) == 0)
                return true;
        }
    }
    return false;
}

static void add_tcsh_list(struct mu_text *out, const struct mu_flag *flag)
{
    const char *values = flag->values;

    if (strcmp(values, "DIR") == 0) {
        mu_text_add(out, "d");
        return;
    }
    for (; *values != '\0'; values++)
        mu_text_add(out, "%c", *values == '{' ? '(' : *values == '}' ? ')' : *values == ',' ? ' ' : *values);
}

static void add_tcsh_values(struct mu_text *out, const struct mu_flag *flag)
{
    if (flag->values == NULL)
        return;
    mu_text_add(out, " \\\n    'c/--%s=/", flag->name);
    add_tcsh_list(out, flag);
    mu_text_add(out, "/' 'n/--%s/", flag->name);
    add_tcsh_list(out, flag);
    if (flag->letter != 0) {
        mu_text_add(out, "/' 'n/-%c/", flag->letter);
        add_tcsh_list(out, flag);
    }
    mu_text_add(out, "/'");
}

typedef void each_flag(struct mu_text *out, const struct mu_flag *flag);

static void add_name(struct mu_text *out, const struct mu_flag *flag)
{
    mu_text_add(out, "%s ", flag->name);
}

static void for_each_flag(struct mu_text *out, const struct mu_shell_completion_part *parts, size_t count,
                          each_flag *each)
{
    struct mu_flag flag;

    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; parts[i].flag_at(parts[i].table, k, &flag); k++) {
            if (!came_before(parts, i, k, flag.name))
                each(out, &flag);
        }
    }
}

static void add_tcsh_commands(struct mu_text *out, const struct mu_shell_completion_part *parts, size_t count,
                              const struct mu_shell_completion_part *above)
{
    struct mu_text names = { 0 };

    offer_commands(&names, parts, count, above, "");
    for (size_t i = 0; i < names.buf.len; i++) {
        if (names.buf.data[i] == '\n')
            names.buf.data[i] = ' ';
    }
    if (names.buf.len > 0 && above->command[0] == '\0')
        mu_text_add(out, " \\\n    'p/1/(%.*s)/'", (int)names.buf.len, names.buf.data);
    else if (names.buf.len > 0)
        mu_text_add(out, " \\\n    'n/%s/(%.*s)/'", above->command, (int)names.buf.len, names.buf.data);
    if (names.failed != 0)
        out->failed = names.failed;
    mu_text_done(&names);
}

static void add_tcsh(struct mu_text *out, const char *program, const struct mu_shell_completion_part *parts,
                     size_t count)
{
    const struct mu_shell_completion_part *run = find_part(parts, count, "run", "");
    bool all = !mu_is_torchrun(program);

    if (!all && run != NULL) {
        parts = run;
        count = 1;
    }
    mu_text_add(out, "# Completion of %s in tcsh.\ncomplete %s", program, program);
    for_each_flag(out, parts, count, add_tcsh_values);
    mu_text_add(out, " \\\n    'c/--/(");
    for_each_flag(out, parts, count, add_name);
    mu_text_add(out, ")/'");
    for (size_t i = 0; all && i < count; i++)
        add_tcsh_commands(out, parts, count, &parts[i]);
    mu_text_add(out, " \\\n    'p/*/f/'\n");
}

bool mu_shell_completion_script(struct mu_text *out, const char *shell, const char *program,
                                const struct mu_shell_completion_part *parts, size_t count)
{
    if (strcmp(shell, "bash") == 0)
        add_script(out, bash, program);
    else if (strcmp(shell, "zsh") == 0)
        add_script(out, zsh, program);
    else if (strcmp(shell, "fish") == 0)
        add_script(out, fish, program);
    else if (strcmp(shell, "tcsh") == 0)
        add_tcsh(out, program, parts, count);
    else
        return false;
    return true;
}
