# Prints {hidden_size, block, rows of a block of the grid} for each line of config's tables, its commas escaped for nvcc.
/^#/ || NF == 0 { next }
!(FILENAME in has_columns) {
  has_columns[FILENAME] = 1
  delete column
  for (i = 1; i <= NF; i++) column[$i] = i
  next
}
{
  rows = "grid" in column && match($column["grid"], /,[0-9]+\)/) ? substr($column["grid"], RSTART + 1, RLENGTH - 2) : 1
  printf "%s{%s\\,%s\\,%s}", separator, $column["hidden_size"], $column["block"], rows
  separator = "\\,"
}
