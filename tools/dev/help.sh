# help: this list
source "$(dirname "$0")/lib.sh"
echo "usage: ./dev <verb> [options]"
echo
# A verb's summary is the first line of its script: "# <verb> <options>: <what it does>".
for script in tools/dev/*.sh; do
  line="$(head -n 1 "$script")"
  [[ "$script" == */lib.sh || "$line" != "# "*": "* ]] && continue
  line="${line#\# }"
  printf '  %-34s %s\n' "${line%%: *}" "${line#*: }"
done
