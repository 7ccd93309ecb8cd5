# Fish completion for fibshim; fibshim.bash says where the words come from.

function __fibshim_words
    set -l words (commandline -opc)
    if test (count $words) -eq 1
        $words[1] --completion 2>/dev/null
        return
    end
    set -l type
    set -l positional
    set -l names
    for line in ($words[1] $words[2] --completion 2>/dev/null)
        set -l pair (string split -m 1 \t -- $line)
        if test -z "$pair[1]"
            test -n "$positional"; or set positional $pair[2]
        else
            set -a names $pair[1]
            test "$pair[1]" = "$words[-1]"; and set type $pair[2]
        end
    end
    if test -z "$type"
        printf '%s\n' $names
        set type $positional
    end
    set -l word (commandline -ct)
    switch "$type"
        case '*|*'
            string split '|' -- $type
        case DIR
            __fish_complete_directories "$word"
        case PID
            __fish_complete_pids
        case '*'
            __fish_complete_path "$word"
    end
end

complete -c fibshim -f -a '(__fibshim_words)'
