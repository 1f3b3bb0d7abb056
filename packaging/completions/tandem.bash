# bash completion of tandem(1): verbs and options come from the program's own --help, so they cannot be out of date.
_tandem() {
  local cur=${COMP_WORDS[COMP_CWORD]} words=() i w
  for ((i = 1; i < COMP_CWORD; ++i)); do
    w=${COMP_WORDS[i]}
    [[ $w == -* ]] && break
    words+=("$w")
  done
  local help
  help=$("${COMP_WORDS[0]}" "${words[@]}" --help 2>/dev/null) || help=$("${COMP_WORDS[0]}" "${words[0]}" --help 2>/dev/null)
  if [[ $cur == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$(grep -oE '(^|[ ,])--?[a-z][a-z-]*' <<<"$help" | tr -d ' ,')" -- "$cur")
  else
    local verbs
    verbs=$(sed -n '/^Subcommands:/,$s/^  \([a-z][a-z-]*\) .*/\1/p' <<<"$help")
    if [[ -n $verbs ]]; then
      mapfile -t COMPREPLY < <(compgen -W "$verbs" -- "$cur")
    else
      mapfile -t COMPREPLY < <(compgen -f -- "$cur")
    fi
  fi
}
complete -o filenames -F _tandem tandem
