# Draws step.svg. Called by step.py, which writes the data.
set terminal svg size 1000,560 dynamic font "sans-serif,13" background "white"
set output svg
set datafile separator "\t"
set border 3 lc rgb "#888888"
set tics nomirror tc rgb "#333333"
set grid ytics lc rgb "#e4e4e4" lt 1
set title "A decode step by what each kernel adds to it" font ",15"
set ylabel "us" offset 1,0
set yrange [0:*]
set bmargin 4
set offsets 0.2, 0.2, graph 0.08, 0
set style fill solid border rgb "white"
set boxwidth 0.8
set xtics scale 0
set key outside right top reverse Left samplen 1 font ",12"
colours = "#1f5a99 #1f77b4 #5a9fd4 #9cc7e8 #d95f02 #f2a65a #7570b3 #1b9e77 #a6761d #66c2a5 #9a9a9a"
colour(i) = int("0x".word(colours, int(i))[2:])
# The highest first: each lower one is drawn over the ones before.
plot for [i=kinds:1:-1] folder."/step.tsv" using 1:(column(i + 1)):xtic(kinds + 2) with boxes lc rgb colour(i) title columnheader(i + 1), \
  folder."/step_numbers.tsv" using 1:(strcol(4) eq "inside" ? $2 : NaN):3 with labels tc rgb "white" font ",11" notitle, \
  "" using 1:(strcol(4) eq "above" ? $2 : NaN):3 with labels offset 0,0.7 notitle
