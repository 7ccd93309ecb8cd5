/* The protocol of shim/registry/decisions.h, for spin: every interleaving of threads that launch one kernel with
 * several shapes. Each looks for the shape's decision without a lock, and makes and caches it under the
 * lock where there is none; the table grows twice meanwhile.
 *
 * What must hold:
 *   - a decision that is found is the shape's, and whole;
 *   - once one is cached, every launch that begins later finds it;
 *   - no shape has two.
 *
 * Broken on purpose, each of these must be found out:
 *   HALF_MADE   a decision is published before it is whole
 *   EMPTY_TABLE a larger table is published before the old one is copied
 *   NO_LOOK     another thread's decision is not looked for under the lock
 *   KEY_FIRST   the key of a candidate's first decision is read before its way
 */
#define THREADS  2
#ifndef LAUNCHES
#define LAUNCHES 3
#endif
#define SHAPES   3
#define CELLS    8
#define TABLES   4 /* number 0 is none; 2, 4 and 8 cells */

/* A decision is known by its shape's number and its maker's: 0 is none, undecided. */
#define DECISIONS 7
byte decision_shape[DECISIONS];
bool is_whole[DECISIONS];

typedef Table { byte cell[CELLS] }
Table tables[TABLES];
byte current;
bool is_locked;

/* The first decision lies in the candidate. Until it is decided, its key is that of one of the shapes. */
byte first, first_shape = 1;
bool first_is_decided;

bool is_cached[SHAPES + 1];
byte made[SHAPES + 1];

/* All shapes fall on the same cell. */
inline look(table_at) {
  cell = 0;
  found = 0;
  do
  :: table_at == 0 -> break
  :: else ->
    found = tables[table_at].cell[cell];
    if
    :: found == 0 || decision_shape[found] == shape -> break
    :: else -> cell++
    fi
  od
}

inline copy_table() {
  cell = 0;
  do
  :: cell < CELLS -> tables[current + 1].cell[cell] = tables[current].cell[cell]; cell++
  :: else -> break
  od
}

inline cache() {
  atomic { !is_locked -> is_locked = true };
#ifdef NO_LOOK
  found = 0;
#else
  look(current);
#endif
  if
  :: found != 0
  :: else ->
    /* Half full is full. */
    if
    :: current == 0 || (used + 1) * 2 > 1 << current ->
#ifdef EMPTY_TABLE
      current++;
      d_step {
        cell = 0;
        do
        :: cell < CELLS -> tables[current].cell[cell] = tables[current - 1].cell[cell]; cell++
        :: else -> break
        od
      }
#else
      d_step { copy_table() };
      current++
#endif
    :: else
    fi;
    found = _pid * SHAPES + shape;
#ifdef HALF_MADE
    decision_shape[found] = shape;
#else
    d_step { decision_shape[found] = shape; is_whole[found] = true };
#endif
    if
    :: used == 0 -> first_shape = shape; d_step { first = found; first_is_decided = true }
    :: else
    fi;
    cell = 0;
    do
    :: tables[current].cell[cell] == 0 -> break
    :: else -> cell++
    od;
    used++;
    tables[current].cell[cell] = found;
#ifdef HALF_MADE
    is_whole[found] = true;
#endif
    made[shape]++
  fi;
  is_cached[shape] = true;
  is_locked = false
}

byte used;

active[THREADS] proctype launches() {
  byte shape, table, cell, found, count;
  bool must_find, is_decided, is_first;
  do
  :: count < LAUNCHES ->
    count++;
    if :: shape = 1 :: shape = 2 :: shape = 3 fi;
    must_find = is_cached[shape];
#ifdef KEY_FIRST
    is_first = first_shape == shape;
    is_decided = first_is_decided;
#else
    is_decided = first_is_decided;
    is_first = first_shape == shape;
#endif
    if
    :: is_first && is_decided -> found = first
    :: is_first && !is_decided -> found = 0
    :: else ->
      table = current;
      look(table)
    fi;
    skip;
    d_step {
      assert(found != 0 || !must_find);
      assert(found == 0 || is_whole[found])
    };
    if :: found == 0 -> cache() :: else fi;
    skip;
    d_step {
      assert(decision_shape[found] == shape && is_whole[found] && made[shape] <= 1);
      shape = 0; table = 0; cell = 0; found = 0; must_find = false; is_decided = false; is_first = false
    }
  :: else -> break
  od
}
