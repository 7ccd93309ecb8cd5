# Draws overhead.svg from the results of `make bench`, or of bench/run on another machine:
#
#   gnuplot -e "folder='build/bench'" tests/bench/overhead.gp
#
# Left, from launch.tsv: the added cost of one launch. Right, from scaling.tsv: all threads together.
set terminal svg size 1000,400 dynamic font "sans-serif,13" background "white"
set output folder."/overhead.svg"
set datafile separator "\t"
set border 3 lc rgb "#888888"
set tics nomirror tc rgb "#333333"
set grid ytics lc rgb "#e4e4e4" lt 1
colours = "#9a9a9a #1b9e77 #7570b3 #1f77b4 #d95f02 #a6761d"
colour(i) = int("0x".word(colours, int(i) + 1)[2:])
meaning(key) = key eq "forwarder" ? "only\nforwards" : \
  key eq "untracked" ? "unknown\nkernel" : key eq "fallback" ? "known, no\nsolution" : \
  key eq "hit" ? "hit" : key eq "hit_remap" ? "hit,\nreordered" : key

set multiplot layout 1,2 margins 0.06,0.98,0.17,0.87 spacing 0.1
set title "Added to a launch" font ",15"
set ylabel "ns" offset 1,0
set yrange [0:*]
set xrange [-0.6:*]
set style fill solid noborder
set boxwidth 0.62
set xtics scale 0 font ",11"
plot folder."/launch.tsv" using 0:($2 > 0 ? $2 : 0):(colour($0)):xtic(meaning(strcol(1))) with boxes lc rgb variable notitle, \
  "" using 0:2:(sprintf("%.1f", $2)) with labels offset 0,0.7 notitle

set title "All threads together, a kernel each" font ",15"
set xlabel "threads"
set ylabel "million launches per second"
set logscale xy 2
set xrange [*:*]
set yrange [*:*]
set xtics scale 1 font ",13" autofreq
set key bottom right samplen 2 font ",12"
set linetype 1 lc rgb colour(0) lw 2 pt 7 ps 0.6 dt 2
do for [i=1:4] { set linetype i+1 lc rgb colour(i) lw 2 pt 7 ps 0.6 dt 1 }
kinds = "'no preload' 'unknown kernel' 'known, no solution' 'hit' 'hit, arguments reordered'"
plot for [i=0:4] folder."/scaling.tsv" index i+5 using 2:3 with linespoints lt i+1 title word(kinds, i+1)
unset multiplot
