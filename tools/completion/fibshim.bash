# Bash completion for fibshim. Commands, options and accepted values come from the program itself:
# `fibshim --completion` lists the commands. `fibshim COMMAND --completion` lists the options, each with the
# type of its value, and the positional arguments, without a name.

_fibshim_files() {  # -d or -f, word
  compopt -o filenames 2>/dev/null
  mapfile -t COMPREPLY < <(compgen "$1" -- "$2")
}

_fibshim_value() {  # type, word
  case $1 in
    DIR) _fibshim_files -d "$2" ;;
    FILE | PATH | TRACES | KEY) _fibshim_files -f "$2" ;;
    PID)
      local dir=${FIBSHIM_STATS_DIR:-/dev/shm/fibshim-$UID} file pids=
      for file in "$dir"/*-*.counters; do
        file=${file##*/}
        [ "$file" = '*-*.counters' ] || pids+=" ${file%%-*}"
      done
      mapfile -t COMPREPLY < <(compgen -W "$pids" -- "$2")
      ;;
    RULE)
      mapfile -t COMPREPLY < <(compgen -W "all $("${COMP_WORDS[0]}" check --explain all 2>/dev/null |
        sed -n 's/^\([a-z0-9-][a-z0-9-]*\)$/\1/p')" -- "$2")
      ;;
    PROGRAM | COMMAND) mapfile -t COMPREPLY < <(compgen -c -- "$2") ;;
    *\|*) mapfile -t COMPREPLY < <(compgen -W "${1//|/ }" -- "$2") ;;
  esac
}

_fibshim() {
  local word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]-} names= positional= name type i
  local -A types=()
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ] || [ "$command" = help ]; then
    mapfile -t COMPREPLY < <(compgen -W "$("${COMP_WORDS[0]}" --completion 2>/dev/null)" -- "$word")
    return
  fi
  while IFS= read -r name; do
    type=${name#*$'\t'} name=${name%%$'\t'*}
    if [ -n "$name" ]; then
      names+=" $name" types[$name]=$type
    else
      positional=${positional:-$type}
    fi
  done < <("${COMP_WORDS[0]}" "$command" --completion 2>/dev/null)
  if [ "$command" = run ] || [ "$command" = record ]; then
    positional=COMMAND
    # After the program's name, complete as for that program.
    for ((i = 2; i < COMP_CWORD; i++)); do
      case ${COMP_WORDS[i]} in
        --)
          ((i++))
          break
          ;;
        -*) [ -z "${types[${COMP_WORDS[i]}]-}" ] || ((i++)) ;;
        *) break ;;
      esac
    done
    if [ "$i" -eq "$COMP_CWORD" ] && [ "${COMP_WORDS[i - 1]}" = -- ]; then
      _fibshim_value COMMAND "$word"
      return
    elif [ "$i" -lt "$COMP_CWORD" ]; then
      if declare -F _command_offset >/dev/null; then
        _command_offset "$i"
      else
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
      fi
      return
    fi
  fi
  type=${types[${COMP_WORDS[COMP_CWORD - 1]}]-}
  if [ -n "$type" ]; then
    _fibshim_value "$type" "$word"
  elif [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$names" -- "$word")
  else
    _fibshim_value "$positional" "$word"
  fi
}
complete -F _fibshim fibshim
