# Bash completion of fibshim. A test compares the words here with the program's own help.

_fibshim_commands='run stats top swap serve record suggest check sign inspect verify bench report env doctor help'
declare -gA _fibshim_options=(
  [run]='-c --config --mode --on-error --stats-dir --log --log-file --no-check --force --print-env --format -h --help'
  [stats]='--pid --definition --pattern --device --by --per-process --rate --json --prometheus
    --max-series --output --dir --keep --no-sweep --clear -h --help'
  [top]='--pid --definition --pattern --device --by --interval --count --json --dir --keep --no-sweep
    -h --help'
  [swap]='--off --on --pid --all --job --wait --link --no-check --json --dir -h --help'
  [serve]='--listen --max-series --dir --keep --no-sweep -h --help'
  [check]='--json --write-index --gpu --sm --key --explain -h --help'
  [sign]='-k --key --generate-key --no-password -h --help'
  [inspect]='--pid --kernel --json -h --help'
  [verify]='--axis --runs --atol --rtol --required-matched-ratio --python --check-references --workloads --device --timeout -o --output --json -q --quiet -h --help'
  [bench]='--baseline --axis --warmups --iterations --trials --warm --graph --atol --rtol --required-matched-ratio --python --workloads --device --timeout -o --output --json -q --quiet -h --help'
  [report]='-o --output --title --json -h --help'
  [record]='-o --output -c --config --mode --limit --progress --no-check --force --summary -n --top --json --from -h --help'
  [suggest]='-o --output --name --force --json -h --help'
  [env]='--json -h --help'
  [doctor]='--json -h --help'
)

_fibshim() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]-}
  local i
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    mapfile -t COMPREPLY < <(compgen -W "$_fibshim_commands --version -h --help" -- "$word")
    return
  fi
  if [ "$command" = run ] || [ "$command" = record ]; then
    # From the program's name on, complete as for that program.
    for ((i = 2; i < COMP_CWORD; i++)); do
      case ${COMP_WORDS[i]} in
        --)
          ((i++))
          break
          ;;
        -c | --config | --mode | --on-error | --stats-dir | --log | --log-file | --format | -o | --output | \
          --limit | --summary | -n | --top | --from) ((i++)) ;;
        -*) ;;
        *) break ;;
      esac
    done
    if [ "$i" -eq "$COMP_CWORD" ] && [ "${COMP_WORDS[i - 1]}" = -- ]; then
      mapfile -t COMPREPLY < <(compgen -c -- "$word")
      return
    fi
    if [ "$i" -lt "$COMP_CWORD" ]; then
      if declare -F _command_offset >/dev/null; then
        _command_offset "$i"
      else
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
      fi
      return
    fi
  fi
  case $command:$before in
    run:--mode) mapfile -t COMPREPLY < <(compgen -W 'off observe apply' -- "$word") ;;
    record:--mode) mapfile -t COMPREPLY < <(compgen -W 'observe apply' -- "$word") ;;
    run:--on-error) mapfile -t COMPREPLY < <(compgen -W 'fail fallback' -- "$word") ;;
    run:--log) mapfile -t COMPREPLY < <(compgen -W 'error warn info debug' -- "$word") ;;
    run:--format) mapfile -t COMPREPLY < <(compgen -W 'shell docker kubernetes slurm' -- "$word") ;;
    stats:--by | top:--by)
      mapfile -t COMPREPLY < <(
        compgen -W 'definition pattern process device config outcome' -- "$word")
      ;;
    run:-c | run:--config | run:--stats-dir | stats:--dir | top:--dir | swap:--dir | serve:--dir | record:-c | \
      record:--config | record:--from | suggest:-o | suggest:--output)
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -d -- "$word")
      ;;
    run:--log-file | check:--key | sign:-k | sign:--key | sign:--generate-key | stats:--output | record:-o | record:--output | record:--summary)
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -f -- "$word")
      ;;
    stats:--pid | top:--pid | swap:--pid)
      local dir=${FIBSHIM_STATS_DIR:-/dev/shm/fibshim-$UID} file pids=
      for file in "$dir"/*-*.counters; do
        file=${file##*/}
        [ "$file" = '*-*.counters' ] || pids+=" ${file%%-*}"
      done
      mapfile -t COMPREPLY < <(compgen -W "$pids" -- "$word")
      ;;
    inspect:--pid)
      mapfile -t COMPREPLY < <(cd /proc && compgen -W "$(printf '%s ' [0-9]*)" -- "$word")
      ;;
    check:--explain)
      mapfile -t COMPREPLY < <(compgen -W "all $("${COMP_WORDS[0]}" check --explain all 2>/dev/null |
        sed -n 's/^\([a-z0-9-][a-z0-9-]*\)$/\1/p')" -- "$word")
      ;;
    help:*) mapfile -t COMPREPLY < <(compgen -W "$_fibshim_commands" -- "$word") ;;
    *)
      if [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "${_fibshim_options[$command]-}" -- "$word")
      elif [ "$command" = check ] || [ "$command" = sign ] || [ "$command" = swap ] || [ "$command" = verify ] || [ "$command" = bench ]; then
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -d -- "$word")
      elif [ "$command" = inspect ] || [ "$command" = report ] || [ "$command" = suggest ]; then
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
      elif [ "$command" = doctor ] || [ "$command" = run ] || [ "$command" = record ]; then
        mapfile -t COMPREPLY < <(compgen -c -- "$word")
      fi
      ;;
  esac
}
complete -F _fibshim fibshim
